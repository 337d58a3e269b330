"""The archive stream: trajectories, the messages about the summary of a branch, and contents of any size as chunks.

A record refers to chunks by a mark. Chunks are written before the record. The chunks of a refused commit are never
referred to, and are deleted with the archive of the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from contextfold.errors import StoreInvalid
from contextfold.fold.archive import ArchiveEntry, limit_characters
from contextfold.fold.store import ArchivedThread, Summary, Trajectory
from contextfold.stores.nats import records
from contextfold.stores.nats.connection import in_batches
from contextfold.stores.nats.jetstream import JetStream, StoredMessage, StreamQuery, new_mark, read_stored
from contextfold.stores.nats.records import ChunkReference
from contextfold.stores.nats.streams import NOTHING, SubjectNames, escape_part, session_part

CHUNK_BYTES: Final = 512 << 10
# This many chunks are written at once.
CHUNKS_AT_ONCE: Final = 8
# This many messages are read at once.
AT_ONCE: Final = 32


def message_bytes_max(js: JetStream) -> int:
    """The size of a message that every server accepts."""
    return min(CHUNK_BYTES, js.payload_most // 2 or CHUNK_BYTES)


async def write_chunks(js: JetStream, archived: str, data: bytes) -> ChunkReference:
    """Write chunks below the archive subject of a session or conversation."""
    size = message_bytes_max(js)
    starts = range(0, len(data), size)
    written = ChunkReference(new_mark(), len(starts))
    pieces = f"{archived}.pieces.{written.mark}"
    chunks = (js.put_last(f"{pieces}.{number}", data[at : at + size]) for number, at in enumerate(starts))
    await in_batches(chunks, CHUNKS_AT_ONCE)
    return written


async def read_chunks(js: JetStream, archived: str, chunks: ChunkReference) -> bytes:
    # The first part of a subject of the archive is the name of its stream.
    query = StreamQuery(archived.partition(".")[0], f"{archived}.pieces.{chunks.mark}.*")
    pieces = {int(stored.subject.rpartition(".")[2]): stored.data async for stored in read_stored(js, query)}
    if len(pieces) != chunks.count:
        raise StoreInvalid(f"NATS has {len(pieces)} of the {chunks.count} pieces of a text")
    return b"".join(pieces[number] for number in range(chunks.count))


class _ArchiveSubject(NamedTuple):
    """What the subject of an archive message says about its content, in the order in which they are read."""

    first: int
    revision: int
    subject: str
    has_rollback: bool


@dataclass(slots=True)
class BranchSummary:
    """What the messages about a branch say together: its newest summary, and whether it was retracted after that."""

    subjects: set[str] = field(default_factory=set)
    summary: Summary | None = None
    revision: int = -1
    retracted: int = -1

    def add(self, stored: StoredMessage) -> None:
        self.subjects.add(stored.subject)
        revision = revision_of(stored)
        summary = records.parse_summary(stored.data)
        if summary is None:
            self.retracted = max(self.retracted, revision)
        elif revision > self.revision:
            self.summary, self.revision = summary, revision

    @property
    def current(self) -> Summary | None:
        if self.summary is None or self.retracted < self.revision:
            return self.summary
        return self.summary._replace(undone=True)


class ArchiveReader:
    def __init__(self, js: JetStream, names: SubjectNames) -> None:
        self._js = js
        self._names = names

    async def trajectory(
        self, thread: ArchivedThread, *, after_n: int, limit: int, characters: int | None
    ) -> Trajectory | None:
        names = self._names
        if thread.branch_id is None:
            session = ".".join(map(escape_part, (thread.owner, thread.project_hash, thread.session_id)))
            subjects = f"{names.archive}.{session}.entries.{NOTHING}.>"
        else:
            subjects = names.archived_of(
                thread.owner, thread.project_hash, f"entries.b{escape_part(thread.branch_id)}.>"
            )
        items = sorted(map(_archive_subject, await self._js.counts(names.archive, subjects)))
        if not items:
            return None
        rollbacks = [
            (entry.undone_from or 0, entry.n)
            for entries in await self._read([item for item in items if item.has_rollback])
            for entry in entries
            if entry.kind == "rollback"
        ]
        page = await self._page(items, after_n, max(limit, 0), characters)
        return Trajectory(list(limit_characters(page, characters)), sorted(rollbacks))

    async def _page(
        self, items: Sequence[_ArchiveSubject], after_n: int, limit: int, characters: int | None
    ) -> list[ArchiveEntry]:
        """The entries after `after_n`. Messages are read until the rest cannot have an earlier entry."""
        left = _select_after(items, after_n)
        page: list[ArchiveEntry] = []
        step = max(1, min(AT_ONCE, limit))
        for start in range(0, len(left), step):
            for entries in await self._read(left[start : start + step]):
                page += [entry for entry in entries if entry.n > after_n]
            page.sort(key=lambda entry: entry.n)
            rest = left[start + step :]
            sure = [entry for entry in page if entry.n < rest[0].first] if rest else page
            is_full = characters is not None and sum(len(entry.text) for entry in sure) >= characters
            if len(sure) >= limit or is_full:
                return sure[:limit]
        return page[:limit]

    async def _read(self, items: Sequence[_ArchiveSubject]) -> list[list[ArchiveEntry]]:
        return await in_batches((self._read_one(item.subject) for item in items), AT_ONCE)

    async def _read_one(self, subject: str) -> list[ArchiveEntry]:
        """The entries of one message; none if it has just been deleted."""
        stored = await self._js.last(self._names.archive, subject)
        return await self.entries(stored) if stored else []

    async def entries(self, stored: StoredMessage) -> list[ArchiveEntry]:
        entries, chunks, positions = records.parse_archived(stored.data)
        if chunks is None:
            return entries
        all_entries = records.parse_entries(await read_chunks(self._js, session_part(stored.subject), chunks))
        return [all_entries[position] for position in positions]


def revision_of(stored: StoredMessage) -> int:
    """The revision of the commit that a message of the archive is from, which is the last part of its subject."""
    return int(stored.subject.rpartition(".")[2])


def _archive_subject(subject: str) -> _ArchiveSubject:
    first, kind, revision = subject.split(".")[-3:]
    return _ArchiveSubject(int(first), int(revision), subject, kind == "r")


def _select_after(items: Sequence[_ArchiveSubject], after_n: int) -> list[_ArchiveSubject]:
    """Those that may have an entry after `after_n`: of those that start before it, only the last of each session."""
    latest = {session_part(item.subject): item for item in items if item.first <= after_n}
    return [item for item in items if item.first > after_n or latest[session_part(item.subject)] is item]
