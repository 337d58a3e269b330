"""What every store must do, whatever it is made of. A new store is one more entry in STORES."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from contextfold.errors import ArgumentInvalid, StoreUnavailable
from contextfold.fold.archive import Entry
from contextfold.fold.store import SEARCH_MOST, Commit, Known, Receipt, StaleRevision, Store
from contextfold.stores.memory import MemoryStore
from contextfold.stores.sqlite import SqliteStore
from contract.sessions import (
    NOON,
    begin,
    branch_commit,
    commit_of,
    event_at,
    key_of,
    kinds,
    numbers,
    shut,
    summary_of,
    take,
    watching,
)
from machine import times

MORNING, EVENING, NEXT_DAY = "2026-01-01T08:00:00Z", "2026-01-01T20:00:00Z", "2026-01-02T20:00:00Z"
FIVE_MEGABYTES = 5_000_000

Opener = Callable[[Path], Store]
STORES: dict[str, Opener] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda folder: SqliteStore.open(folder / "state.db"),
}
Act = Callable[[Store], Awaitable[None]]
Run = Callable[[Act], None]


@pytest.fixture(params=STORES)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Do something with a store that is new, and is closed afterwards."""

    def run(act: Act) -> None:
        async def whole() -> None:
            store = STORES[request.param](tmp_path)
            try:
                await act(store)
            finally:
                await store.close()

        asyncio.run(whole())

    return run


KEY = key_of()


# ---- load and commit


def test_a_key_without_a_session_loads_nothing(run: Run) -> None:
    async def act(store: Store) -> None:
        assert await store.load(KEY) is None
        assert await store.receipt(KEY, "op") is None

    run(act)


def test_what_was_committed_is_loaded_in_order(run: Run) -> None:
    async def act(store: Store) -> None:
        await store.commit(commit_of(KEY, events=3))
        await store.commit(commit_of(KEY, 3, events=2))
        log = await store.load(KEY)
        assert log is not None
        assert log.session_id == "sess_1"
        assert list(log.events) == [event_at(n) for n in range(1, 6)]

    run(act)


def test_whoever_knows_the_beginning_is_sent_the_rest(run: Run) -> None:
    async def act(store: Store) -> None:
        await store.commit(commit_of(KEY, events=5))
        for known, first in ((Known("sess_1", 3), 4), (Known("sess_1", 5), 6), (Known("sess_of_old", 3), 1)):
            log = await store.load(KEY, known)
            assert log is not None
            assert [event.n for event in log.events] == list(range(first, 6))

    run(act)


def test_texts_come_back_as_they_went_in(run: Run) -> None:
    strange = "'; DROP TABLE sessions; -- \0 \x1f \u2028 😀 é é \\ \" $1 ?"

    async def act(store: Store) -> None:
        key = key_of(strange, owner=strange, name=strange)
        first = commit_of(key, session_id=strange, operation_id=strange * 1000, answer=strange)
        await store.commit(first)
        log = await store.load(key)
        assert log is not None
        assert (log.session_id, list(log.events)) == (strange, list(first.events))
        assert await store.receipt(key, strange * 1000) == Receipt("asked", strange)

    run(act)


def test_a_stale_revision_is_refused_and_leaves_nothing(run: Run) -> None:
    async def act(store: Store) -> None:
        await store.commit(commit_of(KEY, events=2))
        start = await store.cursor()
        entry = Entry("br_x", 2, NOON, "operation", "never")
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
        assert await store.trajectory("local", "p1", "br_x", limit=10) is None
        assert await store.search("local", "never", None, 10) == []
        assert await store.cursor() == start

    run(act)


def test_a_session_that_does_not_exist_cannot_be_gone_on_with(run: Run) -> None:
    async def act(store: Store) -> None:
        with pytest.raises(StaleRevision):
            await store.commit(commit_of(KEY, 3))
        assert await store.load(KEY) is None

    run(act)


