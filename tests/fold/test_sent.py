"""Requests to models, as whoever sends them tells the service: what figures and archive get of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from contextfold.fold.callers import Caller, Target, target_of
from contextfold.fold.events import Event, OperationCompleted, RequestSent
from contextfold.fold.inbox import InboxFull
from contextfold.fold.levels import FOLDS_MOST, levels_of
from contextfold.fold.notes import Noted
from contextfold.fold.overview import Overview
from contextfold.fold.project import project_at
from contextfold.fold.reports import REQUEST_TEXT_MOST, Report
from contextfold.fold.requests import (
    branch_request,
    expand_request,
    look_request,
    record_request,
    return_request,
    rollback_request,
)
from contextfold.fold.sent import FoldSeen, Sent, Share, Usage
from contextfold.fold.service import FoldService
from contextfold.fold.store import Store
from contextfold.scrub.standard import standard_scrubber
from contract.stores import Run, run

__all__ = ["run"]

ME = Caller("local")
PROJECT = {"project_path": "/work/app"}
TARGET: Target = target_of(ME, project_at("/work/app"))
KEY = TARGET.key
SCRUBBER = standard_scrubber()
SECRET = "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"
HEX_ID = "br_" + "0a" * 8


def main(tokens: int, *texts: str, messages: int | None = None) -> Share:
    return Share(None, tokens, len(texts) if messages is None else messages, texts)


def sent(number: int, *shares: Share, usage: Usage | None = None, folds: Sequence[FoldSeen] = (), **more: Any) -> Sent:
    after = sum(share.tokens for share in shares)
    told: dict[str, Any] = {"turns_dropped": 0, "first_changed": None, "reason": "", "model": "a-model", **more}
    before = after + sum(fold.tokens for fold in folds)
    return Sent(
        id=f"request {number}",
        api="anthropic",
        tokens_before=before,
        tokens_after=after,
        folds=tuple(folds),
        shares=shares,
        usage=usage,
        **told,
    )


class Desk:
    """A service, and what a test wants to see of it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.noted: list[Noted] = []
        self.service = self.another()

    def another(self) -> FoldService:
        return FoldService(self.store, SCRUBBER, note=self.noted.append)

    async def branch(self) -> str:
        request = branch_request({"description": "d", "prompt": "p" * 40, **PROJECT})
        return str(json.loads((await self.service.branch(ME, request)).answer)["branch_id"])

    async def fold(self) -> None:
        await self.service.fold(ME, return_request({"message": "m" * 40, **PROJECT}))

    async def record(self, tokens: int) -> None:
        await self.service.record(ME, record_request({"type": "t", "tokens": tokens, **PROJECT}), "reported")

    async def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((await self.service.status(ME, look_request(PROJECT))).answer)
        return dict(found["token_breakdown"])

    async def main_texts(self) -> list[str]:
        session_id = (await self.service.look(KEY)).session_id
        page: Any = await self.service.page(KEY, None, session_id, 100_000, (0, 0))
        return [entry["text"] for entry in page["entries"]]

    async def expanded(self, branch_id: str) -> list[dict[str, Any]]:
        request = expand_request({"branch_id": branch_id, "budget": 100_000, **PROJECT})
        return list(json.loads((await self.service.expand(ME, request)).answer)["entries"])

    async def log(self) -> list[Event]:
        await self.service.reports.settled(KEY)
        log = await self.store.load(KEY)
        return list(log.events) if log else []

    async def requests(self) -> list[RequestSent]:
        return [event for event in await self.log() if isinstance(event, RequestSent)]


Act = Callable[[Desk], Awaitable[None]]
RunDesk = Callable[[Act], None]


@pytest.fixture
def desk(run: Run) -> RunDesk:
    def on_desk(act: Act) -> None:
        run(lambda store: act(Desk(store)))

    return on_desk


class TestFigures:
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
            report = Report(TARGET, "claude-code", "Write", "text", tokens, failed=False, call_id=call_id)
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
        assert levels_of(sent(1, *shares, usage=Usage(100, 0, 0, 5))) == [33, 33, 39]
        assert levels_of(sent(1, main(0), usage=Usage(100, 0, 0, 5))) == [105]
        assert levels_of(sent(1, usage=Usage(100, 0, 0, 5))) == []

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
                report = Report(TARGET, "claude-code", f"tool {number}", "text", 10, failed=False, call_id=f"c{number}")
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


