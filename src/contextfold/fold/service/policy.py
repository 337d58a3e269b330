"""The settings of folding, and the limits and health that follow from them for a session. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from contextfold.fold.accounting import AdviceSettings, Thresholds, context_limit, health
from contextfold.fold.advice import Advice, advice_for
from contextfold.fold.model_catalog import MODELS, RELATIVE_PRICES, LedgerPrices, ModelCatalog, TokenPrices
from contextfold.fold.session import Branch, SessionLimits, State
from contextfold.fold.tool_results import Shape


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

    def context_limit(self, state: State) -> int:
        return context_limit(state, self.limits, self.models)

    def health(self, state: State, branch: Branch | None = None, suggestion: str | None = None) -> Shape:
        return health(state, self.context_limit(state), self.thresholds, branch, suggestion)

    def advice_for(self, state: State, waiting_tokens: int = 0) -> Advice | None:
        prices = self.models.prices(state.model) or self.relative_prices
        limit = self.context_limit(state)
        return advice_for(state, limit, self.thresholds, self.advice, prices, waiting_tokens=waiting_tokens)
