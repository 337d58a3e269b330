"""Advice to an agent: only what pays, once for each threshold, and something that it can do now."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextfold.fold.messages import project
from contextfold.fold.messages.receipt import OPEN_BRANCH
from contextfold.fold.model_catalog import MODELS, RELATIVE_PRICES
from contextfold.fold.policy import (
    ADVICE_AGAIN_REQUESTS,
    CONTEXT_WORTH_FOLDING,
    DESCRIPTION_LENGTH_SHOWN,
    TOKENS_WORTH_FOLDING,
    AdviceSettings,
    FoldPolicy,
    GivenAdvice,
    choose_advice,
    pays,
    requests_until_paid,
)
from contextfold.fold.project import Caller, project_at, target_of
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.reports import HookReport
from contextfold.fold.session import EMPTY, RecentWork, SessionLimits, State, Thread, replay
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.serve.mcp.fold_tools import FOLD_TOOLS, run_fold_tool
from contextfold.serve.mcp.tools import ToolResult
from tests.fold import verb_functions
from tests.support.temporary_store import TemporaryStore

AT = "2026-01-01T00:00:00Z"
LIMIT = 80_000
DEFAULT_SETTINGS = AdviceSettings()
POLICY = FoldPolicy(SessionLimits(LIMIT), advice=DEFAULT_SETTINGS)


def state_with(*descriptions: str, main_tokens: int = 0, tokens: Sequence[int] = ()) -> State:
    """A session with nested open branches, each with some tokens."""
    state = replay([verb_functions.begin(AT)], EMPTY)._replace(host="claude-code")
    done = verb_functions.operation("t", main_tokens, "hook", failed=False, redactions=0)
    state = replay(verb_functions.record(state, AT, done), state)
    for number, description in enumerate(descriptions):
        events = verb_functions.branch(
            state,
            SessionLimits(),
            AT,
            branch_id=f"br_{number}",
            description=description,
            prompt="p",
            tokens=(tokens or [0] * len(descriptions))[number],
            redactions=0,
        )
        state = replay(events, state)
    return state


async def report_a_hook(service: FoldService) -> None:
    """From then on the session is one that hooks see."""
    target = target_of(Caller("local"), project_at("/p"))
    service.reports.receive(target, HookReport("claude-code", "Read", "r", 1, failed=False, call_id=""))
    await service.settle_reports("local")


def lines(state: State, waiting: int = 0, settings: AdviceSettings = DEFAULT_SETTINGS) -> list[str]:
    advice = choose_advice(state, POLICY._replace(advice=settings), waiting_tokens=waiting)
    return [advice.line] if advice else []


def test_nothing_is_advised_below_the_tokens_worth_folding() -> None:
    assert lines(EMPTY) == []
    assert lines(state_with("d", main_tokens=30_000, tokens=[TOKENS_WORTH_FOLDING - 1])) == []


@pytest.mark.parametrize(("tokens", "is_advised"), [(CONTEXT_WORTH_FOLDING - 1, False), (CONTEXT_WORTH_FOLDING, True)])
def test_nothing_is_advised_in_a_short_conversation(tokens: int, is_advised: bool) -> None:
    """The host's own prompt and tools are no part of the conversation, and its window may be large."""
    for main, branches in ((tokens, []), (15_000, [tokens - 15_000])):
        state = state_with(*("d" for _ in branches), main_tokens=main, tokens=branches)
        seen = state._replace(host="", last_request_n=1, host_tokens=26_000, requests=("a",) * 20)
        assert [bool(lines(each)) for each in (state, seen)] == [is_advised, is_advised]


def test_nothing_is_advised_in_a_conversation_that_neither_hooks_nor_the_proxy_see() -> None:
    for state in (state_with(main_tokens=60_000), state_with("d", tokens=[60_000])):
        assert lines(state)
        assert lines(state._replace(host="")) == []


def test_advice_in_a_large_window_does_not_say_that_it_is_full() -> None:
    state = state_with(main_tokens=30_000)._replace(model="claude-sonnet-4-5[1m]")
    advice = choose_advice(state, FoldPolicy())
    assert advice
    assert "30000" in advice.line
    assert "%" not in advice.line


def test_advice_names_the_open_branch_its_tokens_and_context_return() -> None:
    (line,) = lines(state_with("Find the leak", tokens=[26_000]))
    assert line.startswith("contextfold: branch br_0 (Find the leak) is open: 26000 of 40000 tokens. ")
    assert "context_return" in line


def test_advice_names_the_active_one_of_nested_branches() -> None:
    (line,) = lines(state_with("outer", "inner", tokens=[400, 27_000]))
    assert "branch br_1 (inner)" in line


def test_tokens_that_wait_to_be_recorded_count() -> None:
    assert " 26130 of 40000 tokens" in lines(state_with("d", tokens=[100]), waiting=26_030)[0]


@pytest.mark.parametrize(("tokens", "asks_for_return"), [(39_999, False), (40_000, True), (79_000, True)])
def test_at_its_limit_a_branch_is_asked_to_return(tokens: int, asks_for_return: bool) -> None:
    assert ("is at its limit" in lines(state_with("d", tokens=[tokens]))[0]) is asks_for_return


