"""Commits the events of a verb: load, decide, commit, with any store. Knows no particular verb, no text, no protocol.

A session's state is cached between calls, and the store checks its revision with every commit: a call that lost a race
reads the missing events and decides again. Refusals and calls that only read are never based on a state that might be
outdated.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from contextfold.common.bounded_cache import BoundedCache
from contextfold.common.canonical import JsonObject, encode
from contextfold.errors import ArgumentInvalid, FoldError, StoreUnavailable
from contextfold.fold.archive import entries_of
from contextfold.fold.events import (
    BranchDiscarded,
    BranchFolded,
    Event,
    SessionPlaced,
    SessionRolledBack,
    SessionStarted,
    WorkFolded,
    timestamp,
)
from contextfold.fold.policy import FoldPolicy
from contextfold.fold.session import EMPTY, REPLAY_STEP_EVENTS, State, apply, replay
from contextfold.fold.store import (
    Commit,
    CommitReceipt,
    KnownRevision,
    Operation,
    SessionKey,
    StaleRevision,
    Store,
    Summary,
)
from contextfold.fold.store_clock import StoreClock
from contextfold.fold.tool_calls import parse_stored_result
from contextfold.fold.verbs import Verb

# A call is tried at most this many times. Each lost race means that another call has succeeded.
TRIES_MAX = 200
# A call waits at most this long for earlier calls on the same session.
LOCK_TIMEOUT_S = 5.0
# The longest pause before a retry. It is random, so that two daemons do not collide repeatedly.
RETRY_PAUSE_MAX_S = 0.02
# This many ids of calls, requests and folds need as much memory as a branch.
IDS_PER_WEIGHT = 16
# At most this many sessions and branches are cached; others are read from the store when needed.
WEIGHT_CACHED_MAX = 200_000


class SessionChange(NamedTuple):
    key: SessionKey
    verb: Verb
    # Makes the first event of a new session, without its time; None if the change may not begin a session.
    begin: Callable[[], Awaitable[SessionStarted]] | None
    # The project for a session that began without one, as it is stored and shown; None if it is not known.
    find_project: Callable[[], Awaitable[str]] | None
    # Set if the sender may repeat the call.
    operation: Operation | None


class VerbOutcome(NamedTuple):
    """The result of a tool, the session's state after it, and the events that were committed for it.

    `text` is the result as text, if the caller wants that instead of an object.
    """

    answer: Mapping[str, Any]
    state: State
    events: Sequence[Event] = ()
    text: str = ""


@dataclass(slots=True)
class _SessionLock:
    """A lock, and the number of calls that hold it or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    calls: int = 0


