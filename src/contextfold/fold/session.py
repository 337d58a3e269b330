"""A session's state, the events that make it, and the verbs that decide on events. No clock, no ids, no I/O.

    state = apply(… apply(apply(EMPTY, e1), e2) …, en)      the only way a state comes about
    verb(state, input, at, new ids) → events, or an error   the only way events come about

A branch's life:

    branch.created → active ── branch.folded ───→ folded
                      │  ↑                          │
                      │  └── session.rolled_back ───┤   (to it, or to one nested in it)
                      └───── branch.discarded ──────┴→ discarded, for good

Open branches form a path: a branch nests under the active one, and folding a branch folds what is open below it. So all
that a rollback can bring back is known when a branch begins: the main thread and the branches on the path, its
checkpoint. Every other branch of that time was closed and has not changed since; if an earlier rollback discarded it,
it discarded the target too. Rolling back is therefore as good as replaying the log up to that point, and a test holds
it to that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from contextfold.errors import BranchNotFound, BranchStateInvalid, ContextLimitExceeded, LimitReached
from contextfold.fold.events import (
    BranchCreated,
    BranchDiscarded,
    BranchFolded,
    Event,
    OperationCompleted,
    RequestSent,
    SessionExpired,
    SessionRolledBack,
    SessionStarted,
)

Value = TypeVar("Value")
Status = Literal["active", "folded", "discarded"]
CALLS_KEPT = 512  # a report sent again after that many others is taken for a new one, and a request as well


@dataclass(frozen=True, slots=True)
class Thread:
    """What has piled up on the main thread."""

    tokens: int = 0
    operations: int = 0
    failed: int = 0
    redactions: int = 0
    messages: int = 0  # of it that requests have brought so far


@dataclass(frozen=True, slots=True)
class Branch:
    id: str
    parent_id: str | None
    description: str
    created_at: str
    tokens: int  # prompt, operations, and the summaries of folded children; of an open one, since the last compaction
    redactions: int  # in description, prompt, operations and summary
    status: Status = "active"
    operations: int = 0
    failed: int = 0
    closed_at: str | None = None
    summary_tokens: int = 0  # of a folded one: what it left in the thread above
    messages: int = 0  # of it that requests have brought so far


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a rollback to a branch brings back: the main thread and the open path, the branch itself last."""

    revision: int
    main: Thread
    path: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class State:
    session_id: str | None = None
    project_path: str = ""
    name: str | None = None
    started_at: str = ""
    revision: int = 0
    last_at: str = ""
    expired: bool = False
    main: Thread = field(default_factory=Thread)
    branches: Mapping[str, Branch] = field(default_factory=dict)  # in order of creation
    path: tuple[str, ...] = ()  # of open branches, the active one last
    checkpoints: Mapping[str, Checkpoint] = field(default_factory=dict)
    calls: tuple[str, ...] = ()  # ids of the latest reports, so that one that comes twice is known
    requests: tuple[str, ...] = ()  # and of the latest requests
    folds_seen: Mapping[str, int] = field(default_factory=dict)  # left out of requests so far; their dropped tokens
    compactions: int = 0  # that the host has told so far

    @property
    def active(self) -> Branch | None:
        return self.branches[self.path[-1]] if self.path else None

    @property
    def depth(self) -> int:
        return len(self.path)


EMPTY = State()


@dataclass(frozen=True, slots=True)
class Limits:
    context_tokens: int = 32_768
    is_hard: bool = False
    depth: int = 8
    branches: int = 1_000


# ---- apply: events → state


class LogBroken(ValueError):
    """Events that do not follow from one another: a fault of the store, or of ours."""


class _Draft(dict[str, Value]):
    """What a replay changes in place: nobody sees the states between, and a copy for each would make it quadratic."""


def replay(events: Iterable[Event], state: State = EMPTY) -> State:
    for after in states(events, state):
        state = after
    return replace(
        state,
        branches=dict(state.branches),
        checkpoints=dict(state.checkpoints),
        folds_seen=dict(state.folds_seen),
    )


def states(events: Iterable[Event], state: State = EMPTY) -> Iterator[State]:
    """The state after each event, to be looked at before the next one: it is changed in place."""
    state = drafted(state)
    for event in events:
        state = apply(state, event)
        yield state


def drafted(state: State) -> State:
    """A state that `apply` changes in place, for whoever goes on from it and keeps none between."""
    return replace(
        state,
        branches=_Draft(state.branches),
        checkpoints=_Draft(state.checkpoints),
        folds_seen=_Draft(state.folds_seen),
    )


