"""A store that an earlier version wrote opens with all that is in it.

`format-1.tar.xz` is the folder of a server that ran an earlier version: sessions that a service wrote, ended
sessions, left-out results, texts and a commit that are stored in pieces, and commits that were not published yet.
`format-1.jsonl.gz` is what that version exported of it.
"""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contextfold.fold.store import ArchivedThread
from contextfold.fold.store_export import encode_record
from contextfold.settings import NatsOptions
from contextfold.stores.nats.store import NatsStore
from tests.contract.sessions import commit_of, key_of
from tests.support.nats_servers import NatsServer

HERE = Path(__file__).parent
NEXT_YEAR = "2027-06-01T00:00:00Z"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[NatsStore]:
    with tarfile.open(HERE / "format-1.tar.xz") as archive:
        archive.extractall(tmp_path / "server", filter="data")
    with NatsServer(tmp_path / "server") as server:
        opened = NatsStore(NatsOptions((server.url,)), idle_s=1_000_000_000)
        yield opened
        await opened.close()


async def test_a_store_of_format_1_has_everything_that_was_exported_from_it(store: NatsStore) -> None:
    exported = b"".join([encode_record(record) async for record in store.export()])
    assert exported.splitlines() == gzip.decompress((HERE / "format-1.jsonl.gz").read_bytes()).splitlines()


async def test_a_store_of_format_1_answers_and_takes_commits(store: NatsStore) -> None:
    assert [summary.session_id for summary in await store.search("local", "login token", None, 10)] == [
        *("sess_0009", "sess_0005", "sess_0001")
    ]
    long = await store.left_out_text("local", "res_9")
    assert long is not None
    assert len(long) == 780_000
    trajectory = await store.trajectory(ArchivedThread("local", "live", "br_1"), limit=2)
    assert trajectory is not None
    assert [entry.text for entry in trajectory.entries] == [long, "text 2"]
    key = key_of("live")
    receipt = await store.receipt(key, "sess_live/1")
    assert receipt is not None
    assert len(receipt.answer) == 700_000
    assert (await store.commit(commit_of(key, 40, session_id="sess_live", operation_id="sess_live/5"))).repeated
    await store.commit(commit_of(key, 40, session_id="sess_live"))
    # Some of its logs were ahead of what was published.
    await store.settle()
    live = await store.count()
    assert await store.expire(NEXT_YEAR, NEXT_YEAR) == live
    assert await store.expire(NEXT_YEAR, NEXT_YEAR) == 0
    await store.retain(NEXT_YEAR, NEXT_YEAR)
    assert [record async for record in store.export()] == []
