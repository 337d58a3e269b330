"""A session's state as the JSON document that is published on NATS and stored with an ended session. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from contextfold.common.canonical import Encodable, Malformed, encode
from contextfold.fold.ended_session import ended_members
from contextfold.fold.events import Event, EventUnknown
from contextfold.fold.ledger import ledger_of
from contextfold.fold.session import LogBroken, State, replay


def session_document(state: State) -> dict[str, Encodable]:
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
        **ended_members(state),
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
