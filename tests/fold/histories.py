"""Random histories of a session for property tests: verbs in any order, including refused ones."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from contextfold.errors import FoldError
from contextfold.fold.events import Event, FoldSeen
from contextfold.fold.sent_request import RequestReport, Share, record_request
from contextfold.fold.session import EMPTY, SessionLimits, State, apply, replay
from contextfold.scrub.scrubber import ScrubResult
from tests.fold import verb_functions
from tests.support.receipts import receipt_of

LIMITS = SessionLimits(context_tokens=1_000, depth=3, branches=12)


class Step(NamedTuple):
    verb: str
    # The number selects one of the session's branches, and serves as the number of redactions.
    pick: int
    tokens: int
    flag: bool


VERBS = (
    "branch",
    "branch",
    "record",
    "record",
    "speak",
    "compact",
    "sent",
    "fold",
    "fold_one",
    "fold_recent",
    "rollback",
)
STEPS = st.builds(
    Step,
    st.sampled_from(VERBS),
    st.integers(0, 11),
    st.integers(0, 400),
    st.booleans(),
)
# Short histories rarely return to an earlier state.
HISTORIES = st.lists(STEPS, min_size=15, max_size=60)


def timestamp(n: int) -> str:
    return f"2025-01-17T10:{n // 60 % 60:02}:{n % 60:02}Z"


def new_log() -> list[Event]:
    return [verb_functions.begin(timestamp(0))]


def decide(state: State, step: Step, number: int) -> list[Event]:  # noqa: PLR0911 - one for each verb
    """The events that a step produces; raises FoldError if the step is refused."""
    at = timestamp(number)
    branch_id = list(state.branches)[step.pick % len(state.branches)] if state.branches else "br_none"
    match step.verb:
        case "branch":
            return verb_functions.branch(
                state,
                LIMITS,
                at,
                branch_id=f"br_{number}",
                description="d",
                prompt="p",
                tokens=step.tokens,
                redactions=step.flag,
            )
        case "record":
            operation = verb_functions.operation(
                "t", step.tokens, "hook", failed=step.flag, redactions=step.pick, call_id=f"c{number}"
            )
            return verb_functions.record(state, at, operation)
        case "speak":
            prompt = verb_functions.operation(
                "prompt", step.tokens, "hook", failed=False, redactions=step.pick, by_user=True
            )
            return verb_functions.record(state, at, prompt)
        case "fold_recent":
            return verb_functions.fold_recent(
                state, at, branch_id=f"br_{number}", summary_tokens=step.tokens, redactions=step.pick, limits=LIMITS
            )
        case "compact":
            compaction = verb_functions.operation(
                "c", step.tokens, "hook", failed=False, redactions=step.pick, compacts=True
            )
            return verb_functions.record(state, at, compaction)
        case "sent":
            return _sent(state, step, number, branch_id)
        case "rollback":
            return verb_functions.rollback(state, at, branch_id=branch_id, restore_state=step.flag)
        case _:
            target = branch_id if step.verb == "fold_one" else None
            return verb_functions.fold(
                state, at, branch_id=target, summary="s", summary_tokens=step.tokens, redactions=step.pick
            )


def _sent(state: State, step: Step, number: int, branch_id: str) -> list[Event]:
    """The events of a request with the open threads, sometimes with one that is not open, and a fold."""
    threads = [None, *state.path, *([branch_id] if step.flag and branch_id not in state.path else [])]
    shares = tuple(Share(thread, step.tokens, step.pick, (f"m{number}",)) for thread in threads)
    receipt = receipt_of(900, 500, FoldSeen(branch_id, 400, 100), turns_dropped=2, first_changed=1)
    report = RequestReport(f"r{number}", "anthropic", "m", receipt, shares=shares)
    return list(
        record_request(state, timestamp(number), report, [ScrubResult(text, 0, ()) for text in report.texts]).events
    )


def log_of(steps: list[Step]) -> list[Event]:
    """The log that a history produces."""
    log = new_log()
    state = replay(log)
    for number, step in enumerate(steps, 1):
        try:
            events = decide(state, step, number)
        except FoldError:
            continue
        log += events
        state = replay(events, state)
    return log


def states_after(log: list[Event]) -> list[State]:
    """The state after each event."""
    states_so_far = []
    state = EMPTY
    for event in log:
        state = apply(state, event)
        states_so_far.append(state)
    return states_so_far