def test_a_commit_that_nobody_can_send_again_leaves_no_receipt(run: Run) -> None:
    async def act(store: Store) -> None:
        given = commit_of(KEY)
        told = await store.commit(replace(given, operation=None))
        assert (told.answer, told.repeated) == (given.answer, False)
        assert await store.receipt(KEY, "sess_1/0") is None
        with pytest.raises(StaleRevision):
            await store.commit(replace(given, operation=None))

    run(act)


def test_an_operation_id_has_its_effect_once_and_its_answer_always(run: Run) -> None:
    async def act(store: Store) -> None:
        first = commit_of(KEY, operation_id="op", answer="the answer")
        told = await store.commit(first)
        assert told == Receipt("asked", "the answer")
        await store.commit(commit_of(KEY, 1, events=3))
        again = [first, commit_of(KEY, 4, operation_id="op"), commit_of(KEY, 0, session_id="other", operation_id="op")]
        for repeated in again:
            assert await store.commit(repeated) == told
        assert await store.receipt(KEY, "op") == told
        log = await store.load(KEY)
        assert log is not None
        assert len(log.events) == 4

    run(act)


def test_the_same_operation_id_in_two_sessions_is_two_operations(run: Run) -> None:
    async def act(store: Store) -> None:
        keys = [KEY, key_of("p2"), key_of(name="n"), key_of(owner="other")]
        for number, key in enumerate(keys):
            await store.commit(commit_of(key, operation_id="op", answer=str(number)))
        found = [await store.receipt(key, "op") for key in keys]
        assert [receipt.answer for receipt in found if receipt] == ["0", "1", "2", "3"]
        assert await store.count() == 4

    run(act)


def test_of_those_who_race_for_a_revision_one_wins(run: Run) -> None:
    racers, rounds = 8, times(10, 200)

    async def act(store: Store) -> None:
        async def race(racer: int, revision: int) -> bool:
            try:
                await store.commit(commit_of(KEY, revision, operation_id=f"{racer} at {revision}"))
            except StaleRevision:
                return False
            return True

        for revision in range(rounds):
            won = await asyncio.gather(*(race(racer, revision) for racer in range(racers)))
            assert sum(won) == 1
        log = await store.load(KEY)
        assert log is not None
        assert [event.n for event in log.events] == list(range(1, rounds + 1))

    run(act)


def test_those_who_race_with_one_operation_id_all_get_its_receipt(run: Run) -> None:
    async def act(store: Store) -> None:
        for turn in range(times(10, 200)):
            tries = [commit_of(KEY, turn, operation_id=f"op {turn}", answer=f"{turn}/{racer}") for racer in range(8)]
            receipts = await asyncio.gather(*map(store.commit, tries))
            assert len(set(receipts)) == 1
        log = await store.load(KEY)
        assert log is not None
        assert len(log.events) == times(10, 200)

    run(act)


def test_whoever_retries_after_losing_gets_through_once(run: Run) -> None:
    workers, each = 8, times(10, 100)

    async def act(store: Store) -> None:
        async def work(worker: int) -> None:
            for turn in range(each):
                for _ in range(workers * each):
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
        assert [event.n for event in log.events] == list(range(1, workers * each + 1))

    run(act)


def test_a_commit_that_cannot_be_kept_does_not_hurt_the_others(run: Run) -> None:
    async def act(store: Store) -> None:
        async def broken() -> str:
            try:
                await store.commit(commit_of(KEY, 7))
            except StaleRevision:
                return "stale"
            return "kept"

        good = [key_of(f"good {number}") for number in range(5)]
        done = await asyncio.gather(begin(store, *good[:3]), broken(), begin(store, *good[3:]), broken())
        assert [told for told in done if told] == ["stale", "stale"]
        assert await store.count() == len(good)

    run(act)


