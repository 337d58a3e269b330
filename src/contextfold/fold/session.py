"""A session's state and how events change it. No clock, no ids, no I/O.

    state = apply(… apply(apply(EMPTY, e1), e2) …, en)

is the only way to make a state; the verbs, which decide on events, are in `fold.verbs`. The states of a branch:

    branch.created → active ── branch.folded ───→ folded ←── work.folded (folded from the start)
                      │  ↑                          │
                      │  └── session.rolled_back ───┤   (to it, or to one nested in it)
                      └───── branch.discarded ──────┴→ discarded, for good

Open branches form a path: a new branch is a child of the active one, and folding a branch folds the open branches below
it. So everything that a rollback can restore is known when a branch begins: the main thread and the branches on the
path. They are its checkpoint. Every other branch was closed at that time and has not changed since; if an earlier
rollback discarded it, it discarded the target, too. So rolling back is equal to replaying the log up to that point,
which a test checks. A rollback to work that was folded afterwards goes back to just before its event: the fold is
discarded, and no branch is reopened.
"""

from __future__ import annotations

from contextfold.common.dataclass import dataclass, field, fields, replace
from contextfold.common.record import TypeVar
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
    WorkFolded,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any, Literal

    Status = Literal["active", "folded", "discarded"]

Value = TypeVar("Value")
STATUSES = ("active", "folded", "discarded")
# A longer log is processed in steps of this many events, so that other calls get a turn.
REPLAY_STEP_EVENTS = 200
# A report or request that is repeated after this many others counts as a new one.
CALL_IDS_REMEMBERED = 512


@dataclass(frozen=True, slots=True)
class RecentWork:
    """The operations that `context_fold` would fold.

    They are the operations of a thread since the user's last prompt, or since a later fold, return or branch point.
    """

    since: int = 0
    tokens: int = 0
    operations: int = 0
    failed: int = 0
    redactions: int = 0
    # The number of the thread's messages at `since`, according to the requests.
    messages: int = 0


@dataclass(frozen=True, slots=True)
class Thread:
    """The figures of the main thread. `messages` is the number of its messages in the requests so far."""

    tokens: int = 0
    operations: int = 0
    failed: int = 0
    redactions: int = 0
    messages: int = 0
    recent: RecentWork = field(default_factory=RecentWork)


