"""Ended sessions on every store: listed, with their logs, until they expire, also after a clock was wrong."""

from __future__ import annotations

from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import BranchCreated, Event, SessionExpired
from contextfold.fold.store import Store
from tests.contract.sessions import NOON, begin, branch_commit, commit_of, event_at, key_of, summary_of

EVENING, NEXT_DAY, NEXT_YEAR = "2026-01-01T20:00:00Z", "2026-01-02T20:00:00Z", "2027-01-01T12:00:00Z"
LATER_YEAR = "2030-01-01T00:00:00Z"


async def _ended_ids(store: Store, owner: str = "local") -> list[str]:
    return [session.session_id for session in await store.ended_sessions(owner, limit=10)]


async def test_an_ended_session_is_listed_and_keeps_its_log(store: Store) -> None:
    await store.commit(commit_of(key_of(), events=5))
    await store.commit(commit_of(key_of(), 5, events=2))
    assert await _ended_ids(store) == []
    await store.expire(NOON, EVENING)
    # A later sweep deletes what the first one leaves for watchers, and another session of the same key begins.
    await store.expire(NEXT_DAY, NEXT_DAY)
    await store.commit(commit_of(key_of(), session_id="sess_2", events=3))
    (session,) = await store.ended_sessions("local", limit=10)
    assert (session.key, session.session_id) == (key_of(), "sess_1")
    assert (session.last_at, session.ended_at, session.figures) == (NOON, EVENING, "")
    events = [*(event_at(n) for n in range(1, 8)), SessionExpired(8, EVENING, "sess_1")]
    assert list(await store.ended_log(key_of(), "sess_1")) == events
    assert await store.receipt(key_of(), "sess_1/0") is None
    for key, session_id in ((key_of(), "sess_2"), (key_of(), "sess_3"), (key_of(owner="ann"), "sess_1")):
        assert list(await store.ended_log(key, session_id)) == []


async def test_the_log_of_an_ended_session_may_be_longer_than_a_message(store: Store) -> None:
    long = BranchCreated(2, NOON, "br_1", None, "x" * 200, "long " * 2_000, 2_500, 0)
    await store.commit(commit_of(key_of()))
    for n in range(2, 152):
        commit = branch_commit(key_of(), n - 1, f"br_{n}")
        await store.commit(commit._replace(events=[long._replace(n=n, branch_id=f"br_{n}")]))
    await store.expire(NOON, EVENING)
    log = await store.ended_log(key_of(), "sess_1")
    assert [event.n for event in log] == list(range(1, 153))
    assert log[150] == long._replace(n=151, branch_id="br_151")


async def test_prompts_in_the_log_are_deleted_with_the_archive(store: Store) -> None:
    key = key_of()
    await store.commit(commit_of(key, summaries=[summary_of(key, "br_1", "done")]))
    await store.commit(branch_commit(key, 1, "br_1"))
    await store.expire(NOON, EVENING)

    async def prompts() -> list[str]:
        log: list[Event] = list(await store.ended_log(key, "sess_1"))
        assert [event.n for event in log] == [1, 2, 3]
        return [event.prompt for event in log if isinstance(event, BranchCreated)]

    await store.retain(NOON, NOON)
    assert await prompts() == ["Do look."]
    for _ in range(2):
        await store.retain(NEXT_DAY, NOON)
        assert await prompts() == [""]
    await store.retain(NEXT_DAY, NEXT_DAY)
    assert list(await store.ended_log(key, "sess_1")) == []


async def test_ended_sessions_of_an_owner_are_paged_from_the_latest(store: Store) -> None:
    for number in range(4):
        key = key_of(f"p{number}")
        await store.commit(commit_of(key, session_id=f"sess_{number}", at=f"2026-01-01T12:00:0{number}Z"))
    await store.commit(commit_of(key_of(owner="ann"), session_id="sess_ann"))
    await store.expire(EVENING, NEXT_DAY)
    first = await store.ended_sessions("local", limit=2)
    assert [session.session_id for session in first] == ["sess_3", "sess_2"]
    last = first[-1]
    rest = await store.ended_sessions("local", after=(last.last_at, last.session_id), limit=10)
    assert [session.session_id for session in rest] == ["sess_1", "sess_0"]
    assert await _ended_ids(store, "ann") == ["sess_ann"]
    assert list(await store.ended_sessions("local", limit=0)) == []
    (only,) = await store.ended_sessions("local", limit=5, session_id="sess_2")
    assert only == last
    assert list(await store.ended_sessions("local", limit=5, session_id="sess_ann")) == []


async def test_an_ended_session_is_listed_until_archive_and_summaries_expire(store: Store) -> None:
    key = key_of()
    entries = [ArchiveEntry("br_1", 1, NOON, "operation", "text")]
    await store.commit(commit_of(key, entries=entries, summaries=[summary_of(key, "br_1", "done")]))
    await store.expire(NOON, EVENING)
    # A second sweep deletes the last event, which the first one leaves for watchers.
    await store.expire(NEXT_DAY, NEXT_DAY)
    for archive_since, summaries_since in ((NOON, NOON), (NEXT_DAY, NOON)):
        await store.retain(archive_since, summaries_since)
        assert await _ended_ids(store) == ["sess_1"]
    await store.retain(NEXT_DAY, NEXT_DAY)
    assert await _ended_ids(store) == []


async def test_a_session_without_archive_is_listed_as_long_as_one_with_archive(store: Store) -> None:
    await begin(store, key_of())
    await store.expire(NOON, EVENING)
    await store.expire(NEXT_DAY, NEXT_DAY)
    await store.retain(NEXT_DAY, NOON)
    assert await _ended_ids(store) == ["sess_1"]
    await store.retain(NEXT_DAY, NEXT_DAY)
    assert await _ended_ids(store) == []


async def test_sessions_expire_after_a_clock_that_was_ahead_is_corrected(store: Store) -> None:
    await store.commit(commit_of(key_of(), at=LATER_YEAR))
    # The clock is right again. The first sweep cannot know when the session was active, so it waits once more.
    assert await store.expire("2025-12-31T12:00:00Z", NOON) == 0
    assert await store.expire("2025-12-31T20:00:00Z", EVENING) == 0
    assert await store.expire(EVENING, NEXT_DAY) == 1
    # What the session leaves expires on time, not in the year of the wrong clock.
    await store.expire(NEXT_DAY, NEXT_YEAR)
    await store.retain(NEXT_YEAR, NEXT_YEAR)
    assert await _ended_ids(store) == []


async def test_activity_after_a_clock_correction_counts_from_the_next_sweep(store: Store) -> None:
    await store.commit(commit_of(key_of(), at=LATER_YEAR))
    await store.expire("2025-12-31T12:00:00Z", NOON)
    await store.commit(commit_of(key_of(), 1, at=EVENING))
    await store.expire("2025-12-31T20:00:00Z", "2026-01-01T20:00:01Z")
    assert await store.expire("2026-01-01T19:00:00Z", "2026-01-02T19:00:00Z") == 0
    assert await store.expire("2026-01-02T19:00:00Z", "2026-01-03T19:00:00Z") == 1