def test_events_that_do_not_follow_make_no_commit() -> None:
    for revision, numbered in ((0, ()), (0, (2,)), (1, (1,)), (0, (1, 3)), (2, (4, 3))):
        with pytest.raises(ValueError, match="do not follow"):
            Commit(KEY, "s", revision, [event_at(n) for n in numbered], commit_of(KEY).operation, "")
    with pytest.raises(ValueError, match="another session"):
        commit_of(KEY, summaries=[summary_of(key_of("p2"), "br_1", "text")])


# ---- watching


def test_a_watcher_sees_every_event_once_and_in_order(run: Run) -> None:
    async def act(store: Store) -> None:
        start = await store.cursor()
        async with watching(store, "local", start) as one, watching(store, "local", start) as two:
            both = [asyncio.ensure_future(take(watch, 6)) for watch in (one, two)]
            await store.commit(commit_of(KEY, events=2))
            await store.commit(commit_of(key_of("p2"), session_id="sess_2"))
            await store.commit(commit_of(KEY, 2, events=3))
            for seen in await asyncio.gather(*both):
                assert numbers(seen) == [
                    ("sess_1", 1),
                    ("sess_1", 2),
                    ("sess_2", 1),
                    *(("sess_1", n) for n in (3, 4, 5)),
                ]
                assert seen[2].key == key_of("p2")
                assert len({each.cursor for each in seen}) == 6

    run(act)


def test_a_watch_goes_on_after_any_cursor(run: Run) -> None:
    async def act(store: Store) -> None:
        start = await store.cursor()
        await store.commit(commit_of(KEY, events=5))
        async with watching(store, "local", start) as watch:
            seen = await take(watch, 5)
        for place, each in enumerate(seen, 1):
            async with watching(store, "local", each.cursor) as watch:
                await store.commit(commit_of(KEY, 4 + place))
                rest = await take(watch, 5)
                assert [later.event.n for later in rest] == list(range(place + 1, place + 6))

    run(act)


def test_a_watch_that_is_busy_with_many_writers_misses_nothing(run: Run) -> None:
    writers, each = 10, times(40, 400)

    async def act(store: Store) -> None:
        async def write(writer: int) -> None:
            key = key_of(f"p{writer}")
            for revision in range(each):
                await store.commit(commit_of(key, revision, session_id=f"sess_{writer}"))

        async with watching(store, "local", await store.cursor()) as watch:
            watched = asyncio.ensure_future(take(watch, writers * each))
            await asyncio.gather(*map(write, range(writers)))
            seen = await watched
        assert len(set(numbers(seen))) == writers * each
        for writer in range(writers):
            mine = [each.event.n for each in seen if each.session_id == f"sess_{writer}"]
            assert mine == list(range(1, each + 1))

    run(act)


def test_a_watch_without_a_cursor_begins_now(run: Run) -> None:
    async def act(store: Store) -> None:
        await store.commit(commit_of(KEY, events=5))
        async with watching(store, "local", None) as watch:
            first = asyncio.ensure_future(take(watch, 1))
            revision = 5
            while not first.done():  # until the watch has begun there is nothing for it to see
                await store.commit(commit_of(KEY, revision))
                revision += 1
                await asyncio.sleep(0)  # the watch gets its turn
            assert (await first)[0].event.n > 5

    run(act)


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1.5", "١", "9" * 40, "999999", "1; DROP TABLE events"])
def test_a_cursor_that_was_never_given_out_is_refused(run: Run, cursor: str) -> None:
    async def act(store: Store) -> None:
        await begin(store, KEY)
        with pytest.raises(ArgumentInvalid, match="cursor"):
            await take(store.watch("local", cursor), 1)

    run(act)


def test_closing_the_store_ends_its_watches(run: Run) -> None:
    async def act(store: Store) -> None:
        await begin(store, KEY)
        waiting, unused = store.watch("local", await store.cursor()), store.watch("local", "0")
        asked = asyncio.ensure_future(take(waiting, 1))
        async with watching(store, "local", "0") as begun:
            await take(begun, 1)
            await store.close()
            for ended in (asked, take(begun, 1), take(unused, 1)):
                with pytest.raises((RuntimeError, StopAsyncIteration, StoreUnavailable)):
                    await ended
        await shut(waiting)

    run(act)


