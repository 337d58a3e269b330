"""What is stored of an ended session's requests: its sums by day and by model. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from contextfold.common.canonical import Encodable, Malformed, decode
from contextfold.fold.ledger.savings import LedgerSums, SavingsLedger, sums_from, sums_result, total_of
from contextfold.fold.model_catalog import LedgerPrices
from contextfold.fold.ports.store import EndedSession

ENDED_FIELDS = (
    "project_path",
    "name",
    "started_at",
    "total_tokens",
    "main_thread_tokens",
    "folded_tokens",
    "total_branches",
    "folded_branches",
    "operations",
    "model",
    "host",
)


def ended_row(session: EndedSession) -> Mapping[str, Encodable]:
    """An ended session in a list, with its last figures."""
    figures = plain_figures(session)
    return {
        **{name: figures.get(name) for name in ENDED_FIELDS},
        "session_id": session.session_id,
        "last_at": session.last_at,
        "ended_at": session.ended_at,
        "savings": ended_savings(session),
    }


def ended_savings(session: EndedSession) -> Mapping[str, Encodable] | None:
    """The savings of an ended session; None if no request went through the proxy."""
    total = total_of(ledger_parts(session).values())
    return sums_result(total) if total.requests else None


def ended_ledger(session: EndedSession, prices: LedgerPrices) -> SavingsLedger:
    """The stored part of an ended session's ledger."""
    models = ledger_parts(session, "model")
    return SavingsLedger(prices, ledger_parts(session), models, {model: prices.of(model) for model in models})


def ledger_parts(session: EndedSession, group: str = "day") -> dict[str, LedgerSums]:
    """The sums of an ended session's requests by model, or by day."""
    stored = stored_figures(session)
    parts = stored.get("ledger_models" if group == "model" else "ledger_days")
    # An earlier version did not record the models; such a session counts for its last model.
    if parts is None and group == "model":
        parts = stored.get("ledger_days")
        sums = [sums_from(members) for members in (parts.values() if isinstance(parts, dict) else ())]
        return {str(stored.get("model") or ""): total_of(sums)} if sums else {}
    return {name: sums_from(members) for name, members in parts.items()} if isinstance(parts, dict) else {}


def plain_figures(session: EndedSession) -> dict[str, Encodable]:
    """The stored figures that are texts or whole numbers; none if an older version ended the session."""
    return {name: value for name, value in stored_figures(session).items() if isinstance(value, str | int)}


def stored_figures(session: EndedSession) -> dict[str, object]:
    try:
        figures = decode(session.figures.encode()) if session.figures else {}
    except Malformed:
        return {}
    return figures if isinstance(figures, dict) else {}
