"""A session told as people look at it: its figures in a row, its branches as a tree, how the figures went. Pure.

The dashboard and the terminal show these; the tools' own shapes are in `fold.tool_results`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from contextfold.common.canonical import Encodable
from contextfold.fold.accounting import Thresholds, folded_tokens, health, percent, total_tokens
from contextfold.fold.session import Branch, Limits, State
from contextfold.fold.tool_results import Shape, health_told

POINTS_MOST = 240  # of a timeline; a screen has not many more


@dataclass(frozen=True, slots=True)
class Row:
    """A branch in its place in the tree."""

    branch: Branch
    depth: int


@dataclass(frozen=True, slots=True)
class Point:
    """What the figures were after an event."""

    n: int
    at: str
    total_tokens: int
    main_thread_tokens: int


def session_told(state: State, limits: Limits, thresholds: Thresholds) -> dict[str, Encodable]:
    branches = state.branches.values()
    total = total_tokens(state)
    return {
        "session_id": state.session_id,
        "project_path": state.project_path,
        "name": state.name,
        "started_at": state.started_at,
        "last_at": state.last_at,
        "revision": state.revision,
        "active_branch_id": state.path[-1] if state.path else None,
        "branch_depth": state.depth,
        "branch_path": ["main", *state.path],
        "total_tokens": total,
        "main_thread_tokens": state.main.tokens,
        "folded_tokens": folded_tokens(state),
        "tokens_saved": sum(map(tokens_saved, branches)),
        "context_limit": limits.context_tokens,
        "usage_percent": percent(total, limits.context_tokens),
        "context_health": health_told(health(state, limits, thresholds, state.active)),
        "operations": state.main.operations + sum(branch.operations for branch in branches),
        "failed_operations": state.main.failed + sum(branch.failed for branch in branches),
        "secrets_scrubbed": state.main.redactions + sum(branch.redactions for branch in branches),
        "total_branches": len(branches),
        **{
            f"{status}_branches": sum(branch.status == status for branch in branches)
            for status in ("active", "folded", "discarded")
        },
    }


def branch_told(row: Row) -> dict[str, Encodable]:
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


def point_told(point: Point) -> Shape:
    return {
        "n": point.n,
        "at": point.at,
        "total_tokens": point.total_tokens,
        "main_thread_tokens": point.main_thread_tokens,
    }


def tokens_saved(branch: Branch) -> int:
    """Negative if the summary is longer than what it stands for."""
    return branch.tokens - branch.summary_tokens if branch.status == "folded" else 0


def tree(state: State) -> list[Row]:
    """Every branch below the one it belongs to, siblings in order of creation."""
    children: dict[str | None, list[Branch]] = {}
    for branch in state.branches.values():
        children.setdefault(branch.parent_id, []).append(branch)
    return list(_rows(children, None, 0))


def _rows(children: dict[str | None, list[Branch]], parent_id: str | None, depth: int) -> Iterator[Row]:
    for branch in children.get(parent_id, ()):  # as deep as branches may nest, which is a setting of at most 64
        yield Row(branch, depth)
        yield from _rows(children, branch.id, depth + 1)


def open_rows(state: State) -> list[Row]:
    """The branches on the active path, the outermost first."""
    return [Row(state.branches[open_id], depth) for depth, open_id in enumerate(state.path)]


def row_of(state: State, branch_id: str) -> Row:
    depth, parent_id = 0, state.branches[branch_id].parent_id
    while parent_id is not None:
        depth, parent_id = depth + 1, state.branches[parent_id].parent_id
    return Row(state.branches[branch_id], depth)


def height_of(point: Point) -> int:
    return point.total_tokens


def point_after(state: State) -> Point:
    return Point(state.revision, state.last_at, total_tokens(state), state.main.tokens)


class Numbered(Protocol):
    @property
    def n(self) -> int: ...


Shown = TypeVar("Shown", bound=Numbered)


def thinned(points: Sequence[Shown], most: int = POINTS_MOST, *, height: Callable[[Shown], int]) -> list[Shown]:
    """No more points than can be seen: of each stretch its peak and its end, so that no height is lost."""
    if len(points) <= most:
        return list(points)
    stretches = most // 2
    kept: list[Shown] = []
    for stretch in range(stretches):
        part = points[len(points) * stretch // stretches : len(points) * (stretch + 1) // stretches]
        peak = max(part, key=lambda point: (height(point), -point.n))
        kept += [peak] if peak is part[-1] else [peak, part[-1]]
    return kept
