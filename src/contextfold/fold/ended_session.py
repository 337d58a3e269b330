"""What is stored of an ended session: its last state and tree, and the sums of its requests by day and by model. Pure.

The log of an ended session is deleted; trajectories and summaries stay in the archive until their retention ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from contextfold.common.canonical import Encodable, Malformed, decode, encode
from contextfold.fold.events import Event, EventUnknown
from contextfold.fold.ledger import LedgerSums, SavingsLedger, ledger_of, sums_from, total_of
from contextfold.fold.model_catalog import LedgerPrices
from contextfold.fold.session import STATUSES, Branch, LogBroken, State, Thread, replay
from contextfold.fold.store import EndedSession

# Only the last branches are stored, because the document must fit into one message of NATS.
BRANCHES_MOST = 500
_THREAD = ("tokens", "operations", "failed", "redactions")
_TEXTS = ("id", "description", "created_at")
_OPTIONAL_TEXTS = ("parent_id", "closed_at")
_NUMBERS = (*_THREAD, "summary_tokens", "folded_afterwards_n")


def session_document(state: State) -> dict[str, Encodable]:
    """The state of a session as it is published on NATS, and stored when the session ends."""
    active = state.active
    return {
        "session_id": state.session_id,
        "project_path": state.project_path,
        "name": state.name,
        "active_branch_id": active.id if active else None,
        "branch_depth": state.depth,
        "branch_path": ["main", *state.path],
        "total_tokens": state.total_tokens,
        "main_thread_tokens": state.main.tokens,
        "current_branch_tokens": active.tokens if active else 0,
        "folded_tokens": state.folded_tokens,
        "started_at": state.started_at,
        "last_at": state.last_at,
        "revision": state.revision,
    }


def figures_of(events: Callable[[], Sequence[Event]]) -> str:
    """The document as JSON; empty if the events cannot be read, since the session must end anyway."""
    try:
        log = events()
        return encode(_last_figures(replay(log), log))
    except (EventUnknown, Malformed, LogBroken):
        return ""


def _last_figures(state: State, log: Sequence[Event]) -> dict[str, Encodable]:
    """The document and the figures that need the log, which is deleted: tree, counts, model, host, ledger."""
    branches = state.branches.values()
    ledger = ledger_of(log)
    return {
        **session_document(state),
        **_tree_members(state),
        "total_branches": len(branches),
        "folded_branches": sum(branch.status == "folded" for branch in branches),
        "operations": state.main.operations + sum(branch.operations for branch in branches),
        "model": state.model or None,
        "host": state.host or None,
        "failed_operations": state.main.failed + sum(branch.failed for branch in branches),
        "secrets_scrubbed": state.main.redactions + sum(branch.redactions for branch in branches),
        "ledger_days": {day: sums.as_members() for day, sums in sorted(ledger.days.items())},
        "ledger_models": {model: sums.as_members() for model, sums in sorted(ledger.model_sums.items())},
    }


def _tree_members(state: State) -> dict[str, Encodable]:
    """The main thread and the branches of a session that ends."""
    names = (*_TEXTS, *_OPTIONAL_TEXTS, *_NUMBERS, "status")
    return {
        "main": {name: getattr(state.main, name) for name in _THREAD},
        "branches": [
            {name: getattr(branch, name) for name in names} for branch in list(state.branches.values())[-BRANCHES_MOST:]
        ],
    }


def ended_state(figures: Mapping[str, Any], *, session_id: str, last_at: str) -> State:
    """The last state of an ended session. Members that are missing or of another type are ignored.

    Another version may have written them.
    """
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


def ended_ledger(session: EndedSession, prices: LedgerPrices) -> SavingsLedger:
    """The stored part of an ended session's ledger."""
    ledger = SavingsLedger(prices)
    ledger.days, ledger.model_sums = ledger_parts(session), ledger_parts(session, "model")
    ledger.models = {model: prices.of(model) for model in ledger.model_sums}
    return ledger


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
