"""Commits the events of a verb: load, decide, commit, with any store. Knows no particular verb, no text, no protocol.

A session's state is cached between calls, and the store checks its revision with every commit: a call that lost a race
reads the missing events and decides again. Refusals and calls that only read are never based on a state that might be
outdated.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from contextfold.common.canonical import encode
from contextfold.common.dataclass import dataclass, field
from contextfold.common.event_loop import CallLock, pause, timeout
from contextfold.errors import ArgumentInvalid, FoldError, StoreInvalid, StoreUnavailable
from contextfold.fold.accounting import Health
from contextfold.fold.archive import entries_of
from contextfold.fold.events import (
    BranchDiscarded,
    BranchFolded,
    Event,
    EventUnknown,
    SessionRolledBack,
    WorkFolded,
    timestamp,
)
from contextfold.fold.ports.store import (
    Commit,
    CommitReceipt,
    KnownRevision,
    Operation,
    SessionKey,
    StaleRevision,
    Store,
    Summary,
)
from contextfold.fold.service.policy import FoldPolicy
from contextfold.fold.session import EMPTY, REPLAY_STEP_EVENTS, LogBroken, State, apply, replay
from contextfold.fold.tool_results import state_summary
from contextfold.fold.verbs import NewSession, Verb

# A call is tried at most this many times. Each lost race means that another call has succeeded.
TRIES_MAX = 200
# A call waits at most this long for earlier calls on the same session.
TURN_TIMEOUT_S = 5.0
# The longest pause before a retry. It is random, so that two daemons do not collide repeatedly.
RETRY_PAUSE_MAX_S = 0.02
# This many ids of calls, requests and folds need as much memory as a branch.
IDS_PER_WEIGHT = 16
# At most this many sessions and branches are cached; others are read from the store when needed.
WEIGHT_CACHED_MAX = 200_000


@dataclass(frozen=True, slots=True)
class SessionChange:
    key: SessionKey
    verb: Verb
    # None if the change may not begin a session.
    new_session: NewSession | None
    # Set if the sender may repeat the call.
    operation: Operation | None
    # Whether the operation may have been committed before.
    is_retry: bool = True


@dataclass(frozen=True, slots=True)
class VerbOutcome:
    """A result and the session's state after it, both as JSON, and that state itself."""

    answer: str
    state: str
    events: Sequence[Event] = ()
    now: State = EMPTY


@dataclass(slots=True)
class _CachedSession:
    lock: CallLock = field(default_factory=CallLock)
    state: State = EMPTY
    users: int = 0

    @property
    def weight(self) -> int:
        state = self.state
        ids = len(state.calls) + len(state.requests) + len(state.folds_seen)
        return 1 + len(state.branches) + ids // IDS_PER_WEIGHT


