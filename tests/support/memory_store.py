"""A store in memory: the reference that the stores are compared with, and the store of many tests.

It defines what each call means, as simply as possible. A call runs without yielding to another, so it is atomic.
"""

from __future__ import annotations

import asyncio
import hashlib
import unicodedata
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from operator import attrgetter

from contextfold.common.relevance.question import Question
from contextfold.errors import ArgumentInvalid, ImportDiffers, StoreUnavailable, TargetNotEmpty
from contextfold.fold.archive import ArchiveEntry, up_to
from contextfold.fold.events import Event, SessionExpired
from contextfold.fold.ports.store import (
    SEARCH_MOST,
    ArchivedResult,
    ArchivedThread,
    Commit,
    CommitReceipt,
    EndedSession,
    KnownRevision,
    LeftOutDecision,
    ListedSession,
    ProxiedConversation,
    Recalled,
    RecallHit,
    RecallSource,
    SessionKey,
    SessionLog,
    StaleRevision,
    Summary,
    Trajectory,
    WatchedEvent,
)
from contextfold.fold.ports.store_export import (
    ExportedConversation,
    ExportedLeftOut,
    ExportedReceipt,
    ExportedSession,
    ExportRecord,
    encode_record,
    entry_order,
    hashed,
)
from contextfold.fold.recall.documents import FOLD, LEVELS, RESULT, DocumentTerms, first_number, leveled_stems
from contextfold.fold.recall.ranking import IndexedDocument, RecallScope, rank
from contextfold.stores.session_document import figures_of


@dataclass(slots=True, eq=False)
class _MemorySession:
    key: SessionKey
    session_id: str
    last_at: str = ""
    ended_at: str | None = None
    figures: str = ""
    revision: int = 0
    receipts: dict[str, CommitReceipt] = field(default_factory=dict)
    entries: list[ArchiveEntry] = field(default_factory=list)
    summaries: dict[str, tuple[int, Summary]] = field(default_factory=dict)


_Decisions = dict[tuple[str, str], ArchivedResult]