@dataclass(frozen=True, slots=True)
class Branch:
    id: str
    parent_id: str | None
    description: str
    created_at: str
    # Prompt, operations, and summaries of folded children; of an open branch, since the host's last compaction.
    tokens: int
    # The number of redactions in description, prompt, operations and summary.
    redactions: int
    status: Status = "active"
    operations: int = 0
    failed: int = 0
    closed_at: str | None = None
    # The tokens that a folded branch left in its parent thread.
    summary_tokens: int = 0
    messages: int = 0
    recent: RecentWork = field(default_factory=RecentWork)
    # The number of the event if `context_fold` made the branch, which was then never open; else 0.
    folded_afterwards_n: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state that a rollback to a branch restores: the main thread and the open path, the branch itself last."""

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
    # The branches in the order of their creation.
    branches: Mapping[str, Branch] = field(default_factory=dict)
    # The ids of open branches, the active one last.
    path: tuple[str, ...] = ()
    checkpoints: Mapping[str, Checkpoint] = field(default_factory=dict)
    # The ids of the latest reports and of the latest requests, to recognise repeated ones.
    calls: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    # The tokens dropped by each fold that requests have shown so far.
    folds_seen: Mapping[str, int] = field(default_factory=dict)
    # The number of the host's compactions.
    compactions: int = 0
    # The model and the host last named, or empty.
    model: str = ""
    host: str = ""

    @property
    def active(self) -> Branch | None:
        return self.branches[self.path[-1]] if self.path else None

    @property
    def depth(self) -> int:
        return len(self.path)


EMPTY = State()
_STATE_FIELDS = tuple(each.name for each in fields(State))
_STATE_MAPPINGS = ("branches", "checkpoints", "folds_seen")


@dataclass(frozen=True, slots=True)
class SessionLimits:
    # None means the model's context window, if it is known (`fold.accounting`).
    context_tokens: int | None = None
    is_hard: bool = False
    depth: int = 8
    branches: int = 1_000


class LogBroken(ValueError):
    """The events of a log do not follow from one another, because of an error of the store or a bug."""


class _DraftMapping(dict[str, Value]):
    """A mapping that `apply` may change in place. Copying it for every event would make a replay quadratic."""


class _DraftState(State):
    """A state that `apply` changes in place. Its mappings are drafts, too."""

    __slots__ = ()


def replay(events: Iterable[Event], state: State = EMPTY) -> State:
    state = replayed_draft(events, drafted(state))
    values = {name: getattr(state, name) for name in _STATE_FIELDS}
    return State(**(values | {name: dict(values[name]) for name in _STATE_MAPPINGS}))


def states(events: Iterable[Event], state: State = EMPTY) -> Iterator[State]:
    """Yield the state after each event. The next event changes it in place."""
    state = drafted(state)
    for event in events:
        state = apply(state, event)
        yield state


def replayed_draft(events: Iterable[Event], state: State) -> State:
    """The state after events, as a draft. Successive operations are applied together, because they are most events."""
    run: list[OperationCompleted] = []
    for event in events:
        if isinstance(event, OperationCompleted) and not event.compacts:
            if run and run[-1].branch_id != event.branch_id:
                state, run = _operated(state, run), []
            run.append(event)
        else:
            state, run = apply(_operated(state, run), event), []
    return _operated(state, run)


def drafted(state: State) -> State:
    """A copy that `apply` changes in place."""
    values = {name: getattr(state, name) for name in _STATE_FIELDS}
    return _DraftState(**(values | {name: _DraftMapping(values[name]) for name in _STATE_MAPPINGS}))


def _changed(state: State, **changes: Any) -> State:  # noqa: ANN401 - as `replace`
    """The state with some fields changed: a draft itself, otherwise a copy, because a published state never changes."""
    if not isinstance(state, _DraftState):
        return replace(state, **changes)
    for name, value in changes.items():
        object.__setattr__(state, name, value)
    return state


def apply(state: State, event: Event) -> State:
    """The state after an event. Only the order of the log is checked, because the verb has checked the rest."""
    if isinstance(event, OperationCompleted):
        return _operated(state, [event])
    _check_follows(event, state.revision, state)
    last_at = max(state.last_at, event.at)
    match event:
        case SessionStarted(session_id=session_id, project_path=path, name=name):
            state = _changed(state, session_id=session_id, project_path=path, name=name, started_at=event.at)
        case BranchCreated():
            state = _created(state, event)
        case RequestSent():
            state = _requested(state, event)
        case BranchFolded():
            state = _folded(state, event)
        case WorkFolded():
            state = _work_folded(state, event)
        case BranchDiscarded():
            state = _discarded(state, event)
        case SessionRolledBack():
            state = _rolled_back(state, event)
        case SessionExpired():
            state = _changed(state, expired=True)
    return _changed(state, revision=event.n, last_at=last_at)


def _discarded(state: State, event: BranchDiscarded) -> State:
    branch = replace(_branch(state, event), status="discarded", closed_at=event.at)
    path = tuple(open_id for open_id in state.path if open_id != event.branch_id)
    checkpoints = _draft_of(state.checkpoints)
    checkpoints.pop(branch.id, None)
    return _changed(_with(state, branch), path=path, checkpoints=checkpoints)


def _created(state: State, event: BranchCreated) -> State:
    branch = Branch(
        event.branch_id,
        event.parent_id,
        event.description,
        event.at,
        event.tokens,
        event.redactions,
        recent=RecentWork(event.n),
    )
    state = _changed(_with(state, branch), path=(*state.path, branch.id))
    return _with_checkpoint(state, branch.id, event.n)


def _check_follows(event: Event, revision: int, state: State) -> None:
    if event.n != revision + 1 or (event.n == 1) != isinstance(event, SessionStarted) or state.expired:
        raise LogBroken(f"event {event.n} ({event.kind}) cannot follow revision {revision}")


def _operated(state: State, run: Sequence[OperationCompleted]) -> State:
    """The state after successive operations of one thread. A compaction is always applied alone."""
    if not run:
        return state
    for revision, event in enumerate(run, state.revision):
        _check_follows(event, revision, state)
    first, last = run[0], run[-1]
    if first.compacts:
        state = _compacted(state, first.n)
    thread = state.main if first.branch_id is None else _branch(state, first)
    changed = _with_operations(thread, run)
    call_ids = [event.call_id for event in run if event.call_id]
    # Only one copy of the state is made, because busy agents report thousands of operations a second.
    return _changed(
        state,
        revision=last.n,
        last_at=max(state.last_at, *(event.at for event in run)),
        calls=(*state.calls, *call_ids)[-CALL_IDS_REMEMBERED:] if call_ids else state.calls,
        model=next((event.model for event in reversed(run) if event.model), state.model),
        host=next((event.host for event in reversed(run) if event.host), state.host),
        main=changed if isinstance(changed, Thread) else state.main,
        branches=state.branches if isinstance(changed, Thread) else _with(state, changed).branches,
    )


def _with_operations(thread: Thread | Branch, run: Sequence[OperationCompleted]) -> Thread | Branch:
    tokens, operations = thread.tokens, thread.operations + len(run)
    failed, redactions, recent = thread.failed, thread.redactions, thread.recent
    since, since_tokens, since_operations = recent.since, recent.tokens, recent.operations
    since_failed, since_redactions, messages = recent.failed, recent.redactions, recent.messages
    for event in run:
        tokens += event.tokens
        failed += event.failed
        redactions += event.redactions
        if event.by_user or event.compacts:
            # Recent work begins after the user's last prompt, or after a compaction.
            since, messages = event.n, thread.messages
            since_tokens = since_operations = since_failed = since_redactions = 0
        else:
            since_tokens += event.tokens
            since_operations += 1
            since_failed += event.failed
            since_redactions += event.redactions
    recent = RecentWork(since, since_tokens, since_operations, since_failed, since_redactions, messages)
    if isinstance(thread, Thread):
        return Thread(tokens, operations, failed, redactions, thread.messages, recent)
    return replace(thread, tokens=tokens, operations=operations, failed=failed, redactions=redactions, recent=recent)


def _compacted(state: State, n: int) -> State:
    """The state after the host has emptied the open threads. The summary of the compaction is counted separately."""
    opened = (replace(state.branches[open_id], tokens=0, messages=0, recent=RecentWork(n)) for open_id in state.path)
    main = replace(state.main, tokens=0, messages=0, recent=RecentWork(n))
    return _changed(_with(state, *opened), main=main, compactions=state.compactions + 1)


def _requested(state: State, event: RequestSent) -> State:
    folds = _draft_of(state.folds_seen)
    folds.update((fold.branch_id, fold.tokens) for fold in event.folds)
    requests = (*state.requests[1 - CALL_IDS_REMEMBERED :], event.call_id)
    state = _changed(state, requests=requests, folds_seen=folds, model=event.model or state.model)
    for seen in event.threads:
        thread = state.main if seen.branch_id is None else state.branches.get(seen.branch_id)
        if thread is not None:
            is_begun = thread.recent.operations > 0
            recent = thread.recent if is_begun else replace(thread.recent, messages=seen.messages)
            state = _with_thread(state, replace(thread, messages=seen.messages, recent=recent))
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
    state = _changed(_with(state, folded), path=tuple(open_id for open_id in state.path if open_id != branch.id))
    parent = _thread(state, branch.parent_id)
    grown = parent.tokens + event.summary_tokens
    return _with_thread(state, replace(parent, tokens=grown, recent=RecentWork(event.n, messages=parent.messages)))


def _work_folded(state: State, event: WorkFolded) -> State:
    """Move the recent operations of the active thread to a new branch that is already folded."""
    state = _with_checkpoint(state, event.branch_id, event.n - 1)
    parent = _thread(state, event.parent_id)
    work = parent.recent
    branch = Branch(
        event.branch_id,
        event.parent_id,
        event.description,
        event.at,
        event.tokens_folded,
        work.redactions + event.redactions,
        "folded",
        work.operations,
        work.failed,
        event.at,
        event.summary_tokens,
        recent=work,
        folded_afterwards_n=event.n,
    )
    shrunk = replace(
        parent,
        tokens=parent.tokens - event.tokens_folded + event.summary_tokens,
        operations=parent.operations - work.operations,
        failed=parent.failed - work.failed,
        redactions=parent.redactions - work.redactions,
        messages=work.messages,
        recent=RecentWork(event.n, messages=work.messages),
    )
    return _with_thread(_with(state, branch), shrunk)


def _rolled_back(state: State, event: SessionRolledBack) -> State:
    """Restore the checkpoint. The events just before have discarded the later branches."""
    target = _branch(state, event)
    checkpoint = state.checkpoints[target.id]
    path = tuple(branch.id for branch in checkpoint.path)
    if event.restore_state:
        state = _changed(_with(state, *checkpoint.path), main=checkpoint.main, path=path)
    else:
        opened = (
            replace(state.branches[open_id], status="active", closed_at=None, summary_tokens=0) for open_id in path
        )
        state = _changed(_with(state, *opened), path=path)
    if not target.folded_afterwards_n:
        return state
    if not event.restore_state:
        state = _with_thread(state, _work_given_back(_thread(state, target.parent_id), target))
    checkpoints = _draft_of(state.checkpoints)
    del checkpoints[target.id]
    discarded = replace(target, status="discarded", closed_at=event.at)
    return _changed(_with(state, discarded), checkpoints=checkpoints)


def _work_given_back(parent: Thread | Branch, fold: Branch) -> Thread | Branch:
    """Add the operations of an undone fold to its thread."""
    work, recent = fold.recent, parent.recent
    if recent.since == fold.folded_afterwards_n:
        recent = RecentWork(
            work.since,
            work.tokens + recent.tokens,
            work.operations + recent.operations,
            work.failed + recent.failed,
            work.redactions + recent.redactions,
            work.messages,
        )
    return replace(
        parent,
        tokens=parent.tokens + fold.tokens - fold.summary_tokens,
        operations=parent.operations + work.operations,
        failed=parent.failed + work.failed,
        redactions=parent.redactions + work.redactions,
        recent=recent,
    )


def _thread(state: State, branch_id: str | None) -> Thread | Branch:
    return state.main if branch_id is None else state.branches[branch_id]


def _with_thread(state: State, thread: Thread | Branch) -> State:
    return _changed(state, main=thread) if isinstance(thread, Thread) else _with(state, thread)


def _with_checkpoint(state: State, branch_id: str, revision: int) -> State:
    checkpoints = _draft_of(state.checkpoints)
    checkpoints[branch_id] = Checkpoint(revision, state.main, tuple(state.branches[open_id] for open_id in state.path))
    return _changed(state, checkpoints=checkpoints)


def _branch(state: State, event: OperationCompleted | BranchFolded | BranchDiscarded | SessionRolledBack) -> Branch:
    branch = state.branches.get(event.branch_id or "")
    if branch is None:
        raise LogBroken(f"event {event.n} ({event.kind}) names a branch that was never created")
    return branch


def _with(state: State, *branches: Branch) -> State:
    changed = _draft_of(state.branches)
    for branch in branches:
        changed[branch.id] = branch
    return _changed(state, branches=changed)


def _draft_of(items: Mapping[str, Value]) -> dict[str, Value]:
    """The mapping itself during a replay, otherwise a copy, because a published state is never changed."""
    return items if isinstance(items, _DraftMapping) else dict(items)


def open_tokens(state: State) -> int:
    """The tokens in the working context: those of the main thread and of every open branch."""
    return state.main.tokens + sum(state.branches[open_id].tokens for open_id in state.path)
