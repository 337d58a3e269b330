"""Reads threads from the archive, and sessions and savings for commands, whose store answers at once. Knows no screen.

The daemon awaits its store. It reads threads with the same `ThreadReading`, which decides which page comes next and
what its entries are, and reads nothing itself; and sessions through `fold_service` and `overview`, which also know what
was reported and is not yet written. What both show is computed by the functions of `session_views`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from contextfold.common.canonical import JsonObject
from contextfold.errors import BranchNotFound, SessionNotFound, StoreInvalid, StoreUnavailable
from contextfold.fold.archive import ArchiveEntry, apply_ranges, has_moved_work
from contextfold.fold.ended_session import ended_ledger
from contextfold.fold.events import Event, timestamp
from contextfold.fold.ledger import SavingsLedger, ledger_of
from contextfold.fold.misses import misses_of
from contextfold.fold.policy import FoldPolicy
from contextfold.fold.project import NO_PROJECT, Project, hash_name
from contextfold.fold.recall import (
    CATCH_UP_S,
    INDEX_INCOMPLETE,
    PAGE_CHARACTERS,
    STEP_DOCUMENTS,
    RecallAnswer,
    answer,
    index_document,
    operations_thread,
    parse_question,
    scope_of,
)
from contextfold.fold.recall_ranking import OPERATION_CHARACTERS
from contextfold.fold.service.session_views import (
    FoundSession,
    SavingsTotals,
    ended_row,
    ended_sums,
    savings_view,
    session_row,
    sums_of,
)
from contextfold.fold.session import EMPTY, State, replay
from contextfold.fold.store import (
    ArchivedThread,
    EndedSession,
    ListedSession,
    RecallSource,
    SessionKey,
    Store,
    StoreReader,
    Trajectory,
)
from contextfold.fold.tool_calls import RecallRequest, TrajectoryPage, cursor_of

PAGE_ENTRIES = 64
# To find a summary, this many characters of the archive are read at a time.
SUMMARY_READ_CHARACTERS = 1 << 18
SESSIONS_READ = 100
SESSIONS_MAX = 100_000

# A session's row in the format of the `/v1` API.
SessionView = Mapping[str, Any]

Listed = TypeVar("Listed", ListedSession, EndedSession)


class PagePosition(NamedTuple):
    """The page to read next: entries of a thread after an event."""

    thread: ArchivedThread
    after_n: int


class ThreadReading:
    """The position in a thread, and the entries of the pages that were read.

    The operations of a branch that was folded afterwards come first; they are stored with its parent thread.
    """

    def __init__(self, thread: ArchivedThread, after_n: int = 0) -> None:
        self._thread = thread
        # None at the end.
        self.next: PagePosition | None = PagePosition(thread, after_n)
        # The page of such a branch that follows its operations, while those are read.
        self._held: Trajectory | None = None

    def take(self, found: Trajectory | None) -> list[ArchiveEntry]:
        """The entries of the next page, which the store has returned."""
        assert self.next is not None, "everything is read"
        if self._held is not None:
            return self._take_moved(found, self._held, self.next)
        if found is None or not found.entries:
            self.next = None
            return []
        first = found.entries[0]
        if not has_moved_work(first):
            return self._take_own(found)
        parent = ArchivedThread(self._thread.owner, self._thread.project_hash, first.child_id, first.source)
        self._held, self.next = found, PagePosition(parent, max(self.next.after_n, first.undone_from or 0))
        return []

    def _take_own(self, found: Trajectory) -> list[ArchiveEntry]:
        self._held, self.next = None, PagePosition(self._thread, found.entries[-1].n)
        return apply_ranges(found.entries, found.rollbacks)

    def _take_moved(self, found: Trajectory | None, held: Trajectory, at: PagePosition) -> list[ArchiveEntry]:
        """Operations of the parent thread before the fold, including those that moved away from it."""
        if found is None:
            return self._take_own(held)
        entries = [entry for entry in found.entries if entry.n < held.entries[0].n]
        shown = apply_ranges(entries, found.rollbacks, with_moved=True)
        operations = [entry for entry in shown if entry.kind == "operation"]
        if len(entries) < len(found.entries) or not entries:
            return operations + self._take_own(held)
        self.next = PagePosition(at.thread, entries[-1].n)
        return operations


def thread_pages(
    store: StoreReader, thread: ArchivedThread, *, characters: int | None = None
) -> Iterator[Sequence[ArchiveEntry]]:
    """Yield the entries of a thread, in pages of about so many characters."""
    reading = ThreadReading(thread)
    while at := reading.next:
        page = store.trajectory(at.thread, after_n=at.after_n, limit=PAGE_ENTRIES, characters=characters)
        yield reading.take(page)


async def thread_entries(
    store: Store, thread: ArchivedThread, *, after_n: int = 0, characters: int | None = None
) -> AsyncIterator[Sequence[ArchiveEntry]]:
    """Yield the entries of a thread after event `after_n`, in pages of about so many characters."""
    reading = ThreadReading(thread, after_n)
    while at := reading.next:
        page = await store.trajectory(at.thread, after_n=at.after_n, limit=PAGE_ENTRIES, characters=characters)
        yield reading.take(page)


async def read_page(
    store: Store, thread: ArchivedThread, budget_tokens: int, position: tuple[int, int], count: Callable[[str], int]
) -> JsonObject:
    """A page of a thread's trajectory from a position on, within a budget. `count` counts the tokens of a text."""
    page = TrajectoryPage(thread.branch_id or "", budget_tokens, count)
    if thread.branch_id is not None and await store.trajectory(thread, limit=1, characters=1) is None:
        raise BranchNotFound(thread.branch_id, thread.session_id or None)
    after_n, offset = position
    async for entries in thread_entries(store, thread, after_n=after_n, characters=offset + page.characters):
        for entry in entries:
            stopped_at = page.take(entry, offset)
            if stopped_at is not None:
                return page.result(cursor_of(after_n, stopped_at))
            after_n, offset = entry.n, 0
    return page.result(None)


