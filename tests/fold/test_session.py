"""The pure core: what verbs decide and what events add up to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextfold.errors import BranchNotFound, BranchStateInvalid, ContextLimitExceeded, LimitReached
from contextfold.fold import tool_results as answers
from contextfold.fold.accounting import Thresholds, folded_tokens, health, percent, share, total_tokens
from contextfold.fold.events import (
    BranchCreated,
    BranchDiscarded,
    BranchFolded,
    Event,
    EventUnknown,
    OperationCompleted,
    SessionRolledBack,
    WorkFolded,
    from_json,
    to_json,
)
from contextfold.fold.session import EMPTY, LogBroken, SessionLimits, State, apply, replay
from contextfold.fold.verbs import RecordedOperation, RecordOperations
from tests.fold import deciding
from tests.fold.histories import HISTORIES, Step, decide, moment, played, started, states
from tests.support.clauses import covers
from tests.support.machine import times

AT = "2025-01-17T10:30:00Z"


def grown(state: State, *verbs: tuple[str, dict[str, object]]) -> State:
    for number, (verb, given_) in enumerate(verbs, state.revision + 1):
        match verb:
            case "branch":
                made = {"branch_id": f"br_{number}", "description": "d", "prompt": "p", "tokens": 0, "redactions": 0}
                events = deciding.branch(state, SessionLimits(), AT, **(made | given_))  # type: ignore[arg-type]
            case "record":
                done = {"type": "t", "tokens": 0, "source": "hook", "failed": False, "redactions": 0}
                events = deciding.record(state, AT, RecordedOperation(**(done | given_)))  # type: ignore[arg-type]
            case "fold":
                folded = {"branch_id": None, "summary": "s", "summary_tokens": 0, "redactions": 0}
                events = deciding.fold(state, AT, **(folded | given_))  # type: ignore[arg-type]
            case "fold_recent":
                events = deciding.fold_recent(state, AT, **given_)  # type: ignore[arg-type]
            case _:
                events = deciding.rollback(state, AT, **({"restore_state": True} | given_))  # type: ignore[arg-type]
        state = replay(events, state)
    return state


FRESH = replay(started())


class TestTheSeedsWorkedExamples:
    @covers("folding.md#tokens", "folding.md#secrets-scrubbed", "seed-004#context-branch", "seed-004#context-return")
    def test_branch_return_and_the_figures_between(self) -> None:
        main = grown(FRESH, ("record", {"tokens": 5000}))
        branched = grown(main, ("branch", {"branch_id": "br_abc123", "tokens": 200}))
        assert answers.branched(branched.branches["br_abc123"], branched) == {
            "branch_id": "br_abc123",
            "session_id": "sess_1",
            "parent_branch_id": None,
            "created_at": AT,
            "branch_depth": 1,
            "context_state": {
                "active_branch_id": "br_abc123",
                "branch_depth": 1,
                "total_tokens": 5200,
                "main_thread_tokens": 5000,
                "current_branch_tokens": 200,
            },
        }
        work: list[tuple[str, dict[str, object]]] = [("record", {"tokens": 700})] * 11
        worked = grown(branched, *work, ("record", {"tokens": 600, "redactions": 2}))
        events = deciding.fold(worked, AT, branch_id=None, summary="s", summary_tokens=200, redactions=0)
        after = replay(events, worked)
        event = events[-1]
        assert isinstance(event, BranchFolded)
        condition = health(after, 32_768, Thresholds(), after.branches["br_abc123"])
        assert answers.folded(event, after, condition) == {
            "folded_at": AT,
            "branch_id": "br_abc123",
            "parent_branch_id": None,
            "summary": {
                "tokens_folded": 8500,
                "tokens_saved": 8300,
                "operations_count": 12,
                "secrets_scrubbed": 2,
                "summary_redacted": False,
            },
            "context_state": {
                "active_branch_id": None,
                "branch_depth": 0,
                "total_tokens": 5200,
                "main_thread_tokens": 5200,
                "current_branch_tokens": 0,
            },
            "context_health": {"warning": "none", "main_thread_usage": 0.15},
        }

    @covers(
        "folding.md#tokens", "folding.md#usage", "seed-004#context-branch-status", "seed-004#state-tracking-headers"
    )
    def test_status_and_header(self) -> None:
        state = grown(
            FRESH,
            ("record", {"tokens": 5000}),
            ("branch", {"branch_id": "br_old", "tokens": 18_500}),
            ("fold", {}),
            ("branch", {"branch_id": "br_001", "tokens": 3000}),
            ("branch", {"branch_id": "br_abc123", "tokens": 1200}),
        )
        assert answers.status(state, 32_768) == {
            "session_id": "sess_1",
            "active_branch_id": "br_abc123",
            "branch_depth": 2,
            "branch_path": ["main", "br_001", "br_abc123"],
            "token_breakdown": {
                "main_thread": 5000,
                "br_001": 3000,
                "br_abc123": 1200,
                "total": 9200,
                "folded_total": 18_500,
            },
            "context_limit": 32_768,
            "usage_percent": 28,
        }
        assert answers.state_summary(state, 32_768) == {
            "session_id": "sess_1",
            "active_branch_id": "br_abc123",
            "branch_depth": 2,
            "total_tokens": 9200,
            "folded_tokens": 18_500,
            "context_usage": 0.28,
        }

    @covers("folding.md#context-rollback", "seed-004#context-rollback")
    def test_a_rollback_recovers_what_came_later(self) -> None:
        state = grown(
            FRESH,
            ("record", {"tokens": 5000}),
            ("branch", {"branch_id": "br_001", "tokens": 3000}),
            ("branch", {"branch_id": "br_002", "tokens": 9000}),
            ("branch", {"branch_id": "br_003", "tokens": 6000}),
        )
        events = deciding.rollback(state, AT, branch_id="br_001", restore_state=True)
        assert answers.rolled_back("br_001", state, events, replay(events, state)) == {
            "rolled_back_to": "br_001",
            "branches_discarded": ["br_002", "br_003"],
            "tokens_recovered": 15_000,
            "context_state": {"active_branch_id": "br_001", "branch_depth": 1, "total_tokens": 8000},
        }


class TestFolding:
    @covers("folding.md#tokens")
    def test_a_summary_longer_than_its_branch_saves_less_than_nothing(self) -> None:
        state = grown(FRESH, ("branch", {"tokens": 10}))
        (event,) = deciding.fold(state, AT, branch_id=None, summary="s", summary_tokens=50, redactions=0)
        assert isinstance(event, BranchFolded)
        told = answers.folded(event, replay([event], state), health(state, 32_768, Thresholds()))
        assert told["summary"] == {
            "tokens_folded": 10,
            "tokens_saved": -40,
            "operations_count": 0,
            "secrets_scrubbed": 0,
            "summary_redacted": False,
        }

    @covers("folding.md#tokens", "folding.md#context-return")
    def test_what_is_open_below_is_folded_first_deepest_first_and_forced(self) -> None:
        state = grown(
            FRESH,
            ("branch", {"branch_id": "br_a", "tokens": 1}),
            ("branch", {"branch_id": "br_b", "tokens": 2}),
            ("branch", {"branch_id": "br_c", "tokens": 4}),
        )
        events = deciding.fold(state, AT, branch_id="br_a", summary="done", summary_tokens=8, redactions=0)
        assert [(e.branch_id, e.forced, e.summary, e.tokens_folded) for e in events if isinstance(e, BranchFolded)] == [
            ("br_c", True, "", 4),
            ("br_b", True, "", 2),
            ("br_a", False, "done", 1),
        ]
        after = replay(events, state)
        assert (after.path, after.main.tokens, folded_tokens(after)) == ((), 8, 7)

    @covers("folding.md#tokens", "folding.md#context-return", "seed-004#context-return")
    def test_the_parent_grows_by_the_summary(self) -> None:
        state = grown(
            FRESH,
            ("branch", {"branch_id": "br_a", "tokens": 10}),
            ("branch", {"branch_id": "br_b", "tokens": 100}),
            ("fold", {"summary_tokens": 5}),
        )
        assert (state.path, state.branches["br_a"].tokens, total_tokens(state)) == (("br_a",), 15, 15)

    @covers("folding.md#branch", "folding.md#errors", "seed-004#error-handling")
    @pytest.mark.parametrize("branch_id", [None, "br_a"])
    def test_only_an_open_branch_can_be_folded(self, branch_id: str | None) -> None:
        state = grown(FRESH, ("branch", {"branch_id": "br_a"}), ("fold", {}))
        with pytest.raises(BranchStateInvalid, match=r"^Cannot fold branch: branch is not active$") as refused:
            deciding.fold(state, AT, branch_id=branch_id, summary="", summary_tokens=0, redactions=0)
        assert refused.value.data == {"branch_id": branch_id, "current_status": branch_id and "folded"}

    def test_a_branch_nobody_knows_is_not_found(self) -> None:
        with pytest.raises(BranchNotFound, match=r"^Branch not found: br_xyz$") as refused:
            deciding.fold(FRESH, AT, branch_id="br_xyz", summary="", summary_tokens=0, redactions=0)
        assert refused.value.data == {"branch_id": "br_xyz", "session_id": "sess_1"}


class TestCompactions:
    def test_what_was_open_is_gone_but_for_the_summary_which_is_the_main_threads(self) -> None:
        before = grown(
            FRESH,
            ("record", {"tokens": 5_000}),
            ("branch", {"branch_id": "br_1", "tokens": 100}),
            ("record", {"tokens": 400}),
            ("fold", {"summary_tokens": 20}),
            ("branch", {"branch_id": "br_2", "tokens": 100}),
            ("record", {"tokens": 700, "failed": True}),
        )
        after = grown(before, ("record", {"tokens": 300, "compacts": True}))
        assert (after.main.tokens, after.branches["br_2"].tokens, after.branches["br_1"].tokens) == (300, 0, 500)
        assert total_tokens(after) == 300
        assert (after.main.operations, after.branches["br_2"].operations, after.path) == (2, 1, ("br_2",))
        back = grown(after, ("record", {"tokens": 50}), ("fold", {"summary_tokens": 30}))
        assert (back.main.tokens, back.branches["br_2"].tokens) == (330, 50)

    def test_a_rollback_brings_back_what_was_there_before_it(self) -> None:
        before = grown(FRESH, ("record", {"tokens": 5_000}), ("branch", {"branch_id": "br_1", "tokens": 100}))
        after = grown(before, ("record", {"tokens": 300, "compacts": True}), ("rollback", {"branch_id": "br_1"}))
        assert (after.main.tokens, after.branches["br_1"].tokens) == (5_000, 100)


class TestRollingBack:
    @covers("folding.md#context-rollback", "seed-004#context-rollback")
    def test_a_folded_target_is_open_again_as_it_began(self) -> None:
        state = grown(
            FRESH,
            ("record", {"tokens": 7}),
            ("branch", {"branch_id": "br_a", "tokens": 10}),
            ("record", {"tokens": 100}),
            ("fold", {"summary_tokens": 3}),
            ("record", {"tokens": 50}),
            ("rollback", {"branch_id": "br_a"}),
        )
        assert (state.path, state.main.tokens, total_tokens(state)) == (("br_a",), 7, 17)

    @covers("folding.md#context-rollback")
    def test_without_restoring_what_was_accumulated_stays(self) -> None:
        state = grown(
            FRESH,
            ("branch", {"branch_id": "br_a", "tokens": 10}),
            ("branch", {"branch_id": "br_b", "tokens": 20}),
            ("fold", {"summary_tokens": 1}),
            ("record", {"tokens": 100}),
            ("fold", {"summary_tokens": 5}),
            ("rollback", {"branch_id": "br_a", "restore_state": False}),
        )
        assert (state.path, state.branches["br_a"].tokens, state.main.tokens) == (("br_a",), 111, 5)
        assert state.branches["br_b"].status == "discarded"

    @covers("folding.md#branch", "folding.md#errors")
    def test_a_discarded_branch_is_no_target(self) -> None:
        state = grown(
            FRESH,
            ("branch", {"branch_id": "br_a"}),
            ("branch", {"branch_id": "br_b"}),
            ("rollback", {"branch_id": "br_a"}),
        )
        with pytest.raises(BranchStateInvalid, match=r"^Cannot roll back: branch is discarded$") as refused:
            deciding.rollback(state, AT, branch_id="br_b", restore_state=True)
        assert refused.value.data == {"branch_id": "br_b", "current_status": "discarded"}

    @covers("folding.md#events", "folding.md#context-rollback")
    @settings(max_examples=times(30, 10_000))
    @given(HISTORIES)
    def test_restoring_is_what_the_log_gives_up_to_the_branchs_beginning(self, steps: list[Step]) -> None:
        log = played(steps)
        seen = states(log)
        began = {event.branch_id: event.n for event in log if isinstance(event, BranchCreated)}
        began |= {event.branch_id: event.n - 1 for event in log if isinstance(event, WorkFolded)}
        for number, event in enumerate(log):
            if isinstance(event, SessionRolledBack) and event.restore_state:
                then, now = seen[began[event.branch_id] - 1], seen[number]
                later = [branch_id for branch_id in now.branches if branch_id not in then.branches]
                assert {key: now.branches[key] for key in then.branches} == then.branches
                assert all(now.branches[branch_id].status == "discarded" for branch_id in later)
                assert (now.main, now.path, total_tokens(now)) == (then.main, then.path, total_tokens(then))
                assert folded_tokens(now) == folded_tokens(then)


class TestLimits:
    @covers("folding.md#context-branch", "folding.md#errors")
    def test_depth(self) -> None:
        state = grown(FRESH, *[("branch", {})] * 8)
        with pytest.raises(LimitReached) as refused:
            deciding.branch(
                state, SessionLimits(), AT, branch_id="br_x", description="d", prompt="p", tokens=0, redactions=0
            )
        assert refused.value.data == {"limit": "branch_depth", "value": 8}
        assert "8" in refused.value.message

    @covers("folding.md#context-branch", "folding.md#errors")
    def test_branches_per_session_count_those_that_are_closed(self) -> None:
        state = grown(FRESH, *[("branch", {}), ("fold", {})] * 3)
        with pytest.raises(LimitReached) as refused:
            deciding.branch(
                state,
                SessionLimits(branches=3),
                AT,
                branch_id="br_x",
                description="d",
                prompt="p",
                tokens=0,
                redactions=0,
            )
        assert refused.value.data == {"limit": "branches_per_session", "value": 3}

    @covers("folding.md#errors", "seed-004#error-handling")
    def test_the_hard_limit_refuses_a_branch_and_never_a_fact(self) -> None:
        full = grown(FRESH, ("record", {"tokens": 34_800}), ("branch", {"tokens": 100}))
        hard = SessionLimits(is_hard=True)
        with pytest.raises(ContextLimitExceeded, match=r"^Context limit exceeded: 35000/32768 tokens$") as refused:
            deciding.branch(full, hard, AT, branch_id="b", description="d", prompt="p", tokens=100, redactions=0)
        assert refused.value.data == {
            "current_tokens": 35_000,
            "context_limit": 32_768,
            "suggestion": "Fold current branch before continuing",
            "kind": "context_limit",
        }
        without_branch = grown(FRESH, ("record", {"tokens": 34_900}))
        with pytest.raises(ContextLimitExceeded) as refused:
            deciding.branch(
                without_branch, hard, AT, branch_id="b", description="d", prompt="p", tokens=100, redactions=0
            )
        assert "context_fold" in str(refused.value.data["suggestion"])
        assert deciding.record(full, AT, RecordedOperation("t", 1, "hook", failed=False, redactions=0))
        assert deciding.branch(
            full, SessionLimits(), AT, branch_id="b", description="d", prompt="p", tokens=1, redactions=0
        )


class TestFoldingAfterwards:
    def test_it_leaves_the_figures_of_a_branch_that_had_been_there_all_along(self) -> None:
        before = grown(FRESH, ("record", {"tokens": 5000, "by_user": True}))
        work: list[tuple[str, dict[str, object]]] = [("record", {"tokens": 700, "redactions": 1})] * 12
        done = grown(before, *work)
        (event,) = deciding.fold_recent(done, AT, summary="Found it.\nIn b.py.", summary_tokens=200, redactions=1)
        assert isinstance(event, WorkFolded)
        after = replay([event], done)
        branched = grown(grown(before, ("branch", {"branch_id": "br_fold"}), *work), ("fold", {"summary_tokens": 200}))
        assert (
            (after.main.tokens, total_tokens(after)) == (branched.main.tokens, total_tokens(branched)) == (5200, 5200)
        )
        fold, branch = after.branches["br_fold"], branched.branches["br_fold"]
        assert (fold.tokens, fold.operations, fold.status) == (branch.tokens, branch.operations, branch.status)
        assert (after.main.operations, after.main.redactions) == (branched.main.operations, branched.main.redactions)
        assert (fold.description, fold.redactions) == ("Found it.", 13)
        result = answers.folded(event, after, health(after, 32_768, Thresholds()))
        assert result["summary"] == {
            "tokens_folded": 8400,
            "tokens_saved": 8200,
            "operations_count": 12,
            "secrets_scrubbed": 13,
            "summary_redacted": True,
        }

    @pytest.mark.parametrize(
        "before",
        [
            [("record", {"by_user": True})],
            [("record", {}), ("record", {"by_user": True})],
            [("branch", {}), ("record", {}), ("fold", {})],
            [("record", {}), ("branch", {})],
            [("record", {}), ("record", {"compacts": True})],
            [("record", {}), ("fold_recent", {})],
        ],
        ids=["user", "user after work", "return", "branch point", "compaction", "fold"],
    )
    def test_nothing_is_folded_that_was_done_before_the_last_boundary(
        self, before: list[tuple[str, dict[str, object]]]
    ) -> None:
        state = grown(FRESH, *before)
        with pytest.raises(BranchStateInvalid) as refused:
            deciding.fold_recent(state, AT)
        assert refused.value.message == "Cannot fold: nothing was done since the last fold"
        done = grown(state, ("record", {"tokens": 40}), ("fold_recent", {"branch_id": "br_x", "summary_tokens": 3}))
        assert done.branches["br_x"].tokens == 40
        assert total_tokens(done) == total_tokens(state) + 3

    def test_in_a_branch_it_folds_below_that_branch(self) -> None:
        state = grown(FRESH, ("branch", {"branch_id": "br_a"}), ("record", {"tokens": 9}), ("fold_recent", {}))
        assert state.branches["br_fold"].parent_id == "br_a"
        assert state.path == ("br_a",)

    def test_rolling_back_to_it_takes_the_fold_back_and_reopens_nothing(self) -> None:
        done = grown(FRESH, ("record", {"tokens": 90}))
        later = grown(done, ("fold_recent", {"summary_tokens": 5}), ("record", {"tokens": 7}), ("branch", {}))
        after = grown(later, ("rollback", {"branch_id": "br_fold"}))
        assert (after.main, after.path) == (done.main, ())
        assert {branch.status for branch in after.branches.values()} == {"discarded"}
        with pytest.raises(BranchStateInvalid):
            deciding.rollback(after, AT, branch_id="br_fold", restore_state=True)

    def test_taking_it_back_without_restoring_keeps_what_came_later(self) -> None:
        later = grown(
            FRESH, ("record", {"tokens": 90}), ("fold_recent", {"summary_tokens": 5}), ("record", {"tokens": 7})
        )
        after = grown(later, ("rollback", {"branch_id": "br_fold", "restore_state": False}))
        assert (after.main.tokens, after.main.operations) == (97, 2)
        assert after.main.recent.tokens == 97

    def test_a_fold_counts_as_a_branch_of_the_session(self) -> None:
        state = grown(FRESH, ("record", {}))
        with pytest.raises(LimitReached):
            deciding.fold_recent(state, AT, limits=SessionLimits(branches=0))

    def test_a_log_of_an_older_version_is_still_read(self) -> None:
        old = f'{{"event":"operation.completed","n":2,"at":"{AT}","branch_id":null,"type":"t","tokens":5,'
        old += '"source":"hook","failed":false,"redactions":0}'
        assert apply(FRESH, from_json(old)).main.recent.tokens == 5


class TestHealth:
    @covers("folding.md#usage", "folding.md#health")
    @pytest.mark.parametrize(
        ("tokens", "warning"), [(0, "none"), (500, "none"), (501, "medium"), (700, "medium"), (701, "high")]
    )
    def test_a_threshold_itself_is_still_below(self, tokens: int, warning: str) -> None:
        state = grown(FRESH, ("record", {"tokens": tokens}))
        assert health(state, 1000, Thresholds()).warning == warning

    def test_a_failure_rate_needs_a_failure_and_five_operations(self) -> None:
        work: list[tuple[str, dict[str, object]]] = [("record", {})] * 2 + [("record", {"failed": True})] * 2
        four = grown(FRESH, ("branch", {}), *work)
        assert health(four, 1000, Thresholds(), four.active).failure_rate is None
        five = grown(four, ("record", {}))
        assert health(five, 1000, Thresholds(), five.active).failure_rate == 0.4
        assert health(FRESH, 1000, Thresholds(), None).failure_rate is None

    def test_ratios_are_cut_like_percentages(self) -> None:
        assert [repr(share(part, 200)) for part in (0, 1, 2, 3, 199, 200, 500)] == [
            "0.00", "0.00", "0.01", "0.01", "0.99", "1.00", "2.50",
        ]  # fmt: skip
        assert [percent(part, 200) for part in (0, 1, 3, 199, 200)] == [0, 0, 1, 99, 100]


class TestTheLog:
    @covers("folding.md#events")
    @given(HISTORIES)
    def test_stored_and_read_again_it_gives_the_same_state(self, steps: list[Step]) -> None:
        log = played(steps)
        assert [from_json(to_json(event)) for event in log] == log
        assert replay(from_json(to_json(event)) for event in log) == replay(log)

    @covers(
        "folding.md#branch",
        "folding.md#events",
        "folding.md#tokens",
        "folding.md#context-branch",
        "folding.md#context-return",
    )
    @given(HISTORIES)
    def test_totals_add_up_after_every_event(self, steps: list[Step]) -> None:
        for state in states(played(steps)):
            open_branches = [branch for branch in state.branches.values() if branch.status == "active"]
            assert [branch.id for branch in open_branches] == list(state.path)
            parents = [None, *state.path][: len(state.path)]
            assert [branch.parent_id for branch in open_branches] == parents
            assert total_tokens(state) == state.main.tokens + sum(branch.tokens for branch in open_branches)
            assert all((branch.closed_at is None) == (branch.status == "active") for branch in state.branches.values())
            assert set(state.checkpoints) == {b.id for b in state.branches.values() if b.status != "discarded"}

    @covers("folding.md#tokens")
    @given(HISTORIES)
    def test_tokens_are_those_of_the_events_since_each_branch_began(self, steps: list[Step]) -> None:
        """Counted a second time, from the log alone, for histories without a rollback."""
        log = played([step for step in steps if step.verb != "rollback"])
        tokens: dict[str | None, int] = {None: 0}
        parents: dict[str, str | None] = {}
        still_open: set[str | None] = {None}
        for event in log:
            match event:
                case BranchCreated():
                    tokens[event.branch_id] = event.tokens
                    parents[event.branch_id] = event.parent_id
                    still_open.add(event.branch_id)
                case OperationCompleted():
                    if event.compacts:
                        tokens |= dict.fromkeys(still_open, 0)
                    tokens[event.branch_id] += event.tokens
                case BranchFolded():
                    still_open.remove(event.branch_id)
                    assert event.tokens_folded == tokens[event.branch_id]
                    tokens[parents[event.branch_id]] += event.summary_tokens
                case WorkFolded():
                    tokens[event.branch_id] = event.tokens_folded
                    tokens[event.parent_id] += event.summary_tokens - event.tokens_folded
                    between = [one for one in log[event.since : event.n - 1] if isinstance(one, OperationCompleted)]
                    moved = [one.tokens for one in between if one.branch_id == event.parent_id]
                    assert event.tokens_folded == sum(moved)
        state = replay(log)
        told: dict[str | None, int] = {None: state.main.tokens}
        assert tokens == told | {branch.id: branch.tokens for branch in state.branches.values()}

    @covers("folding.md#events")
    @given(HISTORIES)
    def test_a_verb_is_the_same_function_every_time(self, steps: list[Step]) -> None:
        assert played(steps) == played(steps)

    @covers("folding.md#events")
    def test_events_out_of_order_are_refused(self) -> None:
        (start,) = started()
        (record,) = decide(FRESH, Step("record", 0, 1, flag=False), 1)
        for log in ([record], [start, start], [start, record, record], [start, replace(record, n=4)]):
            with pytest.raises(LogBroken):
                replay(log)
        with pytest.raises(LogBroken):
            apply(FRESH, BranchDiscarded(2, AT, "br_none"))

    @pytest.mark.parametrize("text", ["{}", "[]", '{"event":"branch.merged"}', '{"event":"branch.folded","n":1}'])
    def test_an_event_of_another_version_is_named_as_such(self, text: str) -> None:
        with pytest.raises(EventUnknown):
            from_json(text)

    def test_a_clock_that_went_back_does_not_move_the_last_activity(self) -> None:
        early: Event = OperationCompleted(2, "2024-01-01T00:00:00Z", None, "t", 1, "hook", failed=False, redactions=0)
        assert apply(FRESH, early).last_at == FRESH.last_at

    @covers("folding.md#state-header")
    def test_nothing_is_known_before_the_beginning(self) -> None:
        assert answers.state_summary(EMPTY, 32_768) == {
            "session_id": None,
            "active_branch_id": None,
            "branch_depth": 0,
            "total_tokens": 0,
            "folded_tokens": 0,
            "context_usage": 0.0,
        }


OPERATIONS = st.lists(
    st.builds(
        RecordedOperation,
        st.just("Bash"),
        st.integers(0, 50),
        st.just("hook"),
        failed=st.booleans(),
        redactions=st.integers(0, 2),
        call_id=st.sampled_from(["", "a", "b", "c"]),
        compacts=st.sampled_from([False, False, False, True]),
        by_user=st.sampled_from([False, False, True]),
        model=st.sampled_from(["", "m", "n"]),
        host=st.sampled_from(["", "claude-code", "cursor"]),
    ),
    max_size=12,
)


@settings(max_examples=times(30, 5_000))
@given(HISTORIES, OPERATIONS, OPERATIONS)
def test_operations_that_are_decided_and_applied_together_are_as_one_by_one(
    steps: list[Step], first: list[RecordedOperation], then: list[RecordedOperation]
) -> None:
    log = played(steps)
    single = replay(log)
    for operations in (first, then):
        together = RecordOperations(tuple(operations)).decide(single, moment(900))
        apart: list[Event] = []
        for done in operations:
            (event,) = RecordOperations((done,)).decide(single, moment(900))
            single = apply(single, event)
            apart.append(event)
        assert together == apart
        log += together
    assert replay(log) == single == states(log)[-1]
