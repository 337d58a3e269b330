"""The settings of folding, and what follows from them for a session: its limit, its warnings and its health. Pure.

The advice that follows from them is in `fold.advice`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from contextfold.common.canonical import Encodable, Hundredths, JsonObject
from contextfold.fold.model_catalog import (
    CONTEXT_TOKENS_UNKNOWN,
    HOST_TOKENS,
    MODELS,
    RELATIVE_PRICES,
    LedgerPrices,
    ModelCatalog,
    TokenPrices,
)
from contextfold.fold.session import Branch, SessionLimits, State

PERCENT = 100
# The failure rate of fewer operations is not significant.
FAILURE_RATE_OPERATIONS_MIN = 5


class Thresholds(NamedTuple):
    """The percentages of the limit above which the main thread gets each warning."""

    medium: int = 50
    high: int = 70


class AdviceSettings(NamedTuple):
    """When an agent is advised to fold (`fold.advice`)."""

    is_on: bool = True
    # From this many tokens on, a branch is advised to return; 0 means half of the context.
    branch_tokens: int = 0


@dataclass(frozen=True, slots=True)
class FoldPolicy:
    limits: SessionLimits = field(default_factory=SessionLimits)
    thresholds: Thresholds = field(default_factory=Thresholds)
    counter: str = "v0"
    idle_s: int = 24 * 3600
    archive_days: int = 30
    summary_days: int = 365
    advice: AdviceSettings = field(default_factory=AdviceSettings)
    models: ModelCatalog = MODELS
    # The prices for models with unknown prices, in hundredths of an input token.
    relative_prices: TokenPrices = RELATIVE_PRICES
    # Whether a session's first prompt is answered with earlier folds.
    recall_at_start: bool = False

    @property
    def ledger_prices(self) -> LedgerPrices:
        return LedgerPrices(self.models, self.relative_prices)

    def prices(self, state: State) -> TokenPrices:
        """The prices of the session's model, or relative ones if they are not known."""
        return self.models.prices(state.model) or self.relative_prices

    def context_limit(self, state: State) -> int:
        return context_limit(state, self.limits, self.models)

    def warning(self, state: State, main_tokens: int) -> str:
        """How full the context is if the main thread has so many tokens: none, medium or high."""
        used, limit = PERCENT * main_tokens, self.context_limit(state)
        if used > self.thresholds.high * limit:
            return "high"
        return "medium" if used > self.thresholds.medium * limit else "none"

    def health(self, state: State, branch: Branch | None = None, suggestion: str | None = None) -> JsonObject:
        """The member `context_health` of results: from the size of the main thread and the failure rate of a branch."""
        main = state.main.tokens
        result: dict[str, Encodable] = {
            "warning": self.warning(state, main),
            "main_thread_usage": share(main, self.context_limit(state)),
        }
        if suggestion is not None:
            result["suggestion"] = suggestion
        if branch and branch.failed and branch.operations >= FAILURE_RATE_OPERATIONS_MIN:
            result["failure_rate"] = share(branch.failed, branch.operations)
        return result


def context_limit(state: State, limits: SessionLimits, models: ModelCatalog) -> int:
    """The limit in the settings, else the model's context window less the host's prompt, else a default."""
    if limits.context_tokens is not None:
        return limits.context_tokens
    window = models.context_tokens(state.model) if state.model else None
    if window is None:
        return CONTEXT_TOKENS_UNKNOWN
    # The provider's counts include the host's prompt; hook reports do not.
    host_tokens = 0 if state.requests else HOST_TOKENS.get(state.host, 0)
    return max(1, window - host_tokens)


def share(part: int, whole: int) -> Hundredths:
    """The quotient with two decimals, rounded as `percent`, so that both say the same."""
    return Hundredths(percent(part, whole) / PERCENT) if whole else Hundredths(0)


def percent(part: int, whole: int) -> int:
    """The share as a whole percentage, rounded half up."""
    return (2 * PERCENT * part + whole) // (2 * whole)
