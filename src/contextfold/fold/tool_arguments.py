"""Checks the arguments of the folding tools and converts them to requests.

Each error names the field and its rule. An unknown argument is an error, too: with a misspelt `branch_id` the wrong
branch would be folded.
"""

from __future__ import annotations

from contextfold.common.dataclass import dataclass
from contextfold.errors import ArgumentInvalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from contextfold.fold.project import Project

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
EXPAND_BUDGET = 2_000
EXPAND_BUDGET_MIN = 200
EXPAND_BUDGET_MAX = 100_000
OPERATION_ID_LENGTH_MAX = 200
QUERY_LENGTH_MAX = 10_000
SINCE_LENGTH_MAX = 40
RECALL_BUDGET = 2_000
# Even an empty answer does not fit into a smaller budget.
RECALL_BUDGET_MIN = 200
RECALL_BUDGET_MAX = 100_000
_UNIT_SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
# Patterns are compiled when they are first needed.
_DURATION = r"(?a)(\d{1,5})([mhdw])"
_MOMENT = r"(?a)(\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01]))(?:[T ](([01]\d|2[0-3]):[0-5]\d)(:[0-5]\d)?Z?)?"


@dataclass(frozen=True, slots=True)
class BranchRequest:
    project: Project
    description: str
    prompt: str


@dataclass(frozen=True, slots=True)
class ReturnRequest:
    project: Project
    message: str
    branch_id: str | None


@dataclass(frozen=True, slots=True)
class FoldRequest:
    project: Project
    message: str


@dataclass(frozen=True, slots=True)
class LookRequest:
    project: Project


@dataclass(frozen=True, slots=True)
class RollbackRequest:
    project: Project
    branch_id: str
    restore_state: bool


@dataclass(frozen=True, slots=True)
class RecallRequest:
    """A question about folded work, in one project or in all, since a time or within a duration."""

    query: str
    project: Project | None = None
    budget_tokens: int = RECALL_BUDGET
    # A time, or a number of seconds ago.
    since: str | int = ""
    undone: bool = False


@dataclass(frozen=True, slots=True)
class RecordRequest:
    project: Project
    type: str
    content: str
    # None if they are to be counted from the content.
    tokens: int | None
    failed: bool


@dataclass(frozen=True, slots=True)
class ExpandRequest:
    project: Project
    branch_id: str
    budget_tokens: int
    # The cursor: the entries after this event, and an offset in characters in the next entry.
    after_n: int
    offset: int


def branch_request(arguments: Arguments) -> BranchRequest:
    fields = _ArgumentFields(arguments, "description", "prompt", "project_path")
    return BranchRequest(
        description=fields.text("description", length_max=DESCRIPTION_LENGTH_MAX, may_be_blank=False),
        prompt=fields.text("prompt", length_max=PROMPT_LENGTH_MAX, may_be_blank=False),
        project=fields.project(),
    )


def return_request(arguments: Arguments) -> ReturnRequest:
    fields = _ArgumentFields(arguments, "message", "project_path", "branch_id")
    return ReturnRequest(
        message=fields.text("message", length_max=MESSAGE_LENGTH_MAX),
        project=fields.project(),
        branch_id=fields.text("branch_id", length_max=BRANCH_ID_LENGTH_MAX) if fields.has("branch_id") else None,
    )


def fold_request(arguments: Arguments) -> FoldRequest:
    fields = _ArgumentFields(arguments, "message", "project_path")
    return FoldRequest(
        message=fields.text("message", length_max=MESSAGE_LENGTH_MAX, may_be_blank=False), project=fields.project()
    )


def look_request(arguments: Arguments) -> LookRequest:
    return LookRequest(_ArgumentFields(arguments, "project_path").project())


def rollback_request(arguments: Arguments) -> RollbackRequest:
    fields = _ArgumentFields(arguments, "project_path", "branch_id", "restore_state")
    return RollbackRequest(fields.project(), *_rollback_choice(fields))


def rollback_choice(arguments: Arguments) -> tuple[str, bool]:
    """The branch, and whether the state is restored, for a rollback in a known session."""
    return _rollback_choice(_ArgumentFields(arguments, "branch_id", "restore_state"))


