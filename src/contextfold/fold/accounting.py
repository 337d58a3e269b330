"""What a session's figures add up to, and how healthy they are. Arithmetic over a state; knows no answer's shape."""

from __future__ import annotations

from dataclasses import dataclass, replace

from contextfold.common.canonical import Hundredths
from contextfold.fold.session import Branch, Limits, State, open_tokens

PERCENT = 100


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From which share of the limit on the main thread a warning is due, in hundredths."""

    medium: int = 50
    high: int = 70


@dataclass(frozen=True, slots=True)
class Health:
    warning: str
    main_thread_usage: Hundredths
    suggestion: str | None = None
    failure_rate: Hundredths | None = None


def total_tokens(state: State) -> int:
    return open_tokens(state)


def folded_tokens(state: State) -> int:
    return sum(branch.tokens for branch in state.branches.values() if branch.status == "folded")


def share(part: int, whole: int) -> Hundredths:
    """part / whole to two decimals, halves away from zero, in integers so that no rounding mode has a say."""
    return Hundredths((2 * PERCENT * part + whole) // (2 * whole) / PERCENT) if whole else Hundredths(0)


def percent(part: int, whole: int) -> int:
    return PERCENT * part // whole


def health(state: State, limits: Limits, thresholds: Thresholds, branch: Branch | None = None) -> Health:
    """How the main thread stands, and how much of a branch's work failed."""
    found = main_thread_health(state.main.tokens, limits, thresholds)
    return replace(found, failure_rate=share(branch.failed, branch.operations)) if branch and branch.failed else found


def main_thread_health(main: int, limits: Limits, thresholds: Thresholds) -> Health:
    limit = limits.context_tokens
    warning, suggestion = "none", None
    if PERCENT * main > thresholds.high * limit:
        warning, suggestion = "high", "Start a new session, or roll back: the main thread is nearly full"
    elif PERCENT * main > thresholds.medium * limit:
        warning, suggestion = "medium", "Do the next subtask in a branch and return a short summary"
    return Health(warning, share(main, limit), suggestion)
