"""The events of a session and their stored form. Knows no state and no rule.

A session is a log of events. `n` counts from 1 within the session; `at` is UTC, like `2025-01-17T10:30:00Z`, and sorts
as text. Texts are already scrubbed. The text of an operation is in the archive (`fold.archive`) and not in its event,
so events stay small.

The stored form does not have members with their default value, and older logs may not have them at all.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from contextfold.common.canonical import Encodable, decode_stored, encode_plain


class SessionStarted(NamedTuple):
    n: int
    at: str
    session_id: str
    # Empty if the project was not known.
    project_path: str
    name: str | None
    # The host's id of the conversation, or a hash of its first messages; and the host's id of the subagent.
    conversation: str = ""
    agent: str = ""
    # Whether the host gave that id, so that it can continue the conversation by it.
    is_named: bool = False


class SessionPlaced(NamedTuple):
    """The project of a session that began without one."""

    n: int
    at: str
    project_path: str


class BranchCreated(NamedTuple):
    n: int
    at: str
    branch_id: str
    parent_id: str | None
    description: str
    prompt: str
    # The tokens of the prompt.
    tokens: int
    redactions: int


class OperationCompleted(NamedTuple):
    n: int
    at: str
    # None is the main thread.
    branch_id: str | None
    type: str
    tokens: int
    # The source of the figure: proxy, hook or reported.
    source: str
    failed: bool
    redactions: int
    # A hash that identifies a report, so that a repeated report is recorded once.
    call_id: str = ""
    # Whether the host has compacted: these tokens, on the main thread, replace all open threads.
    compacts: bool = False
    # Whether the operation ends with a prompt of the user. `context_fold` folds only later operations.
    by_user: bool = False
    # The model and the host, if they are known and have changed.
    model: str = ""
    host: str = ""


class FoldSeen(NamedTuple):
    """A branch that was left out of a request: the tokens dropped, and the tokens that are sent before the cut."""

    branch_id: str
    tokens: int
    kept_tokens: int


class ResultLeftOut(NamedTuple):
    """A tool result that was left out of a request, and the tokens of its text."""

    result_id: str
    tokens: int


class MissCause(StrEnum):
    """Why the provider's cache did not hold a part of a prompt, in the order of a prompt."""

    MODEL = "model"
    TOOLS = "tools"
    TOOL_ORDER = "tool_order"
    SYSTEM = "system"
    MESSAGE = "message"
    REMINDER = "reminder"
    BACK = "went_back"
    COMPACTED = "compaction"
    FORK = "fork"
    PAUSE = "pause"
    FOLD = "fold"
    LEFT_OUT = "left_out"
    # A difference of ours in front of what was sent before that is neither of these two: a bug.
    OURS = "bug"
    PROVIDER = "provider"


class PrefixMiss(NamedTuple):
    """Why the provider's cache did not hold a part of a prompt that the request before had, and the tokens of it."""

    # A MissCause, or one of a later version.
    cause: str
    tokens: int
    # The index of the first message that differs; None if the difference is before the messages, or there is none.
    place: int | None = None
    # The name of a tool.
    detail: str = ""
    # Whether the difference is of our making.
    is_ours: bool = False


class ThreadSeen(NamedTuple):
    """A thread in a request: the number of its messages. A branch id of None means the main thread."""

    branch_id: str | None
    messages: int
    # Its tokens by the provider's count, without the host's prompt and tools; None in a log of an earlier version.
    tokens: int | None = None
    # The tokens that would leave the next request if this branch returned.
    removable: int = 0


class RequestSent(NamedTuple):
    n: int
    at: str
    api: str
    model: str
    # Two estimates: of the agent's request, and of the request that was sent to the provider.
    tokens_before: int
    tokens_after: int
    turns_dropped: int
    # The index of the first message that was dropped.
    first_changed: int | None
    # The reason why something was not folded, or empty.
    reason: str
    # The provider's usage; all four are None if it reported none. `cache_write_tokens` includes one-hour writes.
    input_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    output_tokens: int | None
    call_id: str = ""
    # The folds that are in no earlier event, and the open threads; those of an earlier version that have grown.
    folds: tuple[FoldSeen, ...] = ()
    threads: tuple[ThreadSeen, ...] = ()
    # The part of `cache_write_tokens` that was written for one hour.
    cache_write_1h_tokens: int = 0
    # The estimated tokens of our tools' definitions, calls and results in the agent's request.
    our_tokens: int = 0
    # The estimated tokens of our calls in the response, and whether it contained nothing else.
    our_output_tokens: int = 0
    only_ours: bool = False
    # The number of old results that were replaced by a stub.
    results_dropped: int = 0
    # The estimated tokens before the first new change of this request; None if there is none, or if `folds` has it.
    kept_tokens: int | None = None
    # The number of new content blocks since the conversation's last request, or 0 if it is not known. A provider
    # searches only a limited number of blocks for a cached prefix.
    new_blocks: int = 0
    # Identifies the conversation; empty if only one is known.
    conversation: str = ""
    # The pause in seconds after which the prompt was still cached, although its cache was taken to have lapsed; or 0.
    warm_after_s: int = 0
    # The run of the request (`context run`), if it is known.
    run: str = ""
    # The left-out results that are in no earlier event.
    left_out: tuple[ResultLeftOut, ...] = ()
    # The tokens of the host's own prompt and tools, by the provider's count.
    host_tokens: int = 0
    # The tokens that would leave the next request if the active thread's work was folded.
    work_tokens: int = 0
    # Whether it offers tools. A request without them is beside the conversation, like one for a title.
    has_tools: bool = False
    # What the provider's cache has lost before this request; at most one.
    misses: tuple[PrefixMiss, ...] = ()


