"""Requests to models, as whoever sends them tells the service: the texts and the event that are kept of them."""

from __future__ import annotations

import json

from contextfold.fold.ledger.provider_counts import EVENT_FOLDS_MAX
from contextfold.fold.ledger.sent_request import FoldSeen, Share, Usage
from contextfold.fold.service.reports import REQUEST_CHARACTERS_MAX, HookReport
from contextfold.fold.tool_arguments import rollback_request
from tests.contract.stores import run
from tests.fold.ledger.sending import KEY, ME, PROJECT, SECRET, TARGET, Desk, RunDesk, desk, main, sent
from tests.support.clauses import covers

__all__ = ["desk", "run"]

HEX_ID = "br_" + "0a" * 8


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
            report = HookReport(TARGET, "claude-code", "Bash", "by the hook", 10, failed=False, call_id="c1")
            desk.service.reports.receive(KEY, [report])
            desk.service.sent(TARGET, sent(1, main(500, "by the request")))
            assert await desk.main_texts() == ["by the hook", ""]
            assert (await desk.figures())["main_thread"] == 500
            assert desk.service.messages_known(KEY) == {None: 1}

        desk(act)

    def test_what_is_too_long_is_kept_from_its_end_and_says_so(self, desk: RunDesk) -> None:
        async def act(desk: Desk) -> None:
            long = "x" * (REQUEST_CHARACTERS_MAX // 2)
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
    @covers("proxy.md#receipt")
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
            many = [FoldSeen(f"br_{number:016x}", 1, number) for number in range(EVENT_FOLDS_MAX + 5)]
            for number in range(3):
                desk.service.sent(TARGET, sent(number, main(100), folds=[*strange, *many]))
            counts = [len(event.folds) for event in await desk.requests()]
            assert counts == [EVENT_FOLDS_MAX, 5, 0]

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