def test_the_limit_is_half_of_the_context_unless_it_is_set() -> None:
    state = state_with("d", tokens=[60])
    assert lines(state) == []
    assert "is at its limit: 60 of 50 tokens" in lines(state, settings=AdviceSettings(branch_tokens=50))[0]


def test_nothing_is_advised_if_advice_is_off() -> None:
    assert lines(state_with("d", tokens=[60_000]), settings=AdviceSettings(is_on=False)) == []
    assert lines(state_with(main_tokens=60_000), settings=AdviceSettings(is_on=False)) == []


def test_the_main_thread_is_advised_to_fold_the_work_since_the_last_prompt() -> None:
    (line,) = lines(state_with(main_tokens=44_000))
    assert "44000 of 80000 tokens (55 %)" in line
    assert "context_fold" in line
    assert "new session" not in line


def test_each_threshold_of_the_main_thread_has_advice_of_its_own() -> None:
    levels = [state_with(main_tokens=tokens) for tokens in (26_000, 40_001, 56_001)]
    advice = [choose_advice(state, POLICY) for state in levels]
    assert [each.key for each in advice if each] == ["main pays 0", "main medium 0", "main high 0"]


def test_a_full_main_thread_without_work_to_fold_gets_no_advice() -> None:
    state = state_with(main_tokens=60_000)
    prompt = verb_functions.operation("prompt", 100, "hook", failed=False, redactions=0, by_user=True)
    assert lines(replay(verb_functions.record(state, AT, prompt), state)) == []


