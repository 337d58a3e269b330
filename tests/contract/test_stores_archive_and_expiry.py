"""What every store must store besides sessions, and for how long: summaries and trajectories."""

from __future__ import annotations

import asyncio

import pytest

from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.store import SEARCH_MAX, ArchivedThread, Commit, KnownRevision, StaleRevision, Store
from tests.contract.sessions import (
    NOON,
    begin,
    commit_of,
    key_of,
    kinds,
    numbers,
    summary_of,
    take,
    watching,
)
from tests.support.machine import times

MORNING, EVENING, NEXT_DAY = "2026-01-01T08:00:00Z", "2026-01-01T20:00:00Z", "2026-01-02T20:00:00Z"
FIVE_MEGABYTES = 5_000_000


KEY = key_of()


# ---- the collections


async def _commit_summaries(store: Store, **texts: str) -> None:
    """Commits one summary for each branch."""
    for revision, (branch_id, text) in enumerate(texts.items()):
        description, _, summary = text.rpartition("|")
        stored_summary = summary_of(
            KEY, branch_id, summary, description=description, at=f"2026-01-01T12:00:0{revision}Z"
        )
        await store.commit(commit_of(KEY, revision, summaries=[stored_summary]))


async def _search(store: Store, query: str, project_hash: str | None = None, limit: int = 10) -> list[str]:
    return [summary.branch_id for summary in await store.search("local", query, project_hash, limit)]


async def test_a_search_finds_summaries_with_every_word(store: Store) -> None:
    await _commit_summaries(
        store, a="Login fix|The token had expired.", b="Cache|Expired entries are evicted.", c="Other|Nothing."
    )
    for query, expected in {
        "expired": {"a", "b"},
        "EXPIRED token": {"a"},
        "token expired login": {"a"},
        "cache login": set(),
        "evic": {"b"},
        "expi token": set(),
        "the token expi": {"a"},
        "absent": set(),
    }.items():
        assert set(await _search(store, query)) == expected, query


async def test_accents_and_case_make_no_difference_to_a_search(store: Store) -> None:
    await _commit_summaries(store, a="|Le café était fermé", b="|ΑΘΗΝΑ Straße", c="|the cafe\u0301 again")
    assert set(await _search(store, "CAFE")) == {"a", "c"}
    assert set(await _search(store, "cafe\u0301 FERMÉ")) == {"a"}
    assert set(await _search(store, "αθηνα")) == {"b"}


async def test_the_best_match_comes_first_then_the_newest(store: Store) -> None:
    much, little = "retry retry retry", "one retry among a great many words on other subjects altogether"
    await _commit_summaries(store, little=f"|{little}", much=f"|{much}", same="|retry it", later="|retry it")
    order = await _search(store, "retry")
    assert order.index("much") < order.index("little")
    assert order.index("later") < order.index("same")
    assert await _search(store, "retry", limit=1) == order[:1]


UNUSUAL_QUERIES = (
    *("", "   ", "!!!", '"', '""', "* ^ -", "()", "_", "\0", "\ud800", "\u0301", "a" * 10_000 + '"', "x " * 10_000),
    *("NEAR(", 'description: "x', "AND OR NOT", "col:x*", "b AND", '"unclosed', "x*)", "'; --", "{a b}: c", "+"),
)


async def test_no_query_raises_an_error(store: Store) -> None:
    await _commit_summaries(store, a="Title|Some text of a summary.")
    for query in UNUSUAL_QUERIES:
        try:
            branch_ids = await _search(store, query)
        except Exception as error:
            raise AssertionError(f"{query[:40]!r} raised an error") from error
        assert branch_ids == [], f"{query[:40]!r}"


async def test_a_search_respects_its_project_and_its_limit(store: Store) -> None:
    for project in ("p1", "p2"):
        key = key_of(project)
        summaries = [summary_of(key, f"{project}/{number}", "same words") for number in range(SEARCH_MAX)]
        await store.commit(commit_of(key, summaries=summaries))
    assert len(await _search(store, "same", limit=10**9)) == SEARCH_MAX
    assert {branch_id[:2] for branch_id in await _search(store, "same", "p2", limit=10**9)} == {"p2"}
    assert await _search(store, "same", "p3") == []
    for limit in (0, -1):
        assert await _search(store, "same", limit=limit) == []


