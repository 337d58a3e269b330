"""Reads sessions and the archive of a store, and lists sessions. It is all that most commands need.

The folding service is a reader, too, that knows what was reported and is not yet written (`fold_service`). Knows no
protocol and no screen. A command reads one thing, so functions import what only some of them need.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, Protocol, TypeVar

from contextfold.common.canonical import Encodable, JsonObject
from contextfold.common.event_loop import CallLock, pause
from contextfold.common.token_counter import COUNTERS
from contextfold.errors import ArgumentInvalid, BranchNotFound, ScrubFailed, SessionNotFound, StoreInvalid
from contextfold.fold.ended_session import ended_ledger, ended_state, stored_figures
from contextfold.fold.events import Event
from contextfold.fold.ledger import SavingsLedger
from contextfold.fold.policy import FoldPolicy
from contextfold.fold.ports.store import (
    ArchivedThread,
    EndedSession,
    KnownRevision,
    ListedSession,
    SessionKey,
    StoreReader,
)
from contextfold.fold.project import Target
from contextfold.fold.sent_request import ScrubbedText
from contextfold.fold.service.archive_reader import is_archived, thread_entries
from contextfold.fold.service.recall import Recall
from contextfold.fold.service.session_views import ended_row, ended_savings, ledger_result, session_view, sums_result
from contextfold.fold.session import EMPTY, REPLAY_STEP_EVENTS, State, replay
from contextfold.fold.tool_arguments import cursor_of
from contextfold.fold.tool_results import TrajectoryPage


class TextScrubber(Protocol):
    def scrub(self, text: str) -> ScrubbedText: ...


# The number of sessions whose figures are cached. Those of one page of the list must fit.
FOLLOWED_MAX = 128
# To find a summary, this many characters of the archive are read at a time.
SUMMARY_READ_CHARACTERS = 1 << 18


def now() -> datetime:
    return datetime.now(UTC)


class SessionReader:
    def __init__(
        self,
        store: StoreReader,
        scrubber: TextScrubber,
        make_policy: Callable[[], FoldPolicy],
        idle_s: int,
        clock: Callable[[], datetime] = now,
    ) -> None:
        """`make_policy` is called when the settings of folding are first needed: most questions need none."""
        self.store = store
        self._scrubber = scrubber
        self._make_policy = make_policy
        self._idle_s = idle_s
        self._clock = clock
        self._policy: FoldPolicy | None = None
        self._recalls: Recall | None = None

    @property
    def policy(self) -> FoldPolicy:
        if self._policy is None:
            self._policy = self._make_policy()
        return self._policy

    @property
    def count(self) -> Callable[[str], int]:
        """Counts the tokens of a text."""
        return COUNTERS[self.policy.counter]

    async def settled(self, owner: str) -> None:
        """Wait until what was reported is written. Nothing is reported to a reader."""

    async def look(self, key: SessionKey) -> State:
        """The current state of a session; an empty state if there is none, or if it is idle."""
        log = await self.store.load(key)

        state = replay(log.events) if log else EMPTY
        idle_since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - self._idle_s))
        return EMPTY if state.last_at <= idle_since else state

    async def find(self, owner: str, session_id: str) -> FoundSession:
        """A live session of an owner."""
        key = await self.store.find(owner, session_id)
        state = await self.look(key) if key else None
        if key is None or state is None or state.session_id != session_id:
            raise SessionNotFound(session_id)
        return FoundSession(key, state)

    async def page(
        self,
        key: SessionKey,
        branch_id: str | None,
        session_id: str | None,
        budget_tokens: int,
        position: tuple[int, int],
    ) -> JsonObject:
        """A page of a thread's trajectory from a position on. A branch id of None means the main thread."""
        page = TrajectoryPage(branch_id or "", budget_tokens, self.count)
        thread = ArchivedThread(key.owner, key.project_hash, branch_id, session_id or "")
        if branch_id is not None and not await is_archived(self.store, thread):
            raise BranchNotFound(branch_id, session_id)
        after_n, offset = position
        characters = offset + page.characters
        async for entries in thread_entries(self.store, thread, after_n=after_n, characters=characters):
            for entry in entries:
                stopped_at = page.take(entry, offset)
                if stopped_at is not None:
                    return page.result(cursor_of(after_n, stopped_at))
                after_n, offset = entry.n, 0
        return page.result(None)

    async def summary_of(self, key: SessionKey, branch_id: str) -> str:
        """The last summary of a folded branch; empty if the archive no longer has it."""
        summary = ""
        thread = ArchivedThread(key.owner, key.project_hash, branch_id, "")
        async for entries in thread_entries(self.store, thread, characters=SUMMARY_READ_CHARACTERS):
            for entry in entries:
                if entry.kind == "summary" and not entry.undone:
                    summary = entry.text
        return summary

    async def summaries_of(self, key: SessionKey, session_id: str | None) -> dict[str, str]:
        """The summaries of a session's folded branches that are still stored, by the ids of the branches."""
        stored = await self.store.summaries(key.owner, key.project_hash)
        return {summary.branch_id: summary.summary for summary in stored if summary.session_id == session_id}

    @property
    def recalls(self) -> Recall:
        """Recall, made when it is first needed: most commands need nothing of it."""
        if self._recalls is None:
            self._recalls = Recall(self.store, self.scrub, self._clock)
        return self._recalls

    async def scrub(self, *texts: str) -> list[ScrubbedText]:
        return self._scrubbed(*texts)

    def _scrubbed(self, *texts: str) -> list[ScrubbedText]:
        try:
            return [self._scrubber.scrub(text) for text in texts]
        except Exception as problem:
            # After any error, no unscrubbed text is used.
            raise ScrubFailed(type(problem).__name__) from None