class TestTheArchive:
    def test_each_message_is_kept_once_and_scrubbed(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            branch_id = await desk.branch()
            first = (main(10, "m1"), Share(branch_id, 10, 2, ("b1", f"key {SECRET}")))
            desk.service.sent(TARGET, sent(1, *first))
            second = (main(10, "m1"), Share(branch_id, 10, 3, ("b1", f"key {SECRET}", "b3")))
            desk.service.sent(TARGET, sent(2, *second))
            await desk.fold()
            texts = [entry["text"] for entry in await desk.expanded(branch_id) if entry["kind"] == "operation"]
            assert texts[0].startswith("b1\nkey [REDACTED:")
            assert texts[1] == "b3"
            assert SECRET not in json.dumps(texts)
            assert (await desk.service.look(KEY)).branches[branch_id].redactions == 1

        desk(act)

    def test_whoever_sends_knows_which_messages_are_new(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            assert desk.service.messages_known(KEY) == {None: 0}
            branch_id = await desk.branch()
            desk.service.sent(TARGET, sent(1, main(10, "m1", "m2"), Share(branch_id, 10, 1, ("b1",))))
            assert desk.service.messages_known(KEY) == {None: 2, branch_id: 1}
            await desk.service.reports.settled(KEY)
            assert desk.service.messages_known(KEY) == {None: 2, branch_id: 1}
            newer = (main(10, "m3", messages=3), Share(branch_id, 10, 1))
            desk.service.sent(TARGET, sent(2, *newer))
            assert await desk.main_texts() == ["m1\nm2", "m3"]
            await desk.fold()
            assert desk.service.messages_known(KEY) == {None: 3}

        desk(act)

    def test_a_list_that_has_become_shorter_is_not_kept_again(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            desk.service.sent(TARGET, sent(1, main(10, "m1", "m2", "m3")))
            desk.service.sent(TARGET, sent(2, main(10, "a title for this")))
            desk.service.sent(TARGET, sent(3, main(10, "m1", "m2", "m3", "m4")))
            assert await desk.main_texts() == ["m1\nm2\nm3", "m4"]

        desk(act)

    def test_where_hooks_report_the_text_is_theirs(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            report = Report(TARGET, "claude-code", "Bash", "by the hook", 10, failed=False, call_id="c1")
            desk.service.reports.receive(KEY, [report])
            desk.service.sent(TARGET, sent(1, main(500, "by the request")))
            assert await desk.main_texts() == ["by the hook", ""]
            assert (await desk.figures())["main_thread"] == 500
            assert desk.service.messages_known(KEY) == {None: 1}

        desk(act)

    def test_what_is_too_long_is_kept_from_its_end_and_says_so(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            long = "x" * (REQUEST_TEXT_MOST // 2)
            desk.service.sent(TARGET, sent(1, main(10, "first", long, long, "last")))
            await desk.service.reports.settled(KEY)
            found = await desk.store.trajectory(
                "local", KEY.project_hash, None, session_id=(await desk.service.look(KEY)).session_id or "", limit=9
            )
            assert found is not None
            (entry,) = found.entries
            assert entry.text == f"[2 earlier messages were not handed over]\n{long}\nlast"

        desk(act)

    def test_after_a_rollback_the_messages_are_kept_again_and_the_old_ones_are_undone(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            desk.service.sent(TARGET, sent(1, main(100, "m1")))
            branch_id = await desk.branch()
            desk.service.sent(TARGET, sent(2, main(100, "m1"), Share(branch_id, 50, 2, ("b1", "b2"))))
            await desk.fold()
            request = rollback_request({"branch_id": branch_id, **PROJECT})
            await desk.service.rollback(ME, request)
            assert desk.service.messages_known(KEY) == {None: 1, branch_id: 0}
            desk.service.sent(TARGET, sent(3, main(100, messages=1), Share(branch_id, 50, 1, ("b1 again",))))
            entries = [entry for entry in await desk.expanded(branch_id) if entry["kind"] == "operation"]
            assert [(entry["text"], entry.get("undone", False)) for entry in entries] == [
                ("b1\nb2", True),
                ("b1 again", False),
            ]

        desk(act)


class TestTheEvent:
    def test_it_says_what_was_sent(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            folds = (FoldSeen(HEX_ID, 400, 90),)
            desk.service.sent(
                TARGET,
                sent(
                    1,
                    main(100, "m"),
                    usage=Usage(1, 2, 3, 4),
                    folds=folds,
                    turns_dropped=6,
                    first_changed=3,
                    reason="shared_turn",
                    model=f"model {SECRET}",
                ),
            )
            (event,) = await desk.requests()
            assert (event.api, event.tokens_before, event.tokens_after) == ("anthropic", 500, 100)
            assert (event.turns_dropped, event.first_changed, event.reason) == (6, 3, "shared_turn")
            figures = (event.input_tokens, event.cache_read_tokens, event.cache_write_tokens, event.output_tokens)
            assert figures == (1, 2, 3, 4)
            assert event.folds == folds
            assert SECRET not in event.model
            assert event.model.startswith("model [REDACTED")

        desk(act)

    def test_a_fold_is_told_by_the_first_request_without_it(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            branch_id = await desk.branch()
            await desk.fold()
            mine, others = FoldSeen(branch_id, 400, 90), FoldSeen(HEX_ID, 10, 5)
            desk.service.sent(TARGET, sent(1, main(100), folds=[mine]))
            desk.service.sent(TARGET, sent(2, main(100), folds=[mine, others]))
            await desk.service.reports.settled(KEY)
            desk.service = desk.another()
            desk.service.sent(TARGET, sent(3, main(100), folds=[mine, others]))
            assert [event.folds for event in await desk.requests()] == [(mine,), (others,), ()]

        desk(act)

    def test_ids_that_are_none_of_ours_are_not_kept_and_many_come_bit_by_bit(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            strange = [FoldSeen(f"br_{SECRET}", 1, 1), FoldSeen("", 1, 1)]
            many = [FoldSeen(f"br_{number:016x}", 1, number) for number in range(FOLDS_MOST + 5)]
            for number in range(3):
                desk.service.sent(TARGET, sent(number, main(100), folds=[*strange, *many]))
            counts = [len(event.folds) for event in await desk.requests()]
            assert counts == [FOLDS_MOST, 5, 0]

        desk(act)

    def test_absurd_figures_are_bounded(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            desk.service.sent(TARGET, sent(1, main(100), usage=Usage(10**30, -5, 0, 10**30)))
            (event,) = await desk.requests()
            assert (event.input_tokens, event.cache_read_tokens) == (10**9, 0)
            assert (await desk.figures())["main_thread"] == 10**9

        desk(act)

    def test_a_session_may_begin_with_one(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            desk.service.sent(TARGET, sent(1, main(100)))
            assert [event.kind for event in await desk.log()] == [
                "session.started",
                "operation.completed",
                "request.sent",
            ]

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
            assert told["cost_saved"] == 400
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