class Sessions:
    def __init__(
        self,
        store: Store,
        policy: FoldPolicy,
        clock: Callable[[], datetime],
        *,
        health_of: Callable[[Sequence[Event], State], JsonObject],
        on_conflict: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._policy, self._clock = store, policy, clock
        self._health_of, self._on_conflict = health_of, on_conflict
        self._idle = timedelta(seconds=policy.idle_s)
        # The time that the store has seen, as of the last sweep.
        self._store_clock = StoreClock()
        self._states = BoundedCache[SessionKey, State](WEIGHT_CACHED_MAX, _weigh)
        self._locks: dict[SessionKey, _SessionLock] = {}

    async def look(self, key: SessionKey) -> State:
        """The current state of a session; an empty state if there is none. Readers do not wait for writers."""
        state = await self._refresh(key)
        return EMPTY if self._is_idle(state) else state

    async def change(self, change: SessionChange) -> VerbOutcome:
        async with self._lock_session(change.key):
            # The cached state is tried first. After a refusal or a lost race, the store is read.
            cached = self.last_known(change.key)
            if cached.revision and (outcome := await self._attempt(change, cached, is_fresh=False)):
                return outcome
            for lost in range(TRIES_MAX):
                state = await self._refresh(change.key)
                if outcome := await self._attempt(change, state, is_fresh=True):
                    return outcome
                await asyncio.sleep(random.uniform(0, min(RETRY_PAUSE_MAX_S, 0.001 * (lost + 1))))  # noqa: S311 - no secret
        raise StoreUnavailable(f"lost {TRIES_MAX} races for one session in a row")

    def last_known(self, key: SessionKey) -> State:
        """The cached state of a session. Does not read the store."""
        state = self._states.get(key) or EMPTY
        return EMPTY if self._is_idle(state) else state

    async def _attempt(self, change: SessionChange, before: State, *, is_fresh: bool) -> VerbOutcome | None:
        """Decide on a state and commit; None if that state was too old."""
        if self._is_idle(before):
            await self.end_idle()
            # The store may not have seen the time pass that this machine's clock shows; then the session goes on.
            before = EMPTY if self._is_idle(before) else before
        # A clock that jumps back must not reorder the log.
        at = max(timestamp(self._clock()), before.last_at)
        try:
            events = await _decide(change, before, at)
        except FoldError:
            if not is_fresh:
                return None
            operation = change.operation
            # A call that was committed before may be refused when it is repeated.
            if operation and (receipt := await self._store.receipt(change.key, operation.id)):
                return self._answer_again(receipt, operation, before)
            raise
        if not events:
            # Everything was recorded before. What a cached state knows of that may be out of date.
            return VerbOutcome({}, before) if is_fresh else None
        after = replay(events, before)
        answer = change.verb.result(before, events, after, lambda: self._health_of(events, after))
        commit = self._make_commit(change, before, events, after, answer)
        try:
            receipt = await self._store.commit(commit)
        except StaleRevision:
            self._on_conflict()
            return None
        if receipt.repeated and change.operation is not None:
            return self._answer_again(receipt, change.operation, await self._refresh(change.key))
        self._states.put(change.key, after)
        return VerbOutcome(answer, after, events)

    def _answer_again(self, receipt: CommitReceipt, operation: Operation, state: State) -> VerbOutcome:
        """The first result of a repeated call, with the current state."""
        if receipt.fingerprint != operation.fingerprint:
            raise ArgumentInvalid("operation_id", "was used for another call already; use a new one for each call")
        return VerbOutcome(parse_stored_result(receipt.answer), state)

    def _make_commit(
        self, change: SessionChange, before: State, events: Sequence[Event], after: State, answer: JsonObject
    ) -> Commit:
        assert after.session_id is not None
        return Commit(
            change.key,
            after.session_id,
            before.revision,
            events,
            change.operation,
            encode(answer),
            entries_of(before, events, change.verb.texts(events)),
            _list_summaries(change.key, before, events, after),
            _find_unfolded(before, after) if isinstance(events[-1], SessionRolledBack) else (),
        )

    async def _refresh(self, key: SessionKey) -> State:
        """The state in the store. Only events after the cached state are read."""
        cached = self._states.get(key) or EMPTY
        known = KnownRevision(cached.session_id, cached.revision) if cached.session_id else None
        log = await self._store.load(key, known)
        before = cached if log and log.session_id == cached.session_id else EMPTY
        state = await _replay(log.events if log else (), before)
        # Another call may have cached a later state meanwhile.
        cached = self._states.get(key) or EMPTY
        if state.session_id != cached.session_id or state.revision >= cached.revision:
            self._states.put(key, state)
        return state

    def _is_idle(self, state: State) -> bool:
        return bool(state.revision) and state.last_at <= self._idle_since()

    def _idle_since(self) -> str:
        return self.ago(self._idle)

    # ---- expiry

    async def end_idle(self) -> int:
        """End the sessions without activity; returns their number."""
        await self.observe_clock()
        return await self._store.expire(self._idle_since(), max(timestamp(self._clock()), self._store_clock.seen))

    async def observe_clock(self) -> None:
        """Show the store the time of this machine, before anything expires by it."""
        now, before = self._clock(), await self._store.read_clock()
        self._store_clock = StoreClock(timestamp(now)) if self._policy.trusts_clock else before.observe(now)
        if self._store_clock.is_worth_noting(before):
            await self._store.write_clock(self._store_clock)

    def ago(self, span: timedelta) -> str:
        """The time since which the store has seen so much time pass."""
        return self._store_clock.ago(self._clock(), span)

    def unseen_time(self) -> tuple[str, str] | None:
        """The last step of the clock that the store did not believe, as (from, to), if it still delays expiry."""
        longest = timedelta(days=max(self._policy.archive_days, self._policy.summary_days))
        return self._store_clock.last_gap(timestamp(self._clock() - longest))

    @asynccontextmanager
    async def _lock_session(self, key: SessionKey) -> AsyncIterator[None]:
        """Let one call at a time change a session, because others would only conflict."""
        session = self._locks.setdefault(key, _SessionLock())
        session.calls += 1
        try:
            await _acquire(session.lock)
            try:
                yield
            finally:
                session.lock.release()
        finally:
            session.calls -= 1
            if not session.calls:
                del self._locks[key]


def _weigh(state: State) -> int:
    """The memory that a state needs, in branches."""
    ids = len(state.calls) + len(state.requests) + len(state.folds_seen) + len(state.left_out)
    return 1 + len(state.branches) + ids // IDS_PER_WEIGHT


async def _acquire(lock: asyncio.Lock) -> None:
    """Wait for earlier calls, with a timeout, because the store may hang."""
    try:
        async with asyncio.timeout(LOCK_TIMEOUT_S):
            await lock.acquire()
    except TimeoutError:
        raise StoreUnavailable(f"calls before this one have taken {LOCK_TIMEOUT_S:g} s") from None


async def _replay(events: Sequence[Event], state: State) -> State:
    """The state after events. Other calls run between the steps."""
    for begin_at in range(0, len(events), REPLAY_STEP_EVENTS):
        if begin_at:
            await asyncio.sleep(0)
        state = replay(events[begin_at : begin_at + REPLAY_STEP_EVENTS], state)
    return state


async def _decide(change: SessionChange, before: State, at: str) -> list[Event]:
    """The events of the verb, after one that begins the session or gives it its project, if that is needed."""
    first: Event | None = None
    if not before.revision and change.begin:
        first = (await change.begin())._replace(at=at)
    elif before.revision and not before.project_path and change.find_project:
        first = SessionPlaced(before.revision + 1, at, await change.find_project())
    if first is None:
        return change.verb.decide(before, at)
    events = change.verb.decide(apply(before, first), at)
    return [first, *events] if events else []


def _find_unfolded(before: State, after: State) -> list[str]:
    """The branches that a rollback has unfolded."""
    return [
        branch.id
        for branch in before.branches.values()
        if branch.status == "folded" and after.branches[branch.id].status != "folded"
    ]


def _list_summaries(key: SessionKey, before: State, events: Sequence[Event], after: State) -> list[Summary]:
    """The summaries of folded branches.

    A branch that was folded with the one around it, or discarded while open, has a summary without text: it is found by
    its description, its prompt and what was done.
    """
    summaries = []
    for event in events:
        if isinstance(event, WorkFolded | BranchFolded):
            summary, tokens = event.summary, event.tokens_folded
        elif isinstance(event, BranchDiscarded) and before.branches[event.branch_id].status == "active":
            summary, tokens = "", before.branches[event.branch_id].tokens
        else:
            continue
        summaries.append(
            Summary(
                project_hash=key.project_hash,
                project_path=after.project_path,
                session_id=after.session_id or "",
                branch_id=event.branch_id,
                description=after.branches[event.branch_id].description,
                summary=summary,
                tokens_folded=tokens,
                folded_at=event.at,
                undone=isinstance(event, BranchDiscarded),
            )
        )
    return summaries