@dataclass(frozen=True, slots=True)
class FoundSession:
    key: SessionKey
    state: State
    # Set if the session has ended; its state is then the last one.
    ended: EndedSession | None = None

    @property
    def target(self) -> Target:
        return Target(self.key, self.state.project_path, self.state.name)


class LogFigures(Protocol):
    """Figures that are computed from the events of a session, one after the other."""

    def take(self, event: Event) -> None: ...


Figures = TypeVar("Figures", bound=LogFigures)


class FollowedLogs(Generic[Figures]):
    """The figures of the latest sessions. They are cached, so that only newer events are read."""

    def __init__(self, store: StoreReader, make: Callable[[], Figures]) -> None:
        self._store, self._make = store, make
        # The figures and the number of the last event, by session. The one that was used last is the last one.
        self._followed: dict[str, tuple[Figures, int]] = {}
        self._reading = CallLock()

    async def read(self, key: SessionKey, session_id: str) -> Figures:
        # With the lock, concurrent callers read a long log only once.
        async with self._reading:
            figures, revision = self._followed.pop(session_id, (self._make(), 0))
            log = await self._store.load(key, KnownRevision(session_id, revision) if revision else None)
            events = log.events if log and log.session_id == session_id else ()
            for count, event in enumerate(events, 1):
                figures.take(event)
                if count % REPLAY_STEP_EVENTS == 0:
                    await pause(0)
            self._followed[session_id] = (figures, events[-1].n if events else revision)
            if len(self._followed) > FOLLOWED_MAX:
                del self._followed[next(iter(self._followed))]
            return figures


class SessionLists:
    """Lists of sessions with their figures, for the dashboard and the terminal."""

    def __init__(self, service: SessionReader) -> None:
        self._service, self._store = service, service.store
        self._ledgers: FollowedLogs[SavingsLedger] = FollowedLogs(service.store, self._new_ledger)

    def _new_ledger(self) -> SavingsLedger:
        return SavingsLedger(self._service.policy.ledger_prices)

    async def sessions(self, owner: str, *, cursor: str | None = None, limit: int) -> JsonObject:
        """Live sessions, the latest activity first."""
        await self._service.settled(owner)
        events_cursor = await self._store.cursor()
        page = await self._store.sessions(owner, after=_position(cursor) if cursor else None, limit=limit + 1)
        states = [await self._readable(listed.key) for listed in page[:limit]]
        return {
            "owner": owner,
            "sessions": [
                await self.row_of(FoundSession(listed.key, state))
                for listed, state in zip(page, states, strict=False)
                if state.revision
            ],
            "total": await self._store.count(owner),
            "next_cursor": _cursor(page[limit - 1]) if len(page) > limit else None,
            "events_cursor": events_cursor,
        }

    async def ended_sessions(self, owner: str, *, cursor: str | None = None, limit: int) -> JsonObject:
        """Ended sessions in the same order, with their last figures, until they are deleted."""
        after = _position(cursor) if cursor else None
        page = await self._store.ended_sessions(owner, after=after, limit=limit + 1)
        return {
            "owner": owner,
            "sessions": [ended_row(session) for session in page[:limit]],
            "next_cursor": _cursor(page[limit - 1]) if len(page) > limit else None,
        }

    async def find_any(self, owner: str, session_id: str) -> FoundSession:
        """A live session, or the last state of an ended one."""
        try:
            return await self._service.find(owner, session_id)
        except SessionNotFound:
            for ended in await self._store.ended_sessions(owner, limit=1, session_id=session_id):
                state = ended_state(stored_figures(ended), session_id=session_id, last_at=ended.last_at)
                return FoundSession(ended.key, state, ended)
            raise

    async def _readable(self, key: SessionKey) -> State:
        """The state of a session for a list; empty if its log cannot be read, so that the list omits it."""
        try:
            return await self._service.look(key)
        except StoreInvalid:
            from contextfold.fold.session import EMPTY

            return EMPTY

    def row(self, state: State) -> dict[str, Encodable]:
        return session_view(state, self._service.policy)

    async def row_of(self, found: FoundSession) -> JsonObject:
        """The row with the session's savings, which are None if no request went through the proxy."""
        row = self.row(found.state)
        if found.ended:
            return {**row, "ended_at": found.ended.ended_at, "savings": ended_savings(found.ended)}
        if not found.state.requests:
            return {**row, "savings": None}

        return {**row, "savings": sums_result((await self._ledger(found)).sums)}

    async def savings_of(self, found: FoundSession) -> JsonObject:
        """The savings or costs of folding in the session's requests."""
        return {"session_id": found.state.session_id or "", **ledger_result(await self._ledger(found))}

    async def _ledger(self, found: FoundSession) -> SavingsLedger:
        if found.ended:
            return ended_ledger(found.ended, self._service.policy.ledger_prices)
        if not found.state.requests:
            return self._new_ledger()
        return await self._ledgers.read(found.key, found.state.session_id or "")


def _cursor(listed: ListedSession | EndedSession) -> str:
    return f"{listed.last_at}/{listed.session_id}"


def _position(cursor: str) -> tuple[str, str]:
    last_at, slash, session_id = cursor.partition("/")
    if not slash:
        raise ArgumentInvalid("cursor", "must be the next_cursor of an earlier answer")
    return last_at, session_id