def apply(state: State, event: Event) -> State:
    """The state after an event. What a verb decided is not judged again, but the order of the log is."""
    if event.n != state.revision + 1 or (event.n == 1) != isinstance(event, SessionStarted) or state.expired:
        raise LogBroken(f"event {event.n} ({event.kind}) cannot follow revision {state.revision}")
    after = _apply(state, event)
    return replace(after, revision=event.n, last_at=max(state.last_at, event.at))


def _apply(state: State, event: Event) -> State:  # noqa: PLR0911 - one return for each kind
    match event:
        case SessionStarted():
            told = (event.session_id, event.project_path, event.name, event.at)
            return replace(state, session_id=told[0], project_path=told[1], name=told[2], started_at=told[3])
        case BranchCreated():
            return _created(state, event)
        case OperationCompleted():
            return _operated(state, event)
        case RequestSent():
            return _requested(state, event)
        case BranchFolded():
            return _folded(state, event)
        case BranchDiscarded():
            branch = replace(_branch(state, event), status="discarded", closed_at=event.at)
            path = tuple(open_id for open_id in state.path if open_id != event.branch_id)
            checkpoints = _draft_of(state.checkpoints)
            checkpoints.pop(branch.id, None)
            return replace(_with(state, branch), path=path, checkpoints=checkpoints)
        case SessionRolledBack():
            return _rolled_back(state, event)
        case SessionExpired():
            return replace(state, expired=True)


def _created(state: State, event: BranchCreated) -> State:
    branch = Branch(event.branch_id, event.parent_id, event.description, event.at, event.tokens, event.redactions)
    state = replace(_with(state, branch), path=(*state.path, branch.id))
    checkpoint = Checkpoint(event.n, state.main, tuple(state.branches[open_id] for open_id in state.path))
    checkpoints = _draft_of(state.checkpoints)
    checkpoints[branch.id] = checkpoint
    return replace(state, checkpoints=checkpoints)


def _operated(state: State, event: OperationCompleted) -> State:
    if event.call_id:
        state = replace(state, calls=(*state.calls[1 - CALLS_KEPT :], event.call_id))
    if event.compacts:
        state = _compacted(state)
    if event.branch_id is None:
        main = state.main
        grown = Thread(
            main.tokens + event.tokens,
            main.operations + 1,
            main.failed + event.failed,
            main.redactions + event.redactions,
            main.messages,
        )
        return replace(state, main=grown)
    branch = _branch(state, event)
    return _with(
        state,
        replace(
            branch,
            tokens=branch.tokens + event.tokens,
            operations=branch.operations + 1,
            failed=branch.failed + event.failed,
            redactions=branch.redactions + event.redactions,
        ),
    )


def _compacted(state: State) -> State:
    """The host has thrown away what the open threads held; what it put in their place is counted like anything else."""
    opened = (replace(state.branches[open_id], tokens=0, messages=0) for open_id in state.path)
    main = replace(state.main, tokens=0, messages=0)
    return replace(_with(state, *opened), main=main, compactions=state.compactions + 1)


def _requested(state: State, event: RequestSent) -> State:
    folds = _draft_of(state.folds_seen)
    folds.update((fold.branch_id, fold.tokens) for fold in event.folds)
    state = replace(state, requests=(*state.requests[1 - CALLS_KEPT :], event.call_id), folds_seen=folds)
    for thread in event.threads:
        if thread.branch_id is None:
            state = replace(state, main=replace(state.main, messages=thread.messages))
        elif thread.branch_id in state.branches:
            state = _with(state, replace(state.branches[thread.branch_id], messages=thread.messages))
    return state


def _folded(state: State, event: BranchFolded) -> State:
    branch = _branch(state, event)
    folded = replace(
        branch,
        status="folded",
        closed_at=event.at,
        redactions=branch.redactions + event.redactions,
        summary_tokens=event.summary_tokens,
    )
    state = replace(_with(state, folded), path=tuple(open_id for open_id in state.path if open_id != branch.id))
    if branch.parent_id is None:
        return replace(state, main=replace(state.main, tokens=state.main.tokens + event.summary_tokens))
    parent = state.branches[branch.parent_id]
    return _with(state, replace(parent, tokens=parent.tokens + event.summary_tokens))


def _rolled_back(state: State, event: SessionRolledBack) -> State:
    """The later branches have been discarded by events of their own just before."""
    checkpoint = state.checkpoints[_branch(state, event).id]
    path = tuple(branch.id for branch in checkpoint.path)
    if event.restore_state:
        return replace(_with(state, *checkpoint.path), main=checkpoint.main, path=path)
    opened = (replace(state.branches[open_id], status="active", closed_at=None, summary_tokens=0) for open_id in path)
    return replace(_with(state, *opened), path=path)


