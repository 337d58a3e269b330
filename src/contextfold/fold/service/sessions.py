"""Load, decide, commit: how a verb becomes a fact, over any store. Knows no verb, no text and no wire.

A session's state is kept between calls, and the store checks it when something is committed on it: whoever was slower
reads what was missed and decides again. An answer that says no, and one that only looks, is never given from a state
that might be old.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from contextfold.common.canonical import encode
from contextfold.errors import ArgumentInvalid, FoldError, StoreInvalid, StoreUnavailable
from contextfold.fold.archive import entries_of
from contextfold.fold.events import BranchFolded, Event, EventUnknown, SessionRolledBack
from contextfold.fold.session import EMPTY, Beginning, Limits, LogBroken, State, apply, begin, replay
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
from contextfold.fold.tool_results import Shape, state_told

TRIES_MAX = 200  # each lost race means that somebody else got on
TURN_EVENTS = 200  # of a long log are replayed in one go
TURN_S = 5.0  # for the calls before it on the same session
PAUSE_MOST_S = 0.02  # before another try, at random: in step, two would meet again and again
CALLS_OF_A_WEIGHT = 16  # ids of calls, requests and folds take that much less than a branch
WEIGHT_KEPT_MAX = 200_000  # sessions and branches whose state is held in memory; the rest is read when needed


Decide = Callable[[State, str], list[Event]]  # on a state, at a moment
Tell = Callable[[State, Sequence[Event], State], Shape]  # before, what happened, after


@dataclass(frozen=True, slots=True)
class Change:
    key: SessionKey
    beginning: Beginning
    begins: bool  # whether this may begin a session; else there must be one
    operation: Operation | None  # of a call that its sender may send again, and may have sent before
    decide: Decide
    tell: Tell
    texts: Mapping[int, str] = field(default_factory=dict)  # of operations, by event; `decide` fills it
    is_again: bool = True  # whether the operation may have been done already


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer, and the session's state after it, both as JSON."""

    answer: str
    state: str
    events: Sequence[Event] = ()
    now: State = EMPTY  # the same state, for who has more to tell of it


@dataclass(slots=True)
class _Kept:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    state: State = EMPTY
    users: int = 0

    @property
    def weight(self) -> int:
        state = self.state
        ids = len(state.calls) + len(state.requests) + len(state.folds_seen)
        return 1 + len(state.branches) + ids // CALLS_OF_A_WEIGHT