class Sessions:
    def __init__(
        self,
        store: Store,
        policy: FoldPolicy,
        clock: Callable[[], datetime],
        *,
        health_of: Callable[[Sequence[Event], State], Health],
        on_conflict: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._policy, self._clock = store, policy, clock
        self._health_of, self._on_conflict = health_of, on_conflict
        self._idle = timedelta(seconds=policy.idle_s)
        self._cached: OrderedDict[SessionKey, _CachedSession] = OrderedDict()
        self._weight = 0

    async def look(self, key: SessionKey) -> State:
        """The current state of a session; an empty state if there is none. Readers do not wait for writers."""
        async with self._in_use(key) as cached:
            state = await self._refresh(key, cached)
            return EMPTY if self._is_idle(state) else state

    async def change(self, change: SessionChange) -> VerbOutcome:
        async with self._session(change.key) as cached:
            if change.operation is not None and change.is_retry:
                done = await self._earlier(change.operation, change.key, cached)
                if done is not None:
                    return done
            # The cached state is tried first. After a refusal or a lost race, the store is read.
            if cached.state.revision and (outcome := await self._attempt(change, cached, is_fresh=False)):
                return outcome
            for lost in range(TRIES_MAX):
                await self._refresh(change.key, cached)
                if outcome := await self._attempt(change, cached, is_fresh=True):
                    return outcome
                import random

                await pause(random.uniform(0, min(RETRY_PAUSE_MAX_S, 0.001 * (lost + 1))))  # noqa: S311 - no secret
        raise StoreUnavailable(f"lost {TRIES_MAX} races for one session in a row")

    def last_known(self, key: SessionKey) -> State:
        """The cached state of a session. Does not read the store."""
        cached = self._cached.get(key)
        return EMPTY if cached is None or self._is_idle(cached.state) else cached.state

    async def _earlier(self, operation: Operation, key: SessionKey, cached: _CachedSession) -> VerbOutcome | None:
        """The outcome of this operation if it was committed before and its session has not ended."""
        if self._is_idle(await self._refresh(key, cached)):
            return None
        done = await self._store.receipt(key, operation.id)
        return self._again(done, operation, cached.state) if done else None

    async def _attempt(self, change: SessionChange, cached: _CachedSession, *, is_fresh: bool) -> VerbOutcome | None:
        """Decide on the cached state and commit; None if that state was too old."""
        if self._is_idle(cached.state):
            if not is_fresh:
                return None
            await self._store.expire(self._idle_since(), timestamp(self._clock()))
            cached.state = EMPTY
        before = cached.state
        # A clock that jumps back must not reorder the log.
        at = max(timestamp(self._clock()), before.last_at)
        try:
            events = _decided(change, before, at)
        except FoldError:
            if is_fresh:
                raise
            return None
        if not events:
            return VerbOutcome("", self.summary(before), now=before) if is_fresh else None
        after = replay(events, before)
        commit = self._commit(change, before, events, after)
        try:
            receipt = await self._store.commit(commit)
        except StaleRevision:
            self._on_conflict()
            return None
        if receipt.repeated and change.operation is not None:
            return self._again(receipt, change.operation, await self._refresh(change.key, cached))
        cached.state = after
        return VerbOutcome(receipt.answer, self.summary(after), events, after)

    def summary(self, state: State) -> str:
        return encode(state_summary(state, self._policy.context_limit(state)))

    def _again(self, done: CommitReceipt, operation: Operation, state: State) -> VerbOutcome:
        """The first result of a repeated call, with the current state."""
        if done.fingerprint != operation.fingerprint:
            raise ArgumentInvalid("operation_id", "was used for another call already; use a new one for each call")
        return VerbOutcome(done.answer, self.summary(state), now=state)

    def _commit(self, change: SessionChange, before: State, events: Sequence[Event], after: State) -> Commit:
        assert after.session_id is not None
        verb = change.verb
        return Commit(
            change.key,
            after.session_id,
            before.revision,
            events,
            change.operation,
            encode(verb.result(before, events, after, lambda: self._health_of(events, after))),
            entries_of(before, events, verb.texts(events)),
            _summaries(change.key, before, events, after),
            _unfolded(before, after) if isinstance(events[-1], SessionRolledBack) else (),
        )

    async def _refresh(self, key: SessionKey, cached: _CachedSession) -> State:
        """Update the cached state from the store."""
        state = cached.state
        known = KnownRevision(state.session_id, state.revision) if state.session_id else None
        try:
            log = await self._store.load(key, known)
            before = state if log and log.session_id == state.session_id else EMPTY
            state = await _replayed(log.events if log else (), before)
        except (LogBroken, EventUnknown) as problem:
            raise StoreInvalid(f"{problem}; was it written by a newer version?") from problem
        if state.session_id != cached.state.session_id or state.revision > cached.state.revision:
            cached.state = state
        return state

    def _is_idle(self, state: State) -> bool:
        return bool(state.revision) and state.last_at <= self._idle_since()

    def _idle_since(self) -> str:
        return timestamp(self._clock() - self._idle)

    @asynccontextmanager
    async def _session(self, key: SessionKey) -> AsyncIterator[_CachedSession]:
        """Lock a session for one writer at a time, because concurrent writers would only conflict."""
        async with self._in_use(key) as cached:
            await _acquire(cached.lock)
            try:
                yield cached
            finally:
                cached.lock.release()

    @asynccontextmanager
    async def _in_use(self, key: SessionKey) -> AsyncIterator[_CachedSession]:
        """The cache entry of a session, which is not evicted while it is in use."""
        cached = self._cached.setdefault(key, _CachedSession())
        self._cached.move_to_end(key)
        cached.users += 1
        self._weight -= cached.weight if cached.users == 1 and cached.state.revision else 0
        try:
            yield cached
        finally:
            cached.users -= 1
            self._weight += cached.weight if cached.users == 0 and cached.state.revision else 0
            self._evict(key, cached)

    def _evict(self, key: SessionKey, cached: _CachedSession) -> None:
        if not cached.users and not cached.state.revision:
            del self._cached[key]
        while self._weight > WEIGHT_CACHED_MAX:
            oldest = next((key for key, cached in self._cached.items() if not cached.users), None)
            if oldest is None:
                return
            self._weight -= self._cached.pop(oldest).weight


async def _acquire(lock: CallLock) -> None:
    """Wait for earlier calls, with a timeout, because the store may hang."""
    try:
        async with timeout(TURN_TIMEOUT_S):
            await lock.acquire()
    except TimeoutError:
        raise StoreUnavailable(f"calls before this one have taken {TURN_TIMEOUT_S:g} s") from None


async def _replayed(events: Sequence[Event], state: State) -> State:
    """The state after events. Other calls run between the steps."""
    for begin_at in range(0, len(events), REPLAY_STEP_EVENTS):
        if begin_at:
            await pause(0)
        state = replay(events[begin_at : begin_at + REPLAY_STEP_EVENTS], state)
    return state


def _decided(change: SessionChange, before: State, at: str) -> list[Event]:
    if before.revision or change.new_session is None:
        return change.verb.decide(before, at)
    started = change.new_session.started(at)
    events = change.verb.decide(apply(before, started), at)
    return [started, *events] if events else []


def _unfolded(before: State, after: State) -> list[str]:
    """The branches that a rollback has unfolded."""
    return [
        branch.id
        for branch in before.branches.values()
        if branch.status == "folded" and after.branches[branch.id].status != "folded"
    ]


def _summaries(key: SessionKey, before: State, events: Sequence[Event], after: State) -> list[Summary]:
    """The summaries of folded branches.

    A branch that was folded with the one around it, or discarded while open, has a summary without text: it is found by
    its description, its prompt and what was done.
    """
    made = []
    for event in events:
        if isinstance(event, WorkFolded | BranchFolded):
            made.append(_summary(key, after, event, event.summary, event.tokens_folded))
        elif isinstance(event, BranchDiscarded) and before.branches[event.branch_id].status == "active":
            made.append(_summary(key, after, event, "", before.branches[event.branch_id].tokens, undone=True))
    return made


def _summary(
    key: SessionKey,
    after: State,
    event: BranchFolded | WorkFolded | BranchDiscarded,
    text: str,
    tokens: int,
    *,
    undone: bool = False,
) -> Summary:
    assert after.session_id is not None
    return Summary(
        key.project_hash,
        after.project_path,
        after.session_id,
        event.branch_id,
        after.branches[event.branch_id].description,
        text,
        tokens,
        event.at,
        undone,
    )
