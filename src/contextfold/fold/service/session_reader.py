"""Reads sessions and the archive of a store, and lists sessions. It is all that most commands need.

The folding service is a reader, too, that knows what was reported and is not yet written (`fold_service`). Knows no
protocol and no screen. A command reads one thing, so functions import what only some of them need.
"""

from __future__ import annotations

import time

from contextfold.common.dataclass import dataclass
from contextfold.common.event_loop import CallLock, pause
from contextfold.errors import ArgumentInvalid, BranchNotFound, ScrubFailed, SessionNotFound, StoreInvalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from typing import Protocol

    from contextfold.common.canonical import Encodable
    from contextfold.fold.ledger.savings import LedgerBook, SavingsLedger
    from contextfold.fold.ports.store import EndedSession, ListedSession, SessionKey, StoreReader, Summary
    from contextfold.fold.project import Project
    from contextfold.fold.service.policy import FoldPolicy
    from contextfold.fold.service.recall import Recall
    from contextfold.fold.service.reports import ScrubbedText
    from contextfold.fold.session import State
    from contextfold.fold.tool_results import Shape

    class TextScrubber(Protocol):
        def scrub(self, text: str) -> ScrubbedText: ...


SEARCH_LIMIT = 20
# The number of cached ledgers. The ledgers of one page of the list must fit.
LEDGERS_MAX = 128
# To find a summary, this many characters of the archive are read at a time.
SUMMARY_READ_CHARACTERS = 1 << 18


def _now() -> datetime:
    from datetime import UTC, datetime

    return datetime.now(UTC)


class SessionReader:
    def __init__(
        self,
        store: StoreReader,
        scrubber: TextScrubber,
        make_policy: Callable[[], FoldPolicy],
        idle_s: int,
        clock: Callable[[], datetime] = _now,
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
        from contextfold.common.token_counter import COUNTERS

        return COUNTERS[self.policy.counter]

    async def settled(self, owner: str) -> None:
        """Wait until what was reported is written. Nothing is reported to a reader."""

    async def look(self, key: SessionKey) -> State:
        """The current state of a session; an empty state if there is none, or if it is idle."""
        log = await self.store.load(key)
        # A store without sessions needs nothing of this.
        from contextfold.fold.events import EventUnknown
        from contextfold.fold.session import EMPTY, LogBroken, replay

        if log is None:
            return EMPTY
        try:
            state = replay(log.events)
        except (LogBroken, EventUnknown) as problem:
            raise unreadable(problem) from problem
        return EMPTY if state.last_at <= self._idle_since() else state

    def _idle_since(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - self._idle_s))

    async def page(
        self,
        key: SessionKey,
        branch_id: str | None,
        session_id: str | None,
        budget_tokens: int,
        position: tuple[int, int],
    ) -> Shape:
        """A page of a thread's trajectory from a position on. A branch id of None means the main thread."""
        from contextfold.fold.paging import TrajectoryPage
        from contextfold.fold.ports.stored_records import ArchivedThread
        from contextfold.fold.service.archive_reader import is_archived, thread_entries
        from contextfold.fold.tool_arguments import cursor_of

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
        from contextfold.fold.ports.stored_records import ArchivedThread
        from contextfold.fold.service.archive_reader import thread_entries

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

    async def search(self, owner: str, query: str, project: Project | None, limit: int = SEARCH_LIMIT) -> list[Summary]:
        return list(await self.store.search(owner, query, project.hash if project else None, limit))

    @property
    def recalls(self) -> Recall:
        """Recall, made when it is first needed: most commands need nothing of it."""
        if self._recalls is None:
            from contextfold.fold.service.recall import Recall

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


def unreadable(problem: Exception) -> StoreInvalid:
    return StoreInvalid(f"{problem}; was it written by a newer version?")


@dataclass(frozen=True, slots=True)
class FoundSession:
    key: SessionKey
    state: State
    # Set if the session has ended; its state is then the last one.
    ended: EndedSession | None = None


@dataclass(slots=True)
class _CachedLedger:
    """A ledger, and the number of its last event."""

    book: LedgerBook
    revision: int = 0