class MemoryStore:
    def __init__(self) -> None:
        # The live and ended sessions in the order of their creation.
        self._sessions: list[_MemorySession] = []
        self._live: dict[SessionKey, _MemorySession] = {}
        # The events by number, in order.
        self._events: dict[int, tuple[_MemorySession, Event]] = {}
        self._last = 0
        self._left_out: dict[tuple[str, str], _Decisions] = {}
        self._conversations: dict[tuple[str, str], ProxiedConversation] = {}
        # The documents by the reference of their source; see `_recall_sources`.
        self._documents: dict[str, tuple[RecallSource, DocumentTerms]] = {}
        self._watchers: set[asyncio.Event] = set()
        self._closed = False

    # ---- one session

    async def load(self, key: SessionKey, known: KnownRevision | None = None) -> SessionLog | None:
        session = self._find(key)
        if session is None:
            return None
        after = known.revision if known and known.session_id == session.session_id else 0
        return SessionLog(session.session_id, [event for event in self._log(session) if event.n > after])

    async def commit(self, commit: Commit) -> CommitReceipt:
        session = self._find(commit.key)
        operation = commit.operation
        digest = _digest(operation.id) if operation else ""
        if session is not None and digest in session.receipts:
            return replace(session.receipts[digest], repeated=True)
        live = (session.session_id, session.revision) if session else (commit.session_id, 0)
        if live != (commit.session_id, commit.expected_revision):
            raise StaleRevision
        if session is None:
            session = self._live[commit.key] = _MemorySession(commit.key, commit.session_id)
            self._sessions.append(session)
        receipt = CommitReceipt(operation.fingerprint if operation else "", commit.answer)
        if operation is not None:
            session.receipts[digest] = receipt
        session.last_at = max(session.last_at, *(event.at for event in commit.events))
        session.entries += commit.entries
        for branch_id in commit.retracted:
            if branch_id in session.summaries:
                number, summary = session.summaries[branch_id]
                session.summaries[branch_id] = (number, replace(summary, undone=True))
        for summary in commit.summaries:
            self._add_summary(session, summary)
        self._append(session, commit.events)
        return receipt

    async def receipt(self, key: SessionKey, operation_id: str) -> CommitReceipt | None:
        session = self._find(key)
        return session.receipts.get(_digest(operation_id)) if session else None

    async def sessions(
        self, owner: str, *, after: tuple[str, str] | None = None, limit: int
    ) -> Sequence[ListedSession]:
        self._check_open()
        return [
            ListedSession(session.key, session.session_id, session.last_at)
            for session in _page(self._live.values(), owner, after, limit)
        ]

    async def ended_sessions(
        self, owner: str, *, after: tuple[str, str] | None = None, limit: int, session_id: str | None = None
    ) -> Sequence[EndedSession]:
        self._check_open()
        ended = (
            session
            for session in self._sessions
            if session.ended_at is not None and session_id in (None, session.session_id)
        )
        return [
            EndedSession(session.key, session.session_id, session.last_at, session.ended_at or "", session.figures)
            for session in _page(ended, owner, after, limit)
        ]

    async def find(self, owner: str, session_id: str) -> SessionKey | None:
        self._check_open()
        return next(
            (key for key, session in self._live.items() if (key.owner, session.session_id) == (owner, session_id)), None
        )

    def _find(self, key: SessionKey) -> _MemorySession | None:
        self._check_open()
        return self._live.get(key)

    def _log(self, session: _MemorySession) -> list[Event]:
        return [event for owner, event in self._events.values() if owner is session]

    def _figures(self, session: _MemorySession) -> str:
        return figures_of(lambda: self._log(session))

    def _add_summary(self, session: _MemorySession, summary: Summary) -> None:
        """A summary that replaces another takes over its number, which decides between equal matches of a search."""
        before = session.summaries.get(summary.branch_id)
        session.summaries[summary.branch_id] = (before[0] if before else self._last, summary)

    def _append(self, session: _MemorySession, events: Sequence[Event]) -> None:
        for event in events:
            self._last += 1
            self._events[self._last] = (session, event)
            session.revision = event.n
        for watcher in self._watchers:
            watcher.set()

    # ---- watching

    async def cursor(self) -> str:
        self._check_open()
        return str(self._last)

    async def check_cursor(self, cursor: str) -> None:
        self._position(cursor)

    def watch(self, owner: str, after: str | None = None) -> AsyncIterator[WatchedEvent]:
        self._check_open()
        return self._follow(owner, None if after is None else self._position(after))

    def _position(self, cursor: str) -> int:
        self._check_open()
        if cursor not in map(str, range(self._last + 1)):
            raise ArgumentInvalid("cursor", "must be one that this store has given out")
        return int(cursor)

    async def _follow(self, owner: str, position: int | None) -> AsyncIterator[WatchedEvent]:
        reached = self._last if position is None else position
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            while not self._closed:
                changed.clear()
                top = self._last
                for number, (session, event) in list(self._events.items()):
                    if reached < number <= top and session.key.owner == owner:
                        yield WatchedEvent(str(number), session.key, session.session_id, event)
                reached = top
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    # ---- summaries and archive

    async def search(self, owner: str, query: str, project_hash: str | None, limit: int) -> Sequence[Summary]:
        self._check_open()
        phrases = [words for word in query.split() if (words := _words(word))]
        candidates = [
            (_score(phrases, summary), summary.folded_at, number, summary)
            for session in self._sessions
            if session.key.owner == owner and project_hash in (None, session.key.project_hash)
            for number, summary in session.summaries.values()
            if not summary.undone
        ]
        ranked = sorted((item for item in candidates if item[0] > 0), key=lambda item: item[:3], reverse=True)
        return [summary for *_, summary in ranked[: max(0, min(limit, SEARCH_MOST))]]

    async def summaries(self, owner: str, project_hash: str | None) -> Sequence[Summary]:
        self._check_open()
        summaries = [
            summary
            for session in self._sessions
            if session.key.owner == owner and project_hash in (None, session.key.project_hash)
            for _, summary in session.summaries.values()
            if not summary.undone
        ]
        return sorted(summaries, key=lambda summary: (summary.session_id, summary.branch_id))

    # ---- recall: everything is compared and read again with each call

    async def unindexed(self, owner: str | None, limit: int) -> Sequence[RecallSource]:
        self._check_open()
        current = {source.ref: source for source in self._recall_sources()}
        gone = [RecallSource(ref, source.owner) for ref, (source, _) in self._documents.items() if ref not in current]
        new = [source for ref, source in current.items() if ref not in self._documents]
        return [source for source in (*gone, *new) if owner in (None, source.owner)][:limit]

    async def index(self, documents: Sequence[tuple[RecallSource, DocumentTerms | None]]) -> None:
        self._check_open()
        current = {source.ref for source in self._recall_sources()}
        for source, terms in documents:
            if terms is None:
                self._documents.pop(source.ref, None)
            elif source.ref in current:
                self._documents[source.ref] = (source, terms)

    async def recall(self, owner: str, question: Question, scope: RecallScope) -> Recalled:
        self._check_open()
        lists = _Lists([each for each in self._documents.values() if each[0].owner == owner], scope)
        ranking = rank(question, lists)
        hits = [RecallHit(hit, lists.source(hit.number)) for hit in ranking.hits]
        return Recalled(hits, ranking)

    def _recall_sources(self) -> Iterator[RecallSource]:
        """Everything that recall finds. The reference changes with the summary, and when its entries are deleted."""
        for session in self._sessions:
            owner = session.key.owner
            for _, summary in session.summaries.values():
                parts = (owner, *_members(summary), str(bool(session.entries)))
                yield RecallSource("\0".join(parts), owner, summary)
        for (owner, conversation), decisions in self._left_out.items():
            for item in decisions.values():
                parts = (owner, conversation, *_members(item.decision))
                yield RecallSource("\0".join(parts), owner, item)

    async def trajectory(
        self, thread: ArchivedThread, *, after_n: int = 0, limit: int, characters: int | None = None
    ) -> Trajectory | None:
        self._check_open()
        entries = sorted(
            (
                entry
                for session in self._sessions
                if (session.key.owner, session.key.project_hash) == (thread.owner, thread.project_hash)
                for entry in session.entries
                if entry.branch_id == thread.branch_id
                and (thread.branch_id is not None or session.session_id == thread.session_id)
            ),
            key=attrgetter("n"),
        )
        if not entries:
            return None
        rollbacks = [(entry.undone_from or 0, entry.n) for entry in entries if entry.kind == "rollback"]
        page = [entry for entry in entries if entry.n > after_n][: max(limit, 0)]
        return Trajectory(list(up_to(page, characters)), rollbacks)

    # ---- results that requests leave out

    async def left_out(self, owner: str, conversation: str) -> Sequence[LeftOutDecision]:
        self._check_open()
        return [result.decision for _, result in sorted(self._left_out.get((owner, conversation), {}).items())]

    async def keep_left_out(self, owner: str, conversation: str, items: Sequence[ArchivedResult]) -> None:
        self._check_open()
        for item in items:
            decisions = self._left_out.setdefault((owner, conversation), {})
            decisions.setdefault((item.decision.call_id, item.decision.text_hash), item)

    async def left_out_text(self, owner: str, result_id: str) -> str | None:
        self._check_open()
        of_owner = (decisions for (whose, _), decisions in self._left_out.items() if whose == owner)
        texts = (item.text for each in of_owner for item in each.values() if item.decision.result_id == result_id)
        return next(texts, None)

    async def conversation(self, owner: str, conversation: str) -> ProxiedConversation | None:
        self._check_open()
        return self._conversations.get((owner, conversation))

    async def note_conversation(self, owner: str, conversation: str, noted: ProxiedConversation) -> None:
        self._check_open()
        known = self._conversations.get((owner, conversation), ProxiedConversation(""))
        self._conversations[owner, conversation] = known.merged(noted)

    # ---- sweeps

    async def expire(self, idle_since: str, at: str) -> int:
        self._check_open()
        self._delete_events({session for session in self._sessions if (session.ended_at or "~") <= idle_since})
        for session in self._live.values():
            session.last_at = min(session.last_at, at)
        idle = sorted(
            (session for session in self._live.values() if session.last_at <= idle_since), key=attrgetter("last_at")
        )
        for session in idle:
            session.figures = self._figures(session)
        self._delete_events(set(idle))
        for session in idle:
            del self._live[session.key]
            session.ended_at = at
            session.receipts.clear()
            self._append(session, [SessionExpired(session.revision + 1, at, session.session_id)])
        return len(idle)

    def _delete_events(self, sessions: set[_MemorySession]) -> None:
        self._events = {number: item for number, item in self._events.items() if item[0] not in sessions}

    async def retain(self, archive_since: str, summaries_since: str) -> None:
        self._check_open()
        for session in [session for session in self._sessions if session.ended_at is not None]:
            if session.last_at < archive_since:
                session.entries.clear()
            if session.last_at < summaries_since:
                session.summaries.clear()
            if session.last_at < min(archive_since, summaries_since) and not self._log(session):
                self._sessions.remove(session)
        for conversation in {*self._left_out, *self._conversations}:
            times = [item.decision.decided_at for item in self._left_out.get(conversation, {}).values()]
            if conversation in self._conversations:
                times.append(self._conversations[conversation].last_request_at)
            if max(times) < archive_since:
                self._left_out.pop(conversation, None)
                self._conversations.pop(conversation, None)

    # ---- export and import

    async def export(self) -> AsyncGenerator[ExportRecord]:
        self._check_open()
        for session in sorted(self._sessions, key=_export_order):
            others = (session.revision, session.last_at, session.ended_at, session.figures)
            yield ExportedSession(session.key, session.session_id, *others)
            if session.ended_at is None:
                for event in self._log(session):
                    yield event
                for operation, receipt in sorted(session.receipts.items(), key=lambda item: item[0]):
                    yield ExportedReceipt(operation, receipt.fingerprint, receipt.answer)
            for _, (_, summary) in sorted(session.summaries.items()):
                yield summary
            for entry in sorted(session.entries, key=entry_order):
                yield entry
        for (owner, conversation), decisions in sorted(self._left_out.items()):
            for _, item in sorted(decisions.items()):
                yield ExportedLeftOut(owner, conversation, item)
        for (owner, conversation), noted in sorted(self._conversations.items(), key=lambda item: item[0]):
            yield ExportedConversation(owner, conversation, noted)

    async def import_all(self, records: Iterable[ExportRecord]) -> None:
        self._check_open()
        if self._sessions or self._left_out or self._conversations:
            raise TargetNotEmpty("the store has sessions already")
        given, stored = hashlib.sha256(), hashlib.sha256()
        for record in hashed(records, given):
            await self._import(record)
        async for record in self.export():
            stored.update(encode_record(record))
        if stored.digest() != given.digest():
            raise ImportDiffers("what was imported is not equal to the export")

    async def _import(self, record: ExportRecord) -> None:
        if isinstance(record, ExportedLeftOut):
            await self.keep_left_out(record.owner, record.conversation, [record.result])
            return
        if isinstance(record, ExportedConversation):
            await self.note_conversation(record.owner, record.conversation, record.noted)
            return
        if isinstance(record, ExportedSession):
            session = _MemorySession(record.key, record.session_id, record.last_at, record.ended_at, record.figures)
            session.revision = record.revision
            self._sessions.append(session)
            if record.is_live:
                self._live[record.key] = session
            return
        session = self._sessions[-1]
        match record:
            case ExportedReceipt():
                session.receipts[record.operation] = CommitReceipt(record.fingerprint, record.answer)
            case Summary():
                self._add_summary(session, record)
            case ArchiveEntry():
                session.entries.append(record)
            case _:
                self._append(session, [record])

    # ---- the store itself

    async def reach(self) -> None:
        self._check_open()

    async def settle(self) -> None:
        """A commit leaves no background work."""

    async def count(self, owner: str | None = None) -> int:
        self._check_open()
        return sum(owner in (None, key.owner) for key in self._live)

    async def check(self) -> None:
        self._check_open()

    async def close(self) -> None:
        self._closed = True
        for watcher in self._watchers:
            watcher.set()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")


