"""A message that is foreign, or that this version cannot read, affects only the session whose log it is in."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from contextfold.errors import StoreInvalid
from contextfold.fold.store import StaleRevision
from contextfold.settings import NatsOptions
from contextfold.stores.nats.store import NatsStore
from tests.contract.sessions import NOON, begin, commit_of, key_of, numbers, summary_of, take, watching
from tests.support.nats_servers import connect

MORNING, NEXT_DAY = "2026-01-01T08:00:00Z", "2026-01-02T20:00:00Z"
HEADERS = {"Cf-Session": "sess_x", "Cf-Before": "0", "Cf-Revision": "1", "Cf-Last-At": NOON, "Cf-Mark": "m"}
FOREIGN = {
    "no headers": ({}, b"hello"),
    "no JSON": (HEADERS, b"hello"),
    "a newer format": (HEADERS, b'{"format":99}'),
    "an event of a newer version": (
        HEADERS,
        b'{"format":1,"session":"sess_x","before":0,"events":[{"event":"x","n":1}]}',
    ),
    "a revision that is no number": ({**HEADERS, "Cf-Revision": "abc"}, b"{}"),
    "an empty message": ({}, b""),
}


@pytest.fixture(params=FOREIGN)
async def store(request: pytest.FixtureRequest, options: NatsOptions) -> AsyncIterator[NatsStore]:
    """A store whose logs contain a foreign message, the last but one."""
    headers, data = FOREIGN[request.param]
    opened = NatsStore(options)
    await opened.reach()
    await begin(opened, key_of("first"), at=MORNING)
    connection = await connect(options.servers[0])
    await connection.jetstream().publish(f"{options.prefix}_log.local.bad.=", data, headers=headers or None)
    await connection.close()
    await begin(opened, key_of("last"), at=MORNING)
    yield opened
    await opened.close()


async def test_other_sessions_are_listed_counted_and_found(store: NatsStore) -> None:
    listed = {each.key.project_hash for each in await store.sessions("local", limit=10)}
    assert listed >= {"first", "last"}
    assert await store.count("local") >= 2
    assert await store.load(key_of("last")) is not None


async def test_other_sessions_are_searched(store: NatsStore) -> None:
    key = key_of("last")
    await store.commit(commit_of(key, 1, summaries=[summary_of(key, "br_1", "the outcome")]))
    assert len(await store.search("local", "outcome", None, 10)) == 1


async def test_other_sessions_expire(store: NatsStore) -> None:
    assert await store.expire(NOON, NEXT_DAY) >= 2
    assert await store.load(key_of("first")) is None
    assert await store.load(key_of("last")) is None


async def test_watchers_skip_the_foreign_message(store: NatsStore) -> None:
    async with watching(store, "local", "0") as watch:
        assert numbers(await take(watch, 2)) == [("sess_1", 1), ("sess_1", 1)]


async def test_the_session_of_the_foreign_message_is_refused_as_invalid(store: NatsStore) -> None:
    with pytest.raises(StoreInvalid):
        await store.load(key_of("bad"))
    with pytest.raises((StoreInvalid, StaleRevision)):
        await store.commit(commit_of(key_of("bad")))
