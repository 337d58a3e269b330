"""Readers of the archive on NATS: trajectories, and summaries by their words.

NATS cannot search. So the summaries of an owner who searches are in memory, in an index of SQLite, which is updated
before each search. Matching and ranking are then the same as in the SQLite store.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from contextfold.common.dataclass import dataclass, field
from contextfold.fold.archive import ArchiveEntry, up_to
from contextfold.fold.ports.store import SEARCH_MOST, Summary, Trajectory
from contextfold.stores.nats.wire import records
from contextfold.stores.nats.wire.chunks import read_chunks
from contextfold.stores.nats.wire.jetstream import JetStream, StoredMessage
from contextfold.stores.nats.wire.names import NOTHING, SubjectNames, escaped
from contextfold.stores.nats.wire.stream_reader import StreamQuery, read_to
from contextfold.stores.sqlite.queries import TrajectoryQuery, phrases

# This many messages are read at once.
AT_ONCE: Final = 32
# The most owners whose summaries are in memory.
OWNERS_MOST: Final = 64
# The most summaries that are added to an index at once.
ADD_MOST: Final = 500


@dataclass(frozen=True, slots=True)
class _ArchiveSubject:
    """What the subject of an archive message says about its content."""

    subject: str
    first: int
    has_rollback: bool
    revision: int

    @property
    def session(self) -> str:
        return self.subject.rsplit(".", 5)[0]


class ArchiveReader:
    def __init__(self, js: JetStream, names: SubjectNames) -> None:
        self._js = js
        self._names = names
        self._indexes: OrderedDict[str, _SummaryIndex] = OrderedDict()

    # ---- trajectories

    async def trajectory(self, query: TrajectoryQuery) -> Trajectory | None:
        names = self._names
        if query.branch_id is None:
            session = (
                f"{names.archive}.{escaped(query.owner)}.{escaped(query.project_hash)}.{escaped(query.session_id)}"
            )
            subjects = f"{session}.entries.{NOTHING}.>"
        else:
            subjects = names.archived_of(query.owner, query.project_hash, f"entries.b{escaped(query.branch_id)}.>")
        items = sorted(map(_archive_subject, await self._js.counts(names.archive, subjects)), key=_order)
        if not items:
            return None
        rollbacks = [
            (entry.undone_from or 0, entry.n)
            for entries in await self._read([item for item in items if item.has_rollback])
            for entry in entries
            if entry.kind == "rollback"
        ]
        return Trajectory(list(up_to(await self._page(items, query), query.characters)), sorted(rollbacks))

    async def _page(self, items: Sequence[_ArchiveSubject], query: TrajectoryQuery) -> list[ArchiveEntry]:
        """The entries after `after_n`. Messages are read until the rest cannot have an earlier entry."""
        left = _from(items, query.after_n)
        page: list[ArchiveEntry] = []
        limit = max(query.limit, 0)
        step = max(1, min(AT_ONCE, limit))
        for start in range(0, len(left), step):
            for entries in await self._read(left[start : start + step]):
                page += [entry for entry in entries if entry.n > query.after_n]
            page.sort(key=lambda entry: entry.n)
            rest = left[start + step :]
            sure = [entry for entry in page if entry.n < rest[0].first] if rest else page
            is_full = query.characters is not None and sum(len(entry.text) for entry in sure) >= query.characters
            if len(sure) >= limit or is_full:
                return sure[:limit]
        return page[:limit]

    async def _read(self, items: Sequence[_ArchiveSubject]) -> list[list[ArchiveEntry]]:
        found: list[list[ArchiveEntry]] = []
        for start in range(0, len(items), AT_ONCE):
            found += await asyncio.gather(*(self.entries(item.subject) for item in items[start : start + AT_ONCE]))
        return found

    async def entries(self, subject: str) -> list[ArchiveEntry]:
        """The entries of one message; none if it has just been deleted."""
        stored = await self._js.last(self._names.archive, subject)
        if stored is None:
            return []
        document = records.archived_from(stored.data)
        if document.chunks is None:
            return list(document.entries)
        archived = ".".join(subject.split(".")[:4])
        all_entries = records.entries_in(await read_chunks(self._js, self._names.archive, archived, document.chunks))
        return [all_entries[number] for number in document.positions]

    # ---- summaries

    async def search(self, owner: str, query: str, project_hash: str | None, limit: int) -> list[Summary]:
        words = phrases(query)
        if not words or limit < 1:
            return []
        index = self._indexes.setdefault(owner, _SummaryIndex())
        self._indexes.move_to_end(owner)
        while len(self._indexes) > OWNERS_MOST:
            self._indexes.popitem(last=False)

        async def answer() -> list[Summary]:
            async with index.lock:
                await self._bring_up_to_date(owner, index)
                return await asyncio.to_thread(index.search, words, project_hash, min(limit, SEARCH_MOST))

        # A thread cannot be cancelled: a caller that gives up leaves it, and the lock, until it is done.
        return await asyncio.shield(asyncio.create_task(answer()))

    def forget(self) -> None:
        """Drop the indexes, because summaries may have been deleted. They are built again when they are needed."""
        self._indexes.clear()

    async def _bring_up_to_date(self, owner: str, index: _SummaryIndex) -> None:
        subjects = self._names.archived_of(owner, None, "summaries.>")
        last = await self._js.last(self._names.archive, subjects)
        if last is None:
            return
        some: list[StoredMessage] = []
        async for stored in read_to(self._js, StreamQuery(self._names.archive, subjects, index.reached), last.seq):
            some.append(stored)
            if len(some) >= ADD_MOST:
                await asyncio.to_thread(index.add, some)
                some = []
        await asyncio.to_thread(index.add, some)


def _archive_subject(subject: str) -> _ArchiveSubject:
    first, kind, revision = subject.split(".")[-3:]
    return _ArchiveSubject(subject, int(first), kind == "r", int(revision))


def _order(item: _ArchiveSubject) -> tuple[int, int, str]:
    return item.first, item.revision, item.subject


def _from(items: Sequence[_ArchiveSubject], after_n: int) -> list[_ArchiveSubject]:
    """Those that may have an entry after `after_n`: of those that start before it, only the last of each session."""
    latest = {item.session: item for item in items if item.first <= after_n}
    return [item for item in items if item.first > after_n or latest[item.session] is item]


@dataclass(slots=True)
class _SummaryIndex:
    """The summaries of one owner. Threads use it one after the other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    reached: int = 0
    connection: sqlite3.Connection = field(default_factory=lambda: _new_index())  # noqa: PLW0108 - defined below

    def add(self, some: Sequence[StoredMessage]) -> None:
        for stored in some:
            *_, session, _, branch, revision = stored.subject.split(".")
            key = f"{session}.{branch}"
            row = self.connection.execute("SELECT id, revision FROM summaries WHERE key = ?", (key,)).fetchone()
            if row is None or row[1] < int(revision):
                if row is not None:
                    self.connection.execute("DELETE FROM words WHERE rowid = ?", (row[0],))
                    self.connection.execute("DELETE FROM summaries WHERE id = ?", (row[0],))
                summary = records.summary_from(stored.data)
                found = None if summary is None or summary.undone else summary
                self._insert(key, int(revision), row[0] if row else None, found)
            self.reached = stored.seq

    def __del__(self) -> None:
        self.connection.close()

    def _insert(self, key: str, revision: int, number: int | None, summary: Summary | None) -> None:
        values = tuple(getattr(summary, name) for name in _COLUMNS) if summary else (None,) * len(_COLUMNS)
        inserted = self.connection.execute(
            _INSERT,
            (number, key, revision, *values),
        )
        if summary is not None:
            self.connection.execute(
                "INSERT INTO words (rowid, description, summary) VALUES (?, ?, ?)",
                (inserted.lastrowid, summary.description, summary.summary),
            )

    def search(self, words: str, project_hash: str | None, limit: int) -> list[Summary]:
        rows = self.connection.execute(_SEARCH, (words, project_hash, limit))
        return [Summary(*row) for row in rows]


# An undone summary is not found.
_COLUMNS: Final = tuple(name for name in Summary.__slots__ if name != "undone")
_NAMED: Final = ", ".join(_COLUMNS)
_INSERT: Final = f"INSERT INTO summaries (id, key, revision, {_NAMED}) VALUES (?, ?, ?{', ?' * len(_COLUMNS)})"  # noqa: S608 - our own names alone
_SEARCH: Final = f"""SELECT {", ".join("m." + name for name in _COLUMNS)}
    FROM words JOIN summaries m ON m.id = words.rowid
    WHERE words MATCH ? AND m.project_hash = coalesce(?, m.project_hash)
    ORDER BY bm25(words), m.folded_at DESC, m.id DESC LIMIT ?"""  # noqa: S608 - our own names alone


def _new_index() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    connection.execute(
        f"CREATE TABLE summaries (id INTEGER PRIMARY KEY, key TEXT UNIQUE, revision INTEGER, {', '.join(_COLUMNS)})"
    )
    connection.execute(
        "CREATE VIRTUAL TABLE words USING fts5 (description, summary, tokenize='unicode61 remove_diacritics 2')"
    )
    return connection
