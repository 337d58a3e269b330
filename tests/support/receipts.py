"""Fold receipts for reports of requests, without the figures that reports do not use."""

from __future__ import annotations

from contextfold.fold.events import FoldSeen
from contextfold.fold.messages.receipt import Fold, Receipt


def receipt_of(
    tokens_before: int,
    tokens_after: int,
    *folds: FoldSeen,
    turns_dropped: int = 0,
    first_changed: int | None = None,
    reason: str = "",
) -> Receipt:
    return Receipt(
        tokens_before,
        tokens_after,
        turns_dropped=turns_dropped,
        first_changed=first_changed,
        folds=tuple(Fold(fold.branch_id, 0, 0, 0, fold.tokens, fold.kept_tokens) for fold in folds),
        reason=reason,
    )