class BranchFolded(NamedTuple):
    n: int
    at: str
    branch_id: str
    summary: str
    summary_tokens: int
    tokens_folded: int
    # The number of redactions in the summary.
    redactions: int
    # Whether it was folded because an enclosing branch was folded.
    forced: bool


class WorkFolded(NamedTuple):
    """`context_fold`: the operations of one thread after event `since` became a branch that is folded at once."""

    n: int
    at: str
    branch_id: str
    parent_id: str | None
    description: str
    summary: str
    summary_tokens: int
    tokens_folded: int
    # The number of redactions in the summary and in the description, which is its first line.
    redactions: int
    since: int


class BranchDiscarded(NamedTuple):
    n: int
    at: str
    branch_id: str


class SessionRolledBack(NamedTuple):
    n: int
    at: str
    branch_id: str
    restore_state: bool


class SessionExpired(NamedTuple):
    n: int
    at: str
    session_id: str


Event = (
    SessionStarted
    | SessionPlaced
    | BranchCreated
    | OperationCompleted
    | RequestSent
    | BranchFolded
    | WorkFolded
    | BranchDiscarded
    | SessionRolledBack
    | SessionExpired
)

_EVENTS: dict[str, type[Event]] = {
    "session.started": SessionStarted,
    "session.placed": SessionPlaced,
    "branch.created": BranchCreated,
    "operation.completed": OperationCompleted,
    "request.sent": RequestSent,
    "branch.folded": BranchFolded,
    "work.folded": WorkFolded,
    "branch.discarded": BranchDiscarded,
    "session.rolled_back": SessionRolledBack,
    "session.expired": SessionExpired,
}
_KINDS = {event: kind for kind, event in _EVENTS.items()}
_OPTIONAL = {name: default for event in _KINDS for name, default in event._field_defaults.items()}
# The members that are lists of records.
Record = FoldSeen | ThreadSeen | ResultLeftOut | PrefixMiss
_LISTS: dict[str, type[Record]] = {
    "folds": FoldSeen,
    "threads": ThreadSeen,
    "left_out": ResultLeftOut,
    "misses": PrefixMiss,
}


class EventUnknown(ValueError):
    """A stored event that this version cannot read."""


def timestamp(moment: datetime) -> str:
    """The time of an event."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def kind_of(event: Event) -> str:
    """The name of the event's kind, as it is stored and sent."""
    return _KINDS[type(event)]


def members(event: Event) -> dict[str, Encodable]:
    """The event as a JSON object, its kind first."""
    values: dict[str, Encodable] = {"event": kind_of(event)}
    for name in event._fields:
        value = getattr(event, name)
        if name not in _OPTIONAL or value != _OPTIONAL[name]:
            if name in _LISTS:
                value = [_record_members(each) for each in value]
            values[name] = value
    return values


def _record_members(record: Record) -> dict[str, Encodable]:
    """Members of later versions are written only if they say something, so that an older log keeps its bytes."""
    absent = object()
    defaults = record._field_defaults
    return {name: value for name, value in record._asdict().items() if value != defaults.get(name, absent)}


def to_json(event: Event) -> str:
    return encode_plain(members(event))


def from_json(text: str | bytes) -> Event:
    """Decode the stored form of an event."""
    return from_members(decode_stored(text.encode() if isinstance(text, str) else text))


def from_members(stored: object) -> Event:
    """Make an event from its members; unknown members are ignored."""
    if not isinstance(stored, dict) or stored.get("event") not in _EVENTS:
        raise EventUnknown(f"an event of a kind this version does not know: {str(stored)[:60]}")
    kind = stored["event"]
    event = _EVENTS[kind]
    try:
        if event is RequestSent:
            stored = {**stored, **{name: _parse_records(name, stored[name]) for name in _LISTS if name in stored}}
        return event(*[stored[name] if name in stored else _OPTIONAL[name] for name in event._fields])
    except KeyError as problem:
        raise EventUnknown(f"an event {kind} without {problem}") from problem


def _parse_records(name: str, stored: Sequence[Mapping[str, Any]]) -> tuple[Record, ...]:
    kind = _LISTS[name]
    return tuple(kind(**{name: each[name] for name in kind._fields if name in each}) for each in stored)