def test_a_watch_can_be_given_up_while_it_waits(run: Run) -> None:
    async def act(store: Store) -> None:
        watch = store.watch("local", await store.cursor())
        waiting = asyncio.ensure_future(take(watch, 1))
        await begin(store, key_of(owner="other"))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await shut(watch)
        await begin(store, KEY)

    run(act)


# ---- owners


def test_owners_never_see_each_others_things(run: Run) -> None:
    async def act(store: Store) -> None:
        start = await store.cursor()
        for owner in ("ann", "bob"):
            key = key_of(owner=owner)
            summary = summary_of(key, "br_1", f"deployment by {owner}")
            entry = Entry("br_1", 1, NOON, "prompt", f"text of {owner}")
            await store.commit(commit_of(key, operation_id="op", answer=owner, entries=[entry], summaries=[summary]))
        await store.commit(commit_of(key_of(owner="bob"), 1))
        for owner, revision in (("ann", 1), ("bob", 2)):
            key = key_of(owner=owner)
            log, receipt = await store.load(key), await store.receipt(key, "op")
            assert log is not None
            assert receipt is not None
            assert (len(log.events), receipt.answer) == (revision, owner)
            found = await store.search(owner, "deployment", None, 10)
            assert [summary.summary for summary in found] == [f"deployment by {owner}"]
            told = await store.trajectory(owner, "p1", "br_1", limit=10)
            assert told is not None
            assert [entry.text for entry in told.entries] == [f"text of {owner}"]
            async with watching(store, owner, start) as watch:
                assert {seen.key.owner for seen in await take(watch, revision)} == {owner}
        assert await store.load(key_of(owner="eve")) is None
        assert await store.search("eve", "deployment", None, 10) == []
        assert await store.trajectory("eve", "p1", "br_1", limit=10) is None
        assert await store.receipt(key_of(owner="eve"), "op") is None

    run(act)


def test_a_watcher_is_not_held_up_by_what_others_do(run: Run) -> None:
    async def act(store: Store) -> None:
        async with watching(store, "ann", await store.cursor()) as watch:
            for revision in range(times(300, 3000)):
                await store.commit(commit_of(key_of(owner="bob"), revision))
            await begin(store, key_of(owner="ann"))
            assert numbers(await take(watch, 1)) == [("sess_1", 1)]

    run(act)


# ---- the collections


async def _keep(store: Store, **texts: str) -> None:
    """One summary for each branch."""
    for revision, (branch_id, text) in enumerate(texts.items()):
        description, _, summary = text.rpartition("|")
        made = summary_of(KEY, branch_id, summary, description=description, at=f"2026-01-01T12:00:0{revision}Z")
        await store.commit(commit_of(KEY, revision, summaries=[made]))


async def _found(store: Store, query: str, project_hash: str | None = None, limit: int = 10) -> list[str]:
    return [summary.branch_id for summary in await store.search("local", query, project_hash, limit)]