class _Lists:
    """The lists of `fold.recall.ranking`, by reading every document each time."""

    def __init__(self, documents: Sequence[tuple[RecallSource, DocumentTerms]], scope: RecallScope) -> None:
        self._all = {
            terms.number: (source, terms)
            for source, terms in documents
            if scope.undone or not (isinstance(source.document, Summary) and source.document.undone)
        }
        self._levels = {number: dict(leveled_stems(terms)) for number, (_, terms) in self._all.items()}
        self._in_scope = {
            number
            for number, (source, _) in self._all.items()
            if scope.project_hash in (None, _origin(source).project_hash)
            and number >= (first_number(scope.since) if scope.since else 0)
        }

    def document_count(self) -> int:
        return len(self._all)

    def sizes(self, stem: str) -> list[int]:
        levels = [of_document.get(stem) for of_document in self._levels.values()]
        return [levels.count(level) for level in range(LEVELS)]

    def numbers(self, stem: str, level: int) -> Iterable[int]:
        return (number for number in self._in_scope if self._levels[number].get(stem) == level)

    def documents(self, numbers: Sequence[int]) -> dict[int, IndexedDocument]:
        documents = {}
        for number in numbers:
            source, terms = self._all[number]
            origin = _origin(source)
            kind, name = (FOLD, origin.branch_id) if isinstance(origin, Summary) else (RESULT, origin.result_id)
            documents[number] = IndexedDocument(kind, name, terms.words, terms.packed)
        return documents

    def source(self, number: int) -> Summary | LeftOutDecision:
        return _origin(self._all[number][0])