def test_a_fold_pays_after_as_many_requests_as_measured() -> None:
    """The table has the requests until one fold has paid, by the tokens before it and the tokens folded."""
    table = {(20_000, 5_000): 10, (20_000, 20_000): 3, (50_000, 5_000): 17, (50_000, 10_000): 8, (100_000, 20_000): 7}
    assert {
        arguments: -int(-requests_until_paid(*arguments, RELATIVE_PRICES) // 1) for arguments in table
    } == pytest.approx(table, abs=1)


def test_a_fold_in_a_shared_turn_pays_sooner() -> None:
    table = {(20_000, 5_000): 5, (100_000, 5_000): 5, (50_000, 10_000): 3}
    for arguments, maximum in table.items():
        assert requests_until_paid(*arguments, RELATIVE_PRICES, is_shared=True) <= maximum
        assert not requests_until_paid(*arguments, RELATIVE_PRICES) <= maximum


def test_a_short_conversation_is_not_advised_to_fold() -> None:
    """If the proxy sees the requests, a small context or few requests mean that folding does not pay."""
    assert pays(5_000, 10_000, RELATIVE_PRICES)
    assert not pays(5_000, 10_000, RELATIVE_PRICES, requests=30)
    assert pays(20_000, 10_000, RELATIVE_PRICES, requests=30)
    assert not pays(20_000, 10_000, RELATIVE_PRICES, requests=3)
    assert pays(20_000, 10_000, RELATIVE_PRICES, requests=3, is_shared=True)


def test_a_model_whose_cache_is_cheaper_to_read_is_advised_later() -> None:
    cheap = MODELS.prices("claude-fable-5-1")
    assert cheap is not None
    assert requests_until_paid(50_000, 10_000, cheap) > requests_until_paid(50_000, 10_000, RELATIVE_PRICES)


@given(st.text(min_size=1, max_size=200))
def test_a_description_never_breaks_the_line_or_adds_quotes(description: str) -> None:
    (line,) = lines(state_with(description, tokens=[26_000]))
    assert line.isprintable()
    assert not {'"', "'"} & set(line)
    assert len(line) < 10 * DESCRIPTION_LENGTH_SHOWN + 200


def test_a_long_description_is_shortened_and_a_control_character_is_visible() -> None:
    assert f"({'x' * (DESCRIPTION_LENGTH_SHOWN - 1)}…)" in lines(state_with("x" * 200, tokens=[26_000]))[0]
    assert r"(a b \x1b[2J \u202e)" in lines(state_with("a\n\tb \x1b[2J \u202e", tokens=[26_000]))[0]


def test_advice_that_was_not_followed_comes_again_only_if_the_fold_pays_many_times_over() -> None:
    def lines_given(work_tokens: int) -> list[int]:
        """The requests after which a line is given, of a session whose model never folds."""
        given, at = GivenAdvice(), []
        for number in range(1, 40):
            main = Thread(tokens=60_000, recent=RecentWork(tokens=work_tokens))
            requests = tuple(f"req_{n}" for n in range(number))
            state = EMPTY._replace(session_id="s", host_tokens=20_000, requests=requests, main=main)
            advice = choose_advice(state, POLICY._replace(limits=SessionLimits(500_000)))
            if advice is not None and not given.has(state, advice):
                given.add(state, advice)
                at.append(number)
        return at

    first, *again = lines_given(30_000)
    assert again == [*range(first + ADVICE_AGAIN_REQUESTS, 40, ADVICE_AGAIN_REQUESTS)]
    assert len(lines_given(9_000)) == 1


class TestRepetition:
    def results(self, *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
        tools = {tool.name: tool for tool in FOLD_TOOLS}

        async def scenario() -> list[dict[str, Any]]:
            policy = FoldPolicy(limits=SessionLimits(context_tokens=LIMIT))
            service = FoldService(TemporaryStore(), standard_scrubber(), policy)
            await report_a_hook(service)
            results = []
            for name, arguments in calls:
                answer = await run_fold_tool(tools[name], service, Caller("local"), {"project_path": "/p", **arguments})
                assert isinstance(answer, ToolResult)
                results.append(json.loads(answer.text))
            await service.close()
            return results

        return asyncio.run(scenario())

    def test_a_suggestion_comes_once_for_each_threshold_of_a_session(self) -> None:
        work = ("context_record", {"type": "t", "tokens": 12_500})
        results = self.results(*[work] * 6)
        assert ["suggestion" in result["context_health"] for result in results] == [
            False,
            True,
            False,
            True,
            True,
            False,
        ]

    def test_a_reminder_is_a_member_of_the_result_and_comes_once(self) -> None:
        branch = ("context_branch", {"description": "d", "prompt": "p"})
        work = ("context_record", {"type": "t", "tokens": 13_500})
        results = self.results(branch, *[work] * 5)
        assert ["reminder" in result for result in results] == [False, False, True, True, False, False]
        assert list(results[2])[-1] == "reminder"

    def test_an_ended_session_gets_no_advice(self) -> None:
        now = datetime(2026, 1, 1, tzinfo=UTC)

        async def scenario() -> tuple[str, str]:
            nonlocal now
            store = TemporaryStore()
            service, other = (FoldService(store, standard_scrubber(), clock=lambda: now) for _ in range(2))
            key = target_of(Caller("local"), project_at("/p")).key
            begun = {"description": "d", "prompt": "p", "project_path": "/p"}
            await report_a_hook(service)
            await service.open_branch(Caller("local"), begun)
            work = {"type": "t", "tokens": 29_000, "project_path": "/p"}
            await service.record(Caller("local"), work, "hook")
            await other.look(key)
            before = service.advice_line(key)
            now += timedelta(days=1)
            after = other.advice_line(key)
            await service.close()
            return before, after

        before, after = asyncio.run(scenario())
        assert before.startswith("contextfold: branch br_")
        assert after == ""


def test_reminders_in_results_do_not_prevent_folding() -> None:
    tools = {tool.name: tool for tool in FOLD_TOOLS}
    described = "why {'error': 1}, \"isError\": true and 'branch_id': 'br_1'"

    async def scenario() -> list[dict[str, object]]:
        service = FoldService(TemporaryStore(), standard_scrubber())
        work: list[tuple[str, dict[str, object]]] = [
            ("context_branch", {"description": described, "prompt": "p"}),
            ("context_branch", {"description": "inner", "prompt": "p"}),
            ("context_record", {"type": "t", "tokens": 30_000}),
            ("context_return", {"message": "m"}),
        ]
        messages: list[dict[str, object]] = [{"role": "user", "content": "Go."}]
        for number, (name, arguments) in enumerate(work):
            answer = await run_fold_tool(tools[name], service, Caller("local"), {"project_path": "/p", **arguments})
            assert isinstance(answer, ToolResult)
            tool_use = {"type": "tool_use", "id": f"t{number}", "name": name, "input": arguments}
            result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": answer.text}
            messages += [{"role": "assistant", "content": [tool_use]}, {"role": "user", "content": [result]}]
        await service.close()
        return messages

    receipt = project(asyncio.run(scenario()), "anthropic").receipt
    assert (len(receipt.folds), receipt.turns_dropped, receipt.reason) == (1, 1, OPEN_BRANCH)


class TestContextLimit:
    def test_the_limit_is_the_setting_or_the_window_of_the_model_or_a_default(self) -> None:
        policy = FoldPolicy()
        assert policy.context_limit(EMPTY) == 32_768
        assert policy.context_limit(EMPTY._replace(model="some-model")) == 32_768
        assert policy.context_limit(EMPTY._replace(model="claude-opus-4-5-20251101")) == 200_000
        assert policy.context_limit(EMPTY._replace(model="us.anthropic.claude-sonnet-4-5")) == 200_000
        assert policy.context_limit(EMPTY._replace(model="claude-sonnet-4-5[1m]")) == 1_000_000
        configured = FoldPolicy(limits=SessionLimits(context_tokens=5_000))
        assert configured.context_limit(EMPTY._replace(model="claude-opus-4-5")) == 5_000

    def test_the_hosts_own_tokens_are_subtracted_as_measured_or_as_known(self) -> None:
        state = EMPTY._replace(model="claude-opus-4-5", host="claude-code")
        assert FoldPolicy().context_limit(state) == 174_000
        assert FoldPolicy().context_limit(state._replace(last_request_n=1, host_tokens=21_000)) == 179_000