def test_a_search_finds_summaries_with_every_word(run: Run) -> None:
    async def act(store: Store) -> None:
        await _keep(
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
            assert set(await _found(store, query)) == expected, query

    run(act)


def test_accents_and_case_make_no_difference_to_a_search(run: Run) -> None:
    async def act(store: Store) -> None:
        await _keep(store, a="|Le café était fermé", b="|ΑΘΗΝΑ Straße", c="|the cafe\u0301 again")
        assert set(await _found(store, "CAFE")) == {"a", "c"}
        assert set(await _found(store, "cafe\u0301 FERMÉ")) == {"a"}
        assert set(await _found(store, "αθηνα")) == {"b"}

    run(act)


def test_the_best_match_comes_first_then_the_newest(run: Run) -> None:
    async def act(store: Store) -> None:
        much, little = "retry retry retry", "one retry among a great many words on other subjects altogether"
        await _keep(store, little=f"|{little}", much=f"|{much}", same="|retry it", later="|retry it")
        order = await _found(store, "retry")
        assert order.index("much") < order.index("little")
        assert order.index("later") < order.index("same")
        assert await _found(store, "retry", limit=1) == order[:1]

    run(act)


@pytest.mark.parametrize(
    "query",
    [
        *("", "   ", "!!!", '"', '""', "* ^ -", "()", "_", "\0", "\ud800", "\u0301", "a" * 10_000 + '"', "x " * 10_000),
        *("NEAR(", 'description: "x', "AND OR NOT", "col:x*", "b AND", '"unclosed', "x*)", "'; --", "{a b}: c", "+"),
    ],
)
def test_no_query_is_a_mistake(run: Run, query: str) -> None:
    async def act(store: Store) -> None:
        await _keep(store, a="Title|Some text of a summary.")
        assert await _found(store, query) == []

    run(act)


def test_a_search_keeps_to_its_project_and_its_limit(run: Run) -> None:
    async def act(store: Store) -> None:
        for project in ("p1", "p2"):
            key = key_of(project)
            made = [summary_of(key, f"{project}/{number}", "same words") for number in range(SEARCH_MOST)]
            await store.commit(commit_of(key, summaries=made))
        assert len(await _found(store, "same", limit=10**9)) == SEARCH_MOST
        assert {branch_id[:2] for branch_id in await _found(store, "same", "p2", limit=10**9)} == {"p2"}
        assert await _found(store, "same", "p3") == []
        for limit in (0, -1):
            assert await _found(store, "same", limit=limit) == []

    run(act)


def test_a_branch_folded_again_has_one_summary(run: Run) -> None:
    async def act(store: Store) -> None:
        await store.commit(commit_of(KEY, 0, summaries=[summary_of(KEY, "br_1", "first outcome")]))
        await store.commit(commit_of(KEY, 1, summaries=[summary_of(KEY, "br_1", "second outcome")]))
        assert await store.search("local", "first", None, 10) == []
        assert await store.search("local", "outcome", None, 10) == [summary_of(KEY, "br_1", "second outcome")]

    run(act)


def test_a_trajectory_comes_back_page_by_page(run: Run) -> None:
    async def act(store: Store) -> None:
        made = [
            Entry("br_1", 2, NOON, "prompt", "Look into it.", 4),
            Entry("br_1", 3, NOON, "operation", "ls", 1, "tool", "hook", failed=True),
            Entry("br_1", 5, NOON, "child", "done", 1, child_id="br_2"),
            Entry("br_1", 6, NOON, "rollback", "", undone_from=2),
            Entry("br_1", 9, NOON, "summary", "All done.", 3),
        ]
        others = [Entry("br_2", 4, NOON, "prompt", "Deeper."), Entry(None, 7, NOON, "operation", "main thread")]
        await store.commit(commit_of(KEY, 0, entries=[*made[:3], others[0]]))
        await store.commit(commit_of(KEY, 1, entries=[*others[1:], *made[3:]]))
        whole = await store.trajectory("local", "p1", "br_1", limit=100)
        assert whole is not None
        assert list(whole.entries) == made
        assert list(whole.rollbacks) == [(2, 6)]
        paged: list[Entry] = []
        for _ in range(3):
            page = await store.trajectory("local", "p1", "br_1", after_n=paged[-1].n if paged else 0, limit=2)
            assert page is not None
            assert list(page.rollbacks) == [(2, 6)]
            paged += page.entries
        assert paged == made
        beyond = await store.trajectory("local", "p1", "br_1", after_n=9, limit=2)
        assert beyond is not None
        assert list(beyond.entries) == []
        for project, branch_id in (("p2", "br_1"), ("p1", "br_3"), ("p1", "")):
            assert await store.trajectory("local", project, branch_id, limit=2) is None

    run(act)


def test_a_trajectory_may_be_of_any_size(run: Run) -> None:
    text = "α" + "0123456789" * (FIVE_MEGABYTES // 10)

    async def act(store: Store) -> None:
        for revision in range(2):
            await store.commit(commit_of(KEY, revision, entries=[Entry("br_1", revision + 1, NOON, "operation", text)]))
        told = await store.trajectory("local", "p1", "br_1", limit=10)
        assert told is not None
        assert [entry.text == text for entry in told.entries] == [True, True]

    run(act)


# ---- the end of a session


def test_a_session_without_activity_ends_and_the_others_go_on(run: Run) -> None:
    async def act(store: Store) -> None:
        idle, busy = key_of("idle"), key_of("busy")
        await begin(store, idle, busy, at=MORNING)
        await store.commit(commit_of(busy, 1, at=EVENING))
        assert await store.expire(NOON, NEXT_DAY) == 1
        assert await store.load(idle) is None
        assert await store.load(idle, Known("sess_1", 1)) is None
        assert await store.receipt(idle, "sess_1/0") is None
        assert await store.count() == 1
        log = await store.load(busy)
        assert log is not None
        assert len(log.events) == 2
        assert await store.expire(NOON, NEXT_DAY) == 0

    run(act)


def test_activity_is_the_latest_time_even_if_clocks_disagree(run: Run) -> None:
    async def act(store: Store) -> None:
        await begin(store, KEY, at=EVENING)
        await store.commit(commit_of(KEY, 1, at=MORNING))
        assert await store.expire(NOON, NEXT_DAY) == 0
        assert await store.expire(EVENING, NEXT_DAY) == 1

    run(act)


def test_after_its_end_a_key_has_a_new_session(run: Run) -> None:
    async def act(store: Store) -> None:
        await store.commit(commit_of(KEY, events=3, at=MORNING))
        await store.expire(NOON, NEXT_DAY)
        for late in (commit_of(KEY, 3, at=NEXT_DAY), commit_of(KEY, 4, at=NEXT_DAY)):
            with pytest.raises(StaleRevision):
                await store.commit(late)
        await store.commit(commit_of(KEY, session_id="sess_2", at=NEXT_DAY))
        with pytest.raises(StaleRevision):
            await store.commit(commit_of(KEY, 1, session_id="sess_1", at=NEXT_DAY))
        log = await store.load(KEY, Known("sess_1", 1))
        assert log is not None
        assert (log.session_id, [event.n for event in log.events]) == ("sess_2", [1])

    run(act)


def test_watchers_see_the_end_even_if_they_come_late(run: Run) -> None:
    async def act(store: Store) -> None:
        start = await store.cursor()
        await store.commit(commit_of(KEY, events=2, at=MORNING))
        async with watching(store, "local", start) as there, watching(store, "local", start) as late:
            await take(there, 2)
            await store.expire(NOON, NEXT_DAY)
            assert kinds(await take(there, 1)) == ["session.expired"]
            seen = await take(late, 1)
            assert (kinds(seen), seen[0].event.n, seen[0].event.at) == (["session.expired"], 3, NEXT_DAY)
        await store.expire(NEXT_DAY, "2026-01-03T20:00:00Z")
        await store.commit(commit_of(KEY, session_id="sess_2", at=NEXT_DAY))
        async with watching(store, "local", start) as later:
            assert numbers(await take(later, 1)) == [("sess_2", 1)]

    run(act)


def test_a_cursor_stays_good_when_its_events_are_gone(run: Run) -> None:
    async def act(store: Store) -> None:
        await store.commit(commit_of(KEY, events=3, at=MORNING))
        await store.expire(NOON, MORNING)
        cursor = await store.cursor()
        await store.expire(NOON, NEXT_DAY)  # now the last event is gone as well
        assert await store.cursor() == cursor
        await store.commit(commit_of(KEY, session_id="sess_2"))
        async with watching(store, "local", cursor) as watch:
            assert numbers(await take(watch, 1)) == [("sess_2", 1)]

    run(act)


def test_archive_and_summaries_outlive_the_session_until_their_time(run: Run) -> None:
    async def act(store: Store) -> None:
        entries = [Entry("br_1", 1, MORNING, "prompt", "text")]
        await store.commit(
            commit_of(KEY, at=MORNING, entries=entries, summaries=[summary_of(KEY, "br_1", "outcome", at=MORNING)])
        )

        async def left() -> tuple[bool, bool]:
            told = await store.trajectory("local", "p1", "br_1", limit=10)
            return told is not None, bool(await store.search("local", "outcome", None, 10))

        await store.retain(NEXT_DAY, NEXT_DAY)
        assert await left() == (True, True)  # it is live
        await store.expire(NOON, NEXT_DAY)
        await store.retain(MORNING, MORNING)
        assert await left() == (True, True)  # it is not older than that
        await store.retain(NOON, MORNING)
        assert await left() == (False, True)
        await store.expire(NEXT_DAY, NEXT_DAY)
        await store.retain(NOON, NOON)
        assert await left() == (False, False)

    run(act)


def test_sweeps_of_any_size_end_everything_that_is_due(run: Run) -> None:
    sessions = times(300, 5000)

    async def act(store: Store) -> None:
        start = await store.cursor()
        for number in range(sessions):
            key = key_of(f"p{number}")
            entry = Entry(f"br_{number}", 1, MORNING, "prompt", "text")
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
        assert await store.trajectory("local", "p7", "br_7", limit=1) is None

    run(act)


def test_a_session_that_becomes_active_is_not_ended(run: Run) -> None:
    """Sweeps and commits at once: whoever was acknowledged is there, the others were told that it is too late."""
    sessions = times(100, 2000)

    async def act(store: Store) -> None:
        keys = [key_of(f"p{number}") for number in range(sessions)]
        await begin(store, *keys, at=MORNING)

        async def go_on(key: Commit) -> bool:
            try:
                await store.commit(key)
            except StaleRevision:
                return False
            return True

        later = [commit_of(key, 1, at=NEXT_DAY) for key in keys[::2]]
        ended, *kept = await asyncio.gather(store.expire(NOON, NEXT_DAY), *map(go_on, later))
        assert ended + sum(kept) == sessions
        for commit, was_kept in zip(later, kept, strict=True):
            assert (await store.load(commit.key) is not None) == was_kept

    run(act)


# ---- the store as such


def test_a_store_that_works_says_so(run: Run) -> None:
    async def act(store: Store) -> None:
        assert await store.count() == 0
        cursor = await store.cursor()
        await store.check()
        assert await store.cursor() == cursor
        await store.commit(commit_of(KEY))
        await store.commit(branch_commit(KEY, 1, "br_1"))
        assert await store.count() == 1

    run(act)


def test_a_closed_store_is_unavailable(run: Run) -> None:
    async def act(store: Store) -> None:
        await begin(store, KEY)
        await store.close()
        await store.close()
        for use in (
            lambda: store.load(KEY),
            lambda: store.commit(commit_of(KEY, 1)),
            lambda: store.receipt(KEY, "op"),
            store.cursor,
            lambda: store.search("local", "x", None, 1),
            lambda: store.trajectory("local", "p1", "br_1", limit=1),
            lambda: store.expire(NOON, NOON),
            lambda: store.retain(NOON, NOON),
            store.count,
            store.check,
            lambda: take(store.watch("local"), 1),
        ):
            with pytest.raises(StoreUnavailable) as told:
                await use()
            assert (told.value.message, told.value.data) == ("State store is unavailable", {"retry": True})

    run(act)


def test_closing_finishes_what_was_taken(run: Run) -> None:
    async def act(store: Store) -> None:
        keys = [key_of(f"p{number}") for number in range(50)]
        taken = [asyncio.ensure_future(store.commit(commit_of(key))) for key in keys]
        await asyncio.sleep(0)  # each has asked by now
        await store.close()
        assert len(await asyncio.gather(*taken)) == len(keys)

    run(act)
