"""Ended sessions on every store: listed with their last figures until they expire, also after a clock was wrong."""

from __future__ import annotations

import json

from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.store import Store
from tests.contract.sessions import NOON, begin, commit_of, key_of, summary_of

EVENING, NEXT_DAY, NEXT_YEAR = "2026-01-01T20:00:00Z", "2026-01-02T20:00:00Z", "2027-01-01T12:00:00Z"
LATER_YEAR = "2030-01-01T00:00:00Z"


async def _ended_ids(store: Store, owner: str = "local") -> list[str]:
    return [session.session_id for session in await store.ended_sessions(owner, limit=10)]


async def test_an_ended_session_is_listed_with_its_last_figures(store: Store) -> None:
    await store.commit(commit_of(key_of(), events=5))
    assert await _ended_ids(store) == []
    await store.expire(NOON, EVENING)
    (session,) = await store.ended_sessions("local", limit=10)
    assert (session.key, session.session_id) == (key_of(), "sess_1")
    assert (session.last_at, session.ended_at) == (NOON, EVENING)
    figures = json.loads(session.figures)
    assert figures["revision"] == 5
    assert figures["main_thread_tokens"] == figures["total_tokens"] > 0
    assert figures["project_path"] == "/work/project"
    assert (figures["total_branches"], figures["host"]) == (0, None)
    assert [day["requests"] for day in figures["ledger_days"].values()] == [1]


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
