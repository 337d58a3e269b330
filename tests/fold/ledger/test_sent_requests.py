"""Requests to models that were reported to the service: the figures follow from them, in order, each counted once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contextfold.fold.events import FoldSeen, OperationCompleted, ResultLeftOut, kind_of
from contextfold.fold.sent_request import Share, Usage, divide_count
from contextfold.fold.service.inbox import InboxFull
from contextfold.fold.service.overview import Overview
from contextfold.fold.service.reports import HookReport
from tests.fold.ledger.ledger_harness import (
    KEY,
    TARGET,
    LedgerHarness,
    main_share,
    sent_request,
)


class TestFigures:
    async def test_the_count_of_the_provider_becomes_the_figure_of_the_session(self, harness: LedgerHarness) -> None:
        harness.send(1, main_share(900, "a"), usage=Usage(20, 800, 180, 50))
        assert await harness.figures() == {"main_thread": 1000, "folded_total": 0, "total": 1000}
        harness.send(2, main_share(900, "a", "b"), usage=Usage(10, 1000, 190, 60))
        assert (await harness.figures())["main_thread"] == 1200
        operations = [event for event in await harness.log() if isinstance(event, OperationCompleted)]
        assert [(event.type, event.source, event.tokens) for event in operations] == [
            ("model_turns", "proxy", 1000),
            ("model_turns", "proxy", 200),
        ]
        # A host may shorten its history.
        harness.send(3, main_share(300, "c"), usage=Usage(300, 0, 0, 60))
        assert (await harness.figures())["main_thread"] == 300

    async def test_the_hosts_prompt_and_tools_belong_to_no_thread(self, harness: LedgerHarness) -> None:
        harness.send(1, main_share(1_000, "a"), usage=Usage(22_000, 0, 0, 50), host_tokens=19_000)
        assert (await harness.figures())["total"] == 1_100
        state = await harness.service.look(KEY)
        assert (state.host_tokens, state.context_tokens) == (20_900, 22_000)

    async def test_a_result_that_is_left_out_twice_counts_once(self, harness: LedgerHarness) -> None:
        """Gemini CLI sends a resumed history with the same results again."""
        left_out = (ResultLeftOut("res_1", 900), ResultLeftOut("res_2", 100), ResultLeftOut("res_1", 900))
        for number in range(2):
            harness.send(number, main_share(5_000), usage=Usage(5_000, 0, 0, 0), left_out=left_out)
        state = await harness.service.look(KEY)
        savings: Any = await Overview(harness.service).savings("local", state.session_id or "")
        assert (savings["left_out"]["results"], savings["left_out"]["tokens"]) == (2, 1_000)
        assert (len(state.left_out), state.left_out_tokens) == (2, 1_000)

    async def test_tokens_that_were_reported_already_are_not_counted_twice(self, harness: LedgerHarness) -> None:
        await harness.record(700)
        harness.send(1, main_share(100), usage=Usage(1000, 0, 0, 0))
        assert (await harness.figures())["main_thread"] == 1000
        await harness.record(50)
        assert (await harness.figures())["main_thread"] == 1000
        harness.send(2, main_share(100), usage=Usage(1020, 0, 0, 0))
        assert (await harness.figures())["main_thread"] == 1020

    async def test_a_call_reported_by_a_hook_is_not_counted_again_as_output(self, harness: LedgerHarness) -> None:
        def receive_report(harness: LedgerHarness, tokens: int, call_id: str) -> None:
            report = HookReport("claude-code", "Write", "text", tokens, failed=False, call_id=call_id)
            harness.service.reports.receive(TARGET, report)

        receive_report(harness, 10, "a prompt")
        branch_id = await harness.branch()
        harness.send(1, main_share(1_000), Share(branch_id, 0, 0), usage=Usage(1_000, 0, 0, 5_000))
        receive_report(harness, 5_000, "the call and its result")
        shares = (main_share(1_000), Share(branch_id, 5_010, 2))
        harness.send(2, *shares, usage=Usage(6_010, 0, 0, 300))
        figures = await harness.figures()
        assert (figures["main_thread"], figures[branch_id]) == (1_000, 5_010)

    async def test_open_threads_share_the_count_by_their_estimates(self, harness: LedgerHarness) -> None:
        branch_id = await harness.branch()
        shares = (main_share(300), Share(branch_id, 100, 1))
        harness.send(1, *shares, usage=Usage(0, 700, 100, 40))
        assert await harness.figures() == {"main_thread": 600, branch_id: 200, "folded_total": 0, "total": 800}

    async def test_a_dense_branch_does_not_make_the_main_thread_grow(self, harness: LedgerHarness) -> None:
        harness.send(1, main_share(20_000, messages=5), usage=Usage(20_000, 0, 0, 0))
        branch_id = await harness.branch()
        opened = (main_share(20_100, messages=7), Share(branch_id, 0, 0))
        harness.send(2, *opened, usage=Usage(20_100, 0, 0, 0))
        dense = (main_share(20_100, messages=7), Share(branch_id, 100_000, 40))
        harness.send(3, *dense, usage=Usage(170_100, 0, 0, 0))
        assert (await harness.figures())["main_thread"] == 20_100
        await harness.fold()
        harness.send(4, main_share(20_300, messages=9), usage=Usage(20_300, 0, 0, 0))
        assert (await harness.figures())["main_thread"] == 20_300

    async def test_after_a_compaction_the_next_count_is_the_figure(self, harness: LedgerHarness) -> None:
        harness.send(1, main_share(90_000, messages=200), usage=Usage(90_000, 0, 0, 0))
        compaction = HookReport("claude-code", "compaction_summary", "It is fixed.", 0, False, "c1", left_tokens=3)
        harness.service.reports.receive(TARGET, compaction)
        assert (await harness.figures())["main_thread"] == 3
        harness.send(2, main_share(7_000, messages=4), usage=Usage(7_500, 0, 0, 0))
        assert (await harness.figures())["main_thread"] == 7_500
        harness.service.reports.receive(TARGET, compaction)
        assert (await harness.figures())["main_thread"] == 7_500

    async def test_a_branch_that_a_compaction_removed_is_not_counted_twice(self, harness: LedgerHarness) -> None:
        await harness.record(10_000)
        branch_id = await harness.branch()
        await harness.record(15_000)
        compaction = HookReport("claude-code", "compaction_summary", "It is fixed.", 0, False, "c1", left_tokens=500)
        harness.service.reports.receive(TARGET, compaction)
        await harness.record(8_000)
        harness.send(1, main_share(11_000, messages=9), usage=Usage(12_000, 0, 0, 0))
        figures = await harness.figures()
        assert (figures["main_thread"], figures[branch_id], figures["total"]) == (4_000, 8_000, 12_000)

    async def test_a_request_from_before_a_compaction_does_not_raise_the_figures(self, harness: LedgerHarness) -> None:
        await harness.record(90_000)
        before = harness.service.compactions_known(KEY)
        compaction = HookReport("claude-code", "compaction_summary", "It is fixed.", 0, False, "c1", left_tokens=3)
        harness.service.reports.receive(TARGET, compaction)
        # The compaction is still in the queue, but it is counted already.
        after = harness.service.compactions_known(KEY)
        for number, compactions in enumerate((before, None, after)):
            late = sent_request(
                number, main_share(90_000 if compactions == before else 50, messages=200), compactions=compactions
            )
            harness.service.reports.receive(TARGET, late)
            assert (await harness.figures())["main_thread"] == (3 if compactions == before else 50)
        assert len(await harness.requests()) == 3

    async def test_without_usage_the_estimate_is_the_figure(self, harness: LedgerHarness) -> None:
        harness.send(1, main_share(123))
        assert (await harness.figures())["main_thread"] == 123
        (event,) = await harness.requests()
        assert (event.input_tokens, event.output_tokens) == (None, None)

    async def test_a_share_of_a_branch_that_is_not_open_is_ignored(self, harness: LedgerHarness) -> None:
        branch_id = await harness.branch()
        await harness.fold()
        shares = (main_share(300), Share(branch_id, 100, 1, ("late",)), Share("br_of_others", 100, 1, ("strange",)))
        harness.send(1, *shares, usage=Usage(500, 0, 0, 10))
        # The two last shares are in no open thread, and the fold has not left the request.
        assert await harness.figures() == {"main_thread": 300, "folded_total": 0, "total": 300}
        assert "late" not in json.dumps(await harness.expanded(branch_id))

    def test_dividing_the_count_loses_no_tokens(self) -> None:
        shares = [Share(None, 20, 0), Share("br_a", 20, 0), Share("br_b", 20, 0)]
        assert divide_count(sent_request(1, *shares, usage=Usage(100, 0, 0, 5))) == [0, 33, 33, 34]
        assert divide_count(sent_request(1, main_share(0), usage=Usage(100, 0, 0, 5))) == [0, 100]
        assert divide_count(sent_request(1, main_share(10), host_tokens=40, usage=Usage(100, 0, 0, 5))) == [80, 20]

    async def test_tokens_that_no_estimate_explains_belong_to_the_main_thread(self, harness: LedgerHarness) -> None:
        harness.send(1, main_share(1_700), usage=Usage(100_000, 0, 0, 50))
        branch_id = await harness.branch()
        shares = (main_share(1_700), Share(branch_id, 2_000, 2))
        harness.send(2, *shares, usage=Usage(102_000, 0, 0, 50))
        figures = await harness.figures()
        assert (figures["main_thread"], figures[branch_id]) == (100_000, 2_000)


class TestOrderAndRepetition:
    async def test_a_request_reported_twice_is_written_once(self, harness: LedgerHarness) -> None:
        once = sent_request(1, main_share(100, "a", "b"))
        harness.service.reports.receive(TARGET, once)
        harness.service.reports.receive(TARGET, once)
        await harness.service.reports.settle(KEY)
        another = harness.another_service()
        another.reports.receive(TARGET, once)
        await another.reports.settle(KEY)
        assert len(await harness.requests()) == 1
        assert await harness.main_texts() == ["a\nb"]
        outcomes = [outcome for activity in harness.activities for outcome in activity.reports.items()]
        assert outcomes == [(("proxy", "recorded"), 1), (("proxy", "repeated"), 1), (("proxy", "repeated"), 1)]

    async def test_requests_and_reports_are_written_in_the_order_they_came(self, harness: LedgerHarness) -> None:
        for number in range(3):
            report = HookReport("claude-code", f"tool {number}", "text", 10, failed=False, call_id=f"c{number}")
            harness.service.reports.receive(TARGET, report)
            harness.send(number, main_share(100 * number))
        kinds = [
            event.type if isinstance(event, OperationCompleted) else kind_of(event) for event in await harness.log()
        ]
        assert kinds == [
            "session.started", "tool 0", "request.sent", "tool 1", "request.sent", "tool 2", "request.sent",
        ]  # fmt: skip
        assert (await harness.figures())["main_thread"] == 200

    async def test_a_verb_waits_for_the_requests_before_it(self, harness: LedgerHarness) -> None:
        branch_id = await harness.branch()
        harness.send(1, main_share(100), Share(branch_id, 500, 2, ("looked", "found"), removable=480))
        await harness.fold()
        assert (await harness.figures())["folded_total"] == 480
        assert [entry["text"] for entry in await harness.expanded(branch_id)][1] == "looked\nfound"

    async def test_a_closed_inbox_refuses_a_request(self, harness: LedgerHarness) -> None:
        await harness.service.reports.close()
        with pytest.raises(InboxFull):
            harness.send(1, main_share(100))
        assert not harness.service.reports.waiting_for(KEY)


class TestSavings:
    async def test_the_ledger_grows_with_each_request(self, harness: LedgerHarness) -> None:
        branch_id = await harness.branch()
        await harness.fold()
        session_id = (await harness.service.look(KEY)).session_id or ""
        overview = Overview(harness.service)
        no_savings = await overview.savings("local", session_id)
        assert (no_savings["requests"], no_savings["points"]) == (0, [])
        for number, (read, written) in enumerate([(0, 5_000), (5_000, 100)]):
            usage = Usage(0, read, written, 3)
            folds = [FoldSeen(branch_id, 4_000, 5_000)] if number else []
            harness.send(number, main_share(read + written), usage=usage, folds=folds)
            savings: Any = await overview.savings("local", session_id)
            assert savings["requests"] == number + 1
        assert savings["cost_saved"] > 0
        assert savings["folds"][0]["description"] == "d"
        assert savings == await Overview(harness.service).savings("local", session_id)


async def test_many_requests_at_once_are_each_written_once() -> None:
    from tests.support.temporary_store import TemporaryStore

    harness = LedgerHarness(TemporaryStore())
    for number in range(200):
        harness.send(number, main_share(10 * number, f"m{number}", messages=number + 1))
    assert len(await harness.requests()) == 200
    assert (await harness.main_texts())[-1] == "m199"
    assert harness.service.messages_known(KEY) == {None: 200}
    await harness.service.close()
