"""The line about the open branch: what it says, when, and that nothing in it can be mistaken for something else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextfold.fold import session
from contextfold.fold.accounting import Thresholds
from contextfold.fold.messages import project
from contextfold.fold.project import project_at
from contextfold.fold.reminder import DESCRIPTION_MOST, Reminding, branch_line, state_line
from contextfold.fold.service.callers import Caller, target_of
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.session import EMPTY, Beginning, Limits, State, Work, begin, replay
from contextfold.fold.tool_arguments import branch_request
from contextfold.scrub.standard import standard_scrubber
from contextfold.serve.mcp.fold_tools import FOLD_TOOLS, call
from contextfold.serve.mcp.tools import Answer
from contextfold.stores.memory import MemoryStore

AT = "2026-01-01T00:00:00Z"
LIMITS = Limits(context_tokens=1000)
ON = Reminding()


def state_with(*descriptions: str, main_tokens: int = 0, tokens: Sequence[int] = ()) -> State:
    """A session with open branches, one in the other, each with some tokens."""
    state = replay([begin(Beginning("sess_1", "/work/app", None), AT)], EMPTY)
    state = replay(session.record(state, AT, _work(main_tokens)), state)
    for number, description in enumerate(descriptions):
        events = session.branch(
            state,
            LIMITS,
            AT,
            branch_id=f"br_{number}",
            description=description,
            prompt="p",
            tokens=(tokens or [0] * len(descriptions))[number],
            redactions=0,
        )
        state = replay(events, state)
    return state


def _work(tokens: int) -> Work:
    return Work("t", tokens, "hook", failed=False, redactions=0)


def line(state: State, waiting: int = 0, reminding: Reminding = ON) -> str:
    return branch_line(state, waiting, LIMITS, reminding)


def test_there_is_none_where_no_branch_is_open() -> None:
    assert line(EMPTY) == line(state_with(main_tokens=900)) == ""


def test_it_names_the_branch_its_tokens_and_the_way_back() -> None:
    told = line(state_with("Find the leak", tokens=[120]))
    assert told == (
        "contextfold: branch br_0 (Find the leak) is open: 120 of 500 tokens. "
        "When it is done, call context_return with all that is needed."
    )


def test_of_nested_branches_it_names_the_one_that_work_goes_to() -> None:
    assert line(state_with("outer", "inner", tokens=[400, 7])).startswith(
        "contextfold: branch br_1 (inner) is open: 7 "
    )


def test_what_is_not_written_yet_counts() -> None:
    assert " 130 of 500 tokens" in line(state_with("d", tokens=[100]), waiting=30)


@pytest.mark.parametrize(("tokens", "asks"), [(499, False), (500, True), (9000, True)])
def test_at_the_limit_it_asks_for_the_return_now(tokens: int, asks: bool) -> None:
    told = line(state_with("d", tokens=[tokens]))
    assert ("Call context_return now" in told) is asks
    assert ("is at its limit" in told) is asks


def test_the_limit_is_half_of_the_context_unless_it_is_set() -> None:
    state = state_with("d", tokens=[60])
    assert "60 of 500 tokens" in line(state)
    assert "is at its limit: 60 of 50 tokens" in line(state, reminding=Reminding(branch_tokens=50))


def test_turned_off_there_is_none() -> None:
    assert line(state_with("d", tokens=[600]), reminding=Reminding(is_on=False)) == ""


@given(st.text(min_size=1, max_size=200))
def test_no_description_breaks_the_line_or_looks_like_a_member_of_an_answer(description: str) -> None:
    told = line(state_with(description))
    assert told.isprintable()
    assert not {'"', "'"} & set(told)
    assert len(told) < 10 * DESCRIPTION_MOST + 200


def test_a_long_description_is_shortened_and_a_control_character_is_seen() -> None:
    assert f"({'x' * (DESCRIPTION_MOST - 1)}…)" in line(state_with("x" * 200))
    assert r"(a b \x1b[2J \u202e)" in line(state_with("a\n\tb \x1b[2J \u202e"))


class TestWithTheMainThread:
    def told(self, state: State, waiting: int = 0, reminding: Reminding = ON) -> str:
        return state_line(state, waiting, LIMITS, Thresholds(), reminding)

    def test_both_are_told_in_one_line(self) -> None:
        told = self.told(state_with("d", main_tokens=600, tokens=[10]))
        assert told.startswith("contextfold: branch br_0 (d) is open: 10 of 500 tokens.")
        assert told.endswith("The main thread holds 600 of 1000 tokens (60 %, medium).")
        assert "\n" not in told

    def test_without_a_branch_it_is_the_main_threads_with_what_to_do(self) -> None:
        told = self.told(state_with(main_tokens=500), waiting=100)
        assert told.startswith("contextfold: the main thread holds 600 of 1000 tokens (60 %, medium). Do the next ")

    def test_what_waits_in_a_branch_is_not_the_main_threads(self) -> None:
        assert "main thread" not in self.told(state_with("d", main_tokens=450), waiting=400)

    def test_turned_off_the_main_threads_is_still_told(self) -> None:
        told = self.told(state_with("d", main_tokens=600), reminding=Reminding(is_on=False))
        assert told.startswith("contextfold: the main thread holds 600 of 1000 tokens")
        assert self.told(state_with("d"), reminding=Reminding(is_on=False)) == ""


def test_a_session_that_has_ended_is_not_spoken_of() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)

    async def scenario() -> tuple[str, str]:
        nonlocal now
        service = FoldService(MemoryStore(), standard_scrubber(), clock=lambda: now)
        key = target_of(Caller("local"), project_at("/p")).key
        await service.branch(Caller("local"), branch_request({"description": "d", "prompt": "p", "project_path": "/p"}))
        before = service.line(key)
        now += timedelta(days=1)
        after = service.line(key)
        await service.close()
        return before, after

    before, after = asyncio.run(scenario())
    assert before.startswith("contextfold: branch br_")
    assert after == ""


def test_a_request_with_the_line_beside_results_is_folded_whatever_the_description_says() -> None:
    tools = {tool.name: tool for tool in FOLD_TOOLS}
    described = "why {'error': 1}, \"isError\": true and 'branch_id': 'br_1'"

    async def scenario() -> list[dict[str, object]]:
        service = FoldService(MemoryStore(), standard_scrubber())
        work = [
            ("context_branch", {"description": described, "prompt": "p"}),
            ("context_branch", {"description": "inner", "prompt": "p"}),
            ("context_record", {"type": "t", "content": "x" * 500}),
            ("context_return", {"message": "m"}),
        ]
        made: list[dict[str, object]] = [{"role": "user", "content": "Go."}]
        for number, (name, arguments) in enumerate(work):
            answer = await call(tools[name], service, Caller("local"), {"project_path": "/p", **arguments})
            assert isinstance(answer, Answer)
            assert len(answer.texts) == 2
            asked = {"type": "tool_use", "id": f"t{number}", "name": name, "input": arguments}
            texts = [{"type": "text", "text": text} for text in answer.texts]
            told = {"type": "tool_result", "tool_use_id": f"t{number}", "content": texts}
            made += [{"role": "assistant", "content": [asked]}, {"role": "user", "content": [told]}]
        await service.close()
        return made

    receipt = project(asyncio.run(scenario()), "anthropic").receipt
    assert (len(receipt.folds), receipt.turns_dropped, receipt.skipped) == (1, 1, ())
