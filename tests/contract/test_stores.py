"""What every store must do: store sessions, each as one log, and keep owners separate."""

from __future__ import annotations

import asyncio

import pytest

from contextfold.errors import ArgumentInvalid, StoreUnavailable
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.store import ArchivedThread, Commit, CommitReceipt, KnownRevision, StaleRevision, Store
from tests.contract.sessions import (
    NOON,
    begin,
    branch_commit,
    commit_of,
    event_at,
    key_of,
    numbers,
    request_at,
    summary_of,
    take,
    watching,
)
from tests.support.machine import times

KEY = key_of()


# ---- load and commit


async def test_a_key_without_a_session_loads_nothing(store: Store) -> None:
    assert await store.load(KEY) is None
    assert await store.receipt(KEY, "op") is None


async def test_committed_events_are_loaded_in_order(store: Store) -> None:
    await store.commit(commit_of(KEY, events=3))
    await store.commit(commit_of(KEY, 3, events=2))
    log = await store.load(KEY)
    assert log is not None
    assert log.session_id == "sess_1"
    assert list(log.events) == [event_at(n) for n in range(1, 6)]


async def test_loading_after_a_known_revision_returns_only_later_events(store: Store) -> None:
    await store.commit(commit_of(KEY, events=5))
    for known, first in (
        (KnownRevision("sess_1", 3), 4),
        (KnownRevision("sess_1", 5), 6),
        (KnownRevision("sess_of_old", 3), 1),
    ):
        log = await store.load(KEY, known)
        assert log is not None
        assert [event.n for event in log.events] == list(range(first, 6))


async def test_unusual_texts_are_loaded_unchanged(store: Store) -> None:
    unusual = "'; DROP TABLE sessions; -- \0 \x1f \u2028 😀 é é \\ \" $1 ?"
    key = key_of(unusual, owner=unusual, name=unusual)
    first = commit_of(key, session_id=unusual, operation_id=unusual * 1000, answer=unusual)
    await store.commit(first)
    log = await store.load(key)
    assert log is not None
    assert (log.session_id, list(log.events)) == (unusual, list(first.events))
    assert await store.receipt(key, unusual * 1000) == CommitReceipt("asked", unusual, repeated=True)


async def test_a_request_is_loaded_and_watched_as_it_was_committed(store: Store) -> None:
    requests = [request_at(2), request_at(3)]
    await store.commit(commit_of(KEY))
    await store.commit(Commit(KEY, "sess_1", 1, requests, None, ""))
    log = await store.load(KEY, KnownRevision("sess_1", 1))
    assert log is not None
    assert list(log.events) == requests
    async with watching(store, "local", "0") as watch:
        assert [watched.event for watched in await take(watch, 3)][1:] == requests


async def test_a_commit_with_a_stale_revision_is_refused_and_stores_nothing(store: Store) -> None:
    await store.commit(commit_of(KEY, events=2))
    start = await store.cursor()
    entry = ArchiveEntry("br_x", 2, NOON, "operation", "never")
    for revision, session_id in ((0, "sess_1"), (1, "sess_1"), (3, "sess_1"), (2, "sess_2"), (0, "sess_2")):
        stale = commit_of(
            KEY,
            revision,
            session_id=session_id,
            operation_id=f"late {revision} {session_id}",
            entries=[entry],
            summaries=[summary_of(KEY, "br_x", "never", session_id=session_id)],
        )
        with pytest.raises(StaleRevision):
            await store.commit(stale)
        assert await store.receipt(KEY, f"late {revision} {session_id}") is None
    log = await store.load(KEY)
    assert log is not None
    assert len(log.events) == 2
    assert await store.trajectory(ArchivedThread("local", "p1", "br_x"), limit=10) is None
    assert await store.search("local", "never", None, 10) == []
    assert await store.cursor() == start


async def test_a_commit_cannot_continue_a_session_that_does_not_exist(store: Store) -> None:
    with pytest.raises(StaleRevision):
        await store.commit(commit_of(KEY, 3))
    assert await store.load(KEY) is None


async def test_a_commit_without_an_operation_leaves_no_receipt(store: Store) -> None:
    commit = commit_of(KEY)
    receipt = await store.commit(commit._replace(operation=None))
    assert (receipt.answer, receipt.repeated) == (commit.answer, False)
    assert await store.receipt(KEY, "sess_1/0") is None
    with pytest.raises(StaleRevision):
        await store.commit(commit._replace(operation=None))


