"""Recall and search on NATS, which cannot search: what an owner who asks has is indexed in memory, in SQLite.

So matching and ranking are the same as in the SQLite store.

An index follows the messages of the archive stream. Deletions are not announced, so after a sweep the subjects that
are left are compared with those that were read.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from contextfold.common.dataclass import dataclass, field
from contextfold.common.relevance.question import Question
from contextfold.fold.ports.store import (
    SEARCH_MOST,
    ArchivedResult,
    LeftOutDecision,
    Recalled,
    RecallSource,
    Summary,
)
from contextfold.fold.recall.documents import DocumentTerms
from contextfold.fold.recall.packed_terms import FOLD, RESULT
from contextfold.fold.recall.ranking import RecallScope
from contextfold.stores import recall_index
from contextfold.stores.nats.archive import BranchSummary
from contextfold.stores.nats.conversations import NatsConversations, decision_of
from contextfold.stores.nats.wire.jetstream import JetStream, StoredMessage
from contextfold.stores.nats.wire.names import NOTHING, SubjectNames, escaped, session_part
from contextfold.stores.nats.wire.stream_reader import StreamQuery, read_stored
from contextfold.stores.sqlite.queries import phrases
from contextfold.stores.sqlite.schema import RECALL_TABLES

# The most owners whose documents are in memory.
OWNERS_MOST: Final = 64

Result = TypeVar("Result")


class NatsRecall:
    def __init__(self, js: JetStream, names: SubjectNames, conversations: NatsConversations) -> None:
        self._js, self._names, self._conversations = js, names, conversations
        self._indexes: OrderedDict[str, _OwnerIndex] = OrderedDict()

    async def unindexed(self, owner: str, limit: int) -> list[RecallSource]:
        index = self._index_of(owner)
        async with index.lock:
            await self._bring_up_to_date(owner, index)
            return [await self._source(owner, index, row) for row in list(index.stale)[:limit]]

    async def summaries(self, owner: str, project_hash: str | None) -> list[Summary]:
        index = self._index_of(owner)
        async with index.lock:
            await self._bring_up_to_date(owner, index)
            folds = (each.current for each in index.documents.values() if isinstance(each, BranchSummary))
            live_folds = [
                fold for fold in folds if fold and not fold.undone and project_hash in (None, fold.project_hash)
            ]
            return sorted(live_folds, key=lambda summary: (summary.session_id, summary.branch_id))

    async def index(self, documents: Sequence[tuple[RecallSource, DocumentTerms | None]]) -> None:
        for owner in {source.owner for source, _ in documents}:
            index = self._index_of(owner)
            async with index.lock:
                await asyncio.to_thread(index.put, [each for each in documents if each[0].owner == owner])

    async def recall(self, owner: str, question: Question, scope: RecallScope) -> Recalled:
        index = self._index_of(owner)

        async def answer() -> Recalled:
            async with index.lock:
                return await asyncio.to_thread(index.recall, owner, question, scope)

        return await _finished(answer)

    async def search(self, owner: str, query: str, project_hash: str | None, limit: int) -> list[Summary]:
        words = phrases(query)
        if not words or limit < 1:
            return []
        index = self._index_of(owner)

        async def answer() -> list[Summary]:
            async with index.lock:
                await self._bring_up_to_date(owner, index)
                return await asyncio.to_thread(index.search, words, project_hash, min(limit, SEARCH_MOST))

        return await _finished(answer)

    def check_deletions(self) -> None:
        """Compare with what is stored before the next answer, because something may have been deleted."""
        for index in self._indexes.values():
            index.may_have_deletions = True

    def _index_of(self, owner: str) -> _OwnerIndex:
        index = self._indexes.setdefault(owner, _OwnerIndex())
        self._indexes.move_to_end(owner)
        while len(self._indexes) > OWNERS_MOST:
            self._indexes.popitem(last=False)
        return index

    async def _bring_up_to_date(self, owner: str, index: _OwnerIndex) -> None:
        summaries = self._names.archived_of(owner, None, "summaries.>")
        results = f"{self._names.archive}.{escaped(owner)}.{NOTHING}.*.left_out.>"
        if index.may_have_deletions:
            index.may_have_deletions = False
            index.keep_only({*await self._subjects(summaries), *await self._subjects(results)})
            entries = await self._subjects(self._names.archived_of(owner, None, "entries.>"))
            index.check_entries(set(map(session_part, entries)))
        new_summaries = StreamQuery(self._names.archive, summaries, index.summaries_reached)
        async for stored in read_stored(self._js, new_summaries):
            index.add_summary(stored)
        new_results = StreamQuery(self._names.archive, results, index.results_reached, headers_only=True)
        async for stored in read_stored(self._js, new_results):
            index.add_result(stored, decision_of(stored))

    async def _subjects(self, subjects: str) -> list[str]:
        return list(await self._js.counts(self._names.archive, subjects))

    async def _source(self, owner: str, index: _OwnerIndex, row: int) -> RecallSource:
        ref = f"{row}.{index.stale[row]}"
        document = index.documents.get(row)
        if isinstance(document, BranchSummary):
            return RecallSource(ref, owner, summary=document.current)
        text = await self._conversations.text(owner, document.decision.result_id) if document else None
        if document is None or text is None:
            return RecallSource(ref, owner)
        return RecallSource(ref, owner, result=ArchivedResult(document.decision, text))


@dataclass(frozen=True, slots=True)
class _IndexedResult:
    subject: str
    decision: LeftOutDecision


@dataclass(slots=True)
class _OwnerIndex:
    """The documents of one owner by row. `stale` has the rows that the lists do not have in their current version."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    summaries_reached: int = 0
    results_reached: int = 0
    may_have_deletions: bool = False
    rows: dict[str, int] = field(default_factory=dict)
    documents: dict[int, BranchSummary | _IndexedResult] = field(default_factory=dict)
    stale: dict[int, int] = field(default_factory=dict)
    # The rows whose summary was added, changed or deleted since the last search.
    unsearched: set[int] = field(default_factory=set)
    # The sessions that had entries in the archive when one of their folds was last put into the lists.
    with_entries: set[str] = field(default_factory=set)
    changes: int = 0
    connection: sqlite3.Connection = field(default_factory=lambda: _new_lists())  # noqa: PLW0108 - defined below

    def __del__(self) -> None:
        self.connection.close()

    def add_summary(self, stored: StoredMessage) -> None:
        row = self._row(stored.subject.rpartition(".")[0])
        branch = self.documents.setdefault(row, BranchSummary())
        assert isinstance(branch, BranchSummary)
        branch.add(stored)
        self.with_entries.add(session_part(stored.subject))
        self.unsearched.add(row)
        self._change(row)
        self.summaries_reached = stored.seq

    def add_result(self, stored: StoredMessage, decision: LeftOutDecision) -> None:
        row = self._row(stored.subject)
        self.documents[row] = _IndexedResult(stored.subject, decision)
        self._change(row)
        self.results_reached = stored.seq

    def keep_only(self, subjects: set[str]) -> None:
        for row, document in list(self.documents.items()):
            known = document.subjects if isinstance(document, BranchSummary) else {document.subject}
            if not known <= subjects:
                del self.documents[row]
                self.unsearched.add(row)
                self._change(row)

    def check_entries(self, sessions: set[str]) -> None:
        """Folds of sessions whose entries were deleted have lost words."""
        lost = self.with_entries - sessions
        self.with_entries &= sessions
        for row, document in self.documents.items():
            if isinstance(document, BranchSummary) and not lost.isdisjoint(map(session_part, document.subjects)):
                self._change(row)

    def put(self, documents: Sequence[tuple[RecallSource, DocumentTerms | None]]) -> None:
        for source, terms in documents:
            row, version = map(int, source.ref.split("."))
            if self.stale.get(row) != version:
                continue
            del self.stale[row]
            if terms is None:
                recall_index.remove(self.connection, (FOLD, row))
                recall_index.remove(self.connection, (RESULT, row))
            else:
                recall_index.put(self.connection, (RESULT if source.result else FOLD, row), source, terms)

    def recall(self, owner: str, question: Question, scope: RecallScope) -> Recalled:
        def source_of(_kind: str, row: int) -> Summary | LeftOutDecision | None:
            document = self.documents.get(row)
            return document.decision if isinstance(document, _IndexedResult) else self._summary(row)

        return recall_index.recall(self.connection, owner, question, scope, source_of)

    def search(self, words: str, project_hash: str | None, limit: int) -> list[Summary]:
        for row in self.unsearched:
            self.connection.execute("DELETE FROM words WHERE rowid = ?", (row,))
            summary = self._summary(row)
            if summary is not None and not summary.undone:
                texts = (summary.description, summary.summary, summary.project_hash, summary.folded_at)
                self.connection.execute(_INSERT_WORDS, (row, *texts))
        self.unsearched.clear()
        rows = self.connection.execute(_SEARCH_WORDS, (words, project_hash, limit)).fetchall()
        return [summary for (row,) in rows if (summary := self._summary(row))]

    def _summary(self, row: int) -> Summary | None:
        document = self.documents.get(row)
        return document.current if isinstance(document, BranchSummary) else None

    def _row(self, key: str) -> int:
        return self.rows.setdefault(key, len(self.rows) + 1)

    def _change(self, row: int) -> None:
        self.changes += 1
        self.stale[row] = self.changes


async def _finished(work: Callable[[], Awaitable[Result]]) -> Result:
    """A thread cannot be cancelled: a caller that gives up leaves it, and the lock, until it is done."""
    return await asyncio.shield(asyncio.ensure_future(work()))


# The summaries that a search finds: those that are not undone.
_WORDS: Final = """CREATE VIRTUAL TABLE words USING fts5 (
    description, summary, project_hash UNINDEXED, folded_at UNINDEXED, tokenize='unicode61 remove_diacritics 2')"""
_INSERT_WORDS: Final = "INSERT INTO words (rowid, description, summary, project_hash, folded_at) VALUES (?, ?, ?, ?, ?)"
_SEARCH_WORDS: Final = """SELECT rowid FROM words WHERE words MATCH ? AND project_hash = coalesce(?, project_hash)
    ORDER BY bm25(words), folded_at DESC, rowid DESC LIMIT ?"""


def _new_lists() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    for statement in (*RECALL_TABLES, _WORDS):
        connection.execute(statement)
    return connection
