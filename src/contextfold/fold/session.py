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

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from contextfold.errors import StoreInvalid
from contextfold.fold.events import (
    BranchCreated,
    BranchDiscarded,
    BranchFolded,
    Event,
    OperationCompleted,
    RequestSent,
    SessionExpired,
    SessionPlaced,
    SessionRolledBack,
    SessionStarted,
    ThreadSeen,
    WorkFolded,
    kind_of,
)

Status = Literal["active", "folded", "discarded"]
Figures = TypeVar("Figures", "Thread", "Branch", "RecentWork", "Thread | Branch")

STATUSES = ("active", "folded", "discarded")
# A longer log is processed in steps of this many events, so that other calls get a turn.
REPLAY_STEP_EVENTS = 200
# The latest runs of a session that are remembered.
RUNS_REMEMBERED = 8
# A report or request that is repeated after this many others counts as a new one.
CALL_IDS_REMEMBERED = 512


class RecentWork(NamedTuple):
    """The operations that `context_fold` would fold.

    They are the operations of a thread since the user's last prompt, or since a later fold, return or branch point.
    """

    since: int = 0
    tokens: int = 0
    operations: int = 0
    failed: int = 0
    redactions: int = 0


class Thread(NamedTuple):
    """The figures of the main thread. `messages` is the number of its messages in the requests so far."""

    tokens: int = 0
    operations: int = 0
    failed: int = 0
    redactions: int = 0
    messages: int = 0
    recent: RecentWork = RecentWork()


class Branch(NamedTuple):
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
    recent: RecentWork = RecentWork()
    # The tokens that a return would take from requests; None if no request has shown the branch.
    removable: int | None = None
    # The number of the event that folded it, or 0.
    folded_n: int = 0
    # The number of the event if `context_fold` made the branch, which was then never open; else 0.
    folded_afterwards_n: int = 0


class Checkpoint(NamedTuple):
    """The state that a rollback to a branch restores: the main thread and the open path, the branch itself last."""

    revision: int
    main: Thread
    path: tuple[Branch, ...]


class State(NamedTuple):
    session_id: str | None = None
    project_path: str = ""
    name: str | None = None
    started_at: str = ""
    revision: int = 0
    last_at: str = ""
    expired: bool = False
    main: Thread = Thread()
    # The branches in the order of their creation.
    branches: Mapping[str, Branch] = MappingProxyType({})
    # The ids of open branches, the active one last.
    path: tuple[str, ...] = ()
    checkpoints: Mapping[str, Checkpoint] = MappingProxyType({})
    # The ids of the latest reports and of the latest requests, to recognise repeated ones.
    calls: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    # The tokens dropped by each fold that requests have shown so far.
    folds_seen: Mapping[str, int] = MappingProxyType({})
    # The tokens of each old result that requests have left out because the prompt cache had lapsed.
    left_out: Mapping[str, int] = MappingProxyType({})
    # The number of the host's compactions.
    compactions: int = 0
    # The number of the last request of the conversation, and whether it has offered tools.
    last_request_n: int = 0
    has_tools: bool = False
    # The tokens of the host's own prompt and tools in that request.
    host_tokens: int = 0
    # The model and the host last named, or empty.
    model: str = ""
    host: str = ""
    # The host's id of the conversation and of the subagent, and whether the host gave the former; see `SessionStarted`.
    conversation: str = ""
    agent: str = ""
    is_named: bool = False
    # The latest runs in which requests were sent, the last one last.
    runs: tuple[str, ...] = ()
    # The proxy's id of the conversation of the last request.
    proxied_id: str = ""

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
    def context_tokens(self) -> int:
        """The tokens in the model's context, with the host's own prompt and tools."""
        return self.total_tokens + self.host_tokens

    @property
    def folded_tokens(self) -> int:
        """The tokens that folds have removed."""
        return sum(map(self.removed_tokens, self.branches.values())) + self.folded_before_tokens

    @property
    def folded_before_tokens(self) -> int:
        """The tokens that requests leave out because of folds in another session.

        The conversation was forked from that of the other session, or goes on after the other session has ended.
        """
        return sum(tokens for fold_id, tokens in self.folds_seen.items() if fold_id not in self.branches)

    @property
    def left_out_tokens(self) -> int:
        """The tokens of the old results that were left out because the prompt cache had lapsed."""
        return sum(self.left_out.values())

    def removed_tokens(self, branch: Branch) -> int:
        """The tokens that a fold has removed.

        Where requests are seen, a fold that the next one did not leave out has removed nothing. A fold inside of
        another is not seen itself. What requests leave out does not come back when the fold is undone.
        """
        if branch.status == "discarded":
            return branch.tokens if branch.id in self.folds_seen else 0
        if branch.status == "active":
            return 0
        outer: Branch | None = branch
        while outer and self.last_request_n > branch.folded_n and outer.id not in self.folds_seen:
            outer = self.branches.get(outer.parent_id or "")
        return branch.tokens if outer else 0