async def test_a_repeated_operation_id_has_one_effect_and_the_same_receipt(store: Store) -> None:
    first = commit_of(KEY, operation_id="op", answer="the answer")
    receipt = await store.commit(first)
    assert receipt == CommitReceipt("asked", "the answer")
    await store.commit(commit_of(KEY, 1, events=3))
    again = [first, commit_of(KEY, 4, operation_id="op"), commit_of(KEY, 0, session_id="other", operation_id="op")]
    for repeated in again:
        assert await store.commit(repeated) == receipt._replace(repeated=True)
    assert await store.receipt(KEY, "op") == receipt._replace(repeated=True)
    log = await store.load(KEY)
    assert log is not None
    assert len(log.events) == 4


async def test_the_same_operation_id_in_two_sessions_is_two_operations(store: Store) -> None:
    keys = [KEY, key_of("p2"), key_of(name="n"), key_of(owner="other")]
    for number, key in enumerate(keys):
        await store.commit(commit_of(key, operation_id="op", answer=str(number)))
    receipts = [await store.receipt(key, "op") for key in keys]
    assert [receipt.answer for receipt in receipts if receipt] == ["0", "1", "2", "3"]
    assert await store.count() == 4


async def test_one_of_several_racing_commits_wins_a_revision(store: Store) -> None:
    racers, rounds = 8, times(5, 200)

    async def race(racer: int, revision: int) -> bool:
        try:
            await store.commit(commit_of(KEY, revision, operation_id=f"{racer} at {revision}"))
        except StaleRevision:
            return False
        return True

    for revision in range(rounds):
        wins = await asyncio.gather(*(race(racer, revision) for racer in range(racers)))
        assert sum(wins) == 1
    log = await store.load(KEY)
    assert log is not None
    assert [event.n for event in log.events] == list(range(1, rounds + 1))


async def test_racing_commits_with_one_operation_id_all_get_its_receipt(store: Store) -> None:
    for turn in range(times(10, 200)):
        tries = [commit_of(KEY, turn, operation_id=f"op {turn}", answer=f"{turn}/{racer}") for racer in range(8)]
        receipts = await asyncio.gather(*map(store.commit, tries))
        assert len({(receipt.fingerprint, receipt.answer) for receipt in receipts}) == 1
        assert [receipt.repeated for receipt in receipts].count(False) == 1
    log = await store.load(KEY)
    assert log is not None
    assert len(log.events) == times(10, 200)


async def test_a_commit_that_is_retried_after_conflicts_succeeds_once(store: Store) -> None:
    workers, commits_each = 8, times(5, 100)

    async def work(worker: int) -> None:
        for turn in range(commits_each):
            for _ in range(workers * commits_each):
                log = await store.load(KEY)
                revision = len(log.events) if log else 0
                try:
                    await store.commit(commit_of(KEY, revision, operation_id=f"{worker}/{turn}"))
                except StaleRevision:
                    continue
                break

    await asyncio.gather(*map(work, range(workers)))
    log = await store.load(KEY)
    assert log is not None
    assert [event.n for event in log.events] == list(range(1, workers * commits_each + 1))


async def test_a_stale_commit_does_not_affect_concurrent_commits(store: Store) -> None:
    async def stale_commit() -> str:
        try:
            await store.commit(commit_of(KEY, 7))
        except StaleRevision:
            return "stale"
        return "kept"

    good = [key_of(f"good {number}") for number in range(5)]
    outcomes = await asyncio.gather(begin(store, *good[:3]), stale_commit(), begin(store, *good[3:]), stale_commit())
    assert [outcome for outcome in outcomes if outcome] == ["stale", "stale"]
    assert await store.count() == len(good)


async def test_a_commit_with_events_out_of_order_is_refused(store: Store) -> None:
    for revision, event_numbers in ((0, ()), (0, (2,)), (1, (1,)), (0, (1, 3)), (2, (4, 3))):
        events = [event_at(n) for n in event_numbers]
        with pytest.raises(ValueError, match="do not follow"):
            await store.commit(Commit(KEY, "s", revision, events, commit_of(KEY).operation, ""))
    with pytest.raises(ValueError, match="another session"):
        await store.commit(commit_of(KEY, summaries=[summary_of(key_of("p2"), "br_1", "text")]))
    assert await store.load(KEY) is None


