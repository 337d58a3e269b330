"""Random histories of a session for property tests: verbs in any order, those that are refused included."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from contextfold.errors import FoldError
from contextfold.fold.events import Event
from contextfold.fold.ledger.provider_counts import requested
from contextfold.fold.ledger.sent_request import FoldSeen, Sent, Share
from contextfold.fold.session import EMPTY, SessionLimits, State, apply, replay
from contextfold.fold.verbs import RecordedOperation
from tests.fold import deciding

LIMITS = SessionLimits(context_tokens=1_000, depth=3, branches=12)


class Plain(NamedTuple):
    text: str
    redactions: int = 0


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


def moment(n: int) -> str:
    return f"2025-01-17T10:{n // 60 % 60:02}:{n % 60:02}Z"


def started() -> list[Event]:
    return [deciding.begin(moment(0))]


def decide(state: State, step: Step, number: int) -> list[Event]:  # noqa: PLR0911 - one for each verb
    """The events that a step produces; raises FoldError if the step is refused."""
    at = moment(number)
    picked = list(state.branches)[step.pick % len(state.branches)] if state.branches else "br_none"
    match step.verb:
        case "branch":
            return deciding.branch(
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
            work = RecordedOperation(
                "t", step.tokens, "hook", failed=step.flag, redactions=step.pick, call_id=f"c{number}"
            )
            return deciding.record(state, at, work)
        case "speak":
            words = RecordedOperation("prompt", step.tokens, "hook", failed=False, redactions=step.pick, by_user=True)
            return deciding.record(state, at, words)
        case "fold_recent":
            return deciding.fold_recent(
                state, at, branch_id=f"br_{number}", summary_tokens=step.tokens, redactions=step.pick, limits=LIMITS
            )
        case "compact":
            summary = RecordedOperation("c", step.tokens, "hook", failed=False, redactions=step.pick, compacts=True)
            return deciding.record(state, at, summary)
        case "sent":
            return _sent(state, step, number, picked)
        case "rollback":
            return deciding.rollback(state, at, branch_id=picked, restore_state=step.flag)
        case _:
            target = picked if step.verb == "fold_one" else None
            return deciding.fold(
                state, at, branch_id=target, summary="s", summary_tokens=step.tokens, redactions=step.pick
            )


def _sent(state: State, step: Step, number: int, picked: str) -> list[Event]:
    """The events of a request with the open threads, sometimes with one that is not open, and a fold."""
    threads = [None, *state.path, *([picked] if step.flag and picked not in state.path else [])]
    shares = tuple(Share(thread, step.tokens, step.pick, (f"m{number}",)) for thread in threads)
    sent = Sent(f"r{number}", "anthropic", "m", 900, 500, 2, 1, "", (FoldSeen(picked, 400, 100),), shares, None)
    texts = [[Plain(text) for text in share.texts] for share in shares]
    return list(requested(state, moment(number), sent, call_id=sent.id, model=sent.model, texts=texts).events)


def played(steps: list[Step]) -> list[Event]:
    """The log that a history produces."""
    log = started()
    state = replay(log)
    for number, step in enumerate(steps, 1):
        try:
            events = decide(state, step, number)
        except FoldError:
            continue
        log += events
        state = replay(events, state)
    return log


def states(log: list[Event]) -> list[State]:
    """The state after each event."""
    seen = []
    state = EMPTY
    for event in log:
        state = apply(state, event)
        seen.append(state)
    return seen
