"""Recall on every store: what is found, how it is ranked, and what happens to it when the store changes."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextfold.common.canonical import encode
from contextfold.errors import ArgumentInvalid, FoldError
from contextfold.fold.events import BranchCreated
from contextfold.fold.ports.store import ArchivedResult, LeftOutDecision, Store
from contextfold.fold.ports.store_export import PortableStore
from contextfold.fold.project import project_at
from contextfold.fold.recall.answer import RecallAnswer
from contextfold.fold.service.callers import Caller
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.tool_arguments import (
    BranchRequest,
    FoldRequest,
    RecallRequest,
    RecordRequest,
    ReturnRequest,
    RollbackRequest,
)
from contextfold.scrub.standard import standard_scrubber
from contextfold.stores.memory import MemoryStore
from contextfold.stores.nats.store import NatsStore
from contextfold.stores.sqlite.store import SqliteStore
from tests.contract.stores import Run, options_on, run
from tests.support.machine import times
from tests.support.nats_servers import NatsServer, drop

__all__ = ["run"]

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
DAY_S = 86_400


class Work:
    """Folding over a store, with a clock and ids of its own."""

    def __init__(self, store: Store) -> None:
        self.seconds = 0
        self._ids = 0
        self.service = FoldService(store, standard_scrubber(), clock=self._now, new_id=self._id)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(START.timestamp() + self.seconds, UTC)

    def _id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}_{self._ids:03}"

    async def fold(
        self, description: str, summary: str, *, done: Sequence[str] = (), project: str = "/p", owner: str = "local"
    ) -> str:
        """Open a branch, do something in it, fold it; returns its id."""
        caller, place = Caller(owner), project_at(project)
        self.seconds += 1
        opened = await self.service.branch(caller, BranchRequest(place, description, "Look into it."))
        for text in done:
            await self.service.record(caller, RecordRequest(place, "Bash", text, None, False), "reported")
        await self.service.fold(caller, ReturnRequest(place, summary, None))
        (created,) = (event for event in opened.events if isinstance(event, BranchCreated))
        return created.branch_id

    async def ask(self, query: str, *, owner: str = "local", **scope: Any) -> RecallAnswer:
        return await self.service.recalls.answer(owner, RecallRequest(query, **scope))

    async def found(self, query: str, **scope: Any) -> list[str]:
        return [fold.id for fold in (await self.ask(query, **scope)).folds]


def left_out(result_id: str, stub: str, text: str, **origin: str) -> ArchivedResult:
    decision = LeftOutDecision(result_id, "hash", result_id, stub, "2026-01-01T12:00:00Z", 9, 3, **origin)
    return ArchivedResult(decision, text)


def test_a_question_finds_folds_by_any_form_of_their_words(run: Run) -> None:
    async def act(store: Store) -> None:
        work = Work(store)
        login = await work.fold("Why logins fail", "The token had expired; renewed by refreshToken().")
        await work.fold("Deploy to staging", "Deployed with helm, version 12.")
        for query in ("login failing", "expires", "refresh", "where did we see the expired tokens?"):
            assert await work.found(query) == [login], query
        answer = await work.ask("login xyzzy")
        assert answer.unmatched == ("xyzzy",)
        assert answer.folds[0].why[0].fields == ("description",)
        assert answer.folds[0].score == sum(reason.score for reason in answer.folds[0].why)

    run(act)


def test_operations_are_found_below_what_a_summary_says(run: Run) -> None:
    async def act(store: Store) -> None:
        work = Work(store)
        log = "line\n" * 5_000 + "connect failed: ECONNRESET\n" + "line\n" * 5_000
        seen = await work.fold(
            "Check the network", "All is well.", done=["curl host", log, "cat src/net/retry_policy.py"]
        )
        said = await work.fold("Retry after errors", "ECONNRESET is retried now.")
        assert await work.found("where did we see ECONNRESET") == [said, seen]
        assert await work.found("policy.py") == [seen]
        (reason,) = (await work.ask("curl")).folds[0].why
        assert reason.fields == ("operations",)

    run(act)


def test_work_that_was_folded_afterwards_is_found_by_what_was_done(run: Run) -> None:
    async def act(store: Store) -> None:
        work = Work(store)
        place = project_at("/p")
        await work.service.record(Caller("local"), RecordRequest(place, "Bash", "make zebra", None, False), "reported")
        await work.service.fold_recent_work(Caller("local"), FoldRequest(place, "Built it."))
        (fold,) = (await work.ask("zebra")).folds
        assert fold.description == "Built it."
        assert fold.why[0].fields == ("operations",)

    run(act)


def test_what_a_rollback_took_back_is_found_only_when_asked_for(run: Run) -> None:
    async def act(store: Store) -> None:
        work = Work(store)
        first = await work.fold("Try walrus", "It works.")
        second = await work.fold("Try walrus again", "It works too.")
        place, caller = project_at("/p"), Caller("local")
        await work.service.branch(caller, BranchRequest(place, "Third walrus", "Never folded."))
        assert await work.found("walrus") == [first, second]
        await work.service.rollback(caller, RollbackRequest(place, second, True))
        assert await work.found("walrus") == [first]
        undone = (await work.ask("walrus", undone=True)).folds
        assert {fold.description: fold.undone for fold in undone} == {
            "Try walrus": False,
            "Try walrus again": True,
            "Third walrus": True,
        }
        assert [summary.branch_id for summary in await store.search("local", "walrus", None, 9)] == [first]
        await work.service.fold(caller, ReturnRequest(place, "Folded at last.", None))
        assert await work.found("last") == [second]

    run(act)


def test_left_out_results_are_found_by_their_call_and_text(run: Run) -> None:
    async def act(store: Store) -> None:
        work = Work(store)
        place = project_at("/p")
        origin = {"project_hash": place.hash, "project_path": "/p", "session_id": "sess_9"}
        call = "[left out: Read src/walrus.py]"
        await store.keep_left_out("local", "c1", [left_out("res_1", call, "def swim(): pass", **origin)])
        await store.keep_left_out("local", "c2", [left_out("res_2", "[left out: Bash ls]", "walrus.py")])
        (first, second) = (await work.ask("walrus")).folds
        assert (first.id, first.kind, first.project_path, first.session_id) == ("res_1", "result", "/p", "sess_9")
        assert [reason.fields for fold in (first, second) for reason in fold.why] == [("call",), ("text",)]
        assert await work.found("walrus", project=place) == ["res_1"]

    run(act)


def test_scope_and_time_limit_what_is_found(run: Run) -> None:
    async def act(store: Store) -> None:
        work = Work(store)
        old = await work.fold("walrus one", "done", project="/p")
        work.seconds += 3 * DAY_S
        new = await work.fold("walrus two", "done", project="/q")
        assert set(await work.found("walrus")) == {old, new}
        assert await work.found("walrus", project=project_at("/p")) == [old]
        assert await work.found("walrus", since="2026-01-03T00:00:00Z") == [new]
        assert await work.found("walrus", project=project_at("/p"), since="2026-01-03T00:00:00Z") == []

    run(act)


def test_owners_find_nothing_of_each_others_and_scores_do_not_depend_on_it(run: Run) -> None:
    async def act(store: Store) -> None:
        work = Work(store)
        mine = await work.fold("walrus", "a secret walrus plan", owner="ann")
        before = encode((await work.ask("walrus plan", owner="ann")).as_members())
        for number in range(5):
            await work.fold(f"walrus {number}", "walrus plan", owner="bob")
        await store.keep_left_out("bob", "c", [left_out("res_1", "walrus plan", "walrus plan")])
        assert encode((await work.ask("walrus plan", owner="ann")).as_members()) == before
        assert await work.found("walrus", owner="ann", undone=True) == [mine]
        for owner in ("eve", "", "ann' OR 1=1", "*"):
            assert await work.found("walrus", owner=owner, undone=True) == []

    run(act)


def test_the_whole_answer_fits_the_budget(run: Run) -> None:
    from contextfold.common.relevance.token_estimate import estimate

    async def act(store: Store) -> None:
        work = Work(store)
        for number in range(12):
            await work.fold(f"walrus {number}", "walrus " * (20 * number + 1))
        for budget in (200, 300, 500, 1_000, 3_000, 100_000):
            answer = await work.ask("walrus and " + "unknown words of a question " * 3, budget_tokens=budget)
            assert estimate(encode(answer.as_members())) <= answer.tokens_used <= budget
        assert len(answer.folds) == 12

    run(act)


@pytest.mark.parametrize("query", ["the of and", "how do we", "!!! ??? ---", "\x00\x01\x1b", "'\"*"])
def test_a_query_without_a_word_to_look_for_is_refused(run: Run, query: str) -> None:
    async def act(store: Store) -> None:
        with pytest.raises(ArgumentInvalid) as refused:
            await Work(store).ask(query)
        assert refused.value.data["field"] == "query"

    run(act)


def test_odd_queries_are_words_and_no_syntax(run: Run) -> None:
    async def act(store: Store) -> None:
        work = Work(store)
        one = await work.fold("Проверить вход", "ログイン失敗を修正 walrus's snake_case_name")
        for query in (
            *('"walrus', "walrus*", "walrus AND NOT walrus", "col:walrus", "walrus) OR (x", "NEAR(walrus, 5)"),
            *(
                "проверить",
                "失敗",
                "walrus's",
                "snake_case_name",
                "case",
                "w\x00 walrus \x1b[31m",
                "x " * 4_000 + "walrus",
            ),
        ):
            assert await work.found(query) == [one], query

    run(act)


def test_a_query_is_redacted_before_it_is_used(run: Run) -> None:
    async def act(store: Store) -> None:
        answer = await Work(store).ask("ghp_16C7e42F292c6912E7710c838347Ae178B4a of deployment")
        assert "ghp" not in encode(answer.as_members()).lower()
        assert answer.unmatched == ("deployment",)

    run(act)


def test_words_leave_the_index_with_the_archive_and_the_fold_with_its_summary(run: Run) -> None:
    async def act(store: Store) -> None:
        work = Work(store)
        fold = await work.fold("walrus", "done", done=["curl zebra"])
        assert await work.found("zebra") == [fold]
        await store.expire("2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z")
        assert await work.found("zebra") == [fold]
        await store.retain("2026-01-03T00:00:00Z", "2025-01-01T00:00:00Z")
        assert await work.found("zebra") == []
        assert await work.found("walrus") == [fold]
        await store.retain("2026-01-03T00:00:00Z", "2026-01-03T00:00:00Z")
        answer = await work.ask("walrus", undone=True)
        assert (answer.folds, answer.documents) == ((), 0)

    run(act)


# ---- against a model: an index that has followed the changes answers like one that is built from nothing

WORDS = ["alpha", "beta", "alphabet", "gammaDelta", "ECONNRESET", "betas"]
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
projects = st.sampled_from(["/p", "/q"])
owners = st.sampled_from(["ann", "bob"])
steps = st.one_of(
    st.tuples(st.just("branch"), owners, projects, texts),
    st.tuples(st.just("record"), owners, projects, texts),
    st.tuples(st.just("return"), owners, projects, texts),
    st.tuples(st.just("fold"), owners, projects, texts),
    st.tuples(st.just("rollback"), owners, projects, st.integers(1, 6), st.booleans()),
    st.tuples(st.just("left_out"), owners, texts),
    st.tuples(st.just("pass"), st.sampled_from([3_600, DAY_S, 20 * DAY_S])),
    st.tuples(st.just("maintain")),
    st.tuples(st.just("ask"), owners, texts),
)


async def _step(work: Work, number: int, step: tuple[Any, ...]) -> None:
    service = work.service
    match step:
        case "branch", owner, project, text:
            await service.branch(Caller(owner), BranchRequest(project_at(project), text, f"prompt {text}"))
        case "record", owner, project, text:
            done = RecordRequest(project_at(project), "Bash", text, None, False)
            await service.record(Caller(owner), done, "reported")
        case "return", owner, project, text:
            await service.fold(Caller(owner), ReturnRequest(project_at(project), text, None))
        case "fold", owner, project, text:
            await service.fold_recent_work(Caller(owner), FoldRequest(project_at(project), text))
        case "rollback", owner, project, branch, restore:
            request = RollbackRequest(project_at(project), f"br_{branch:03}", restore)
            await service.rollback(Caller(owner), request)
        case "left_out", owner, text:
            decided = left_out(f"res_{number}", text, text)
            at = work._now().strftime("%Y-%m-%dT%H:%M:%SZ")
            item = replace(decided, decision=replace(decided.decision, decided_at=at))
            await service.store.keep_left_out(owner, f"c{number % 2}", [item])
        case "pass", seconds:
            work.seconds += seconds
        case ("maintain",):
            await service.end_idle()
            await service.forget()
        case "ask", owner, text:
            await work.ask(text, owner=owner)


async def _answers(store: Store) -> list[str]:
    work = Work(store)
    scopes: list[dict[str, Any]] = [
        {},
        {"undone": True},
        {"project": project_at("/p")},
        {"since": "2026-01-05T00:00:00Z"},
    ]
    queries = ("alpha", "beta econnreset", "delta alphabet alpha", "prompt bash")
    return [
        encode((await work.ask(query, owner=owner, **scope)).as_members())
        for owner in ("ann", "bob")
        for scope in scopes
        for query in queries
    ]


async def _agree(history: Sequence[tuple[Any, ...]], stores: Sequence[Any]) -> None:
    answers = []
    for store in stores:
        work = Work(store)
        for number, step in enumerate(history):
            try:
                await _step(work, number, step)
            except FoldError:
                continue
        answers.append(await _answers(store))
        model: PortableStore = MemoryStore()
        await model.import_all([record async for record in store.export()])
        assert await _answers(model) == answers[-1]  # type: ignore[arg-type]
    assert all(each == answers[0] for each in answers)


@settings(max_examples=times(8, 150), deadline=None)
@given(history=st.lists(steps, min_size=6, max_size=30))
def test_an_index_that_followed_every_change_answers_like_a_new_one(history: list[tuple[Any, ...]]) -> None:
    async def whole(folder: Path) -> None:
        stores: list[Store] = [MemoryStore(), SqliteStore.open(folder / "state.db")]
        try:
            await _agree(history, stores)
        finally:
            for store in stores:
                await store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(whole(Path(folder)))


@settings(max_examples=times(2, 40), deadline=None)
@given(history=st.lists(steps, min_size=6, max_size=20))
def test_nats_answers_the_same_bytes(nats_server: NatsServer, history: list[tuple[Any, ...]]) -> None:
    async def whole() -> None:
        options = options_on(nats_server)
        stores: list[Store] = [MemoryStore(), NatsStore(options)]
        try:
            await _agree(history, stores)
        finally:
            for store in stores:
                await store.close()
            await drop(options)

    asyncio.run(whole())