def _branch(state: State, event: OperationCompleted | BranchFolded | BranchDiscarded | SessionRolledBack) -> Branch:
    branch = state.branches.get(event.branch_id or "")
    if branch is None:
        raise LogBroken(f"event {event.n} ({event.kind}) names a branch that was never created")
    return branch


def _with(state: State, *branches: Branch) -> State:
    changed = _draft_of(state.branches)
    changed.update((branch.id, branch) for branch in branches)
    return replace(state, branches=changed)


def _draft_of(items: Mapping[str, Value]) -> dict[str, Value]:
    """Itself within a replay, else a copy: a state that somebody has is never changed."""
    return items if isinstance(items, _Draft) else dict(items)


# ---- verbs: state and input → events


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a session that does not exist yet begins with."""

    session_id: str
    project_path: str
    name: str | None


def branch(
    state: State,
    limits: Limits,
    at: str,
    *,
    branch_id: str,
    description: str,
    prompt: str,
    tokens: int,
    redactions: int,
) -> list[Event]:
    """Begin a branch under the active one."""
    if state.depth >= limits.depth:
        raise LimitReached("branch_depth", limits.depth, "return from a branch first")
    if len(state.branches) >= limits.branches:
        raise LimitReached("branches_per_session", limits.branches, "go on without branching, or in another session")
    total = open_tokens(state) + tokens
    if limits.is_hard and total > limits.context_tokens:
        raise ContextLimitExceeded(total, limits.context_tokens)
    parent_id = state.path[-1] if state.path else None
    n = state.revision + 1
    return [BranchCreated(n, at, branch_id, parent_id, description, prompt, tokens, redactions)]


@dataclass(frozen=True, slots=True)
class Work:
    """Something that was done, before it has its place."""

    type: str
    tokens: int
    source: str
    failed: bool
    redactions: int
    call_id: str = ""
    compacts: bool = False


def record(state: State, at: str, *works: Work) -> list[Event]:
    """Put what was done where it was done. Never refused by a limit: it has happened."""
    branch_id = state.path[-1] if state.path else None
    return [
        OperationCompleted(
            n,
            at,
            None if work.compacts else branch_id,  # what is left of all threads stays when a branch is folded
            work.type,
            work.tokens,
            work.source,
            work.failed,
            work.redactions,
            work.call_id,
            work.compacts,
        )
        for n, work in enumerate(works, state.revision + 1)
    ]


def fold(
    state: State, at: str, *, branch_id: str | None, summary: str, summary_tokens: int, redactions: int
) -> list[Event]:
    """Fold a branch, by default the active one; what is open below it first, deepest first, without a summary."""
    target = _open_branch(state, branch_id)
    below = state.path[state.path.index(target.id) + 1 :]
    n = state.revision
    events: list[Event] = []
    for open_id in reversed(below):
        n += 1
        events.append(BranchFolded(n, at, open_id, "", 0, state.branches[open_id].tokens, 0, forced=True))
    folded = BranchFolded(n + 1, at, target.id, summary, summary_tokens, target.tokens, redactions, forced=False)
    return [*events, folded]


def rollback(state: State, at: str, *, branch_id: str, restore_state: bool) -> list[Event]:
    """Go back to where a branch began; every later branch is discarded."""
    target = state.branches.get(branch_id)
    if target is None:
        raise BranchNotFound(branch_id, state.session_id)
    if target.status == "discarded":
        data = {"branch_id": branch_id, "current_status": target.status}
        raise BranchStateInvalid("Cannot roll back: branch is discarded", data)
    n = state.revision
    events: list[Event] = []
    for later in reversed(_later(state, branch_id)):  # the deepest first, as a fold does
        n += 1
        events.append(BranchDiscarded(n, at, later))
    return [*events, SessionRolledBack(n + 1, at, branch_id, restore_state)]


def begin(beginning: Beginning, at: str) -> SessionStarted:
    return SessionStarted(1, at, beginning.session_id, beginning.project_path, beginning.name)


def open_tokens(state: State) -> int:
    """What the working context holds: the main thread and every open branch."""
    return state.main.tokens + sum(state.branches[open_id].tokens for open_id in state.path)


def _open_branch(state: State, branch_id: str | None) -> Branch:
    found = state.active if branch_id is None else state.branches.get(branch_id)
    if found is None and branch_id is not None:
        raise BranchNotFound(branch_id, state.session_id)
    if found is None or found.status != "active":
        data = {"branch_id": found.id if found else None, "current_status": found.status if found else None}
        raise BranchStateInvalid("Cannot fold branch: branch is not active", data)
    return found


def _later(state: State, branch_id: str) -> list[str]:
    """The branches created after this one that are not discarded yet, in order of creation."""
    created = list(state.branches)
    return [later for later in created[created.index(branch_id) + 1 :] if state.branches[later].status != "discarded"]