# ---- owners


async def test_owners_never_see_data_of_each_other(store: Store) -> None:
    start = await store.cursor()
    for owner in ("ann", "bob"):
        key = key_of(owner=owner)
        summary = summary_of(key, "br_1", f"deployment by {owner}")
        entry = ArchiveEntry("br_1", 1, NOON, "prompt", f"text of {owner}")
        await store.commit(commit_of(key, operation_id="op", answer=owner, entries=[entry], summaries=[summary]))
    await store.commit(commit_of(key_of(owner="bob"), 1))
    for owner, revision in (("ann", 1), ("bob", 2)):
        key = key_of(owner=owner)
        log, receipt = await store.load(key), await store.receipt(key, "op")
        assert log is not None
        assert receipt is not None
        assert (len(log.events), receipt.answer) == (revision, owner)
        summaries = await store.search(owner, "deployment", None, 10)
        assert [summary.summary for summary in summaries] == [f"deployment by {owner}"]
        trajectory = await store.trajectory(ArchivedThread(owner, "p1", "br_1"), limit=10)
        assert trajectory is not None
        assert [entry.text for entry in trajectory.entries] == [f"text of {owner}"]
        async with watching(store, owner, start) as watch:
            assert {watched.key.owner for watched in await take(watch, revision)} == {owner}
    assert await store.load(key_of(owner="eve")) is None
    assert await store.search("eve", "deployment", None, 10) == []
    assert await store.trajectory(ArchivedThread("eve", "p1", "br_1"), limit=10) is None
    assert await store.receipt(key_of(owner="eve"), "op") is None


async def test_a_watcher_is_not_delayed_by_events_of_other_owners(store: Store) -> None:
    async with watching(store, "ann", await store.cursor()) as watch:
        for revision in range(times(120, 3000)):
            await store.commit(commit_of(key_of(owner="bob"), revision))
        await begin(store, key_of(owner="ann"))
        assert numbers(await take(watch, 1)) == [("sess_1", 1)]


# ---- the store as such


async def test_checking_a_working_store_changes_nothing(store: Store) -> None:
    assert await store.count() == 0
    cursor = await store.cursor()
    await store.check()
    assert await store.cursor() == cursor
    await store.commit(commit_of(KEY))
    await store.commit(branch_commit(KEY, 1, "br_1"))
    assert await store.count() == 1


async def test_only_cursors_of_the_store_are_accepted(store: Store) -> None:
    before = await store.cursor()
    await begin(store, KEY)
    for cursor in (before, await store.cursor()):
        await store.check_cursor(cursor)
    for cursor in ("999999", "x", "-1", "", "9" * 40):
        with pytest.raises(ArgumentInvalid):
            await store.check_cursor(cursor)


async def test_a_closed_store_is_unavailable(store: Store) -> None:
    await begin(store, KEY)
    await store.close()
    await store.close()
    for method in (
        lambda: store.load(KEY),
        lambda: store.commit(commit_of(KEY, 1)),
        lambda: store.receipt(KEY, "op"),
        store.cursor,
        lambda: store.check_cursor("0"),
        lambda: store.search("local", "x", None, 1),
        lambda: store.trajectory(ArchivedThread("local", "p1", "br_1"), limit=1),
        lambda: store.expire(NOON, NOON),
        lambda: store.retain(NOON, NOON),
        store.count,
        store.check,
        lambda: take(store.watch("local"), 1),
    ):
        with pytest.raises(StoreUnavailable) as raised:
            await method()
        assert (raised.value.message, raised.value.data) == ("State store is unavailable", {"retry": True})


async def test_closing_finishes_commits_that_were_started(store: Store) -> None:
    # The first commit creates what the store needs.
    await begin(store, KEY)
    keys = [key_of(f"p{number}") for number in range(2, 52)]
    commits = [asyncio.ensure_future(store.commit(commit_of(key))) for key in keys]
    # After this, every commit has been started.
    await asyncio.sleep(0)
    await store.close()
    assert len(await asyncio.gather(*commits)) == len(keys)
