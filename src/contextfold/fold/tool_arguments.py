"""Checks the arguments of the folding tools. The service says which ones a tool takes.

Each error names the field and its rule. An unknown argument is an error, too: with a misspelt `branch_id` the wrong
branch would be folded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from contextfold.errors import ArgumentInvalid
from contextfold.fold.project import Project, project_at

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


def parse_recall_request(arguments: Arguments) -> RecallRequest:
    fields = ArgumentFields(arguments, "query", "project_path", "budget", "since", "undone")
    return RecallRequest(
        query=fields.text("query", length_max=QUERY_LENGTH_MAX, may_be_blank=False),
        project=fields.project() if fields.has("project_path") else None,
        budget_tokens=fields.budget(),
        since=parse_since(fields.text("since", length_max=SINCE_LENGTH_MAX)) if fields.has("since") else "",
        undone=fields.flag("undone", default=False),
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