async def test_a_branch_that_is_folded_again_has_one_summary(store: Store) -> None:
    await store.commit(commit_of(KEY, 0, summaries=[summary_of(KEY, "br_1", "first outcome")]))
    await store.commit(commit_of(KEY, 1, summaries=[summary_of(KEY, "br_1", "second outcome")]))
    assert await store.search("local", "first", None, 10) == []
    assert await store.search("local", "outcome", None, 10) == [summary_of(KEY, "br_1", "second outcome")]


async def test_a_trajectory_is_read_page_by_page(store: Store) -> None:
    entries = [
        ArchiveEntry("br_1", 2, NOON, "prompt", "Look into it.", 4),
        ArchiveEntry("br_1", 3, NOON, "operation", "ls", 1, "tool", "hook", failed=True),
        ArchiveEntry("br_1", 5, NOON, "child", "done", 1, child_id="br_2"),
        ArchiveEntry("br_1", 6, NOON, "rollback", "", undone_from=2),
        ArchiveEntry("br_1", 9, NOON, "summary", "All done.", 3),
    ]
    others = [
        ArchiveEntry("br_2", 4, NOON, "prompt", "Deeper."),
        ArchiveEntry(None, 7, NOON, "operation", "main thread"),
    ]
    await store.commit(commit_of(KEY, 0, entries=[*entries[:3], others[0]]))
    await store.commit(commit_of(KEY, 1, entries=[*others[1:], *entries[3:]]))
    trajectory = await store.trajectory(ArchivedThread("local", "p1", "br_1"), limit=100)
    assert trajectory is not None
    assert list(trajectory.entries) == entries
    assert list(trajectory.rollbacks) == [(2, 6)]
    paged: list[ArchiveEntry] = []
    for _ in range(3):
        page = await store.trajectory(
            ArchivedThread("local", "p1", "br_1"), after_n=paged[-1].n if paged else 0, limit=2
        )
        assert page is not None
        assert list(page.rollbacks) == [(2, 6)]
        paged += page.entries
    assert paged == entries
    beyond = await store.trajectory(ArchivedThread("local", "p1", "br_1"), after_n=9, limit=2)
    assert beyond is not None
    assert list(beyond.entries) == []
    for project, branch_id in (("p2", "br_1"), ("p1", "br_3"), ("p1", "")):
        assert await store.trajectory(ArchivedThread("local", project, branch_id), limit=2) is None


