"""Results that requests leave out, on every store: the first decision counts, each owner has its own, retention."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from contextfold.fold.store import LeftOutDecision, LeftOutResult, Store
from tests.contract.sessions import NOON
from tests.contract.stores import Run, run

__all__ = ["run"]

LATER = "2026-02-01T12:00:00Z"
LONG = "x\n\"é😀'" * 200_000


def result(call_id: str, text: str = "text", *, number: int = 1, at: str = NOON, stub: str = "") -> LeftOutResult:
    made = LeftOutDecision(call_id, f"hash of {text[:20]}", f"res_{number}", stub or f"[left out: {call_id} é]", at)
    return LeftOutResult(made, text)


def test_decisions_of_a_conversation_come_back_in_order_and_texts_by_their_id(run: Run) -> None:
    async def act(store: Store) -> None:
        some = [result("call.b", "two", number=2), result("call a>*", "one"), result("call a>*", "other", number=3)]
        await store.keep_left_out("local", "conversation 1", some)
        await store.keep_left_out("local", "other", [result("call.b", "elsewhere", number=4)])
        expected = [some[1].decision, some[2].decision, some[0].decision]
        assert list(await store.left_out("local", "conversation 1")) == expected
        assert [await store.left_out_text("local", f"res_{number}") for number in (1, 2, 3, 4)] == [
            *("one", "two", "other", "elsewhere")
        ]

    run(act)


def test_what_was_never_left_out_is_not_there(run: Run) -> None:
    async def act(store: Store) -> None:
        assert list(await store.left_out("local", "none")) == []
        assert await store.left_out_text("local", "res_none") is None
        await store.keep_left_out("local", "none", [])
        assert list(await store.left_out("local", "none")) == []

    run(act)


def test_the_first_decision_about_a_call_and_a_text_stays(run: Run) -> None:
    async def act(store: Store) -> None:
        first = result("call_1", stub="[first]")
        second = replace(first, decision=replace(first.decision, result_id="res_2", stub="[second]"))
        await store.keep_left_out("local", "c", [first])
        await store.keep_left_out("local", "c", [second, first])
        assert list(await store.left_out("local", "c")) == [first.decision]
        assert await store.left_out_text("local", "res_1") == "text"

    run(act)


def test_daemons_that_decide_at_the_same_time_agree(run: Run) -> None:
    async def act(store: Store) -> None:
        decisions = [
            replace(result("call_1").decision, result_id=f"res_{number}", stub=f"[{number}]") for number in range(8)
        ]
        some = [[LeftOutResult(decision, f"text {decision.result_id}")] for decision in decisions]
        await asyncio.gather(*(store.keep_left_out("local", "c", items) for items in some))
        (first,) = await store.left_out("local", "c")
        assert first in decisions
        assert await store.left_out_text("local", first.result_id) == f"text {first.result_id}"

    run(act)


def test_owners_do_not_see_each_others_results(run: Run) -> None:
    async def act(store: Store) -> None:
        await store.keep_left_out("ann", "c", [result("call_1", "of ann")])
        await store.keep_left_out("bob", "c", [result("call_1", "of bob", number=2)])
        assert [each.result_id for each in await store.left_out("ann", "c")] == ["res_1"]
        assert await store.left_out_text("ann", "res_2") is None
        assert await store.left_out_text("bob", "res_2") == "of bob"

    run(act)


def test_a_text_may_be_megabytes(run: Run) -> None:
    async def act(store: Store) -> None:
        await store.keep_left_out("local", "c", [result("call_1", LONG)])
        assert await store.left_out_text("local", "res_1") == LONG

    run(act)


def test_a_conversation_is_forgotten_with_the_archive_as_a_whole(run: Run) -> None:
    async def act(store: Store) -> None:
        await store.keep_left_out("local", "old", [result("call_1", LONG), result("call_2", number=2)])
        await store.keep_left_out("local", "mixed", [result("call_1", number=3), result("call_2", number=4, at=LATER)])
        await store.retain("2026-01-15T00:00:00Z", "2027-01-01T00:00:00Z")
        assert list(await store.left_out("local", "old")) == []
        assert await store.left_out_text("local", "res_1") is None
        assert len(await store.left_out("local", "mixed")) == 2
        assert await store.left_out_text("local", "res_3") == "text"

    run(act)