async def read_summary(store: Store, thread: ArchivedThread) -> str:
    """The last summary of a folded branch; empty if the archive no longer has it."""
    summary = ""
    async for entries in thread_entries(store, thread, characters=SUMMARY_READ_CHARACTERS):
        for entry in entries:
            if entry.kind == "summary" and not entry.undone:
                summary = entry.text
    return summary


def utc_now() -> datetime:
    return datetime.now(UTC)


class StoredSessions(NamedTuple):
    store: StoreReader
    policy: FoldPolicy
    clock: Callable[[], datetime] = utc_now
    # Called with the id of each session that a list leaves out because its log cannot be read.
    on_unreadable: Callable[[str], object] = lambda _: None

    # ---- one session

    def look(self, key: SessionKey) -> State:
        """The current state of a session; an empty state if there is none, or if it is idle."""
        log = self.store.load(key)
        state = replay(log.events) if log else EMPTY
        idle_since = timestamp(self.clock() - timedelta(seconds=self.policy.idle_s))
        return EMPTY if state.last_at <= idle_since else state

    def find(self, owner: str, session_id: str) -> FoundSession:
        """A live session, or the last state of an ended one."""
        key = self.store.find(owner, session_id)
        state = self.look(key) if key else EMPTY
        if key and state.session_id == session_id:
            return FoundSession(key, state)
        for ended in self.store.ended_sessions(owner, limit=1, session_id=session_id):
            return FoundSession.of_ended(ended, self.store.ended_log(ended.key, session_id))
        raise SessionNotFound(session_id)

    def row(self, found: FoundSession) -> SessionView:
        return session_row(found, self.policy, self._ledger(found))

    def savings(self, found: FoundSession) -> SessionView:
        return savings_view(found, self._ledger(found))

    def misses(self, found: FoundSession) -> SessionView:
        """Why the provider's cache did not hold a part of a live session's requests."""
        log = self.store.load(found.key)
        misses = misses_of(log.events if log else (), self.policy.ledger_prices)
        return {"session_id": found.state.session_id, **misses.result()}

    def summaries(self, found: FoundSession) -> dict[str, str]:
        """The summaries of a session's folded branches that are still stored, by the ids of the branches."""
        stored = self.store.summaries(found.key.owner, found.key.project_hash)
        return {fold.branch_id: fold.summary for fold in stored if fold.session_id == found.state.session_id}

    def _ledger(self, found: FoundSession) -> SavingsLedger:
        if found.ended:
            return ended_ledger(found.ended, found.ended_log, self.policy.ledger_prices)
        live = self.store.load(found.key) if found.state.requests else None
        return ledger_of(live.events if live else (), self.policy.ledger_prices)

    # ---- all sessions of an owner

    def live(self, owner: str) -> Iterator[FoundSession]:
        """The live sessions, the latest activity first. A session whose log cannot be read is left out."""
        for listed in _all_pages(lambda after: self.store.sessions(owner, after=after, limit=SESSIONS_READ)):
            try:
                state = self.look(listed.key)
            except StoreInvalid:
                self.on_unreadable(listed.session_id)
                continue
            if state.revision:
                yield FoundSession(listed.key, state)

    def find_of_project(self, owner: str, project: Project, name: str | None) -> tuple[FoundSession | None, int]:
        """The project's session that was active last, or the one with this name; and the number of its other sessions.

        A subagent's session is found only if there is no other.
        """
        keys = [
            listed.key
            for listed in _all_pages(lambda after: self.store.sessions(owner, after=after, limit=SESSIONS_READ))
            if listed.key.project_hash == project.hash
            or (listed.key.project_hash == NO_PROJECT and self.look(listed.key).project_path == project.path)
        ]
        others = max(0, len(keys) - 1)
        subagent: FoundSession | None = None
        for key in keys:
            if name is None or key.name_hash == hash_name(name):
                found = FoundSession(key, self.look(key))
                if found.state.revision and not found.state.agent:
                    return found, others
                subagent = subagent or (found if found.state.revision else None)
        return subagent, others

    def ended_rows(self, owner: str) -> Iterator[SessionView]:
        """The rows of the ended sessions that are still stored, the latest activity first."""
        return (ended_row(session, log, self.policy) for session, log in self._ended(owner))

    def savings_by(self, owner: str, group: str) -> SessionView:
        """The savings of the live and ended sessions, by session, project, day or model."""
        totals = SavingsTotals(group)
        for found in self.live(owner):
            totals.add(sums_of(found.state, self._ledger(found)))
        for session, log in self._ended(owner):
            totals.add(ended_sums(session, log, self.policy.ledger_prices))
        return totals.result()

    def _ended(self, owner: str) -> Iterator[tuple[EndedSession, Sequence[Event]]]:
        """The ended sessions with their logs. A log that cannot be read is empty, so that the others are listed."""
        for session in _all_pages(lambda after: self.store.ended_sessions(owner, after=after, limit=SESSIONS_READ)):
            log: Sequence[Event] = ()
            try:
                log = self.store.ended_log(session.key, session.session_id)
            except StoreInvalid:
                self.on_unreadable(session.session_id)
            yield session, log

    # ---- recall

    def recall(self, owner: str, request: RecallRequest) -> RecallAnswer:
        """Folded work and left-out results that answer a question.

        It is the question of the person who reads the answer, and it is not stored. So it is not scrubbed.
        """
        question = parse_question(request, request.query)
        self._index(owner)
        return answer(self.store.recall(owner, question, scope_of(request, self.clock())), request)

    def _index(self, owner: str) -> None:
        """Index everything of an owner. Raises StoreUnavailable if that takes too long; a later call continues."""
        until_s = time.monotonic() + CATCH_UP_S
        while sources := self.store.unindexed(owner, STEP_DOCUMENTS):
            self.store.index([index_document(source, self._operations(source)) for source in sources])
            if len(sources) < STEP_DOCUMENTS:
                return
            if time.monotonic() > until_s:
                raise StoreUnavailable(INDEX_INCOMPLETE)

    def _operations(self, source: RecallSource) -> list[ArchiveEntry]:
        """The first entries of a fold's thread."""
        entries: list[ArchiveEntry] = []
        thread = operations_thread(source)
        for page in thread_pages(self.store, thread, characters=PAGE_CHARACTERS) if thread else ():
            entries += page
            if sum(len(entry.text) for entry in entries) >= OPERATION_CHARACTERS:
                break
        return entries


def _all_pages(read: Callable[[tuple[str, str] | None], Sequence[Listed]]) -> Iterator[Listed]:
    """Every session of a list that is read in pages, each after the last session of the page before."""
    after: tuple[str, str] | None = None
    for _ in range(0, SESSIONS_MAX, SESSIONS_READ):
        page = read(after)
        yield from page
        if len(page) < SESSIONS_READ:
            return
        after = (page[-1].last_at, page[-1].session_id)
