"""The prices that the ledger uses for a model. Pure."""

from __future__ import annotations

from contextfold.common.dataclass import dataclass
from contextfold.fold.model_catalog import MODELS, RELATIVE_PRICES, ModelCatalog, TokenPrices


@dataclass(frozen=True, slots=True)
class LedgerPrices:
    """The prices of known models, and relative prices for all others."""

    models: ModelCatalog = MODELS
    relative: TokenPrices = RELATIVE_PRICES

    def of(self, model: str) -> tuple[TokenPrices, bool]:
        """A model's prices, and whether they are in money."""
        known = self.models.prices(model)
        return (known, True) if known is not None and known.input else (self.relative, False)
