"""The last state and the ledger of an ended session. Pure.

Both follow from its log, as for a live session. Before format 9 of the SQLite store, the log of an ended session was
deleted, and figures were stored in its place: its last state and tree, and the sums of its requests by day and model.
No log would give the same figures again, so those sessions are read from them until their retention ends. Nothing
writes such figures any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contextfold.common.canonical import Encodable, Malformed, decode
from contextfold.fold.events import Event
from contextfold.fold.ledger import LedgerSums, SavingsLedger, ledger_of, sums_from, total_of
from contextfold.fold.model_catalog import LedgerPrices
from contextfold.fold.session import STATUSES, Branch, State, Thread, replay
from contextfold.fold.store import EndedSession

_THREAD = ("tokens", "operations", "failed", "redactions")
_TEXTS = ("id", "description", "created_at")
_OPTIONAL_TEXTS = ("parent_id", "closed_at")
_NUMBERS = (*_THREAD, "summary_tokens", "folded_afterwards_n")


def ended_state(session: EndedSession, log: Sequence[Event]) -> State:
    """The last state of an ended session. Its log is empty if an earlier version deleted it."""
    if log:
        # The time of the last activity, which is before that of the end.
        return replay(log)._replace(last_at=session.last_at)
    return _stored_state(_stored_figures(session), session_id=session.session_id, last_at=session.last_at)


def ended_ledger(session: EndedSession, log: Sequence[Event], prices: LedgerPrices) -> SavingsLedger:
    """The ledger of an ended session. Without a log it has only the sums."""
    if log:
        return ledger_of(log, prices)
    ledger = SavingsLedger(prices)
    ledger.days, ledger.model_sums = _stored_sums(session, "day"), _stored_sums(session, "model")
    ledger.models = {model: prices.of(model) for model in ledger.model_sums}
    return ledger


def _stored_state(figures: Mapping[str, Any], *, session_id: str, last_at: str) -> State:
    """The stored state. Members that are missing or of another type are ignored, because they differ by version."""
    listed = figures.get("branches")
    read = [_branch(members) for members in (listed if isinstance(listed, list) else ())]
    branches = {branch.id: branch for branch in read if branch}
    main = figures.get("main")
    known = main if isinstance(main, dict) else {"tokens": figures.get("main_thread_tokens")}
    thread: dict[str, Any] = {name: _number(known, name) for name in _THREAD}
    return State(
        session_id,
        project_path=_text(figures, "project_path"),
        name=_text(figures, "name") or None,
        started_at=_text(figures, "started_at") or last_at,
        revision=max(1, _number(figures, "revision")),
        last_at=last_at,
        expired=True,
        main=Thread(**thread),
        branches={
            branch.id: branch if branch.parent_id in branches else branch._replace(parent_id=None)
            for branch in branches.values()
        },
        model=_text(figures, "model"),
        host=_text(figures, "host"),
    )


def _branch(members: object) -> Branch | None:
    if not isinstance(members, dict) or members.get("status") not in STATUSES:
        return None
    read: dict[str, Any] = {name: _text(members, name) for name in _TEXTS}
    read |= {name: _text(members, name) or None for name in _OPTIONAL_TEXTS}
    read |= {name: _number(members, name) for name in _NUMBERS}
    return Branch(**read, status=members["status"]) if read["id"] else None


def _text(members: Mapping[str, Any], name: str) -> str:
    value = members.get(name)
    return value if isinstance(value, str) else ""


def _number(members: Mapping[str, Any], name: str) -> int:
    value = members.get(name)
    return value if type(value) is int else 0


def _stored_sums(session: EndedSession, group: str) -> dict[str, LedgerSums]:
    """The stored sums of an ended session's requests by model, or by day."""
    stored = _stored_figures(session)
    parts = stored.get("ledger_models" if group == "model" else "ledger_days")
    # The first versions did not record the models; such a session counts for its last model.
    if parts is None and group == "model":
        parts = stored.get("ledger_days")
        sums = [sums_from(members) for members in (parts.values() if isinstance(parts, dict) else ())]
        return {str(stored.get("model") or ""): total_of(sums)} if sums else {}
    return {name: sums_from(members) for name, members in parts.items()} if isinstance(parts, dict) else {}


def plain_figures(session: EndedSession) -> dict[str, Encodable]:
    """The stored figures that are texts or whole numbers; none if the first versions ended the session."""
    return {name: value for name, value in _stored_figures(session).items() if isinstance(value, str | int)}


def _stored_figures(session: EndedSession) -> dict[str, object]:
    try:
        figures = decode(session.figures.encode()) if session.figures else {}
    except Malformed:
        return {}
    return figures if isinstance(figures, dict) else {}
