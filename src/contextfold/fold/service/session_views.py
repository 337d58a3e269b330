"""Views of a session for the dashboard and the terminal: figures, tree of branches. Pure.

The results of the tools are in `fold.tool_results`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from contextfold.common.canonical import Encodable
from contextfold.fold.accounting import folded_tokens, percent, total_tokens
from contextfold.fold.service.policy import FoldPolicy
from contextfold.fold.session import Branch, State


@dataclass(frozen=True, slots=True)
class BranchRow:
    """A branch and its position in the tree."""

    branch: Branch
    depth: int


def session_view(state: State, policy: FoldPolicy) -> dict[str, Encodable]:
    branches = state.branches.values()
    total, limit = total_tokens(state), policy.context_limit(state)
    return {
        "session_id": state.session_id,
        "project_path": state.project_path,
        "name": state.name,
        "started_at": state.started_at,
        "last_at": state.last_at,
        "revision": state.revision,
        "host": state.host or None,
        "model": state.model or None,
        "active_branch_id": state.active_id,
        "branch_depth": state.depth,
        "branch_path": ["main", *state.path],
        "total_tokens": total,
        "main_thread_tokens": state.main.tokens,
        "folded_tokens": folded_tokens(state),
        "tokens_saved": sum(map(tokens_saved, branches)),
        "context_limit": limit,
        "usage_percent": percent(total, limit),
        "context_health": policy.health(state, state.active),
        "open_branch_operations": state.active.operations if state.active else 0,
        "operations": state.main.operations + sum(branch.operations for branch in branches),
        "failed_operations": state.main.failed + sum(branch.failed for branch in branches),
        "secrets_scrubbed": state.main.redactions + sum(branch.redactions for branch in branches),
        "total_branches": len(branches),
        **{
            f"{status}_branches": sum(branch.status == status for branch in branches)
            for status in ("active", "folded", "discarded")
        },
    }


def branch_view(row: BranchRow) -> dict[str, Encodable]:
    branch = row.branch
    return {
        "id": branch.id,
        "parent_id": branch.parent_id,
        "depth": row.depth,
        "description": branch.description,
        "status": branch.status,
        "tokens": branch.tokens,
        "summary_tokens": branch.summary_tokens if branch.status == "folded" else 0,
        "tokens_saved": tokens_saved(branch),
        "operations": branch.operations,
        "failed_operations": branch.failed,
        "secrets_scrubbed": branch.redactions,
        "created_at": branch.created_at,
        "closed_at": branch.closed_at,
    }


def tokens_saved(branch: Branch) -> int:
    """The tokens saved by folding a branch; negative if its summary is longer than the folded work."""
    return branch.tokens - branch.summary_tokens if branch.status == "folded" else 0


def tree(state: State) -> list[BranchRow]:
    """All branches, each below its parent, siblings in the order of their creation."""
    children: dict[str | None, list[Branch]] = {}
    for branch in state.branches.values():
        children.setdefault(branch.parent_id, []).append(branch)
    return list(_rows(children, None, 0))


def _rows(children: dict[str | None, list[Branch]], parent_id: str | None, depth: int) -> Iterator[BranchRow]:
    # The depth of the recursion is that of the branches, which a setting limits to at most 64.
    for branch in children.get(parent_id, ()):
        yield BranchRow(branch, depth)
        yield from _rows(children, branch.id, depth + 1)


def row_of(state: State, branch_id: str) -> BranchRow:
    depth, parent_id = 0, state.branches[branch_id].parent_id
    while parent_id is not None:
        depth, parent_id = depth + 1, state.branches[parent_id].parent_id
    return BranchRow(state.branches[branch_id], depth)