class SessionLists:
    """Lists of sessions with their figures, for the dashboard and the terminal."""

    def __init__(self, service: SessionReader) -> None:
        self._service = service
        self._store = service.store
        # The one that was used last is the last one.
        self._books: dict[str, _CachedLedger] = {}
        self._reading = CallLock()

    async def sessions(self, owner: str, *, cursor: str | None = None, limit: int) -> Shape:
        """Live sessions, the latest activity first."""
        await self._service.settled(owner)
        events_cursor = await self._store.cursor()
        page = await self._store.sessions(owner, after=_position(cursor) if cursor else None, limit=limit + 1)
        states = [await self._readable(listed.key) for listed in page[:limit]]
        return {
            "owner": owner,
            "sessions": [
                await self._row_with_savings(listed.key, state)
                for listed, state in zip(page, states, strict=False)
                if state.revision
            ],
            "total": await self._store.count(owner),
            "next_cursor": _cursor(page[limit - 1]) if len(page) > limit else None,
            "events_cursor": events_cursor,
        }

    async def ended_sessions(self, owner: str, *, cursor: str | None = None, limit: int) -> Shape:
        """Ended sessions in the same order, with their last figures, until they are deleted."""
        after = _position(cursor) if cursor else None
        page = await self._store.ended_sessions(owner, after=after, limit=limit + 1)
        if page:
            from contextfold.fold.ledger.ended_ledger import ended_row
        return {
            "owner": owner,
            "sessions": [ended_row(session) for session in page[:limit]],
            "next_cursor": _cursor(page[limit - 1]) if len(page) > limit else None,
        }

    async def find(self, owner: str, session_id: str) -> FoundSession:
        key = await self._store.find(owner, session_id)
        state = await self._service.look(key) if key else None
        if key is None or state is None or state.session_id != session_id:
            raise SessionNotFound(session_id)
        return FoundSession(key, state)

    async def find_any(self, owner: str, session_id: str) -> FoundSession:
        """A live session, or the last state of an ended one."""
        try:
            return await self.find(owner, session_id)
        except SessionNotFound:
            for ended in await self._store.ended_sessions(owner, limit=1, session_id=session_id):
                from contextfold.fold.ended_session import ended_state
                from contextfold.fold.ledger.ended_ledger import stored_figures

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
        from contextfold.fold.service.session_views import session_view

        return session_view(state, self._service.policy)

    async def row_of(self, found: FoundSession) -> Shape:
        if found.ended is None:
            return await self._row_with_savings(found.key, found.state)
        from contextfold.fold.ledger.ended_ledger import ended_savings

        savings = ended_savings(found.ended)
        return {**self.row(found.state), "ended_at": found.ended.ended_at, "savings": savings}

    async def _row_with_savings(self, key: SessionKey, state: State) -> Shape:
        """The row with the session's savings, which are None if no request went through the proxy."""
        if not state.requests:
            return {**self.row(state), "savings": None}
        from contextfold.fold.ledger.savings import sums_result

        async with self._reading:
            ledger = await self._ledger(key, state.session_id or "")
        return {**self.row(state), "savings": sums_result(ledger.sums)}

    async def savings_of(self, found: FoundSession) -> Shape:
        """The savings or costs of folding in the session's requests. The ledger is cached."""
        from contextfold.fold.ledger.savings import LedgerBook, ledger_result

        session_id, prices = found.state.session_id or "", self._service.policy.ledger_prices
        if found.ended:
            from contextfold.fold.ledger.ended_ledger import ended_ledger

            ledger = ended_ledger(found.ended, prices)
        elif not found.state.requests:
            ledger = LedgerBook(prices).ledger()
        else:
            async with self._reading:
                ledger = await self._ledger(found.key, session_id)
        return {"session_id": session_id, **ledger_result(ledger)}

    async def _ledger(self, key: SessionKey, session_id: str) -> SavingsLedger:
        from contextfold.fold.ledger.savings import LedgerBook
        from contextfold.fold.ports.stored_records import KnownRevision
        from contextfold.fold.session import REPLAY_STEP_EVENTS

        cached = self._books.pop(session_id, None) or _CachedLedger(LedgerBook(self._service.policy.ledger_prices))
        log = await self._store.load(key, KnownRevision(session_id, cached.revision) if cached.revision else None)
        events = log.events if log and log.session_id == session_id else ()
        for count, event in enumerate(events, 1):
            cached.book.take(event)
            cached.revision = event.n
            if count % REPLAY_STEP_EVENTS == 0:
                await pause(0)
        self._books[session_id] = cached
        if len(self._books) > LEDGERS_MAX:
            del self._books[next(iter(self._books))]
        return cached.book.ledger()


def _cursor(listed: ListedSession | EndedSession) -> str:
    return f"{listed.last_at}/{listed.session_id}"


def _position(cursor: str) -> tuple[str, str]:
    last_at, slash, session_id = cursor.partition("/")
    if not slash:
        raise ArgumentInvalid("cursor", "must be the next_cursor of an earlier answer")
    return last_at, session_id
