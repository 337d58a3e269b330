"""Recall on every store: what is found, how it is ranked, and what happens to it when the store changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextfold.common.answer_format import FORMATS, JSON
from contextfold.common.canonical import encode
from contextfold.errors import ArgumentInvalid, FoldError
from contextfold.fold.events import BranchCreated
from contextfold.fold.project import Caller, project_at
from contextfold.fold.recall import RecallAnswer
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.store import ArchivedResult, LeftOutDecision, Store
from contextfold.fold.tool_calls import RecallRequest
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.stores.nats.store import NatsStore
from tests.contract.stores import options_on
from tests.support.machine import times
from tests.support.nats_servers import NatsServer, delete_streams
from tests.support.temporary_store import TemporaryStore

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
DAY_S = 86_400


class RecallHarness:
    """A fold service on a store, with its own clock and ids."""

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
        self,
        description: str,
        summary: str,
        *,
        operations: Sequence[str] = (),
        project: str = "/p",
        owner: str = "local",
    ) -> str:
        """Opens a branch, records operations in it, folds it, and returns its id."""
        caller, there = Caller(owner), {"project_path": project}
        self.seconds += 1
        opened = await self.service.open_branch(
            caller, {"description": description, "prompt": "Look into it.", **there}
        )
        for text in operations:
            await self.service.record(caller, {"type": "Bash", "content": text, **there}, "reported")
        await self.service.return_branch(caller, {"message": summary, **there})
        (created,) = (event for event in opened.events if isinstance(event, BranchCreated))
        return created.branch_id

    async def recall(self, query: str, *, owner: str = "local", **scope: Any) -> RecallAnswer:
        return await self.service.recalls.answer(owner, RecallRequest(query, **scope))

    async def recalled_ids(self, query: str, **scope: Any) -> list[str]:
        return [fold.id for fold in (await self.recall(query, **scope)).folds]


@pytest.fixture
def harness(store: Store) -> RecallHarness:
    return RecallHarness(store)


def left_out(result_id: str, stub: str, text: str, **origin: str) -> ArchivedResult:
    decision = LeftOutDecision(result_id, "hash", result_id, stub, "2026-01-01T12:00:00Z", 9, 3, **origin)
    return ArchivedResult(decision, text)


async def test_a_question_finds_folds_by_any_form_of_their_words(harness: RecallHarness) -> None:
    login = await harness.fold("Why logins fail", "The token had expired; renewed by refreshToken().")
    await harness.fold("Deploy to staging", "Deployed with helm, version 12.")
    for query in ("login failing", "expires", "refresh", "where did we see the expired tokens?"):
        assert await harness.recalled_ids(query) == [login], query
    answer = await harness.recall("login xyzzy")
    assert answer.unmatched == ("xyzzy",)
    assert answer.folds[0].why[0].fields == ("description",)
    assert answer.folds[0].score == sum(reason.score for reason in answer.folds[0].why)


async def test_irregular_forms_of_a_word_are_found(harness: RecallHarness) -> None:
    branch_id = await harness.fold("Wrote the parser", "The build broke; two children of the process were sent away.")
    await harness.fold("Nothing of that", "Other words.")
    for query in ("who writes the parser", "breaking", "child", "send"):
        assert await harness.recalled_ids(query) == [branch_id]


async def test_the_words_of_a_date_find_what_was_folded_then(harness: RecallHarness) -> None:
    january = await harness.fold("The first", "Done.")
    harness.seconds += 40 * DAY_S
    february = await harness.fold("The second", "Done.")
    assert await harness.recalled_ids("what did we do in February") == [february]
    (fold,) = (await harness.recall("1 January 2026")).folds[:1]
    assert fold.id == january
    assert {reason.fields for reason in fold.why} == {("date",)}


async def test_words_that_stand_together_rank_above_the_same_words_apart(harness: RecallHarness) -> None:
    between = "and then a long list of other matters came up which nobody wanted to hear about on that morning " * 3
    apart = await harness.fold("Notes", f"The cache is large. {between} A token was found.")
    together = await harness.fold("Notes", f"The token of the cache expired. {between} It is large.")
    assert await harness.recalled_ids("cache token") == [together, apart]
    for fold in (await harness.recall("cache token")).folds:
        assert sum(reason.score for reason in fold.why) == fold.score


async def test_operations_rank_below_summaries(harness: RecallHarness) -> None:
    log = "line\n" * 5_000 + "connect failed: ECONNRESET\n" + "line\n" * 5_000
    in_operations = await harness.fold(
        "Check the network", "All is well.", operations=["curl host", log, "cat src/net/retry_policy.py"]
    )
    in_summary = await harness.fold("Retry after errors", "ECONNRESET is retried now.")
    assert await harness.recalled_ids("where did we see ECONNRESET") == [in_summary, in_operations]
    assert await harness.recalled_ids("policy.py") == [in_operations]
    (reason,) = (await harness.recall("curl")).folds[0].why
    assert reason.fields == ("operations",)


async def test_recent_work_that_was_folded_is_found_by_its_operations(harness: RecallHarness) -> None:
    there = {"project_path": "/p"}
    operation = {"type": "Bash", "content": "make zebra", **there}
    await harness.service.record(Caller("local"), operation, "reported")
    await harness.service.fold_work(Caller("local"), {"message": "Built it.", **there})
    (fold,) = (await harness.recall("zebra")).folds
    assert fold.description == "Built it."
    assert fold.why[0].fields == ("operations",)


async def test_undone_folds_are_found_only_on_request(harness: RecallHarness) -> None:
    first = await harness.fold("Try walrus", "It works.")
    second = await harness.fold("Try walrus again", "It works too.")
    there, caller = {"project_path": "/p"}, Caller("local")
    await harness.service.open_branch(caller, {"description": "Third walrus", "prompt": "Never folded.", **there})
    assert await harness.recalled_ids("walrus") == [first, second]
    await harness.service.roll_back(caller, {"branch_id": second, **there})
    assert await harness.recalled_ids("walrus") == [first]
    undone = (await harness.recall("walrus", undone=True)).folds
    assert {fold.description: fold.undone for fold in undone} == {
        "Try walrus": False,
        "Try walrus again": True,
        "Third walrus": True,
    }
    assert [summary.branch_id for summary in await harness.service.store.search("local", "walrus", None, 9)] == [first]
    await harness.service.return_branch(caller, {"message": "Folded at last.", **there})
    assert await harness.recalled_ids("last") == [second]


async def test_left_out_results_are_found_by_their_call_and_text(harness: RecallHarness) -> None:
    project_key = project_at("/p")
    origin = {"project_hash": project_key.hash, "project_path": "/p", "session_id": "sess_9"}
    call = "[left out: Read src/walrus.py]"
    await harness.service.store.keep_left_out("local", "c1", [left_out("res_1", call, "def swim(): pass", **origin)])
    await harness.service.store.keep_left_out("local", "c2", [left_out("res_2", "[left out: Bash ls]", "walrus.py")])
    (first, second) = (await harness.recall("walrus")).folds
    assert (first.id, first.kind, first.project_path, first.session_id) == ("res_1", "result", "/p", "sess_9")
    assert [reason.fields for fold in (first, second) for reason in fold.why] == [("call",), ("text",)]
    assert await harness.recalled_ids("walrus", project=project_key) == ["res_1"]


async def test_project_and_time_limit_the_results(harness: RecallHarness) -> None:
    old = await harness.fold("walrus one", "done", project="/p")
    harness.seconds += 3 * DAY_S
    new = await harness.fold("walrus two", "done", project="/q")
    assert set(await harness.recalled_ids("walrus")) == {old, new}
    assert await harness.recalled_ids("walrus", project=project_at("/p")) == [old]
    assert await harness.recalled_ids("walrus", since="2026-01-03T00:00:00Z") == [new]
    assert await harness.recalled_ids("walrus", project=project_at("/p"), since="2026-01-03T00:00:00Z") == []


async def test_folds_of_other_owners_are_not_found_and_do_not_affect_scores(harness: RecallHarness) -> None:
    mine = await harness.fold("walrus", "a secret walrus plan", owner="ann")
    before = encode((await harness.recall("walrus plan", owner="ann")).as_members())
    for number in range(5):
        await harness.fold(f"walrus {number}", "walrus plan", owner="bob")
    await harness.service.store.keep_left_out("bob", "c", [left_out("res_1", "walrus plan", "walrus plan")])
    assert encode((await harness.recall("walrus plan", owner="ann")).as_members()) == before
    assert await harness.recalled_ids("walrus", owner="ann", undone=True) == [mine]
    for owner in ("eve", "", "ann' OR 1=1", "*"):
        assert await harness.recalled_ids("walrus", owner=owner, undone=True) == []


async def test_the_whole_answer_fits_the_budget(store: Store) -> None:
    from contextfold.common.tokens import estimate

    harness = RecallHarness(store)
    for number in range(12):
        await harness.fold(f"walrus {number}", "walrus " * (20 * number + 1))
    for budget in (200, 300, 500, 1_000, 3_000, 100_000):
        for format in FORMATS:
            answer = await harness.recall(
                "walrus and " + "unknown words of a question " * 3, budget_tokens=budget, format=format
            )
            text = encode(answer.as_members()) if format == JSON else answer.to_text()
            assert estimate(text) <= answer.tokens_used <= budget
    assert len(answer.folds) == 12


@pytest.mark.parametrize("query", ["the of and", "how do we", "!!! ??? ---", "\x00\x01\x1b", "'\"*"])
async def test_a_query_without_search_terms_is_refused(store: Store, query: str) -> None:
    with pytest.raises(ArgumentInvalid) as raised:
        await RecallHarness(store).recall(query)
    assert raised.value.data["field"] == "query"


async def test_unusual_queries_are_words_and_no_syntax(harness: RecallHarness) -> None:
    fold_id = await harness.fold("Проверить вход", "ログイン失敗を修正 walrus's snake_case_name")
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
        assert await harness.recalled_ids(query) == [fold_id], query


async def test_a_query_is_redacted_before_it_is_used(store: Store) -> None:
    answer = await RecallHarness(store).recall("ghp_16C7e42F292c6912E7710c838347Ae178B4a of deployment")
    assert "ghp" not in encode(answer.as_members()).lower()
    assert answer.unmatched == ("deployment",)


async def test_operations_expire_with_the_archive_and_folds_with_their_summary(harness: RecallHarness) -> None:
    fold = await harness.fold("walrus", "done", operations=["curl zebra"])
    assert await harness.recalled_ids("zebra") == [fold]
    await harness.service.store.expire("2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z")
    assert await harness.recalled_ids("zebra") == [fold]
    await harness.service.store.retain("2026-01-03T00:00:00Z", "2025-01-01T00:00:00Z")
    assert await harness.recalled_ids("zebra") == []
    assert await harness.recalled_ids("walrus") == [fold]
    await harness.service.store.retain("2026-01-03T00:00:00Z", "2026-01-03T00:00:00Z")
    answer = await harness.recall("walrus", undone=True)
    assert (answer.folds, answer.documents) == ((), 0)


# ---- compared with a model: an index that was updated with every change answers like a new one

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


async def _do_step(harness: RecallHarness, number: int, step: tuple[Any, ...]) -> None:
    service = harness.service
    match step:
        case "branch", owner, project, text:
            await service.open_branch(
                Caller(owner), {"project_path": project, "description": text, "prompt": f"prompt {text}"}
            )
        case "record", owner, project, text:
            operation = {"project_path": project, "type": "Bash", "content": text}
            await service.record(Caller(owner), operation, "reported")
        case "return", owner, project, text:
            await service.return_branch(Caller(owner), {"project_path": project, "message": text})
        case "fold", owner, project, text:
            await service.fold_work(Caller(owner), {"project_path": project, "message": text})
        case "rollback", owner, project, branch, restore:
            request = {"project_path": project, "branch_id": f"br_{branch:03}", "restore_state": restore}
            await service.roll_back(Caller(owner), request)
        case "left_out", owner, text:
            result = left_out(f"res_{number}", text, text)
            at = harness._now().strftime("%Y-%m-%dT%H:%M:%SZ")
            item = result._replace(decision=result.decision._replace(decided_at=at))
            await service.store.keep_left_out(owner, f"c{number % 2}", [item])
        case "pass", seconds:
            harness.seconds += seconds
        case ("maintain",):
            await service.end_idle()
            await service.forget()
        case "ask", owner, text:
            await harness.recall(text, owner=owner)


async def _answers(store: Store) -> list[str]:
    harness = RecallHarness(store)
    scopes: list[dict[str, Any]] = [
        {},
        {"undone": True},
        {"project": project_at("/p")},
        {"since": "2026-01-05T00:00:00Z"},
    ]
    queries = ("alpha", "beta econnreset", "delta alphabet alpha", "prompt bash")
    return [
        encode((await harness.recall(query, owner=owner, **scope)).as_members())
        for owner in ("ann", "bob")
        for scope in scopes
        for query in queries
    ]


async def _check_agreement(history: Sequence[tuple[Any, ...]], stores: Sequence[Any]) -> None:
    answers = []
    for store in stores:
        harness = RecallHarness(store)
        for number, step in enumerate(history):
            try:
                await _do_step(harness, number, step)
            except FoldError:
                continue
        answers.append(await _answers(store))
        new = TemporaryStore()
        await new.import_all([record async for record in store.export()])
        assert await _answers(new) == answers[-1]
        await new.close()
    assert all(answer == answers[0] for answer in answers)


@settings(max_examples=times(8, 150), deadline=None)
@given(history=st.lists(steps, min_size=6, max_size=30))
def test_an_updated_index_answers_like_a_new_one(history: list[tuple[Any, ...]]) -> None:
    async def run_and_close() -> None:
        store = TemporaryStore()
        try:
            await _check_agreement(history, [store])
        finally:
            await store.close()

    asyncio.run(run_and_close())


@settings(max_examples=times(2, 40), deadline=None)
@given(history=st.lists(steps, min_size=6, max_size=20))
def test_sqlite_and_nats_give_the_same_answers(nats_server: NatsServer, history: list[tuple[Any, ...]]) -> None:
    async def run_and_close() -> None:
        options = options_on(nats_server)
        stores: list[Store] = [TemporaryStore(), NatsStore(options)]
        try:
            await _check_agreement(history, stores)
        finally:
            for store in stores:
                await store.close()
            await delete_streams(options)

    asyncio.run(run_and_close())
