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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

# Importing `operator` itself would take longer.
from operator import attrgetter
from typing import Any, Literal, TypeVar

from contextfold.errors import StoreInvalid
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

Status = Literal["active", "folded", "discarded"]
Figures = TypeVar("Figures", bound="Thread | Branch | RecentWork")

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
    def active_id(self) -> str | None:
        return self.path[-1] if self.path else None

    @property
    def depth(self) -> int:
        return len(self.path)

    @property
    def total_tokens(self) -> int:
        """The tokens in the working context: those of the main thread and of every open branch."""
        return self.main.tokens + sum(self.branches[open_id].tokens for open_id in self.path)

    @property
    def folded_tokens(self) -> int:
        return sum(branch.tokens for branch in self.branches.values() if branch.status == "folded")


EMPTY = State()
_values_of = attrgetter(*(each.name for each in fields(State)))


@dataclass(frozen=True, slots=True)
class SessionLimits:
    # None means the model's context window, if it is known (`fold.policy`).
    context_tokens: int | None = None
    is_hard: bool = False
    depth: int = 8
    branches: int = 1_000


class LogBroken(StoreInvalid):
    """The events of a log do not follow from one another, because of an error of the store or a bug."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; was it written by a newer version?")


class Draft(State):
    """A state that `advance` changes in place. Copying the mappings for every event would make a replay quadratic."""

    __slots__ = ()
    branches: dict[str, Branch]
    checkpoints: dict[str, Checkpoint]
    folds_seen: dict[str, int]


def drafted(state: State) -> Draft:
    draft = Draft(*_values_of(state))
    _change(draft, branches={**state.branches}, checkpoints={**state.checkpoints}, folds_seen={**state.folds_seen})
    return draft


def replay(events: Iterable[Event], state: State = EMPTY) -> State:
    """The state after events. Only the order of the log is checked, because the verbs have checked the rest."""
    draft = drafted(state)
    advance(draft, events)
    return State(*_values_of(draft))


def apply(state: State, event: Event) -> State:
    return replay((event,), state)


def advance(draft: Draft, events: Iterable[Event]) -> None:
    """Change a draft by events. Successive operations are applied together, because they are most events."""
    run: list[OperationCompleted] = []
    for event in events:
        _check_follows(event, draft.revision + len(run), draft)
        operation = event if isinstance(event, OperationCompleted) and not event.compacts else None
        if run and (operation is None or operation.branch_id != run[-1].branch_id):
            _operate(draft, run)
            run = []
        if operation is None:
            _apply(draft, event)
        else:
            run.append(operation)
    if run:
        _operate(draft, run)


def _change(draft: Draft, **changes: Any) -> None:  # noqa: ANN401 - as `replace`
    for name, value in changes.items():
        object.__setattr__(draft, name, value)


def _check_follows(event: Event, revision: int, state: State) -> None:
    if event.n != revision + 1 or (event.n == 1) != isinstance(event, SessionStarted) or state.expired:
        raise LogBroken(f"event {event.n} ({event.kind}) cannot follow revision {revision}")


def _apply(draft: Draft, event: Event) -> None:
    match event:
        case SessionStarted(session_id=session_id, project_path=path, name=name):
            _change(draft, session_id=session_id, project_path=path, name=name, started_at=event.at)
        case BranchCreated():
            _create(draft, event)
        case OperationCompleted():
            _compact(draft, event)
        case RequestSent():
            _request(draft, event)
        case BranchFolded():
            _fold(draft, event)
        case WorkFolded():
            _fold_work(draft, event)
        case BranchDiscarded():
            _discard(draft, _branch(draft, event), event.at)
        case SessionRolledBack():
            _roll_back(draft, event)
        case SessionExpired():
            _change(draft, expired=True)
    _change(draft, revision=event.n, last_at=max(draft.last_at, event.at))


def _create(draft: Draft, event: BranchCreated) -> None:
    branch = Branch(
        event.branch_id,
        event.parent_id,
        event.description,
        event.at,
        event.tokens,
        event.redactions,
        recent=RecentWork(event.n),
    )
    _put(draft, branch)
    _change(draft, path=(*draft.path, branch.id))
    draft.checkpoints[branch.id] = _checkpoint(draft, event.n)


def _operate(draft: Draft, run: Sequence[OperationCompleted]) -> None:
    """Apply successive operations of one thread. A compaction is always applied alone."""
    thread = draft.main if run[0].branch_id is None else _branch(draft, run[0])
    # Recent work begins after the user's last prompt, or after a compaction.
    start = next((at for at in reversed(range(len(run))) if run[at].by_user or run[at].compacts), None)
    recent = thread.recent if start is None else RecentWork(run[start].n, messages=thread.messages)
    work = _work_of(run)
    recent = _with_work(recent, work if start is None else _work_of(run[start + 1 :]))
    _put(draft, _with_work(thread, work, recent=recent))
    call_ids = [event.call_id for event in run if event.call_id]
    _change(
        draft,
        revision=run[-1].n,
        last_at=max(draft.last_at, *(event.at for event in run)),
        calls=(*draft.calls, *call_ids)[-CALL_IDS_REMEMBERED:] if call_ids else draft.calls,
        model=next((event.model for event in reversed(run) if event.model), draft.model),
        host=next((event.host for event in reversed(run) if event.host), draft.host),
    )


def _work_of(run: Sequence[OperationCompleted]) -> RecentWork:
    """The sums over operations."""
    return RecentWork(
        tokens=sum(event.tokens for event in run),
        operations=len(run),
        failed=sum(event.failed for event in run),
        redactions=sum(event.redactions for event in run),
    )


def _with_work(figures: Figures, work: RecentWork, sign: int = 1, **changes: Any) -> Figures:  # noqa: ANN401
    """Add the sums over some operations, or subtract them. `changes` are of other fields, as for `replace`."""
    return replace(
        figures,
        tokens=figures.tokens + sign * work.tokens,
        operations=figures.operations + sign * work.operations,
        failed=figures.failed + sign * work.failed,
        redactions=figures.redactions + sign * work.redactions,
        **changes,
    )


def _compact(draft: Draft, event: OperationCompleted) -> None:
    """The host has emptied the open threads. The operation has the tokens of its summary."""
    for open_id in (None, *draft.path):
        _put(draft, replace(_thread(draft, open_id), tokens=0, messages=0, recent=RecentWork(event.n)))
    _change(draft, compactions=draft.compactions + 1)
    _operate(draft, [event])


def _request(draft: Draft, event: RequestSent) -> None:
    draft.folds_seen.update((fold.branch_id, fold.tokens) for fold in event.folds)
    requests = (*draft.requests[1 - CALL_IDS_REMEMBERED :], event.call_id)
    _change(draft, requests=requests, model=event.model or draft.model)
    for seen in event.threads:
        thread = draft.main if seen.branch_id is None else draft.branches.get(seen.branch_id)
        if thread is not None:
            is_begun = thread.recent.operations > 0
            recent = thread.recent if is_begun else replace(thread.recent, messages=seen.messages)
            _put(draft, replace(thread, messages=seen.messages, recent=recent))


def _fold(draft: Draft, event: BranchFolded) -> None:
    branch = _branch(draft, event)
    folded = replace(
        branch,
        status="folded",
        closed_at=event.at,
        redactions=branch.redactions + event.redactions,
        summary_tokens=event.summary_tokens,
    )
    _put(draft, folded)
    _change(draft, path=tuple(open_id for open_id in draft.path if open_id != branch.id))
    parent = _thread(draft, branch.parent_id)
    grown = parent.tokens + event.summary_tokens
    _put(draft, replace(parent, tokens=grown, recent=RecentWork(event.n, messages=parent.messages)))


def _fold_work(draft: Draft, event: WorkFolded) -> None:
    """Move the recent operations of the active thread to a new branch that is already folded."""
    draft.checkpoints[event.branch_id] = _checkpoint(draft, event.n - 1)
    parent = _thread(draft, event.parent_id)
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
        _with_work(parent, work, sign=-1),
        tokens=parent.tokens - event.tokens_folded + event.summary_tokens,
        messages=work.messages,
        recent=RecentWork(event.n, messages=work.messages),
    )
    _put(draft, branch)
    _put(draft, shrunk)


def _discard(draft: Draft, branch: Branch, at: str) -> None:
    _put(draft, replace(branch, status="discarded", closed_at=at))
    _change(draft, path=tuple(open_id for open_id in draft.path if open_id != branch.id))
    draft.checkpoints.pop(branch.id, None)


def _roll_back(draft: Draft, event: SessionRolledBack) -> None:
    """Restore the checkpoint. The events just before have discarded the later branches."""
    target = _branch(draft, event)
    checkpoint = draft.checkpoints[target.id]
    for branch in checkpoint.path:
        reopened = replace(draft.branches[branch.id], status="active", closed_at=None, summary_tokens=0)
        _put(draft, branch if event.restore_state else reopened)
    if event.restore_state:
        _put(draft, checkpoint.main)
    _change(draft, path=tuple(branch.id for branch in checkpoint.path))
    if target.folded_afterwards_n:
        if not event.restore_state:
            _put(draft, _work_given_back(_thread(draft, target.parent_id), target))
        _discard(draft, target, event.at)


def _work_given_back(parent: Thread | Branch, fold: Branch) -> Thread | Branch:
    """Add the operations of an undone fold to its thread."""
    work, recent = fold.recent, parent.recent
    if recent.since == fold.folded_afterwards_n:
        recent = _with_work(work, recent)
    tokens = parent.tokens + fold.tokens - fold.summary_tokens
    return replace(_with_work(parent, work), tokens=tokens, recent=recent)


def _thread(state: State, branch_id: str | None) -> Thread | Branch:
    return state.main if branch_id is None else state.branches[branch_id]


def _put(draft: Draft, thread: Thread | Branch) -> None:
    if isinstance(thread, Branch):
        draft.branches[thread.id] = thread
    else:
        _change(draft, main=thread)


def _checkpoint(state: State, revision: int) -> Checkpoint:
    return Checkpoint(revision, state.main, tuple(state.branches[open_id] for open_id in state.path))


def _branch(state: State, event: OperationCompleted | BranchFolded | BranchDiscarded | SessionRolledBack) -> Branch:
    branch = state.branches.get(event.branch_id or "")
    if branch is None:
        raise LogBroken(f"event {event.n} ({event.kind}) names a branch that was never created")
    return branch
