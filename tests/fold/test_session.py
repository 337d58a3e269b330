"""The pure core: what verbs decide and what events add up to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from contextfold.errors import BranchNotFound, BranchStateInvalid, ContextLimitExceeded, LimitReached
from contextfold.fold import session
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
    from_json,
    to_json,
)
from contextfold.fold.session import EMPTY, Limits, LogBroken, State, apply, replay
from tests.fold.histories import HISTORIES, LIMITS, Step, decide, played, started, states
from tests.support.clauses import covers
from tests.support.machine import times

AT = "2025-01-17T10:30:00Z"


def grown(state: State, *verbs: tuple[str, dict[str, object]]) -> State:
    for number, (verb, given_) in enumerate(verbs, state.revision + 1):
        match verb:
            case "branch":
                made = {"branch_id": f"br_{number}", "description": "d", "prompt": "p", "tokens": 0, "redactions": 0}
                events = session.branch(state, Limits(), AT, **(made | given_))  # type: ignore[arg-type]
            case "record":
                done = {"type": "t", "tokens": 0, "source": "hook", "failed": False, "redactions": 0}
                events = session.record(state, AT, session.Work(**(done | given_)))  # type: ignore[arg-type]
            case "fold":
                folded = {"branch_id": None, "summary": "s", "summary_tokens": 0, "redactions": 0}
                events = session.fold(state, AT, **(folded | given_))  # type: ignore[arg-type]
            case _:
                events = session.rollback(state, AT, **({"restore_state": True} | given_))  # type: ignore[arg-type]
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
        events = session.fold(worked, AT, branch_id=None, summary="s", summary_tokens=200, redactions=0)
        after = replay(events, worked)
        event = events[-1]
        assert isinstance(event, BranchFolded)
        condition = answers.health_told(health(after, Limits(), Thresholds(), after.branches["br_abc123"]))
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
            "context_health": {"warning": "none", "main_thread_usage": 0.16},
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
        assert answers.status(state, Limits()) == {
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
        assert answers.state_told(state, Limits()) == {
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
        events = session.rollback(state, AT, branch_id="br_001", restore_state=True)
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
        (event,) = session.fold(state, AT, branch_id=None, summary="s", summary_tokens=50, redactions=0)
        assert isinstance(event, BranchFolded)
        told = answers.folded(event, replay([event], state), {})
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
        events = session.fold(state, AT, branch_id="br_a", summary="done", summary_tokens=8, redactions=0)
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
            session.fold(state, AT, branch_id=branch_id, summary="", summary_tokens=0, redactions=0)
        assert refused.value.data == {"branch_id": branch_id, "current_status": branch_id and "folded"}

    def test_a_branch_nobody_knows_is_not_found(self) -> None:
        with pytest.raises(BranchNotFound, match=r"^Branch not found: br_xyz$") as refused:
            session.fold(FRESH, AT, branch_id="br_xyz", summary="", summary_tokens=0, redactions=0)
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
            session.rollback(state, AT, branch_id="br_b", restore_state=True)
        assert refused.value.data == {"branch_id": "br_b", "current_status": "discarded"}

    @covers("folding.md#events", "folding.md#context-rollback")
    @settings(max_examples=times(60, 10_000))
    @given(HISTORIES)
    def test_restoring_is_what_the_log_gives_up_to_the_branchs_beginning(self, steps: list[Step]) -> None:
        log = played(steps)
        seen = states(log)
        began = {event.branch_id: event.n for event in log if isinstance(event, BranchCreated)}
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
            session.branch(state, Limits(), AT, branch_id="br_x", description="d", prompt="p", tokens=0, redactions=0)
        assert refused.value.data == {"limit": "branch_depth", "value": 8}
        assert "8" in refused.value.message

    @covers("folding.md#context-branch", "folding.md#errors")
    def test_branches_per_session_count_those_that_are_closed(self) -> None:
        state = grown(FRESH, *[("branch", {}), ("fold", {})] * 3)
        with pytest.raises(LimitReached) as refused:
            session.branch(
                state, Limits(branches=3), AT, branch_id="br_x", description="d", prompt="p", tokens=0, redactions=0
            )
        assert refused.value.data == {"limit": "branches_per_session", "value": 3}

    @covers("folding.md#errors", "seed-004#error-handling")
    def test_the_hard_limit_refuses_a_branch_and_never_a_fact(self) -> None:
        full = grown(FRESH, ("record", {"tokens": 34_900}))
        hard = Limits(is_hard=True)
        with pytest.raises(ContextLimitExceeded, match=r"^Context limit exceeded: 35000/32768 tokens$") as refused:
            session.branch(full, hard, AT, branch_id="b", description="d", prompt="p", tokens=100, redactions=0)
        assert refused.value.data == {
            "current_tokens": 35_000,
            "context_limit": 32_768,
            "suggestion": "Fold current branch before continuing",
            "kind": "context_limit",
        }
        assert session.record(full, AT, session.Work("t", 1, "hook", failed=False, redactions=0))
        assert session.branch(full, Limits(), AT, branch_id="b", description="d", prompt="p", tokens=1, redactions=0)


class TestHealth:
    @covers("folding.md#usage", "folding.md#health")
    @pytest.mark.parametrize(
        ("tokens", "warning"), [(0, "none"), (500, "none"), (501, "medium"), (700, "medium"), (701, "high")]
    )
    def test_a_threshold_itself_is_still_below(self, tokens: int, warning: str) -> None:
        state = grown(FRESH, ("record", {"tokens": tokens}))
        told = health(state, Limits(context_tokens=1000), Thresholds())
        assert told.warning == warning
        assert (told.suggestion is None) == (warning == "none")

    @covers("folding.md#health")
    def test_failures_are_told_when_there_are_some(self) -> None:
        state = grown(FRESH, ("branch", {}), ("record", {}), ("record", {"failed": True}), ("record", {}))
        assert health(state, LIMITS, Thresholds(), state.active).failure_rate == 0.33
        assert health(FRESH, LIMITS, Thresholds(), None).failure_rate is None

    @covers("folding.md#usage")
    def test_ratios_round_halves_up_and_percent_cuts(self) -> None:
        assert [repr(share(part, 200)) for part in (0, 1, 2, 3, 199, 200, 500)] == [
            "0.00", "0.01", "0.01", "0.02", "1.00", "1.00", "2.50",
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
        assert answers.state_told(EMPTY, Limits()) == {
            "session_id": None,
            "active_branch_id": None,
            "branch_depth": 0,
            "total_tokens": 0,
            "folded_tokens": 0,
            "context_usage": 0.0,
        }
