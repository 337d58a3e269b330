"""The results of the folding tools, with the fields of the contract in its order. Knows no protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from contextfold.common.canonical import Encodable, Hundredths
from contextfold.fold.accounting import folded_tokens, percent, share, total_tokens
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import BranchDiscarded, BranchFolded, Event, OperationCompleted, WorkFolded
from contextfold.fold.session import Branch, State

Shape = Mapping[str, Encodable]


def parse_stored_result(text: str) -> Shape:
    """The result in a stored receipt. It encodes to the same text again: all its fractions are hundredths."""
    result: Shape = json.loads(text, parse_float=Hundredths)
    return result


def state_summary(state: State, limit: int) -> Shape:
    """The state of a session for the header and `_meta` of every result."""
    total = total_tokens(state)
    return {
        "session_id": state.session_id,
        "active_branch_id": state.active_id,
        "branch_depth": state.depth,
        "total_tokens": total,
        "folded_tokens": folded_tokens(state),
        "context_usage": share(total, limit),
    }


def branched(branch: Branch, after: State) -> Shape:
    return {
        "branch_id": branch.id,
        "session_id": after.session_id,
        "parent_branch_id": branch.parent_id,
        "created_at": branch.created_at,
        "branch_depth": after.depth,
        "context_state": _context_state(after),
    }


def folded(event: BranchFolded | WorkFolded, after: State, health: Shape) -> Shape:
    branch = after.branches[event.branch_id]
    return {
        "folded_at": event.at,
        "branch_id": branch.id,
        "parent_branch_id": branch.parent_id,
        "summary": {
            "tokens_folded": event.tokens_folded,
            "tokens_saved": event.tokens_folded - event.summary_tokens,
            "operations_count": branch.operations,
            "secrets_scrubbed": branch.redactions,
            "summary_redacted": event.redactions > 0,
        },
        "context_state": _context_state(after),
        "context_health": health,
    }


def status(state: State, limit: int) -> Shape:
    total = total_tokens(state)
    return {
        "session_id": state.session_id,
        "active_branch_id": state.active_id,
        "branch_depth": state.depth,
        "branch_path": ["main", *state.path],
        "token_breakdown": {
            "main_thread": state.main.tokens,
            **{open_id: state.branches[open_id].tokens for open_id in state.path},
            "total": total,
            "folded_total": folded_tokens(state),
        },
        "context_limit": limit,
        "usage_percent": percent(total, limit),
    }


def listed(state: State) -> Shape:
    branches = state.branches.values()
    return {
        "branches": [_listed(branch) for branch in branches],
        "total_branches": len(branches),
        "active_branches": sum(branch.status == "active" for branch in branches),
        "folded_branches": sum(branch.status == "folded" for branch in branches),
    }


def rolled_back(branch_id: str, before: State, events: Sequence[Event], after: State) -> Shape:
    discarded = {event.branch_id for event in events if isinstance(event, BranchDiscarded)}
    return {
        "rolled_back_to": branch_id,
        "branches_discarded": [known for known in after.branches if known in discarded],
        "tokens_recovered": max(0, total_tokens(before) - total_tokens(after)),
        "context_state": {
            "active_branch_id": after.active_id,
            "branch_depth": after.depth,
            "total_tokens": total_tokens(after),
        },
    }


def recorded(event: OperationCompleted, after: State, health: Shape, counter: str | None) -> Shape:
    return {
        "session_id": after.session_id,
        "branch_id": event.branch_id,
        "tokens": event.tokens,
        "source": event.source,
        "counter": counter,
        "secrets_scrubbed": event.redactions,
        "context_state": _context_state(after),
        "context_health": health,
    }


def expanded(branch_id: str, entries: Sequence[Shape], tokens: int, next_cursor: str | None) -> Shape:
    return {"branch_id": branch_id, "entries": entries, "tokens": tokens, "next_cursor": next_cursor}


def entry_result(entry: ArchiveEntry, text: str, *, is_part: bool) -> Shape:
    """An entry of a trajectory, without the fields that do not apply to it."""
    result: dict[str, Encodable] = {"n": entry.n}
    result |= {"at": entry.at, "kind": entry.kind} if entry.at else {"kind": entry.kind}
    if entry.kind == "operation":
        result |= {"type": entry.type, "source": entry.source, "failed": entry.failed}
    if entry.child_id is not None:
        result["branch_id"] = entry.child_id
    result |= {"tokens": entry.tokens, "text": text}
    if is_part:
        result["part"] = True
    if entry.undone:
        result["undone"] = True
    return result


def _context_state(state: State) -> Shape:
    active = state.active
    return {
        "active_branch_id": state.active_id,
        "branch_depth": state.depth,
        "total_tokens": total_tokens(state),
        "main_thread_tokens": state.main.tokens,
        "current_branch_tokens": active.tokens if active else 0,
    }


def _listed(branch: Branch) -> Shape:
    result: dict[str, Encodable] = {
        "id": branch.id,
        "description": branch.description,
        "status": branch.status,
        "tokens": branch.tokens,
        "created_at": branch.created_at,
    }
    if branch.status != "active":
        result[f"{branch.status}_at"] = branch.closed_at
    return result