def _origin(source: RecallSource) -> Summary | LeftOutDecision:
    assert source.document is not None, "what was deleted is not indexed"
    return source.document if isinstance(source.document, Summary) else source.document.decision


def _digest(operation_id: str) -> str:
    return sha256(operation_id.encode("utf-8", "surrogatepass")).hexdigest()


def _page(
    sessions: Iterable[_MemorySession], owner: str, after: tuple[str, str] | None, limit: int
) -> list[_MemorySession]:
    listed = [
        session
        for session in sessions
        if session.key.owner == owner and (after is None or (session.last_at, session.session_id) < after)
    ]
    listed.sort(key=lambda session: (session.last_at, session.session_id), reverse=True)
    return listed[: max(limit, 0)]


def _export_order(session: _MemorySession) -> tuple[str, ...]:
    key = session.key
    return key.owner, key.project_hash, key.name_hash, session.session_id


def _words(text: str) -> list[str]:
    """Lowercase words without accents, as a search compares them."""
    base = "".join(mark for mark in unicodedata.normalize("NFD", text) if not "\u0300" <= mark <= "\u0331")
    return "".join(mark if mark.isalnum() else " " for mark in base.lower()).split()


def _score(phrases: Sequence[Sequence[str]], summary: Summary) -> int:
    """The number of occurrences of the phrases in a summary; 0 if one of them does not occur."""
    texts = [_words(summary.description), _words(summary.summary)]
    counts = [
        sum(_count(phrase, text, is_prefix=number == len(phrases)) for text in texts)
        for number, phrase in enumerate(phrases, 1)
    ]
    return sum(counts) if all(counts) else 0


def _count(phrase: Sequence[str], text: Sequence[str], *, is_prefix: bool) -> int:
    *first, last = phrase
    return sum(
        list(text[start : start + len(first)]) == first
        and (text[start + len(first)].startswith(last) if is_prefix else text[start + len(first)] == last)
        for start in range(len(text) - len(first))
    )


def _members(value: Summary | LeftOutDecision) -> list[str]:
    return [str(getattr(value, each.name)) for each in fields(value)]
