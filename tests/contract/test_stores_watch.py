"""What every store must do for watchers: deliver every event once and in order."""

from __future__ import annotations

import asyncio

import pytest

from contextfold.errors import ArgumentInvalid, StoreUnavailable
from contextfold.fold.store import Store
from tests.contract.sessions import (
    begin,
    commit_of,
    key_of,
    numbers,
    shut,
    take,
    watching,
)
from tests.support.machine import times

KEY = key_of()


# ---- watching


async def test_a_watcher_sees_every_event_once_and_in_order(store: Store) -> None:
    start = await store.cursor()
    async with watching(store, "local", start) as first, watching(store, "local", start) as second:
        watches = [asyncio.ensure_future(take(watch, 6)) for watch in (first, second)]
        await store.commit(commit_of(KEY, events=2))
        await store.commit(commit_of(key_of("p2"), session_id="sess_2"))
        await store.commit(commit_of(KEY, 2, events=3))
        for events in await asyncio.gather(*watches):
            assert numbers(events) == [
                ("sess_1", 1),
                ("sess_1", 2),
                ("sess_2", 1),
                *(("sess_1", n) for n in (3, 4, 5)),
            ]
            assert events[2].key == key_of("p2")
            assert len({each.cursor for each in events}) == 6


async def test_a_watch_can_continue_after_any_cursor(store: Store) -> None:
    start = await store.cursor()
    await store.commit(commit_of(KEY, events=5))
    async with watching(store, "local", start) as watch:
        events = await take(watch, 5)
    for number, each in enumerate(events, 1):
        async with watching(store, "local", each.cursor) as watch:
            await store.commit(commit_of(KEY, 4 + number))
            rest = await take(watch, 5)
            assert [later.event.n for later in rest] == list(range(number + 1, number + 6))


async def test_a_watch_misses_no_event_of_many_writers(store: Store) -> None:
    writers, commits_each = 10, times(15, 400)

    async def write(writer: int) -> None:
        key = key_of(f"p{writer}")
        for revision in range(commits_each):
            await store.commit(commit_of(key, revision, session_id=f"sess_{writer}"))

    async with watching(store, "local", await store.cursor()) as watch:
        watched = asyncio.ensure_future(take(watch, writers * commits_each))
        await asyncio.gather(*map(write, range(writers)))
        events = await watched
    assert len(set(numbers(events))) == writers * commits_each
    for writer in range(writers):
        numbers_of_writer = [event.event.n for event in events if event.session_id == f"sess_{writer}"]
        assert numbers_of_writer == list(range(1, commits_each + 1))


async def test_a_watch_without_a_cursor_starts_with_new_events(store: Store) -> None:
    await store.commit(commit_of(KEY, events=5))
    async with watching(store, "local", None) as watch:
        first = asyncio.ensure_future(take(watch, 1))
        revision = 5
        # Until the watch has begun, it does not see any event.
        while not first.done():
            await store.commit(commit_of(KEY, revision))
            revision += 1
            # This lets the watch run.
            await asyncio.sleep(0)
        assert (await first)[0].event.n > 5


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1.5", "١", "9" * 40, "999999", "1; DROP TABLE events"])
async def test_an_unknown_cursor_is_refused(store: Store, cursor: str) -> None:
    await begin(store, KEY)
    with pytest.raises(ArgumentInvalid, match="cursor"):
        await take(store.watch("local", cursor), 1)


async def test_closing_the_store_ends_its_watches(store: Store) -> None:
    await begin(store, KEY)
    waiting, unused = store.watch("local", await store.cursor()), store.watch("local", "0")
    pending = asyncio.ensure_future(take(waiting, 1))
    async with watching(store, "local", "0") as active:
        await take(active, 1)
        await store.close()
        for ended in (pending, take(active, 1), take(unused, 1)):
            with pytest.raises((RuntimeError, StopAsyncIteration, StoreUnavailable)):
                await ended
    await shut(waiting)


async def test_a_waiting_watch_can_be_cancelled(store: Store) -> None:
    watch = store.watch("local", await store.cursor())
    waiting = asyncio.ensure_future(take(watch, 1))
    await begin(store, key_of(owner="other"))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await shut(watch)
    await begin(store, KEY)