async def test_a_trajectory_may_have_megabytes(store: Store) -> None:
    text = "α" + "0123456789" * (FIVE_MEGABYTES // 10)
    for revision in range(2):
        await store.commit(
            commit_of(KEY, revision, entries=[ArchiveEntry("br_1", revision + 1, NOON, "operation", text)])
        )
    trajectory = await store.trajectory(ArchivedThread("local", "p1", "br_1"), limit=10)
    assert trajectory is not None
    assert [entry.text == text for entry in trajectory.entries] == [True, True]


# ---- the end of a session


async def test_only_idle_sessions_end(store: Store) -> None:
    idle, busy = key_of("idle"), key_of("busy")
    await begin(store, idle, busy, at=MORNING)
    await store.commit(commit_of(busy, 1, at=EVENING))
    assert await store.expire(NOON, NEXT_DAY) == 1
    assert await store.load(idle) is None
    assert await store.load(idle, KnownRevision("sess_1", 1)) is None
    assert await store.receipt(idle, "sess_1/0") is None
    assert await store.count() == 1
    log = await store.load(busy)
    assert log is not None
    assert len(log.events) == 2
    assert await store.expire(NOON, NEXT_DAY) == 0


async def test_activity_is_the_latest_time_even_if_clocks_disagree(store: Store) -> None:
    await begin(store, KEY, at=EVENING)
    await store.commit(commit_of(KEY, 1, at=MORNING))
    assert await store.expire(NOON, NEXT_DAY) == 0
    assert await store.expire(EVENING, NEXT_DAY) == 1


async def test_after_a_session_ended_its_key_gets_a_new_one(store: Store) -> None:
    await store.commit(commit_of(KEY, events=3, at=MORNING))
    await store.expire(NOON, NEXT_DAY)
    for late in (commit_of(KEY, 3, at=NEXT_DAY), commit_of(KEY, 4, at=NEXT_DAY)):
        with pytest.raises(StaleRevision):
            await store.commit(late)
    await store.commit(commit_of(KEY, session_id="sess_2", at=NEXT_DAY))
    with pytest.raises(StaleRevision):
        await store.commit(commit_of(KEY, 1, session_id="sess_1", at=NEXT_DAY))
    log = await store.load(KEY, KnownRevision("sess_1", 1))
    assert log is not None
    assert (log.session_id, [event.n for event in log.events]) == ("sess_2", [1])


async def test_late_watchers_see_the_end_of_a_session(store: Store) -> None:
    start = await store.cursor()
    await store.commit(commit_of(KEY, events=2, at=MORNING))
    async with watching(store, "local", start) as early, watching(store, "local", start) as late:
        await take(early, 2)
        await store.expire(NOON, NEXT_DAY)
        assert kinds(await take(early, 1)) == ["session.expired"]
        seen = await take(late, 1)
        assert (kinds(seen), seen[0].event.n, seen[0].event.at) == (["session.expired"], 3, NEXT_DAY)
    await store.expire(NEXT_DAY, "2026-01-03T20:00:00Z")
    await store.commit(commit_of(KEY, session_id="sess_2", at=NEXT_DAY))
    async with watching(store, "local", start) as later:
        assert numbers(await take(later, 1)) == [("sess_2", 1)]


async def test_a_cursor_stays_valid_after_its_events_are_deleted(store: Store) -> None:
    await store.commit(commit_of(KEY, events=3, at=MORNING))
    await store.expire(NOON, MORNING)
    cursor = await store.cursor()
    # After this, the last event is gone too.
    await store.expire(NOON, NEXT_DAY)
    assert await store.cursor() == cursor
    await store.commit(commit_of(KEY, session_id="sess_2"))
    async with watching(store, "local", cursor) as watch:
        assert numbers(await take(watch, 1)) == [("sess_2", 1)]


async def test_archive_and_summaries_outlive_the_session_until_they_expire(store: Store) -> None:
    entries = [ArchiveEntry("br_1", 1, MORNING, "prompt", "text")]
    await store.commit(
        commit_of(KEY, at=MORNING, entries=entries, summaries=[summary_of(KEY, "br_1", "outcome", at=MORNING)])
    )

    async def is_stored() -> tuple[bool, bool]:
        trajectory = await store.trajectory(ArchivedThread("local", "p1", "br_1"), limit=10)
        return trajectory is not None, bool(await store.search("local", "outcome", None, 10))

    await store.retain(NEXT_DAY, NEXT_DAY)
    # The session is still live.
    assert await is_stored() == (True, True)
    await store.expire(NOON, NEXT_DAY)
    await store.retain(MORNING, MORNING)
    # The session is not older than the limit.
    assert await is_stored() == (True, True)
    await store.retain(NOON, MORNING)
    assert await is_stored() == (False, True)
    await store.expire(NEXT_DAY, NEXT_DAY)
    await store.retain(NOON, NOON)
    assert await is_stored() == (False, False)


async def test_one_sweep_ends_any_number_of_sessions(store: Store) -> None:
    sessions = times(100, 5000)
    start = await store.cursor()
    for number in range(sessions):
        key = key_of(f"p{number}")
        entry = ArchiveEntry(f"br_{number}", 1, MORNING, "prompt", "text")
        summary = summary_of(key, f"br_{number}", "outcome", session_id=f"sess_{number}")
        await store.commit(
            commit_of(
                key,
                session_id=f"sess_{number}",
                at=MORNING,
                events=1 + number % 7,
                entries=[entry],
                summaries=[summary],
            )
        )
    await store.commit(commit_of(key_of("long"), session_id="sess_long", at=MORNING, events=1000))
    assert await store.expire(NOON, NEXT_DAY) == sessions + 1
    assert await store.count() == 0
    async with watching(store, "local", start) as watch:
        assert set(kinds(await take(watch, sessions + 1))) == {"session.expired"}
    await store.retain(NEXT_DAY, NEXT_DAY)
    assert await store.search("local", "outcome", None, 10) == []
    assert await store.trajectory(ArchivedThread("local", "p7", "br_7"), limit=1) is None


async def test_a_session_that_becomes_active_during_a_sweep_is_not_ended(store: Store) -> None:
    """Sweeps and commits run at once. Acknowledged commits are stored, and the others raise StaleRevision."""
    sessions = times(50, 2000)
    keys = [key_of(f"p{number}") for number in range(sessions)]
    await begin(store, *keys, at=MORNING)

    async def commit_later(commit: Commit) -> bool:
        try:
            await store.commit(commit)
        except StaleRevision:
            return False
        return True

    later = [commit_of(key, 1, at=NEXT_DAY) for key in keys[::2]]
    ended, *successes = await asyncio.gather(store.expire(NOON, NEXT_DAY), *map(commit_later, later))
    assert ended + sum(successes) == sessions
    for commit, succeeded in zip(later, successes, strict=True):
        assert (await store.load(commit.key) is not None) == succeeded
