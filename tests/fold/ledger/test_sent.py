"""Requests to models as their senders report them to the service: the figures follow from them, in order, each once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from contextfold.fold.events import OperationCompleted
from contextfold.fold.ledger.provider_counts import thread_levels
from contextfold.fold.ledger.sent_request import FoldSeen, Share, Usage
from contextfold.fold.service.inbox import InboxFull
from contextfold.fold.service.overview import Overview
from contextfold.fold.service.reports import HookReport
from tests.contract.stores import run
from tests.fold.ledger.sending import KEY, TARGET, Desk, RunDesk, desk, main, sent
from tests.support.clauses import covers

__all__ = ["desk", "run"]


class TestFigures:
    @covers("folding.md#sources", "proxy.md#ledger")
    def test_the_providers_count_is_the_sessions(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            desk.service.sent(TARGET, sent(1, main(900), usage=Usage(20, 800, 180, 50)))
            assert await desk.figures() == {"main_thread": 1050, "folded_total": 0, "total": 1050}
            desk.service.sent(TARGET, sent(2, main(900), usage=Usage(10, 1000, 190, 60)))
            assert (await desk.figures())["main_thread"] == 1260
            operations = [event for event in await desk.log() if isinstance(event, OperationCompleted)]
            assert [(event.type, event.source, event.tokens) for event in operations] == [
                ("model_turns", "proxy", 1050),
                ("model_turns", "proxy", 210),
            ]

        desk(act)

    def test_what_was_reported_already_is_not_counted_twice(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            await desk.record(700)
            desk.service.sent(TARGET, sent(1, main(100), usage=Usage(1000, 0, 0, 0)))
            assert (await desk.figures())["main_thread"] == 1000
            await desk.record(50)
            desk.service.sent(TARGET, sent(2, main(100), usage=Usage(1020, 0, 0, 0)))
            assert (await desk.figures())["main_thread"] == 1050

        desk(act)

    def test_a_call_that_a_hook_tells_of_is_not_counted_with_the_answer_that_made_it(self, desk: RunDesk) -> None:
        def told(desk: Desk, tokens: int, call_id: str) -> None:
            report = HookReport(TARGET, "claude-code", "Write", "text", tokens, failed=False, call_id=call_id)
            desk.service.reports.receive(KEY, [report])

        async def act(desk: Desk) -> None:
            told(desk, 10, "a prompt")
            branch_id = await desk.branch()
            desk.service.sent(TARGET, sent(1, main(1_000), Share(branch_id, 0, 0), usage=Usage(1_000, 0, 0, 5_000)))
            told(desk, 5_000, "the call and its result")
            shares = (main(1_000), Share(branch_id, 5_010, 2))
            desk.service.sent(TARGET, sent(2, *shares, usage=Usage(6_010, 0, 0, 300)))
            figures = await desk.figures()
            assert (figures["main_thread"], figures[branch_id]) == (1_000, 5_010)

        desk(act)

    def test_open_threads_share_the_count_by_their_estimates_and_the_answer_is_the_innermosts(
        self, desk: RunDesk
    ) -> None:
        async def act(desk: Desk) -> None:
            branch_id = await desk.branch()
            shares = (main(300), Share(branch_id, 100, 1))
            desk.service.sent(TARGET, sent(1, *shares, usage=Usage(0, 700, 100, 40)))
            assert await desk.figures() == {"main_thread": 600, branch_id: 240, "folded_total": 0, "total": 840}

        desk(act)

    def test_what_is_around_a_branch_does_not_grow_by_how_dense_the_branch_is(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            desk.service.sent(TARGET, sent(1, main(20_000, messages=5), usage=Usage(20_000, 0, 0, 0)))
            branch_id = await desk.branch()
            opened = (main(20_100, messages=7), Share(branch_id, 0, 0))
            desk.service.sent(TARGET, sent(2, *opened, usage=Usage(20_100, 0, 0, 0)))
            dense = (main(20_100, messages=7), Share(branch_id, 100_000, 40))
            desk.service.sent(TARGET, sent(3, *dense, usage=Usage(170_100, 0, 0, 0)))
            assert (await desk.figures())["main_thread"] == 20_100
            await desk.fold()
            desk.service.sent(TARGET, sent(4, main(20_300, messages=9), usage=Usage(20_300, 0, 0, 0)))
            assert (await desk.figures())["main_thread"] == 20_300

        desk(act)

    def test_after_a_compaction_the_count_is_the_level_again(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            desk.service.sent(TARGET, sent(1, main(90_000, messages=200), usage=Usage(90_000, 0, 0, 0)))
            left = HookReport(
                TARGET, "claude-code", "compaction_summary", "It is fixed.", 0, False, "c1", left_tokens=3
            )
            desk.service.reports.receive(KEY, [left])
            assert (await desk.figures())["main_thread"] == 3
            desk.service.sent(TARGET, sent(2, main(7_000, messages=4), usage=Usage(7_500, 0, 0, 0)))
            assert (await desk.figures())["main_thread"] == 7_500
            desk.service.reports.receive(KEY, [left])
            assert (await desk.figures())["main_thread"] == 7_500

        desk(act)

    def test_a_branch_that_a_compaction_took_out_of_the_history_is_not_counted_twice(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            await desk.record(10_000)
            branch_id = await desk.branch()
            await desk.record(15_000)
            left = HookReport(
                TARGET, "claude-code", "compaction_summary", "It is fixed.", 0, False, "c1", left_tokens=500
            )
            desk.service.reports.receive(KEY, [left])
            await desk.record(8_000)
            desk.service.sent(TARGET, sent(1, main(11_000, messages=9), usage=Usage(12_000, 0, 0, 0)))
            figures = await desk.figures()
            assert (figures["main_thread"], figures[branch_id], figures["total"]) == (4_000, 8_000, 12_000)

        desk(act)

    def test_a_request_from_before_a_compaction_brings_nothing_back(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            await desk.record(90_000)
            before = desk.service.compactions_known(KEY)
            left = HookReport(
                TARGET, "claude-code", "compaction_summary", "It is fixed.", 0, False, "c1", left_tokens=3
            )
            desk.service.reports.receive(KEY, [left])
            # The compaction is still in the queue, but it is counted already.
            after = desk.service.compactions_known(KEY)
            for number, known in enumerate((before, None, after)):
                late = sent(number, main(90_000 if known == before else 50, messages=200), compactions=known)
                desk.service.sent(TARGET, late)
                assert (await desk.figures())["main_thread"] == (3 if known == before else 50)
            assert len(await desk.requests()) == 3

        desk(act)

    def test_without_usage_the_estimate_is_the_level(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            desk.service.sent(TARGET, sent(1, main(123)))
            assert (await desk.figures())["main_thread"] == 123
            (event,) = await desk.requests()
            assert (event.input_tokens, event.output_tokens) == (None, None)

        desk(act)

    def test_a_branch_that_is_not_open_here_is_left_alone(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            branch_id = await desk.branch()
            await desk.fold()
            shares = (main(300), Share(branch_id, 100, 1, ("late",)), Share("br_of_others", 100, 1, ("strange",)))
            desk.service.sent(TARGET, sent(1, *shares, usage=Usage(500, 0, 0, 10)))
            assert await desk.figures() == {"main_thread": 300, "folded_total": 10, "total": 300}
            assert "late" not in json.dumps(await desk.expanded(branch_id))

        desk(act)

    def test_nothing_of_the_count_is_lost_by_sharing_it(self) -> None:
        shares = [Share(None, 20, 0), Share("br_a", 20, 0), Share("br_b", 20, 0)]
        assert thread_levels(sent(1, *shares, usage=Usage(100, 0, 0, 5))) == [33, 33, 39]
        assert thread_levels(sent(1, main(0), usage=Usage(100, 0, 0, 5))) == [105]
        assert thread_levels(sent(1, usage=Usage(100, 0, 0, 5))) == []

    def test_a_file_that_no_estimate_sees_is_the_main_threads_and_never_a_branchs_to_boast_of(
        self, desk: RunDesk
    ) -> None:
        async def act(desk: Desk) -> None:
            desk.service.sent(TARGET, sent(1, main(1_700), usage=Usage(100_000, 0, 0, 50)))
            branch_id = await desk.branch()
            shares = (main(1_700), Share(branch_id, 2_000, 2))
            desk.service.sent(TARGET, sent(2, *shares, usage=Usage(102_000, 0, 0, 50)))
            figures = await desk.figures()
            assert (figures["main_thread"], figures[branch_id]) == (100_050, 2_050)

        desk(act)


class TestOrderAndOnce:
    def test_a_request_told_twice_is_written_once(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            once = sent(1, main(100, "a", "b"))
            desk.service.sent(TARGET, once)
            desk.service.sent(TARGET, once)
            await desk.service.reports.settled(KEY)
            another = desk.another()
            another.sent(TARGET, once)
            await another.reports.settled(KEY)
            assert len(await desk.requests()) == 1
            assert await desk.main_texts() == ["a\nb"]
            became = [each for noted in desk.noted for each in noted.reports.items()]
            assert became == [(("proxy", "recorded"), 1), (("proxy", "repeated"), 1), (("proxy", "repeated"), 1)]

        desk(act)

    def test_requests_and_reports_are_written_in_the_order_they_came(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            for number in range(3):
                report = HookReport(
                    TARGET, "claude-code", f"tool {number}", "text", 10, failed=False, call_id=f"c{number}"
                )
                desk.service.reports.receive(KEY, [report])
                desk.service.sent(TARGET, sent(number, main(100 * number)))
            told = [event.type if isinstance(event, OperationCompleted) else event.kind for event in await desk.log()]
            assert told == [
                "session.started", "tool 0", "request.sent",
                "tool 1", "model_turns", "request.sent",
                "tool 2", "model_turns", "request.sent",
            ]  # fmt: skip
            assert (await desk.figures())["main_thread"] == 200

        desk(act)

    def test_a_verb_waits_for_the_requests_before_it(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            branch_id = await desk.branch()
            desk.service.sent(TARGET, sent(1, main(100), Share(branch_id, 500, 2, ("looked", "found"))))
            await desk.fold()
            assert (await desk.figures())["folded_total"] == 500
            assert [entry["text"] for entry in await desk.expanded(branch_id)][1] == "looked\nfound"

        desk(act)

    def test_where_there_is_no_room_a_request_is_refused(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            await desk.service.reports.close()
            with pytest.raises(InboxFull):
                desk.service.sent(TARGET, sent(1, main(100)))
            assert not desk.service.reports.waiting_messages(KEY)

        desk(act)


class TestSavings:
    def test_the_ledger_is_told_and_goes_on(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            branch_id = await desk.branch()
            await desk.fold()
            session_id = (await desk.service.look(KEY)).session_id or ""
            overview = Overview(desk.service)
            none = await overview.savings("local", session_id)
            assert (none["requests"], none["points"]) == (0, [])
            for number, (read, written) in enumerate([(0, 5_000), (5_000, 100)]):
                usage = Usage(0, read, written, 3)
                folds = [FoldSeen(branch_id, 4_000, 5_000)] if number else []
                desk.service.sent(TARGET, sent(number, main(read + written), usage=usage, folds=folds))
                told: Any = await overview.savings("local", session_id)
                assert told["requests"] == number + 1
            assert told["cost_saved"] > 0
            assert told["folds"][0]["description"] == "d"
            assert told == await Overview(desk.service).savings("local", session_id)

        desk(act)


def test_many_requests_at_once_are_each_written_once() -> None:
    from contextfold.stores.memory import MemoryStore

    async def whole() -> None:
        desk = Desk(MemoryStore())
        for number in range(200):
            desk.service.sent(TARGET, sent(number, main(10 * number, f"m{number}", messages=number + 1)))
        assert len(await desk.requests()) == 200
        assert (await desk.main_texts())[-1] == "m199"
        assert desk.service.messages_known(KEY) == {None: 200}
        await desk.service.close()

    asyncio.run(whole())