class Sessions:
    def __init__(
        self,
        store: Store,
        limits: Limits,
        idle_s: int,
        clock: Callable[[], datetime],
        on_conflict: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._on_conflict = on_conflict
        self._limits = limits
        self._idle = timedelta(seconds=idle_s)
        self._clock = clock
        self._kept: OrderedDict[SessionKey, _Kept] = OrderedDict()
        self._weight = 0

    async def look(self, key: SessionKey) -> State:
        """The session as it is now; the empty one if there is none."""
        async with self._held(key) as kept:  # nobody's turn: who only looks waits for nobody who commits
            state = await self._refresh(key, kept)
            return EMPTY if self._is_idle(state) else state

    async def change(self, change: Change) -> Outcome:
        async with self._session(change.key) as kept:
            if change.operation is not None and change.is_again:
                done = await self._earlier(change.operation, change.key, kept)
                if done is not None:
                    return done
            # What is kept is tried first; whoever it is too old for, or would refuse, looks again.
            if kept.state.revision and (outcome := await self._attempt(change, kept, is_fresh=False)):
                return outcome
            for lost in range(TRIES_MAX):
                await self._refresh(change.key, kept)
                if outcome := await self._attempt(change, kept, is_fresh=True):
                    return outcome
                await asyncio.sleep(random.uniform(0, min(PAUSE_MOST_S, 0.001 * (lost + 1))))  # noqa: S311 - no secret
        raise StoreUnavailable(f"lost {TRIES_MAX} races for one session in a row")

    def last_known(self, key: SessionKey) -> State:
        """What is kept of a session, without asking anybody: for when the store is what fails."""
        kept = self._kept.get(key)
        return EMPTY if kept is None or self._is_idle(kept.state) else kept.state

    async def _earlier(self, operation: Operation, key: SessionKey, kept: _Kept) -> Outcome | None:
        """What this operation was answered with, if the session it was done in has not ended."""
        if self._is_idle(await self._refresh(key, kept)):
            return None
        done = await self._store.receipt(key, operation.id)
        return self._again(done, operation, kept.state) if done else None

    async def _attempt(self, change: Change, kept: _Kept, *, is_fresh: bool) -> Outcome | None:
        """Decide on what is kept and commit it; None if that was too old."""
        if self._is_idle(kept.state):
            if not is_fresh:
                return None
            await self._store.expire(self._idle_since(), moment_told(self._clock()))
            kept.state = EMPTY
        before = kept.state
        at = max(moment_told(self._clock()), before.last_at)  # a clock that jumps back must not reorder the log
        try:
            events = _decided(change, before, at)
        except FoldError:
            if is_fresh:
                raise
            return None
        if not events:  # nothing to say that the log does not say already
            return Outcome("", self.told(before), now=before) if is_fresh else None
        after = replay(events, before)
        commit = self._commit(change, before, events, after)
        try:
            receipt = await self._store.commit(commit)
        except StaleRevision:
            self._on_conflict()
            return None
        if receipt.repeated and change.operation is not None:  # another daemon was first with it
            return self._again(receipt, change.operation, await self._refresh(change.key, kept))
        kept.state = after
        return Outcome(receipt.answer, self.told(after), events, after)

    def told(self, state: State) -> str:
        return encode(state_told(state, self._limits))

    def _again(self, done: CommitReceipt, operation: Operation, state: State) -> Outcome:
        """What a call was answered with when it was first made; the state is that of now."""
        if done.fingerprint != operation.fingerprint:
            raise ArgumentInvalid("operation_id", "was used for another call already; use a new one for each call")
        return Outcome(done.answer, self.told(state), now=state)

    def _commit(self, change: Change, before: State, events: Sequence[Event], after: State) -> Commit:
        assert after.session_id is not None
        return Commit(
            change.key,
            after.session_id,
            before.revision,
            events,
            change.operation,
            encode(change.tell(before, events, after)),
            entries_of(before, events, change.texts),
            [
                _summary(change, after, event)
                for event in events
                if isinstance(event, BranchFolded) and not event.forced
            ],
            _unfolded(before, after) if isinstance(events[-1], SessionRolledBack) else (),
        )

    async def _refresh(self, key: SessionKey, kept: _Kept) -> State:
        """Bring what is kept up to what the store has."""
        state = kept.state
        known = KnownRevision(state.session_id, state.revision) if state.session_id else None
        try:
            log = await self._store.load(key, known)
            before = state if log and log.session_id == state.session_id else EMPTY
            state = await _replayed(log.events if log else (), before)
        except (LogBroken, EventUnknown) as problem:
            raise StoreInvalid(f"{problem}; was it written by a newer version?") from problem
        if state.session_id != kept.state.session_id or state.revision > kept.state.revision:
            kept.state = state  # unless somebody has got further meanwhile
        return state

    def _is_idle(self, state: State) -> bool:
        return bool(state.revision) and state.last_at <= self._idle_since()

    def _idle_since(self) -> str:
        return moment_told(self._clock() - self._idle)

    @asynccontextmanager
    async def _session(self, key: SessionKey) -> AsyncIterator[_Kept]:
        """One call at a time for a session: in turn they never conflict, side by side they would."""
        async with self._held(key) as kept:
            await _acquire(kept.lock)
            try:
                yield kept
            finally:
                kept.lock.release()

    @asynccontextmanager
    async def _held(self, key: SessionKey) -> AsyncIterator[_Kept]:
        """What is kept of a session, and is not forgotten while it is used."""
        kept = self._kept.setdefault(key, _Kept())
        self._kept.move_to_end(key)
        kept.users += 1
        self._weight -= kept.weight if kept.users == 1 and kept.state.revision else 0
        try:
            yield kept
        finally:
            kept.users -= 1
            self._weight += kept.weight if kept.users == 0 and kept.state.revision else 0
            self._forget_some(key, kept)

    def _forget_some(self, key: SessionKey, kept: _Kept) -> None:
        if not kept.users and not kept.state.revision:
            del self._kept[key]  # nothing is known of it, so nothing is lost
        while self._weight > WEIGHT_KEPT_MAX:
            oldest = next((key for key, held in self._kept.items() if not held.users), None)
            if oldest is None:
                return
            self._weight -= self._kept.pop(oldest).weight


async def _acquire(lock: asyncio.Lock) -> None:
    """Wait for one's turn, but not behind a queue that a hanging store holds up."""
    try:
        async with asyncio.timeout(TURN_S):
            await lock.acquire()
    except TimeoutError:
        raise StoreUnavailable(f"calls before this one have taken {TURN_S:g} s") from None


async def _replayed(events: Sequence[Event], state: State) -> State:
    """The state after events, however many: others get a turn now and then."""
    for begin_at in range(0, len(events), TURN_EVENTS):
        if begin_at:
            await asyncio.sleep(0)
        state = replay(events[begin_at : begin_at + TURN_EVENTS], state)
    return state


def _decided(change: Change, before: State, at: str) -> list[Event]:
    if before.revision or not change.begins:
        return change.decide(before, at)
    started = begin(change.beginning, at)
    events = change.decide(apply(before, started), at)
    return [started, *events] if events else []


def _unfolded(before: State, after: State) -> list[str]:
    """The branches that were folded and, after a rollback, are not."""
    return [
        branch.id
        for branch in before.branches.values()
        if branch.status == "folded" and after.branches[branch.id].status != "folded"
    ]


def _summary(change: Change, after: State, event: BranchFolded) -> Summary:
    assert after.session_id is not None
    return Summary(
        change.key.project_hash,
        change.beginning.project_path,
        after.session_id,
        event.branch_id,
        after.branches[event.branch_id].description,
        event.summary,
        event.tokens_folded,
        event.at,
    )


def moment_told(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
