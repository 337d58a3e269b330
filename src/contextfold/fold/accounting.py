"""Computes the totals and the health of a session from its state. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from contextfold.common.canonical import Encodable, Hundredths
from contextfold.fold.model_catalog import CONTEXT_TOKENS_UNKNOWN, HOST_TOKENS, ModelCatalog
from contextfold.fold.session import Branch, SessionLimits, State

PERCENT = 100
# The failure rate of fewer operations is not significant.
FAILURE_RATE_OPERATIONS_MIN = 5


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The percentages of the limit above which the main thread gets each warning."""

    medium: int = 50
    high: int = 70


@dataclass(frozen=True, slots=True)
class AdviceSettings:
    """When an agent is advised to fold (`fold.advice`)."""

    is_on: bool = True
    # From this many tokens on, a branch is advised to return; 0 means half of the context.
    branch_tokens: int = 0


def context_limit(state: State, limits: SessionLimits, models: ModelCatalog) -> int:
    """The limit in the settings, else the model's context window less the host's prompt, else a default."""
    if limits.context_tokens is not None:
        return limits.context_tokens
    # Most views of a session need no limit.

    window = models.context_tokens(state.model) if state.model else None
    if window is None:
        return CONTEXT_TOKENS_UNKNOWN
    # The provider's counts include the host's prompt; hook reports do not.
    host_tokens = 0 if state.requests else HOST_TOKENS.get(state.host, 0)
    return max(1, window - host_tokens)


def total_tokens(state: State) -> int:
    """The tokens in the working context: those of the main thread and of every open branch."""
    return state.main.tokens + sum(state.branches[open_id].tokens for open_id in state.path)


def folded_tokens(state: State) -> int:
    return sum(branch.tokens for branch in state.branches.values() if branch.status == "folded")


def share(part: int, whole: int) -> Hundredths:
    """The quotient with two decimals, rounded as `percent`, so that both say the same."""
    return Hundredths(percent(part, whole) / PERCENT) if whole else Hundredths(0)


def percent(part: int, whole: int) -> int:
    """The share as a whole percentage, rounded half up."""
    return (2 * PERCENT * part + whole) // (2 * whole)


def warning(main_tokens: int, limit: int, thresholds: Thresholds) -> str:
    if PERCENT * main_tokens > thresholds.high * limit:
        return "high"
    return "medium" if PERCENT * main_tokens > thresholds.medium * limit else "none"


def health(
    state: State, limit: int, thresholds: Thresholds, branch: Branch | None = None, suggestion: str | None = None
) -> dict[str, Encodable]:
    """The member `context_health` of results: from the size of the main thread and the failure rate of a branch."""
    main = state.main.tokens
    result: dict[str, Encodable] = {
        "warning": warning(main, limit, thresholds),
        "main_thread_usage": share(main, limit),
    }
    if suggestion is not None:
        result["suggestion"] = suggestion
    if branch and branch.failed and branch.operations >= FAILURE_RATE_OPERATIONS_MIN:
        result["failure_rate"] = share(branch.failed, branch.operations)
    return result
