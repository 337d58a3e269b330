"""What does not belong on the subjects, or cannot be read by this version, harms nobody but its own session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from contextfold.errors import StoreInvalid
from contextfold.fold.ports.store import StaleRevision
from contextfold.stores.nats.store import NatsStore
from contextfold.stores.nats.wire.connection import NatsOptions
from tests.contract.sessions import NOON, begin, commit_of, key_of, numbers, summary_of, take, watching
from tests.support.nats_servers import NatsServer, connected, drop, random_prefix

MORNING, NEXT_DAY = "2026-01-01T08:00:00Z", "2026-01-02T20:00:00Z"
HEADERS = {"Cf-Session": "sess_x", "Cf-Before": "0", "Cf-Revision": "1", "Cf-Last-At": NOON, "Cf-Mark": "m"}
STRANGE = {
    "no headers": ({}, b"hello"),
    "no JSON": (HEADERS, b"hello"),
    "of a newer format": (HEADERS, b'{"format":99}'),
    "an event of a newer version": (
        HEADERS,
        b'{"format":1,"session":"sess_x","before":0,"events":[{"event":"x","n":1}]}',
    ),
    "a revision that is no number": ({**HEADERS, "Cf-Revision": "abc"}, b"{}"),
    "nothing at all": ({}, b""),
}


@pytest.fixture(params=STRANGE)
def with_a_stranger(request: pytest.FixtureRequest, nats_server: NatsServer) -> Callable[..., None]:
    """Do something with a store in whose logs a strange message lies, the last but one."""
    headers, data = STRANGE[request.param]

    def run(act: Callable[[NatsStore], Awaitable[None]]) -> None:
        async def whole() -> None:
            place = NatsOptions(servers=(nats_server.url,), prefix=random_prefix())
            store = NatsStore(place)
            try:
                await store.reach()
                await begin(store, key_of("first"), at=MORNING)
                connection = await connected(nats_server.url)
                await connection.jetstream().publish(f"{place.prefix}_log.local.bad.=", data, headers=headers or None)
                await connection.close()
                await begin(store, key_of("last"), at=MORNING)
                await act(store)
            finally:
                await store.close()
                await drop(place)

        asyncio.run(whole())

    return run


def test_other_sessions_are_listed_counted_and_found(with_a_stranger: Callable[..., None]) -> None:
    async def act(store: NatsStore) -> None:
        listed = {each.key.project_hash for each in await store.sessions("local", limit=10)}
        assert listed >= {"first", "last"}
        assert await store.count("local") >= 2
        assert await store.load(key_of("last")) is not None

    with_a_stranger(act)


def test_other_sessions_are_searched(with_a_stranger: Callable[..., None]) -> None:
    async def act(store: NatsStore) -> None:
        key = key_of("last")
        await store.commit(commit_of(key, 1, summaries=[summary_of(key, "br_1", "the outcome")]))
        assert len(await store.search("local", "outcome", None, 10)) == 1

    with_a_stranger(act)


def test_other_sessions_end_in_their_time(with_a_stranger: Callable[..., None]) -> None:
    async def act(store: NatsStore) -> None:
        assert await store.expire(NOON, NEXT_DAY) >= 2
        assert await store.load(key_of("first")) is None
        assert await store.load(key_of("last")) is None

    with_a_stranger(act)


def test_watchers_get_past_it(with_a_stranger: Callable[..., None]) -> None:
    async def act(store: NatsStore) -> None:
        async with watching(store, "local", "0") as watch:
            assert numbers(await take(watch, 2)) == [("sess_1", 1), ("sess_1", 1)]

    with_a_stranger(act)


def test_its_own_session_is_refused_as_invalid(with_a_stranger: Callable[..., None]) -> None:
    async def act(store: NatsStore) -> None:
        with pytest.raises(StoreInvalid):
            await store.load(key_of("bad"))
        with pytest.raises((StoreInvalid, StaleRevision)):
            await store.commit(commit_of(key_of("bad")))

    with_a_stranger(act)
