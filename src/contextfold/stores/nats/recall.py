"""Recall and search on NATS, which cannot search: what an owner who asks has is copied into SQLite tables in memory.

The tables and queries are those of the SQLite store, so matching and ranking are the same.

The tables follow the messages of the archive stream. Deletions are not announced, so after a sweep the subjects that
are left are compared with those that were read.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, TypeVar, TypeVarTuple

from contextfold.common.question import Question
from contextfold.fold.recall_ranking import DocumentTerms, RecallScope
from contextfold.fold.store import ArchivedResult, Recalled, RecallSource, Summary
from contextfold.stores.nats.archive import BranchSummary, NatsConversations, decision_of
from contextfold.stores.nats.jetstream import JetStream, StoredMessage, StreamQuery, read_stored, stored_subjects
from contextfold.stores.nats.streams import NOTHING, SubjectNames, escape_part, session_part
from contextfold.stores.sqlite import statements
from contextfold.stores.sqlite.schema import MIGRATIONS, add_functions

# The most owners whose documents are in memory.
OWNERS_MAX: Final = 64

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class NatsRecall:
    def __init__(
        self,
        js: JetStream,
        names: SubjectNames,
        conversations: NatsConversations,
        settle: Callable[[str], Awaitable[None]],
    ) -> None:
        """`settle` puts what an owner has committed into the archive."""
        self._js, self._names, self._conversations, self._settle = js, names, conversations, settle
        self._indexes: OrderedDict[str, _OwnerIndex] = OrderedDict()

    async def unindexed(self, owner: str | None, limit: int) -> list[RecallSource]:
        found = await self._answer(owner, statements.unindexed, owner, limit) if owner is not None else ()
        return [await self._complete(source) for source in found]

    async def summaries(self, owner: str, project_hash: str | None) -> list[Summary]:
        return await self._answer(owner, statements.summaries, owner, project_hash)

    async def search(self, owner: str, query: str, project_hash: str | None, limit: int) -> list[Summary]:
        return await self._answer(owner, statements.search, owner, query, project_hash, limit)

    async def index(self, documents: Sequence[tuple[RecallSource, DocumentTerms | None]]) -> None:
        for owner in {source.owner for source, _ in documents}:
            own = [each for each in documents if each[0].owner == owner]
            await self._answer(owner, statements.index, own, is_current=False)

    async def recall(self, owner: str, question: Question, scope: RecallScope) -> Recalled:
        # The service has just indexed what was missing.
        return await self._answer(owner, statements.recall, owner, question, scope, is_current=False)

    def check_deletions(self) -> None:
        """Compare with what is stored before the next answer, because something may have been deleted."""
        for index in self._indexes.values():
            index.may_have_deletions = True

    async def _answer(
        self,
        owner: str,
        query: Callable[[sqlite3.Connection, *Arguments], Result],
        *args: *Arguments,
        is_current: bool = True,
    ) -> Result:
        """Query the tables of an owner, which are brought up to date first if the answer must be current."""
        self._js.check_open()
        if is_current:
            await self._settle(owner)
        if owner not in self._indexes:
            self._indexes[owner] = _OwnerIndex(owner)
        self._indexes.move_to_end(owner)
        while len(self._indexes) > OWNERS_MAX:
            self._indexes.popitem(last=False)
        index = self._indexes[owner]

        async def answer() -> Result:
            async with index.lock:
                if is_current:
                    await self._bring_up_to_date(index)
                return await asyncio.to_thread(query, index.connection, *args)

        # A thread cannot be cancelled: a caller that gives up leaves it, and the lock, until it is done.
        return await asyncio.shield(asyncio.ensure_future(answer()))

    async def _bring_up_to_date(self, index: _OwnerIndex) -> None:
        summaries = self._names.archived_of(index.owner, None, "summaries.>")
        results = f"{self._names.archive}.{escape_part(index.owner)}.{NOTHING}.*.left_out.>"
        if index.may_have_deletions:
            index.may_have_deletions = False
            entries = self._names.archived_of(index.owner, None, "entries.>")
            found = [
                await stored_subjects(self._js, self._names.archive, each) for each in (summaries, results, entries)
            ]
            await asyncio.to_thread(index.keep_only, {*found[0], *found[1]}, set(map(session_part, found[2])))
        query = StreamQuery(self._names.archive, summaries, index.summaries_reached)
        if new := [stored async for stored in read_stored(self._js, query)]:
            await asyncio.to_thread(index.add_summaries, new)
        query = StreamQuery(self._names.archive, results, index.results_reached, headers_only=True)
        if new := [stored async for stored in read_stored(self._js, query)]:
            await asyncio.to_thread(index.add_results, new)

    async def _complete(self, source: RecallSource) -> RecallSource:
        """The source with the text of its left-out result, which the tables do not have."""
        result = source.document
        if not isinstance(result, ArchivedResult):
            return source
        text = await self._conversations.text(source.owner, result.decision.result_id)
        return source._replace(document=None if text is None else result._replace(text=text))


def _new_tables() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    add_functions(connection)
    for statement in chain.from_iterable(MIGRATIONS):
        connection.execute(statement)
    return connection


@dataclass(slots=True)
class _OwnerIndex:
    """The documents of one owner. A left-out result has its subject in the place of the conversation, and no text."""

    owner: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    summaries_reached: int = 0
    results_reached: int = 0
    may_have_deletions: bool = False
    branches: dict[str, BranchSummary] = field(default_factory=lambda: defaultdict(BranchSummary))
    # The row of each session.
    sessions: dict[str, int] = field(default_factory=dict)
    # The sessions that had entries in the archive when one of their folds was last put into the lists.
    with_entries: set[str] = field(default_factory=set)
    connection: sqlite3.Connection = field(default_factory=_new_tables)

    def __del__(self) -> None:
        self.connection.close()

    def add_summaries(self, messages: Sequence[StoredMessage]) -> None:
        for stored in messages:
            branch = self.branches[stored.subject.rpartition(".")[0]]
            branch.add(stored)
            self.with_entries.add(session_part(stored.subject))
            if summary := branch.current:
                row = self._session(session_part(stored.subject), summary)
                self.connection.execute(statements.INSERT_SUMMARY, (row, *statements.summary_row(summary)))
            self.summaries_reached = stored.seq

    def _session(self, name: str, summary: Summary) -> int:
        if name not in self.sessions:
            # Only the owner, the project and the id are used.
            session = (self.owner, summary.project_hash, "", summary.session_id, 0, "", 3, None, "")
            inserted = self.connection.execute(statements.INSERT_SESSION, session)
            self.sessions[name] = inserted.lastrowid or 0
        return self.sessions[name]

    def add_results(self, messages: Sequence[StoredMessage]) -> None:
        for stored in messages:
            self.connection.execute(_DELETE_RESULT, (self.owner, stored.subject))
            result = ArchivedResult(decision_of(stored), "")
            statements.keep_left_out(self.connection, self.owner, stored.subject, [result])
            self.results_reached = stored.seq

    def keep_only(self, subjects: set[str], with_entries: set[str]) -> None:
        for name, branch in list(self.branches.items()):
            if not branch.subjects <= subjects:
                del self.branches[name]
                if summary := branch.current:
                    row = self.sessions[session_part(name)]
                    self.connection.execute(
                        "DELETE FROM summaries WHERE session = ? AND branch_id = ?", (row, summary.branch_id)
                    )
        known = self.connection.execute("SELECT owner, conversation FROM left_out").fetchall()
        self.connection.executemany(_DELETE_RESULT, [row for row in known if row[1] not in subjects])
        # Folds of sessions whose entries were deleted have lost words. A change that changes nothing queues them.
        lost = [(self.sessions[name],) for name in self.with_entries - with_entries if name in self.sessions]
        self.connection.executemany("UPDATE summaries SET undone = undone WHERE session = ?", lost)
        self.with_entries &= with_entries


# Sessions of any state: there is one live session for each key, and keys are not known here.
_DELETE_RESULT: Final = "DELETE FROM left_out WHERE owner = ? AND conversation = ?"
