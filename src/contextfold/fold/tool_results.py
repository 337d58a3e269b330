"""The results of the folding tools, with the fields of the contract in its order. Knows no protocol."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence

from contextfold.common.canonical import Encodable, Hundredths, JsonObject, encode
from contextfold.common.tokens import CountTokens
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import BranchDiscarded, BranchFolded, Event, OperationCompleted, WorkFolded
from contextfold.fold.policy import percent, share
from contextfold.fold.session import Branch, State


def parse_stored_result(text: str) -> JsonObject:
    """The result in a stored receipt. It encodes to the same text again: all its fractions are hundredths."""
    result: JsonObject = json.loads(text, parse_float=Hundredths)
    return result


def state_summary(state: State, limit: int) -> JsonObject:
    """The state of a session for the header and `_meta` of every result."""
    total = state.total_tokens
    return {
        "session_id": state.session_id,
        "active_branch_id": state.active_id,
        "branch_depth": state.depth,
        "total_tokens": total,
        "folded_tokens": state.folded_tokens,
        "context_usage": share(total, limit),
    }


def branch_result(branch: Branch, after: State) -> JsonObject:
    return {
        "branch_id": branch.id,
        "session_id": after.session_id,
        "parent_branch_id": branch.parent_id,
        "created_at": branch.created_at,
        "branch_depth": after.depth,
        "context_state": _context_state(after),
    }


def fold_result(event: BranchFolded | WorkFolded, after: State, health: JsonObject) -> JsonObject:
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


def status_result(state: State, limit: int) -> JsonObject:
    total = state.total_tokens
    return {
        "session_id": state.session_id,
        "active_branch_id": state.active_id,
        "branch_depth": state.depth,
        "branch_path": ["main", *state.path],
        "token_breakdown": {
            "main_thread": state.main.tokens,
            **{open_id: state.branches[open_id].tokens for open_id in state.path},
            "total": total,
            "folded_total": state.folded_tokens,
        },
        "context_limit": limit,
        "usage_percent": percent(total, limit),
    }


def list_result(state: State) -> JsonObject:
    branches = state.branches.values()
    return {
        "branches": [_list_item(branch) for branch in branches],
        "total_branches": len(branches),
        "active_branches": sum(branch.status == "active" for branch in branches),
        "folded_branches": sum(branch.status == "folded" for branch in branches),
    }


def rollback_result(branch_id: str, before: State, events: Sequence[Event], after: State) -> JsonObject:
    discarded = {event.branch_id for event in events if isinstance(event, BranchDiscarded)}
    return {
        "rolled_back_to": branch_id,
        "branches_discarded": [known for known in after.branches if known in discarded],
        "tokens_recovered": max(0, before.total_tokens - after.total_tokens),
        "context_state": {
            "active_branch_id": after.active_id,
            "branch_depth": after.depth,
            "total_tokens": after.total_tokens,
        },
    }


def record_result(event: OperationCompleted, after: State, health: JsonObject, counter: str | None) -> JsonObject:
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


def page_result(branch_id: str, entries: Sequence[JsonObject], tokens: int, next_cursor: str | None) -> JsonObject:
    return {"branch_id": branch_id, "entries": entries, "tokens": tokens, "next_cursor": next_cursor}


def entry_result(entry: ArchiveEntry, text: str, *, is_part: bool) -> JsonObject:
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


def _context_state(state: State) -> JsonObject:
    active = state.active
    return {
        "active_branch_id": state.active_id,
        "branch_depth": state.depth,
        "total_tokens": state.total_tokens,
        "main_thread_tokens": state.main.tokens,
        "current_branch_tokens": active.tokens if active else 0,
    }


def _list_item(branch: Branch) -> JsonObject:
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


# A token has at most this many characters, because a character has at least one byte.
CHARACTERS_PER_TOKEN_MAX = 4
LONGEST_CURSOR = "9" * 15 + "." + "9" * 15


class TrajectoryPage:
    """Adds entries in order until one does not fit. The complete result is within the budget."""

    def __init__(self, branch_id: str, budget_tokens: int, count: CountTokens) -> None:
        self._branch_id, self._budget_tokens, self._count = branch_id, budget_tokens, count
        self._entries: list[JsonObject] = []
        self._left = budget_tokens - count(encode(page_result(branch_id, [], budget_tokens, LONGEST_CURSOR)))

    @property
    def characters(self) -> int:
        """The largest number of further characters that can fit."""
        return max(1, self._left * CHARACTERS_PER_TOKEN_MAX)

    def take(self, entry: ArchiveEntry, offset: int) -> int | None:
        """Add an entry from an offset on. None if all of it fitted, otherwise the offset of the rest."""
        rest = entry.text[offset:]
        length = self._fitting(entry, rest, offset)
        if length is None:
            return offset
        part = _entry(entry, rest[:length], offset)
        self._entries.append(part)
        self._left -= self._cost(part)
        return None if length == len(rest) else offset + length

    def result(self, next_cursor: str | None) -> JsonObject:
        return page_result(self._branch_id, self._entries, self._budget_tokens - self._left, next_cursor)

    def _fitting(self, entry: ArchiveEntry, rest: str, offset: int) -> int | None:
        """The number of characters of the rest that fit; None if none do."""

        def cost_of(length: int) -> int:
            return self._cost(_entry(entry, rest[:length], offset))

        most = min(len(rest), max(0, self._left) * CHARACTERS_PER_TOKEN_MAX)
        if cost_of(1) > self._left:
            return None
        # A complete entry may take less than one without its last character, which is marked as a part.
        return most if cost_of(most) <= self._left else bisect_right(range(1, most + 1), self._left, key=cost_of)

    def _cost(self, entry: JsonObject) -> int:
        return self._count(encode(entry) + ",")


def _entry(entry: ArchiveEntry, text: str, offset: int) -> JsonObject:
    return entry_result(entry, text, is_part=offset + len(text) < len(entry.text) or offset > 0)
