"""The events of a session and their stored form. Knows no state and no rule.

A session is a log of events. `n` counts from 1 within the session; `at` is UTC, like `2025-01-17T10:30:00Z`, and sorts
as text. Texts are already scrubbed. The text of an operation is in the archive (`fold.archive`) and not in its event,
so events stay small.

The stored form does not have members with their default value, and older logs may not have them at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from typing import Any, ClassVar

from contextfold.common.canonical import Encodable, decode_stored, encode_plain


@dataclass(frozen=True, slots=True)
class SessionStarted:
    kind: ClassVar[str] = "session.started"
    n: int
    at: str
    session_id: str
    project_path: str
    name: str | None


@dataclass(frozen=True, slots=True)
class BranchCreated:
    kind: ClassVar[str] = "branch.created"
    n: int
    at: str
    branch_id: str
    parent_id: str | None
    description: str
    prompt: str
    # The tokens of the prompt.
    tokens: int
    redactions: int


@dataclass(frozen=True, slots=True)
class OperationCompleted:
    kind: ClassVar[str] = "operation.completed"
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


@dataclass(frozen=True, slots=True)
class FoldSeen:
    """A branch that was left out of a request: the tokens dropped, and the tokens that are sent before the cut."""

    branch_id: str
    tokens: int
    kept_tokens: int


@dataclass(frozen=True, slots=True)
class ThreadSeen:
    """The number of known messages of a thread; a branch id of None means the main thread."""

    branch_id: str | None
    messages: int


@dataclass(frozen=True, slots=True)
class RequestSent:
    kind: ClassVar[str] = "request.sent"
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
    # The folds that are in no earlier event, and the threads that have grown.
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


@dataclass(frozen=True, slots=True)
class BranchFolded:
    kind: ClassVar[str] = "branch.folded"
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


@dataclass(frozen=True, slots=True)
class WorkFolded:
    """`context_fold`: the operations of one thread after event `since` became a branch that is folded at once."""

    kind: ClassVar[str] = "work.folded"
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


@dataclass(frozen=True, slots=True)
class BranchDiscarded:
    kind: ClassVar[str] = "branch.discarded"
    n: int
    at: str
    branch_id: str


@dataclass(frozen=True, slots=True)
class SessionRolledBack:
    kind: ClassVar[str] = "session.rolled_back"
    n: int
    at: str
    branch_id: str
    restore_state: bool


@dataclass(frozen=True, slots=True)
class SessionExpired:
    kind: ClassVar[str] = "session.expired"
    n: int
    at: str
    session_id: str


Event = (
    SessionStarted
    | BranchCreated
    | OperationCompleted
    | RequestSent
    | BranchFolded
    | WorkFolded
    | BranchDiscarded
    | SessionRolledBack
    | SessionExpired
)

_KINDS: dict[str, type[Event]] = {kind.kind: kind for kind in Event.__args__}
_MEMBERS = {name: tuple(field.name for field in fields(kind)) for name, kind in _KINDS.items()}
_OPTIONAL = {
    field.name: field.default for kind in _KINDS.values() for field in fields(kind) if field.default is not MISSING
}
# The members that are lists of records.
_LISTS = ("folds", "threads")


class EventUnknown(ValueError):
    """A stored event that this version cannot read."""


def timestamp(moment: datetime) -> str:
    """The time of an event."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def members(event: Event) -> dict[str, Encodable]:
    """The event as a JSON object, its kind first."""
    values: dict[str, Encodable] = {"event": event.kind}
    for name in _MEMBERS[event.kind]:
        value = getattr(event, name)
        if name not in _OPTIONAL or value != _OPTIONAL[name]:
            if name in _LISTS:
                value = [{field.name: getattr(each, field.name) for field in fields(each)} for each in value]
            values[name] = value
    return values


def to_json(event: Event) -> str:
    return encode_plain(members(event))


def from_json(text: str | bytes) -> Event:
    """Decode the stored form of an event."""
    return from_members(decode_stored(text.encode() if isinstance(text, str) else text))


def from_members(stored: object) -> Event:
    """Make an event from its members; unknown members are ignored."""
    if not isinstance(stored, dict) or stored.get("event") not in _KINDS:
        raise EventUnknown(f"an event of a kind this version does not know: {str(stored)[:60]}")
    kind = stored["event"]
    try:
        if kind == RequestSent.kind:
            stored = {**stored, **{name: _parse_records(name, stored[name]) for name in _LISTS if name in stored}}
        return _KINDS[kind](*[stored[name] if name in stored else _OPTIONAL[name] for name in _MEMBERS[kind]])
    except KeyError as problem:
        raise EventUnknown(f"an event {kind} without {problem}") from problem


def _parse_records(name: str, stored: Sequence[Mapping[str, Any]]) -> tuple[FoldSeen | ThreadSeen, ...]:
    kind = FoldSeen if name == "folds" else ThreadSeen
    return tuple(kind(**{field.name: each[field.name] for field in fields(kind)}) for each in stored)
