"""What can happen in a session, as small frozen values, and their stored form. Knows no state and no rule.

A log of these is all a session is. `n` counts from 1 within the session; `at` is UTC as `2025-01-17T10:30:00Z`, which
sorts as text. Texts are scrubbed before they get here. An operation's text is not part of its event but of the archive
(`fold.archive`): events stay small however much was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from contextfold.common.canonical import Encodable, decode, encode
from contextfold.fold.ledger.sent_request import FoldSeen, ThreadSeen


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
    tokens: int  # of the prompt
    redactions: int


@dataclass(frozen=True, slots=True)
class OperationCompleted:
    kind: ClassVar[str] = "operation.completed"
    n: int
    at: str
    branch_id: str | None  # None is the main thread
    type: str
    tokens: int
    source: str  # of the figure: proxy, hook or reported
    failed: bool
    redactions: int
    call_id: str = ""  # of a report that may come twice: a hash of what tells it apart
    compacts: bool = False  # its tokens, on the main thread, are all that is left of what was open until now


@dataclass(frozen=True, slots=True)
class RequestSent:
    kind: ClassVar[str] = "request.sent"
    n: int
    at: str
    api: str
    model: str
    tokens_before: int  # both are estimates, of the request as it came and as it went on
    tokens_after: int
    turns_dropped: int
    first_changed: int | None  # the place of the first message that was dropped
    reason: str  # why something stayed unfolded, or empty
    input_tokens: int | None  # what the provider counted; all four are None where it told nothing
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    output_tokens: int | None
    call_id: str = ""
    folds: tuple[FoldSeen, ...] = ()  # those that no earlier event has
    threads: tuple[ThreadSeen, ...] = ()  # those that have grown


@dataclass(frozen=True, slots=True)
class BranchFolded:
    kind: ClassVar[str] = "branch.folded"
    n: int
    at: str
    branch_id: str
    summary: str
    summary_tokens: int
    tokens_folded: int
    redactions: int  # in the summary
    forced: bool  # an enclosing branch was folded while this one was open


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
    | BranchDiscarded
    | SessionRolledBack
    | SessionExpired
)

_KINDS: dict[str, type[Event]] = {
    kind.kind: kind
    for kind in (
        SessionStarted,
        BranchCreated,
        OperationCompleted,
        RequestSent,
        BranchFolded,
        BranchDiscarded,
        SessionRolledBack,
        SessionExpired,
    )
}
_MEMBERS = {name: tuple(field.name for field in fields(kind)) for name, kind in _KINDS.items()}
_OPTIONAL = frozenset({"call_id", "compacts", "folds", "threads"})  # left out where empty; older logs have none of them
_LISTS: dict[str, type[FoldSeen] | type[ThreadSeen]] = {"folds": FoldSeen, "threads": ThreadSeen}


class EventUnknown(ValueError):
    """A stored event that this version cannot read."""


def members(event: Event) -> dict[str, Encodable]:
    """The event as people and programs read it, its kind first."""
    told: dict[str, Encodable] = {name: getattr(event, name) for name in _MEMBERS[event.kind]}
    if isinstance(event, RequestSent):
        told |= {name: [_members_of(each) for each in getattr(event, name)] for name in _LISTS}
    return {"event": event.kind, **{name: value for name, value in told.items() if value or name not in _OPTIONAL}}


def to_json(event: Event) -> str:
    return encode(members(event))


def from_json(text: str | bytes) -> Event:
    """The event in its stored form."""
    return from_members(decode(text.encode() if isinstance(text, str) else text))


def from_members(stored: object) -> Event:
    """The event that these members are; those this version does not know are ignored."""
    if not isinstance(stored, dict) or stored.get("event") not in _KINDS:
        raise EventUnknown(f"an event of a kind this version does not know: {str(stored)[:60]}")
    kind = stored["event"]
    try:
        given = {name: stored[name] for name in _MEMBERS[kind] if name in stored or name not in _OPTIONAL}
        if kind == RequestSent.kind:
            given |= {name: _all_of(of, given[name]) for name, of in _LISTS.items() if name in given}
        return _KINDS[kind](**given)
    except KeyError as problem:
        raise EventUnknown(f"an event {kind} without {problem}") from problem


def _members_of(seen: FoldSeen | ThreadSeen) -> dict[str, Encodable]:
    return {field.name: getattr(seen, field.name) for field in fields(seen)}


def _all_of(
    kind: type[FoldSeen] | type[ThreadSeen], stored: Sequence[Mapping[str, Any]]
) -> tuple[FoldSeen | ThreadSeen, ...]:
    return tuple(kind(**{field.name: each[field.name] for field in fields(kind)}) for each in stored)
