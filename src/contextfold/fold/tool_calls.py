"""The arguments and the results of the folding tools. Knows no protocol.

The service says which arguments a tool takes. Each error names the field and its rule. An unknown argument is an error,
too: with a misspelt `branch_id` the wrong branch would be folded. Results have the fields of the contract in its order.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from contextfold.common.answer_format import FORMATS, TEXT
from contextfold.common.canonical import Encodable, Hundredths, JsonObject, encode
from contextfold.common.tokens import CountTokens
from contextfold.errors import ArgumentInvalid
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import BranchDiscarded, BranchFolded, Event, OperationCompleted, WorkFolded
from contextfold.fold.policy import percent, share
from contextfold.fold.project import Project, project_at
from contextfold.fold.session import Branch, State

Arguments = Mapping[str, object]

DESCRIPTION_LENGTH_MAX = 200
PROMPT_LENGTH_MAX = 10_000
MESSAGE_LENGTH_MAX = 50_000
BRANCH_ID_LENGTH_MAX = 200
# The prefix of the ids of left-out results, and the message for an unknown one.
RESULT_PREFIX = "res_"
RESULT_UNKNOWN = "is not known: it is older than the archive keeps, or another owner's; run the tool again instead"
TYPE_LENGTH_MAX = 64
TOKENS_MAX = 1_000_000_000
# The budget of an answer in tokens. Even an empty answer does not fit into a smaller one than the least.
BUDGET = 2_000
BUDGET_MIN = 200
BUDGET_MAX = 100_000
OPERATION_ID_LENGTH_MAX = 200
QUERY_LENGTH_MAX = 10_000
SINCE_LENGTH_MAX = 40
CURSOR_LENGTH_MAX = 64
LONGEST_CURSOR = "9" * 15 + "." + "9" * 15
# A token has at most this many characters, because a character has at least one byte.
CHARACTERS_PER_TOKEN_MAX = 4
_UNIT_SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(?a)(\d{1,5})([mhdw])")
_MOMENT = re.compile(
    r"(?a)(\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01]))(?:[T ](([01]\d|2[0-3]):[0-5]\d)(:[0-5]\d)?Z?)?"
)


class RecallRequest(NamedTuple):
    """A question about folded work, in one project or in all, since a time or within a duration."""

    query: str
    project: Project | None = None
    budget_tokens: int = BUDGET
    # A time, or a number of seconds ago.
    since: str | int = ""
    undone: bool = False
    # The form of the answer, which has the budget.
    format: str = TEXT


def parse_recall_request(arguments: Arguments) -> RecallRequest:
    fields = ArgumentFields(arguments, "query", "project_path", "budget", "since", "format", "undone")
    return RecallRequest(
        query=fields.text("query", length_max=QUERY_LENGTH_MAX, may_be_blank=False),
        project=fields.optional_project(),
        budget_tokens=fields.budget(),
        since=parse_since(fields.text("since", length_max=SINCE_LENGTH_MAX)) if fields.has("since") else "",
        undone=fields.flag("undone", default=False),
        format=fields.one_of("format", FORMATS),
    )


def parse_since(text: str) -> str | int:
    """Parse a date or a time in UTC; or a duration before now, such as `7d`, to seconds."""
    if duration := _DURATION.fullmatch(text.strip()):
        return int(duration[1]) * _UNIT_SECONDS[duration[2]]
    if moment := _MOMENT.fullmatch(text.strip()):
        return f"{moment[1]}T{moment[2] or '00:00'}{moment[4] or ':00'}Z"
    raise ArgumentInvalid("since", "must be a date like 2026-01-31, or a duration like 12h, 7d or 4w")


def check_operation_id(operation_id: object) -> str:
    if not isinstance(operation_id, str) or not 1 <= len(operation_id) <= OPERATION_ID_LENGTH_MAX:
        raise ArgumentInvalid("operation_id", f"must be a string of 1 to {OPERATION_ID_LENGTH_MAX} characters")
    return _check_unicode("operation_id", operation_id)


def cursor_of(after_n: int, offset: int) -> str:
    return f"{after_n}.{offset}"


def parse_cursor(cursor: str) -> tuple[int, int]:
    if not re.fullmatch(r"\d{1,15}\.\d{1,15}", cursor, re.ASCII):
        raise ArgumentInvalid("cursor", "must be the next_cursor of an earlier answer")
    after_n, offset = cursor.split(".")
    return int(after_n), int(offset)


def _check_unicode(field: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ArgumentInvalid(field, "must be text; it holds half of a surrogate pair") from None
    return text


class ArgumentFields:
    """The arguments of a call, of which only the known ones may be given."""

    def __init__(self, arguments: Arguments, *known: str) -> None:
        if unknown := sorted(arguments.keys() - set(known)):
            allowed = ", ".join(known)
            # An unusual name is not repeated, because it may contain a secret.
            field = unknown[0] if re.fullmatch(r"[A-Za-z_]{1,32}", unknown[0]) else "argument"
            raise ArgumentInvalid(field, f"is not an argument of this tool; it takes {allowed}")
        self._arguments = arguments

    def has(self, field: str) -> bool:
        """Whether the argument was given. Models often write null for an omitted argument."""
        return self._arguments.get(field) is not None

    def text(self, field: str, *, length_max: int | None = None, may_be_blank: bool = True) -> str:
        value = self._arguments.get(field)
        if not isinstance(value, str):
            raise ArgumentInvalid(field, "must be a string" if self.has(field) else "is required")
        if not may_be_blank and not value.strip():
            raise ArgumentInvalid(field, "must not be empty")
        if length_max is not None and len(value) > length_max:
            raise ArgumentInvalid(field, f"must have at most {length_max} characters, not {len(value)}")
        return _check_unicode(field, value)

    def word(self, field: str, *, length_max: int) -> str:
        value = self.text(field, length_max=length_max, may_be_blank=False)
        if not value.isprintable():
            raise ArgumentInvalid(field, "must have no control characters")
        return value

    def one_of(self, field: str, words: Sequence[str]) -> str:
        """One of some words, by default the first."""
        value = self.text(field) if self.has(field) else words[0]
        if value not in words:
            raise ArgumentInvalid(field, f"must be {' or '.join(words)}")
        return value

    def flag(self, field: str, *, default: bool) -> bool:
        value = self._arguments.get(field, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ArgumentInvalid(field, "must be true or false")
        return value

    def number(self, field: str, least: int, most: int) -> int:
        value = self._arguments[field]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ArgumentInvalid(field, f"must be a whole number from {least} to {most}")
        return value

    def budget(self) -> int:
        return self.number("budget", BUDGET_MIN, BUDGET_MAX) if self.has("budget") else BUDGET

    def branch_id(self) -> str:
        return self.text("branch_id", length_max=BRANCH_ID_LENGTH_MAX)

    def position(self) -> tuple[int, int]:
        """The number of an event and an offset in characters: where a trajectory is read on."""
        return parse_cursor(self.text("cursor", length_max=CURSOR_LENGTH_MAX)) if self.has("cursor") else (0, 0)

    def project(self) -> Project:
        return project_at(self.text("project_path"))

    def optional_project(self) -> Project | None:
        return self.project() if self.has("project_path") else None


def parse_stored_result(text: str) -> JsonObject:
    """The result in a stored receipt. It encodes to the same text again: all its fractions are hundredths."""
    result: JsonObject = json.loads(text, parse_float=Hundredths)
    return result


def state_result(state: State, limit: int) -> JsonObject:
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
    discarded = discarded_by(branch_id, events, after)
    return {
        "rolled_back_to": branch_id,
        "branches_discarded": discarded,
        "tokens_recovered": max(0, before.total_tokens - after.total_tokens),
        "context_state": {
            "active_branch_id": after.active_id,
            "branch_depth": after.depth,
            "total_tokens": after.total_tokens,
        },
    }


def discarded_by(branch_id: str, events: Sequence[Event], after: State) -> list[str]:
    """The branches that a rollback discards, in the order of their creation. Work folded afterwards is one of them."""
    later = {event.branch_id for event in events if isinstance(event, BranchDiscarded)}
    return [known for known in after.branches if known in later or (known == branch_id and known not in after.path)]


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
        length = self._find_fitting_length(entry, rest, offset)
        if length is None:
            return offset
        part = _entry_part(entry, rest[:length], offset)
        self._entries.append(part)
        self._left -= self._cost(part)
        return None if length == len(rest) else offset + length

    def result(self, next_cursor: str | None) -> JsonObject:
        return page_result(self._branch_id, self._entries, self._budget_tokens - self._left, next_cursor)

    def _find_fitting_length(self, entry: ArchiveEntry, rest: str, offset: int) -> int | None:
        """The number of characters of the rest that fit; None if none do."""

        def cost_of(length: int) -> int:
            return self._cost(_entry_part(entry, rest[:length], offset))

        most = min(len(rest), max(0, self._left) * CHARACTERS_PER_TOKEN_MAX)
        if cost_of(1) > self._left:
            return None
        # A complete entry may take less than one without its last character, which is marked as a part.
        return most if cost_of(most) <= self._left else bisect_right(range(1, most + 1), self._left, key=cost_of)

    def _cost(self, entry: JsonObject) -> int:
        return self._count(encode(entry) + ",")


def _entry_part(entry: ArchiveEntry, text: str, offset: int) -> JsonObject:
    return entry_result(entry, text, is_part=offset + len(text) < len(entry.text) or offset > 0)
