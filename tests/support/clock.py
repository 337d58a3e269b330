"""The clock of folding, set forward in a daemon's process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from contextfold.fold.service.fold_service import FoldService


def set_clock_forward(forward: timedelta) -> None:
    defaults = FoldService.__init__.__kwdefaults__
    assert defaults is not None
    defaults["clock"] = lambda: datetime.now(UTC) + forward