def _rollback_choice(fields: _ArgumentFields) -> tuple[str, bool]:
    branch_id = fields.text("branch_id", length_max=BRANCH_ID_LENGTH_MAX)
    return branch_id, fields.flag("restore_state", default=True)


def record_request(arguments: Arguments) -> RecordRequest:
    fields = _ArgumentFields(arguments, "project_path", "type", "content", "tokens", "failed")
    if not fields.has("content") and not fields.has("tokens"):
        raise ArgumentInvalid("content", "or tokens must be given")
    return RecordRequest(
        project=fields.project(),
        type=fields.word("type", length_max=TYPE_LENGTH_MAX),
        content=fields.text("content") if fields.has("content") else "",
        tokens=fields.number("tokens", 0, TOKENS_MAX) if fields.has("tokens") else None,
        failed=fields.flag("failed", default=False),
    )


def expand_request(arguments: Arguments) -> ExpandRequest:
    fields = _ArgumentFields(arguments, "project_path", "branch_id", "budget", "cursor")
    after_n, offset = position_of(fields.text("cursor", length_max=64)) if fields.has("cursor") else (0, 0)
    has_budget = fields.has("budget")
    return ExpandRequest(
        project=fields.project(),
        branch_id=fields.text("branch_id", length_max=BRANCH_ID_LENGTH_MAX),
        budget_tokens=fields.number("budget", EXPAND_BUDGET_MIN, EXPAND_BUDGET_MAX) if has_budget else EXPAND_BUDGET,
        after_n=after_n,
        offset=offset,
    )


def recall_request(arguments: Arguments) -> RecallRequest:
    fields = _ArgumentFields(arguments, "query", "project_path", "budget", "since", "undone")
    has_budget = fields.has("budget")
    return RecallRequest(
        query=fields.text("query", length_max=QUERY_LENGTH_MAX, may_be_blank=False),
        project=fields.project() if fields.has("project_path") else None,
        budget_tokens=fields.number("budget", RECALL_BUDGET_MIN, RECALL_BUDGET_MAX) if has_budget else RECALL_BUDGET,
        since=since_of(fields.text("since", length_max=SINCE_LENGTH_MAX)) if fields.has("since") else "",
        undone=fields.flag("undone", default=False),
    )


def since_of(text: str) -> str | int:
    """Parse a date or a time in UTC; or a duration before now, such as `7d`, to seconds."""
    import re

    if duration := re.fullmatch(_DURATION, text.strip()):
        return int(duration[1]) * _UNIT_SECONDS[duration[2]]
    if moment := re.fullmatch(_MOMENT, text.strip()):
        return f"{moment[1]}T{moment[2] or '00:00'}{moment[4] or ':00'}Z"
    raise ArgumentInvalid("since", "must be a date like 2026-01-31, or a duration like 12h, 7d or 4w")


def check_operation_id(operation_id: object) -> str:
    if not isinstance(operation_id, str) or not 1 <= len(operation_id) <= OPERATION_ID_LENGTH_MAX:
        raise ArgumentInvalid("operation_id", f"must be a string of 1 to {OPERATION_ID_LENGTH_MAX} characters")
    return _unicode("operation_id", operation_id)


def cursor_of(after_n: int, offset: int) -> str:
    return f"{after_n}.{offset}"


def position_of(cursor: str) -> tuple[int, int]:
    import re

    if not re.fullmatch(r"\d{1,15}\.\d{1,15}", cursor, re.ASCII):
        raise ArgumentInvalid("cursor", "must be the next_cursor of an earlier answer")
    after_n, offset = cursor.split(".")
    return int(after_n), int(offset)


def _unicode(field: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ArgumentInvalid(field, "must be text; it holds half of a surrogate pair") from None
    return text


class _ArgumentFields:
    def __init__(self, arguments: Arguments, *known: str) -> None:
        if unknown := sorted(arguments.keys() - set(known)):
            import re

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
        return _unicode(field, value)

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

    def project(self) -> Project:
        from contextfold.fold.project import project_at

        return project_at(self.text("project_path"))
