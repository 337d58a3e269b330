"""The store as plain Python values: what every other one is compared with, and what tests use. Nothing survives it.

Owns the meaning of each call, written as simply as it can be; knows no thread, file or socket. A call runs to its end
without letting another in, which is what makes it all or nothing.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from contextfold.errors import ArgumentInvalid, StoreUnavailable
from contextfold.fold.archive import Entry, up_to
from contextfold.fold.events import Event, SessionExpired
from contextfold.fold.store import (
    SEARCH_MOST,
    Commit,
    Known,
    Listed,
    Log,
    Receipt,
    Seen,
    SessionKey,
    StaleRevision,
    Summary,
    Trajectory,
)


@dataclass(slots=True, eq=False)
class _Session:
    key: SessionKey
    session_id: str
    last_at: str = ""
    ended_at: str | None = None
    revision: int = 0
    receipts: dict[str, Receipt] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    summaries: dict[str, tuple[int, Summary]] = field(default_factory=dict)


class MemoryStore:
    def __init__(self) -> None:
        self._sessions: list[_Session] = []  # in order of creation, those that have ended too
        self._live: dict[SessionKey, _Session] = {}
        self._events: dict[int, tuple[_Session, Event]] = {}  # by number, in order
        self._last = 0
        self._watchers: set[asyncio.Event] = set()
        self._closed = False

    # ---- one session

    async def load(self, key: SessionKey, known: Known | None = None) -> Log | None:
        session = self._find(key)
        if session is None:
            return None
        after = known.revision if known and known.session_id == session.session_id else 0
        events = [event for owner, event in self._events.values() if owner is session and event.n > after]
        return Log(session.session_id, events)

    async def commit(self, commit: Commit) -> Receipt:
        session = self._find(commit.key)
        operation = commit.operation
        if session is not None and operation is not None and operation.id in session.receipts:
            return replace(session.receipts[operation.id], repeated=True)
        live = (session.session_id, session.revision) if session else (commit.session_id, 0)
        if live != (commit.session_id, commit.expected_revision):
            raise StaleRevision
        if session is None:
            session = self._live[commit.key] = _Session(commit.key, commit.session_id)
            self._sessions.append(session)
        receipt = Receipt(operation.fingerprint if operation else "", commit.answer)
        if operation is not None:
            session.receipts[operation.id] = receipt
        session.last_at = max(session.last_at, *(event.at for event in commit.events))
        session.entries += commit.entries
        for branch_id in commit.retracted:
            session.summaries.pop(branch_id, None)
        for summary in commit.summaries:
            kept = session.summaries.get(summary.branch_id)
            session.summaries[summary.branch_id] = (kept[0] if kept else self._last, summary)
        self._append(session, commit.events)
        return receipt

    async def receipt(self, key: SessionKey, operation_id: str) -> Receipt | None:
        session = self._find(key)
        return session.receipts.get(operation_id) if session else None

    async def sessions(self, owner: str, *, after: tuple[str, str] | None = None, limit: int) -> Sequence[Listed]:
        self._check_open()
        live = [
            Listed(session.key, session.session_id, session.last_at)
            for session in self._live.values()
            if session.key.owner == owner and (after is None or (session.last_at, session.session_id) < after)
        ]
        live.sort(key=lambda listed: (listed.last_at, listed.session_id), reverse=True)
        return live[: max(limit, 0)]

    async def find(self, owner: str, session_id: str) -> SessionKey | None:
        self._check_open()
        return next(
            (key for key, session in self._live.items() if (key.owner, session.session_id) == (owner, session_id)), None
        )

    def _find(self, key: SessionKey) -> _Session | None:
        self._check_open()
        return self._live.get(key)

    def _append(self, session: _Session, events: Sequence[Event]) -> None:
        for event in events:
            self._last += 1
            self._events[self._last] = (session, event)
            session.revision = event.n
        for bell in self._watchers:
            bell.set()

    # ---- following along

    async def cursor(self) -> str:
        self._check_open()
        return str(self._last)

    async def check_cursor(self, cursor: str) -> None:
        self._position(cursor)

    def watch(self, owner: str, after: str | None = None) -> AsyncIterator[Seen]:
        self._check_open()
        return self._follow(owner, None if after is None else self._position(after))

    def _position(self, cursor: str) -> int:
        self._check_open()
        if cursor not in map(str, range(self._last + 1)):
            raise ArgumentInvalid("cursor", "must be one that this store has given out")
        return int(cursor)

    async def _follow(self, owner: str, position: int | None) -> AsyncIterator[Seen]:
        reached = self._last if position is None else position
        bell = asyncio.Event()
        self._watchers.add(bell)
        try:
            while not self._closed:
                bell.clear()
                top = self._last
                for number, (session, event) in list(self._events.items()):
                    if reached < number <= top and session.key.owner == owner:
                        yield Seen(str(number), session.key, session.session_id, event)
                reached = top
                await bell.wait()
        finally:
            self._watchers.discard(bell)

    # ---- the collections

    async def search(self, owner: str, query: str, project_hash: str | None, limit: int) -> Sequence[Summary]:
        self._check_open()
        phrases = [words for word in query.split() if (words := _words(word))]
        found = [
            (_score(phrases, summary), summary.folded_at, made, summary)
            for session in self._sessions
            if session.key.owner == owner and project_hash in (None, session.key.project_hash)
            for made, summary in session.summaries.values()
        ]
        ranked = sorted((item for item in found if item[0] > 0), key=lambda item: item[:3], reverse=True)
        return [summary for *_, summary in ranked[: max(0, min(limit, SEARCH_MOST))]]

    async def trajectory(
        self,
        owner: str,
        project_hash: str,
        branch_id: str | None,
        *,
        session_id: str = "",
        after_n: int = 0,
        limit: int,
        characters: int | None = None,
    ) -> Trajectory | None:
        self._check_open()
        entries = sorted(
            (
                entry
                for session in self._sessions
                if (session.key.owner, session.key.project_hash) == (owner, project_hash)
                for entry in session.entries
                if entry.branch_id == branch_id and (branch_id is not None or session.session_id == session_id)
            ),
            key=lambda entry: entry.n,
        )
        if not entries:
            return None
        rollbacks = [(entry.undone_from or 0, entry.n) for entry in entries if entry.kind == "rollback"]
        page = [entry for entry in entries if entry.n > after_n][: max(limit, 0)]
        return Trajectory(list(up_to(page, characters)), rollbacks)

    # ---- sweeps

    async def expire(self, idle_since: str, at: str) -> int:
        self._check_open()
        self._delete_events({session for session in self._sessions if (session.ended_at or "~") <= idle_since})
        idle = sorted(
            (session for session in self._live.values() if session.last_at <= idle_since),
            key=lambda session: session.last_at,
        )
        self._delete_events(set(idle))
        for session in idle:
            del self._live[session.key]
            session.ended_at = at
            session.receipts.clear()
            self._append(session, [SessionExpired(session.revision + 1, at, session.session_id)])
        return len(idle)

    def _delete_events(self, sessions: set[_Session]) -> None:
        self._events = {number: item for number, item in self._events.items() if item[0] not in sessions}

    async def retain(self, archive_since: str, summaries_since: str) -> None:
        self._check_open()
        for session in self._sessions:
            if session.ended_at is not None and session.last_at < archive_since:
                session.entries.clear()
            if session.ended_at is not None and session.last_at < summaries_since:
                session.summaries.clear()

    # ---- the store as such

    async def reach(self) -> None:
        self._check_open()

    async def settle(self) -> None:
        """A commit leaves nothing undone."""

    async def count(self, owner: str | None = None) -> int:
        self._check_open()
        return sum(owner in (None, key.owner) for key in self._live)

    async def check(self) -> None:
        self._check_open()

    async def close(self) -> None:
        self._closed = True
        for bell in self._watchers:
            bell.set()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")


def _words(text: str) -> list[str]:
    """Lowercase words without accents, as a search compares them."""
    plain = "".join(mark for mark in unicodedata.normalize("NFD", text) if not "\u0300" <= mark <= "\u0331")
    return "".join(mark if mark.isalnum() else " " for mark in plain.lower()).split()


def _score(phrases: Sequence[Sequence[str]], summary: Summary) -> int:
    """How often the phrases stand in a summary; 0 if one of them does not."""
    texts = [_words(summary.description), _words(summary.summary)]
    counts = [
        sum(_count(phrase, text, is_beginning=place == len(phrases)) for text in texts)
        for place, phrase in enumerate(phrases, 1)
    ]
    return sum(counts) if all(counts) else 0


def _count(phrase: Sequence[str], text: Sequence[str], *, is_beginning: bool) -> int:
    *first, last = phrase
    return sum(
        list(text[start : start + len(first)]) == first
        and (text[start + len(first)].startswith(last) if is_beginning else text[start + len(first)] == last)
        for start in range(len(text) - len(first))
    )
