"""The pure core of folding: the events that verbs decide, and the state that follows from events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextfold.errors import BranchStateInvalid, ContextLimitExceeded, LimitReached
from contextfold.fold import tool_calls
from contextfold.fold.events import (
    BranchCreated,
    BranchDiscarded,
    BranchFolded,
    Event,
    EventUnknown,
    OperationCompleted,
    RequestSent,
    SessionRolledBack,
    WorkFolded,
    from_json,
    to_json,
)
from contextfold.fold.policy import FoldPolicy, percent, share
from contextfold.fold.session import EMPTY, LogBroken, SessionLimits, State, apply, replay
from tests.fold import verb_functions
from tests.fold.histories import HISTORIES, Step, decide, log_of, new_log, states_after, timestamp
from tests.support.machine import times

AT = "2025-01-17T10:30:00Z"


def after_verbs(state: State, *verbs: tuple[str, dict[str, object]]) -> State:
    for number, (verb, arguments) in enumerate(verbs, state.revision + 1):
        match verb:
            case "branch":
                branch_defaults = {
                    "branch_id": f"br_{number}",
                    "description": "d",
                    "prompt": "p",
                    "tokens": 0,
                    "redactions": 0,
                }
                events = verb_functions.branch(state, SessionLimits(), AT, **(branch_defaults | arguments))  # type: ignore[arg-type]
            case "record":
                operation_defaults = {"type": "t", "tokens": 0, "source": "hook", "failed": False, "redactions": 0}
                events = verb_functions.record(state, AT, verb_functions.operation(**(operation_defaults | arguments)))  # type: ignore[arg-type]
            case "fold":
                fold_defaults = {"branch_id": None, "summary": "s", "summary_tokens": 0, "redactions": 0}
                events = verb_functions.fold(state, AT, **(fold_defaults | arguments))  # type: ignore[arg-type]
            case "fold_recent":
                events = verb_functions.fold_recent(state, AT, **arguments)  # type: ignore[arg-type]
            case _:
                events = verb_functions.rollback(state, AT, **({"restore_state": True} | arguments))  # type: ignore[arg-type]
        state = replay(events, state)
    return state


NEW_SESSION = replay(new_log())


class TestFolding:
    def test_open_descendants_are_folded_first_from_the_deepest_and_marked_as_forced(self) -> None:
        state = after_verbs(
            NEW_SESSION,
            ("branch", {"branch_id": "br_a", "tokens": 1}),
            ("branch", {"branch_id": "br_b", "tokens": 2}),
            ("branch", {"branch_id": "br_c", "tokens": 4}),
        )
        events = verb_functions.fold(state, AT, branch_id="br_a", summary="done", summary_tokens=8, redactions=0)
        assert [(e.branch_id, e.forced, e.summary, e.tokens_folded) for e in events if isinstance(e, BranchFolded)] == [
            ("br_c", True, "", 4),
            ("br_b", True, "", 2),
            ("br_a", False, "done", 1),
        ]
        after = replay(events, state)
        assert (after.path, after.main.tokens, after.folded_tokens) == ((), 8, 7)


class TestCompactions:
    def test_a_compaction_leaves_only_its_summary_in_the_main_thread(self) -> None:
        before = after_verbs(
            NEW_SESSION,
            ("record", {"tokens": 5_000}),
            ("branch", {"branch_id": "br_1", "tokens": 100}),
            ("record", {"tokens": 400}),
            ("fold", {"summary_tokens": 20}),
            ("branch", {"branch_id": "br_2", "tokens": 100}),
            ("record", {"tokens": 700, "failed": True}),
        )
        after = after_verbs(before, ("record", {"tokens": 300, "compacts": True}))
        assert (after.main.tokens, after.branches["br_2"].tokens, after.branches["br_1"].tokens) == (300, 0, 500)
        assert after.total_tokens == 300
        assert (after.main.operations, after.branches["br_2"].operations, after.path) == (2, 1, ("br_2",))
        returned = after_verbs(after, ("record", {"tokens": 50}), ("fold", {"summary_tokens": 30}))
        assert (returned.main.tokens, returned.branches["br_2"].tokens) == (330, 50)

    def test_a_rollback_restores_the_tokens_before_a_compaction(self) -> None:
        before = after_verbs(
            NEW_SESSION, ("record", {"tokens": 5_000}), ("branch", {"branch_id": "br_1", "tokens": 100})
        )
        after = after_verbs(before, ("record", {"tokens": 300, "compacts": True}), ("rollback", {"branch_id": "br_1"}))
        assert (after.main.tokens, after.branches["br_1"].tokens) == (5_000, 100)


class TestRollingBack:
    def test_a_rollback_without_restoring_keeps_the_accumulated_tokens(self) -> None:
        state = after_verbs(
            NEW_SESSION,
            ("branch", {"branch_id": "br_a", "tokens": 10}),
            ("branch", {"branch_id": "br_b", "tokens": 20}),
            ("fold", {"summary_tokens": 1}),
            ("record", {"tokens": 100}),
            ("fold", {"summary_tokens": 5}),
            ("rollback", {"branch_id": "br_a", "restore_state": False}),
        )
        assert (state.path, state.branches["br_a"].tokens, state.main.tokens) == (("br_a",), 111, 5)
        assert state.branches["br_b"].status == "discarded"

    @settings(max_examples=times(30, 10_000))
    @given(HISTORIES)
    def test_a_restored_state_equals_the_state_when_the_branch_began(self, steps: list[Step]) -> None:
        log = log_of(steps)
        states = states_after(log)
        began = {event.branch_id: event.n for event in log if isinstance(event, BranchCreated)}
        began |= {event.branch_id: event.n - 1 for event in log if isinstance(event, WorkFolded)}
        for number, event in enumerate(log):
            if isinstance(event, SessionRolledBack) and event.restore_state:
                then, now = states[began[event.branch_id] - 1], states[number]
                later = [branch_id for branch_id in now.branches if branch_id not in then.branches]
                assert {key: now.branches[key] for key in then.branches} == then.branches
                assert all(now.branches[branch_id].status == "discarded" for branch_id in later)
                assert (now.main, now.path, now.total_tokens) == (then.main, then.path, then.total_tokens)
                # A request in between may have shown what a fold removed, and that stays known.
                if not any(isinstance(between, RequestSent) for between in log[began[event.branch_id] : number]):
                    assert now.folded_tokens == then.folded_tokens


class TestLimits:
    def test_closed_branches_count_towards_the_limit_of_a_session(self) -> None:
        state = after_verbs(NEW_SESSION, *[("branch", {}), ("fold", {})] * 3)
        with pytest.raises(LimitReached) as raised:
            verb_functions.branch(
                state,
                SessionLimits(branches=3),
                AT,
                branch_id="br_x",
                description="d",
                prompt="p",
                tokens=0,
                redactions=0,
            )
        assert raised.value.data == {"limit": "branches_per_session", "value": 3}

    def test_the_hard_limit_refuses_a_branch_but_never_a_record(self) -> None:
        full = after_verbs(NEW_SESSION, ("record", {"tokens": 34_800}), ("branch", {"tokens": 100}))
        hard = SessionLimits(is_hard=True)
        with pytest.raises(ContextLimitExceeded, match=r"^Context limit exceeded: 35000/32768 tokens$") as raised:
            verb_functions.branch(full, hard, AT, branch_id="b", description="d", prompt="p", tokens=100, redactions=0)
        assert raised.value.data == {
            "current_tokens": 35_000,
            "context_limit": 32_768,
            "suggestion": "Fold current branch before continuing",
            "kind": "context_limit",
        }
        without_branch = after_verbs(NEW_SESSION, ("record", {"tokens": 34_900}))
        with pytest.raises(ContextLimitExceeded) as raised:
            verb_functions.branch(
                without_branch, hard, AT, branch_id="b", description="d", prompt="p", tokens=100, redactions=0
            )
        assert "context_fold" in str(raised.value.data["suggestion"])
        assert verb_functions.record(full, AT, verb_functions.operation("t", 1, "hook", failed=False, redactions=0))
        assert verb_functions.branch(
            full, SessionLimits(), AT, branch_id="b", description="d", prompt="p", tokens=1, redactions=0
        )


class TestFoldingRecentWork:
    def test_the_figures_equal_those_of_a_branch_around_the_same_work(self) -> None:
        before = after_verbs(NEW_SESSION, ("record", {"tokens": 5000, "by_user": True}))
        work: list[tuple[str, dict[str, object]]] = [("record", {"tokens": 700, "redactions": 1})] * 12
        done = after_verbs(before, *work)
        (event,) = verb_functions.fold_recent(done, AT, summary="Found it.\nIn b.py.", summary_tokens=200, redactions=1)
        assert isinstance(event, WorkFolded)
        after = replay([event], done)
        branched = after_verbs(
            after_verbs(before, ("branch", {"branch_id": "br_fold"}), *work), ("fold", {"summary_tokens": 200})
        )
        assert (after.main.tokens, after.total_tokens) == (branched.main.tokens, branched.total_tokens) == (5200, 5200)
        fold, branch = after.branches["br_fold"], branched.branches["br_fold"]
        assert (fold.tokens, fold.operations, fold.status) == (branch.tokens, branch.operations, branch.status)
        assert (after.main.operations, after.main.redactions) == (branched.main.operations, branched.main.redactions)
        assert (fold.description, fold.redactions) == ("Found it.", 13)
        result = tool_calls.fold_result(event, after, FoldPolicy().health(after))
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
    def test_work_before_the_last_boundary_is_not_folded(self, before: list[tuple[str, dict[str, object]]]) -> None:
        state = after_verbs(NEW_SESSION, *before)
        with pytest.raises(BranchStateInvalid) as raised:
            verb_functions.fold_recent(state, AT)
        assert raised.value.message == "Cannot fold: nothing was done since the last fold"
        done = after_verbs(
            state, ("record", {"tokens": 40}), ("fold_recent", {"branch_id": "br_x", "summary_tokens": 3})
        )
        assert done.branches["br_x"].tokens == 40
        assert done.total_tokens == state.total_tokens + 3

    def test_a_fold_in_a_branch_becomes_its_child(self) -> None:
        state = after_verbs(
            NEW_SESSION, ("branch", {"branch_id": "br_a"}), ("record", {"tokens": 9}), ("fold_recent", {})
        )
        assert state.branches["br_fold"].parent_id == "br_a"
        assert state.path == ("br_a",)

    def test_a_rollback_to_a_fold_undoes_it_and_reopens_no_branch(self) -> None:
        done = after_verbs(NEW_SESSION, ("record", {"tokens": 90}))
        later = after_verbs(done, ("fold_recent", {"summary_tokens": 5}), ("record", {"tokens": 7}), ("branch", {}))
        after = after_verbs(later, ("rollback", {"branch_id": "br_fold"}))
        assert (after.main, after.path) == (done.main, ())
        assert {branch.status for branch in after.branches.values()} == {"discarded"}
        with pytest.raises(BranchStateInvalid):
            verb_functions.rollback(after, AT, branch_id="br_fold", restore_state=True)

    def test_a_rollback_to_a_fold_without_restoring_keeps_later_work(self) -> None:
        later = after_verbs(
            NEW_SESSION, ("record", {"tokens": 90}), ("fold_recent", {"summary_tokens": 5}), ("record", {"tokens": 7})
        )
        after = after_verbs(later, ("rollback", {"branch_id": "br_fold", "restore_state": False}))
        assert (after.main.tokens, after.main.operations) == (97, 2)
        assert after.main.recent.tokens == 97

    def test_a_fold_counts_as_a_branch_of_the_session(self) -> None:
        state = after_verbs(NEW_SESSION, ("record", {}))
        with pytest.raises(LimitReached):
            verb_functions.fold_recent(state, AT, limits=SessionLimits(branches=0))

    def test_a_log_of_an_older_version_is_still_read(self) -> None:
        old = f'{{"event":"operation.completed","n":2,"at":"{AT}","branch_id":null,"type":"t","tokens":5,'
        old += '"source":"hook","failed":false,"redactions":0}'
        assert apply(NEW_SESSION, from_json(old)).main.recent.tokens == 5


SMALL_CONTEXT = FoldPolicy(SessionLimits(1_000))


class TestHealth:
    @pytest.mark.parametrize(
        ("tokens", "warning"), [(0, "none"), (500, "none"), (501, "medium"), (700, "medium"), (701, "high")]
    )
    def test_a_value_equal_to_a_threshold_does_not_exceed_it(self, tokens: int, warning: str) -> None:
        state = after_verbs(NEW_SESSION, ("record", {"tokens": tokens}))
        assert SMALL_CONTEXT.health(state)["warning"] == warning

    def test_a_failure_rate_needs_a_failure_and_five_operations(self) -> None:
        work: list[tuple[str, dict[str, object]]] = [("record", {})] * 2 + [("record", {"failed": True})] * 2
        four = after_verbs(NEW_SESSION, ("branch", {}), *work)
        assert "failure_rate" not in SMALL_CONTEXT.health(four, four.active)
        five = after_verbs(four, ("record", {}))
        assert SMALL_CONTEXT.health(five, five.active)["failure_rate"] == 0.4
        assert "failure_rate" not in SMALL_CONTEXT.health(NEW_SESSION, None)

    def test_ratios_are_rounded_half_up_like_percentages(self) -> None:
        assert [repr(share(part, 200)) for part in (0, 1, 2, 3, 199, 200, 500)] == [
            "0.00", "0.01", "0.01", "0.02", "1.00", "1.00", "2.50",
        ]  # fmt: skip
        assert [percent(part, 200) for part in (0, 1, 2, 3, 199, 200, 500)] == [0, 1, 1, 2, 100, 100, 250]


class TestLog:
    @given(HISTORIES)
    def test_a_log_that_is_stored_and_read_again_gives_the_same_state(self, steps: list[Step]) -> None:
        log = log_of(steps)
        assert [from_json(to_json(event)) for event in log] == log
        assert replay(from_json(to_json(event)) for event in log) == replay(log)

    @given(HISTORIES)
    def test_totals_add_up_after_every_event(self, steps: list[Step]) -> None:
        for state in states_after(log_of(steps)):
            open_branches = [branch for branch in state.branches.values() if branch.status == "active"]
            assert [branch.id for branch in open_branches] == list(state.path)
            parents = [None, *state.path][: len(state.path)]
            assert [branch.parent_id for branch in open_branches] == parents
            assert state.total_tokens == state.main.tokens + sum(branch.tokens for branch in open_branches)
            assert all((branch.closed_at is None) == (branch.status == "active") for branch in state.branches.values())
            assert set(state.checkpoints) == {b.id for b in state.branches.values() if b.status != "discarded"}

    @given(HISTORIES)
    def test_tokens_are_the_sum_of_the_events_since_each_branch_began(self, steps: list[Step]) -> None:
        """Counts the tokens a second time from the log alone, for histories without rollbacks and requests."""
        log = log_of([step for step in steps if step.verb not in ("rollback", "sent")])
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
                    between = [
                        operation
                        for operation in log[event.since : event.n - 1]
                        if isinstance(operation, OperationCompleted)
                    ]
                    moved = [operation.tokens for operation in between if operation.branch_id == event.parent_id]
                    assert event.tokens_folded == sum(moved)
        state = replay(log)
        stored_tokens: dict[str | None, int] = {None: state.main.tokens}
        assert tokens == stored_tokens | {branch.id: branch.tokens for branch in state.branches.values()}

    @given(HISTORIES)
    def test_verbs_are_deterministic(self, steps: list[Step]) -> None:
        assert log_of(steps) == log_of(steps)

    def test_events_out_of_order_are_refused(self) -> None:
        (start,) = new_log()
        (record,) = decide(NEW_SESSION, Step("record", 0, 1, flag=False), 1)
        for log in ([record], [start, start], [start, record, record], [start, record._replace(n=4)]):
            with pytest.raises(LogBroken):
                replay(log)
        with pytest.raises(LogBroken):
            apply(NEW_SESSION, BranchDiscarded(2, AT, "br_none"))

    @pytest.mark.parametrize("text", ["{}", "[]", '{"event":"branch.merged"}', '{"event":"branch.folded","n":1}'])
    def test_an_event_of_another_version_raises_event_unknown(self, text: str) -> None:
        with pytest.raises(EventUnknown):
            from_json(text)

    def test_a_clock_that_went_back_does_not_move_the_last_activity(self) -> None:
        early: Event = OperationCompleted(2, "2024-01-01T00:00:00Z", None, "t", 1, "hook", failed=False, redactions=0)
        assert apply(NEW_SESSION, early).last_at == NEW_SESSION.last_at

    def test_the_summary_of_an_empty_session_has_no_values(self) -> None:
        assert tool_calls.state_result(EMPTY, 32_768) == {
            "session_id": None,
            "active_branch_id": None,
            "branch_depth": 0,
            "total_tokens": 0,
            "folded_tokens": 0,
            "context_usage": 0.0,
        }


OPERATIONS = st.lists(
    st.builds(
        verb_functions.operation,
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
def test_recording_operations_together_equals_recording_them_one_by_one(
    steps: list[Step], first: list[OperationCompleted], second: list[OperationCompleted]
) -> None:
    log = log_of(steps)
    state = replay(log)
    for operations in (first, second):
        together = verb_functions.record(state, timestamp(900), *operations)
        one_by_one: list[Event] = []
        for operation in operations:
            (event,) = verb_functions.record(state, timestamp(900), operation)
            state = apply(state, event)
            one_by_one.append(event)
        assert together == one_by_one
        log += together
    assert replay(log) == state == states_after(log)[-1]
