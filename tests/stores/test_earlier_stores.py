"""Stores that were written when ended sessions had figures instead of logs: everything in them is read as it was.

The SQLite file, the files of a NATS server and what was read of them were made by the last version that did so. They
have the same content: live sessions, ended ones in every stage of their end, and one that the first versions ended.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

from contextfold.common.canonical import encode
from contextfold.settings import NatsOptions
from contextfold.stores.nats.store import NatsStore
from contextfold.stores.sqlite.store import SqliteStore
from tests.contract.sessions import NOON, commit_of, key_of
from tests.contract.stores import options_on
from tests.stores.views import read_views
from tests.support.nats_servers import NatsServer, delete_streams

HERE = Path(__file__).parent
ENDED_BEFORE, ENDED_AT = "2026-03-04T00:00:00Z", "2026-03-04T12:00:01Z"
EVENING, NEXT_DAY = "2026-01-01T20:00:00Z", "2026-01-02T20:00:00Z"
# The daemon was killed after it had ended this session and before it had deleted its log.
KILLED = "sess_0025"
INTERRUPTIONS = 12
INTERRUPTED_AFTER_S = 0.006
SESSIONS, EVENTS = 4, 9


def expected_views() -> Any:
    return json.loads(gzip.decompress((HERE / "earlier-views.json.gz").read_bytes()))


def keep_members(views: Any, expected: Any) -> Any:
    """The views without members that later versions added."""
    if isinstance(views, dict) and isinstance(expected, dict):
        return {name: keep_members(views.get(name), value) for name, value in expected.items()}
    if isinstance(views, list) and isinstance(expected, list) and len(views) == len(expected):
        return [keep_members(*pair) for pair in zip(views, expected, strict=True)]
    return views


async def views_of(store: SqliteStore | NatsStore) -> Any:
    try:
        return json.loads(encode(await read_views(store)))
    finally:
        await store.close()


def test_an_earlier_sqlite_file_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(gzip.decompress((HERE / "sqlite" / "format-8.db.gz").read_bytes()))

    async def read() -> Any:
        return await views_of(SqliteStore(path))

    expected = expected_views()
    assert keep_members(asyncio.run(read()), expected) == expected


def test_an_earlier_nats_store_is_read_as_it_was(tmp_path: Path) -> None:
    with tarfile.open(HERE / "nats" / "earlier-store.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")

    async def read(server: NatsServer) -> Any:
        store = NatsStore(NatsOptions((server.url,)))
        await store.expire(ENDED_BEFORE, ENDED_AT)
        return await views_of(store)

    with NatsServer(tmp_path) as server:
        views = asyncio.run(read(server))
    expected = expected_views()
    # Its log was still there, so it is kept and says more than the figures would have.
    killed, listed = (each["local"]["sessions"].pop(KILLED) for each in (views, expected))
    assert killed["savings"]["tokens_saved"] == listed["savings"]["tokens_saved"]
    assert len(killed["savings"]["points"]) == 4
    assert killed["threads"] == listed["threads"]
    assert keep_members(views, expected) == expected


def test_an_end_that_is_interrupted_anywhere_loses_no_log_on_nats(nats_server: NatsServer) -> None:
    options = options_on(nats_server)
    keys = [key_of(f"p{number}") for number in range(SESSIONS)]

    async def act() -> None:
        writer = NatsStore(options)
        for number, key in enumerate(keys):
            await writer.commit(commit_of(key, session_id=f"sess_{number}", events=EVENTS))
        await writer.close()
        for number in range(INTERRUPTIONS):
            store = NatsStore(options)
            await store.reach()
            try:
                async with asyncio.timeout(number * INTERRUPTED_AFTER_S):
                    await store.expire(NOON, EVENING)
            except TimeoutError:
                pass
            finally:
                await store.close()
        store = NatsStore(options)
        await store.expire(NEXT_DAY, NEXT_DAY)
        for number, key in enumerate(keys):
            log = await store.ended_log(key, f"sess_{number}")
            assert [event.n for event in log] == list(range(1, EVENTS + 2))
        assert len(await store.ended_sessions("local", limit=10)) == SESSIONS
        assert await store.count() == 0
        # The next session of a key begins as if nothing had been interrupted.
        await store.commit(commit_of(keys[0], session_id="sess_next"))
        await store.close()

    try:
        asyncio.run(act())
    finally:
        asyncio.run(delete_streams(options))