EMPTY = State()


class SessionLimits(NamedTuple):
    # None means the model's context window, if it is known (`fold.policy`).
    context_tokens: int | None = None
    is_hard: bool = False
    depth: int = 8
    branches: int = 1_000


class LogBroken(StoreInvalid):
    """The events of a log do not follow from one another, because of an error of the store or a bug."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; was it written by a newer version?")


def replay(events: Iterable[Event], state: State = EMPTY) -> State:
    """The state after events. Only the order of the log is checked, because the verbs have checked the rest."""
    replayed = Replay(state)
    replayed.apply(events)
    return replayed.state


def apply(state: State, event: Event) -> State:
    return replay((event,), state)


class Replay:
    """Applies events to a state.

    The branches, checkpoints and folds are dictionaries of its own and change in place: copying them for every event
    would make the replay of a log quadratic. So `state` may be read until the next event, and kept after the last one.
    """

    def __init__(self, state: State = EMPTY) -> None:
        self._branches, self._checkpoints = dict(state.branches), dict(state.checkpoints)
        self._folds_seen, self._left_out = dict(state.folds_seen), dict(state.left_out)
        self.state = state._replace(
            branches=self._branches,
            checkpoints=self._checkpoints,
            folds_seen=self._folds_seen,
            left_out=self._left_out,
        )

    def apply(self, events: Iterable[Event]) -> None:
        """Apply events in order. Successive operations are applied together, because they are most events."""
        waiting: list[OperationCompleted] = []
        for event in events:
            self._check_follows(event, self.state.revision + len(waiting))
            operation = event if isinstance(event, OperationCompleted) and not event.compacts else None
            if waiting and (operation is None or operation.branch_id != waiting[-1].branch_id):
                self._add_operations(waiting)
                waiting = []
            if operation is None:
                self._apply_event(event)
            else:
                waiting.append(operation)
        if waiting:
            self._add_operations(waiting)

    def _change(self, **changes: Any) -> None:  # noqa: ANN401 - as `_replace`
        self.state = self.state._replace(**changes)

    def _check_follows(self, event: Event, revision: int) -> None:
        is_first = isinstance(event, SessionStarted)
        if event.n != revision + 1 or (event.n == 1) != is_first or self.state.expired:
            raise LogBroken(f"event {event.n} ({kind_of(event)}) cannot follow revision {revision}")

    def _apply_event(self, event: Event) -> None:
        match event:
            case SessionStarted() | SessionPlaced():
                # Their members beside number and time are fields of the state.
                self._change(**dict(zip(event._fields[2:], event[2:], strict=True)))
                self._change(started_at=self.state.started_at or event.at)
            case BranchCreated():
                self._create_branch(event)
            case OperationCompleted():
                self._compact_threads(event)
            case RequestSent():
                self._add_request(event)
            case BranchFolded():
                self._fold_branch(event)
            case WorkFolded():
                self._fold_work(event)
            case BranchDiscarded():
                self._discard_branch(self._branch_of(event), event.at)
            case SessionRolledBack():
                self._roll_back(event)
            case SessionExpired():
                self._change(expired=True)
        self._change(revision=event.n, last_at=max(self.state.last_at, event.at))

    def _create_branch(self, event: BranchCreated) -> None:
        branch = Branch(
            id=event.branch_id,
            parent_id=event.parent_id,
            description=event.description,
            created_at=event.at,
            tokens=event.tokens,
            redactions=event.redactions,
            recent=RecentWork(event.n),
        )
        self._put(branch)
        self._change(path=(*self.state.path, branch.id))
        self._checkpoints[branch.id] = self._make_checkpoint(event.n)

    def _add_operations(self, operations: Sequence[OperationCompleted]) -> None:
        """Apply successive operations of one thread. A compaction is always applied alone."""
        thread = self.state.main if operations[0].branch_id is None else self._branch_of(operations[0])
        work = self._sum_up(operations)
        # Recent work begins after the user's last prompt, or after a compaction.
        starts = [at for at, event in enumerate(operations) if event.by_user or event.compacts]
        if starts:
            later = self._sum_up(operations[starts[-1] + 1 :])
            recent = _add_work(RecentWork(operations[starts[-1]].n), later)
        else:
            recent = _add_work(thread.recent, work)
        self._put(_add_work(thread, work, recent=recent))
        call_ids = [event.call_id for event in operations if event.call_id]
        self._change(
            revision=operations[-1].n,
            last_at=max(self.state.last_at, *(event.at for event in operations)),
            calls=(*self.state.calls, *call_ids)[-CALL_IDS_REMEMBERED:] if call_ids else self.state.calls,
            model=next((event.model for event in reversed(operations) if event.model), self.state.model),
            host=next((event.host for event in reversed(operations) if event.host), self.state.host),
        )

    def _compact_threads(self, event: OperationCompleted) -> None:
        """The host has emptied the open threads. The operation has the tokens of its summary."""
        for open_id in (None, *self.state.path):
            self._put(self._thread(open_id)._replace(tokens=0, messages=0, recent=RecentWork(event.n)))
        self._change(compactions=self.state.compactions + 1)
        self._add_operations([event])

    def _add_request(self, event: RequestSent) -> None:
        self._folds_seen.update((fold.branch_id, fold.tokens) for fold in event.folds)
        self._left_out.update(event.left_out)
        requests = (*self.state.requests[1 - CALL_IDS_REMEMBERED :], event.call_id)
        runs = self.state.runs
        if event.run and event.run not in runs[-1:]:
            runs = (*(run for run in runs if run != event.run), event.run)[-RUNS_REMEMBERED:]
        self._change(requests=requests, runs=runs)
        # A request beside the conversation, such as one for a title, may be for another model.
        if event.model and (event.threads or not self.state.model):
            self._change(model=event.model)
        for seen in event.threads:
            thread = self.state.main if seen.branch_id is None else self._branches.get(seen.branch_id)
            if thread is not None:
                self._put(_see_thread(thread, seen, event.work_tokens if seen is event.threads[-1] else None))
        if any(seen.tokens is not None for seen in event.threads):
            has_tools = self.state.has_tools or event.has_tools
            figures = {"last_request_n": event.n, "host_tokens": event.host_tokens, "has_tools": has_tools}
            self._change(**figures, proxied_id=event.conversation)

    def _fold_branch(self, event: BranchFolded) -> None:
        branch = self._branch_of(event)
        folded = branch._replace(
            status="folded",
            closed_at=event.at,
            tokens=event.tokens_folded,
            folded_n=event.n,
            redactions=branch.redactions + event.redactions,
            summary_tokens=event.summary_tokens,
        )
        self._put(folded)
        self._change(path=tuple(open_id for open_id in self.state.path if open_id != branch.id))
        self._remove_from_open(event.tokens_folded)
        parent = self._thread(branch.parent_id)
        grown = parent.tokens + event.summary_tokens
        self._put(parent._replace(tokens=grown, recent=RecentWork(event.n)))

    def _fold_work(self, event: WorkFolded) -> None:
        """Move the recent operations of the active thread to a new branch that is already folded."""
        self._checkpoints[event.branch_id] = self._make_checkpoint(event.n - 1)
        parent = self._thread(event.parent_id)
        work = parent.recent
        branch = Branch(
            id=event.branch_id,
            parent_id=event.parent_id,
            description=event.description,
            created_at=event.at,
            tokens=event.tokens_folded,
            redactions=work.redactions + event.redactions,
            status="folded",
            operations=work.operations,
            failed=work.failed,
            closed_at=event.at,
            summary_tokens=event.summary_tokens,
            recent=work,
            folded_n=event.n,
            folded_afterwards_n=event.n,
        )
        # The provider's count of a thread may be smaller than the estimate of what is folded.
        shrunk = _add_work(parent, work, sign=-1)._replace(
            tokens=max(0, parent.tokens - event.tokens_folded) + event.summary_tokens,
            recent=RecentWork(event.n),
        )
        self._put(branch)
        self._put(shrunk)
        self._remove_from_open(event.tokens_folded)

    def _remove_from_open(self, tokens: int) -> None:
        """What has left the requests cannot leave them again when a branch around it returns."""
        for open_id in self.state.path:
            branch = self._branches[open_id]
            if branch.removable is not None:
                self._put(branch._replace(removable=max(0, branch.removable - tokens)))

    def _discard_branch(self, branch: Branch, at: str) -> None:
        self._put(branch._replace(status="discarded", closed_at=at))
        self._change(path=tuple(open_id for open_id in self.state.path if open_id != branch.id))
        self._checkpoints.pop(branch.id, None)

    def _roll_back(self, event: SessionRolledBack) -> None:
        """Restore the checkpoint. The events just before have discarded the later branches."""
        target = self._branch_of(event)
        checkpoint = self._checkpoints[target.id]
        for branch in checkpoint.path:
            reopened = self._branches[branch.id]._replace(status="active", closed_at=None, summary_tokens=0)
            self._put(branch if event.restore_state else reopened)
        if event.restore_state:
            self._put(checkpoint.main)
        self._change(path=tuple(branch.id for branch in checkpoint.path))
        if target.folded_afterwards_n:
            if not event.restore_state:
                self._put(_give_work_back(self._thread(target.parent_id), target))
            self._discard_branch(target, event.at)

    def _sum_up(self, operations: Sequence[OperationCompleted]) -> RecentWork:
        """The sums over operations. Where requests are seen, they alone count tokens, and a compaction's summary."""
        has_requests = self.state.last_request_n > 0
        return RecentWork(
            tokens=sum(event.tokens for event in operations if event.compacts or not has_requests),
            operations=len(operations),
            failed=sum(event.failed for event in operations),
            redactions=sum(event.redactions for event in operations),
        )

    def _thread(self, branch_id: str | None) -> Thread | Branch:
        return self.state.main if branch_id is None else self._branches[branch_id]

    def _put(self, thread: Thread | Branch) -> None:
        if isinstance(thread, Branch):
            self._branches[thread.id] = thread
        else:
            self._change(main=thread)

    def _make_checkpoint(self, revision: int) -> Checkpoint:
        return Checkpoint(revision, self.state.main, tuple(self._branches[open_id] for open_id in self.state.path))

    def _branch_of(self, event: OperationCompleted | BranchFolded | BranchDiscarded | SessionRolledBack) -> Branch:
        branch = self._branches.get(event.branch_id or "")
        if branch is None:
            raise LogBroken(f"event {event.n} ({kind_of(event)}) names a branch that was never created")
        return branch


