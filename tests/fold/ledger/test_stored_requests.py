"""Requests to models that were reported to the service: the texts and the event that are stored of each."""

from __future__ import annotations

import json

from contextfold.fold.events import FoldSeen, kind_of
from contextfold.fold.sent_request import EVENT_FOLDS_MAX, Share, Usage
from contextfold.fold.service.reports import HookReport
from contextfold.fold.store import ArchivedThread
from tests.fold.ledger.ledger_harness import (
    KEY,
    ME,
    PROJECT,
    SECRET,
    TARGET,
    LedgerHarness,
    main_share,
)

HEX_ID = "br_" + "0a" * 8


class TestArchive:
    async def test_each_message_is_stored_once_and_redacted(self, harness: LedgerHarness) -> None:
        branch_id = await harness.branch()
        first = (main_share(10, "m1"), Share(branch_id, 10, 2, ("b1", f"key {SECRET}")))
        harness.send(1, *first)
        second = (main_share(10, "m1"), Share(branch_id, 10, 3, ("b1", f"key {SECRET}", "b3")))
        harness.send(2, *second)
        await harness.fold()
        texts = [entry["text"] for entry in await harness.expanded(branch_id) if entry["kind"] == "operation"]
        assert texts[0].startswith("b1\nkey [REDACTED:")
        assert texts[1] == "b3"
        assert SECRET not in json.dumps(texts)
        assert (await harness.service.look(KEY)).branches[branch_id].redactions == 1

    async def test_the_service_reports_how_many_messages_it_knows(self, harness: LedgerHarness) -> None:
        assert harness.service.messages_known(KEY) == {None: 0}
        branch_id = await harness.branch()
        harness.send(1, main_share(10, "m1", "m2"), Share(branch_id, 10, 1, ("b1",)))
        assert harness.service.messages_known(KEY) == {None: 2, branch_id: 1}
        await harness.service.reports.settle(KEY)
        assert harness.service.messages_known(KEY) == {None: 2, branch_id: 1}
        newer = (main_share(10, "m3", messages=3), Share(branch_id, 10, 1))
        harness.send(2, *newer)
        assert await harness.main_texts() == ["m1\nm2", "m3"]
        await harness.fold()
        assert harness.service.messages_known(KEY) == {None: 3}

    async def test_a_list_that_became_shorter_is_not_stored_again(self, harness: LedgerHarness) -> None:
        harness.send(1, main_share(10, "m1", "m2", "m3"))
        harness.send(2, main_share(10, "a title for this"), has_tools=False)
        harness.send(3, main_share(10, "m1", "m2", "m3", "m4"))
        assert await harness.main_texts() == ["m1\nm2\nm3", "m4"]

    async def test_the_text_of_a_hook_report_replaces_that_of_the_request(self, harness: LedgerHarness) -> None:
        report = HookReport("claude-code", "Bash", "by the hook", 10, failed=False, call_id="c1")
        harness.service.reports.receive(TARGET, report)
        harness.send(1, main_share(500, "by the request"))
        assert await harness.main_texts() == ["by the hook"]
        assert (await harness.figures())["main_thread"] == 500
        assert harness.service.messages_known(KEY) == {None: 1}

    async def test_a_note_says_how_many_messages_of_a_long_request_are_not_stored(self, harness: LedgerHarness) -> None:
        harness.send(1, main_share(10, "long", "last", messages=4))
        await harness.service.reports.settle(KEY)
        session_id = (await harness.service.look(KEY)).session_id or ""
        thread = ArchivedThread("local", KEY.project_hash, None, session_id)
        trajectory = await harness.store.trajectory(thread, limit=9)
        assert trajectory is not None
        (entry,) = trajectory.entries
        assert entry.text == "[2 earlier messages were not handed over]\nlong\nlast"

    async def test_after_a_rollback_messages_are_stored_again_and_the_old_ones_are_undone(
        self, harness: LedgerHarness
    ) -> None:
        harness.send(1, main_share(100, "m1"))
        branch_id = await harness.branch()
        harness.send(2, main_share(100, "m1"), Share(branch_id, 50, 2, ("b1", "b2")))
        await harness.fold()
        request = {"branch_id": branch_id, **PROJECT}
        await harness.service.roll_back(ME, request)
        assert harness.service.messages_known(KEY) == {None: 1, branch_id: 0}
        harness.send(3, main_share(100, messages=1), Share(branch_id, 50, 1, ("b1 again",)))
        entries = [entry for entry in await harness.expanded(branch_id) if entry["kind"] == "operation"]
        assert [(entry["text"], entry.get("undone", False)) for entry in entries] == [
            ("b1\nb2", True),
            ("b1 again", False),
        ]


class TestEvent:
    async def test_the_event_has_the_figures_of_the_request(self, harness: LedgerHarness) -> None:
        folds = (FoldSeen(HEX_ID, 400, 90),)
        harness.send(
            1,
            main_share(100, "m"),
            usage=Usage(1, 2, 3, 4),
            folds=folds,
            turns_dropped=6,
            first_changed=3,
            reason="shared_turn",
            model=f"model {SECRET}",
        )
        (event,) = await harness.requests()
        assert (event.api, event.tokens_before, event.tokens_after) == ("anthropic", 500, 100)
        assert (event.turns_dropped, event.first_changed, event.reason) == (6, 3, "shared_turn")
        figures = (event.input_tokens, event.cache_read_tokens, event.cache_write_tokens, event.output_tokens)
        assert figures == (1, 2, 3, 4)
        assert event.folds == folds
        assert SECRET not in event.model
        assert event.model.startswith("model [REDACTED")

    async def test_a_fold_is_listed_in_the_first_request_after_it(self, harness: LedgerHarness) -> None:
        branch_id = await harness.branch()
        await harness.fold()
        mine, others = FoldSeen(branch_id, 400, 90), FoldSeen(HEX_ID, 10, 5)
        harness.send(1, main_share(100), folds=[mine])
        harness.send(2, main_share(100), folds=[mine, others])
        await harness.service.reports.settle(KEY)
        harness.service = harness.another_service()
        harness.send(3, main_share(100), folds=[mine, others])
        assert [event.folds for event in await harness.requests()] == [(mine,), (others,), ()]

    async def test_foreign_branch_ids_are_dropped_and_many_folds_are_spread_over_events(
        self, harness: LedgerHarness
    ) -> None:
        foreign = [FoldSeen(f"br_{SECRET}", 1, 1), FoldSeen("", 1, 1)]
        many = [FoldSeen(f"br_{number:016x}", 1, number) for number in range(EVENT_FOLDS_MAX + 5)]
        for number in range(3):
            harness.send(number, main_share(100), folds=[*foreign, *many])
        counts = [len(event.folds) for event in await harness.requests()]
        assert counts == [EVENT_FOLDS_MAX, 5, 0]

    async def test_absurd_figures_are_bounded(self, harness: LedgerHarness) -> None:
        harness.send(1, main_share(100), usage=Usage(10**30, -5, 0, 10**30))
        (event,) = await harness.requests()
        assert (event.input_tokens, event.cache_read_tokens) == (10**9, 0)
        assert (await harness.figures())["main_thread"] == 10**9

    async def test_a_session_may_begin_with_a_request(self, harness: LedgerHarness) -> None:
        harness.send(1, main_share(100, "hello"))
        assert [kind_of(event) for event in await harness.log()] == [
            "session.started",
            "operation.completed",
            "request.sent",
        ]