def _see_thread(thread: Thread | Branch, seen: ThreadSeen, work_tokens: int | None) -> Thread | Branch:
    """A thread with the figures of a request. `work_tokens` are those of the active thread's recent work."""
    thread = thread._replace(messages=seen.messages)
    if seen.tokens is None:
        return thread
    recent = thread.recent if work_tokens is None else thread.recent._replace(tokens=work_tokens)
    if isinstance(thread, Branch):
        return thread._replace(tokens=seen.tokens, recent=recent, removable=seen.removable)
    return thread._replace(tokens=seen.tokens, recent=recent)


def _add_work(figures: Figures, work: RecentWork, sign: int = 1, **changes: Any) -> Figures:  # noqa: ANN401
    """Add the sums over some operations, or subtract them. `changes` are of other fields, as for `replace`."""
    return figures._replace(
        tokens=figures.tokens + sign * work.tokens,
        operations=figures.operations + sign * work.operations,
        failed=figures.failed + sign * work.failed,
        redactions=figures.redactions + sign * work.redactions,
        **changes,
    )


def _give_work_back(parent: Thread | Branch, fold: Branch) -> Thread | Branch:
    """Add the operations of an undone fold to its thread."""
    work, recent = fold.recent, parent.recent
    if recent.since == fold.folded_afterwards_n:
        recent = _add_work(work, recent)
    tokens = parent.tokens + fold.tokens - fold.summary_tokens
    return _add_work(parent, work)._replace(tokens=tokens, recent=recent)
