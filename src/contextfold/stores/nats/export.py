"""Export of a store on NATS as records, and import of records into an empty one.

Events and receipts of a live session are exported from its log, and everything else from the archive up to the same
revision, so a session is consistent while daemons work on it. An ended one is all in the archive. An import writes
entries to the archive and appends each live session to the log as one commit. It cannot be one transaction, so it
compares at the end and says what to do after a failure.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from contextfold.errors import ImportDiffers, StoreUnavailable, TargetNotEmpty
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import Event
from contextfold.fold.store import CommitReceipt, SessionKey, Summary
from contextfold.fold.store_export import (
    ExportedConversation,
    ExportedLeftOut,
    ExportedReceipt,
    ExportedSession,
    ExportRecord,
    encode_record,
    entry_order,
    hash_records,
)
from contextfold.stores.nats import records
from contextfold.stores.nats.archive import ArchiveReader, BranchSummary, NatsConversations, revision_of
from contextfold.stores.nats.jetstream import JetStream, StoredMessage, StreamQuery, read_stored
from contextfold.stores.nats.log import SessionLogs
from contextfold.stores.nats.publisher import Publisher
from contextfold.stores.nats.records import CommitRecord
from contextfold.stores.nats.sessions import SessionExpiry
from contextfold.stores.nats.streams import SubjectNames

# A session that ends while it is read is read again at most this many times.
TRIES: Final = 3
# About the most characters of imported entries in memory.
PART_CHARACTERS: Final = 4 << 20


@dataclass(slots=True, eq=False)
class NatsExport:
    js: JetStream
    names: SubjectNames
    logs: SessionLogs
    publisher: Publisher
    expiry: SessionExpiry
    conversations: NatsConversations
    archive: ArchiveReader

    # ---- export

    async def export(self) -> AsyncGenerator[ExportRecord]:
        for key, session_id in await self._sessions():
            for _ in range(TRIES):
                session = await self._read_live(key, session_id) or await self._read_ended(key, session_id)
                if session is not None:
                    async for record in self._records(*session):
                        yield record
                    break
                # It is being ended at this moment, or was forgotten.
                await asyncio.sleep(0)
        async for record in self.conversations.export():
            yield record

    async def _sessions(self) -> list[tuple[SessionKey, str]]:
        listed = {(row.key, row.session_id) for row in await self.expiry.live()}
        listed |= {(session.key, session.session_id) for session in await self.expiry.list_ended(self.names.every_end)}
        return sorted(listed)

    async def _read_live(self, key: SessionKey, session_id: str) -> tuple[ExportedSession, list[CommitRecord]] | None:
        """The session as of its last commit, and its log; None if it is not live."""
        log = await self.logs.records(key)
        last = log[-1][0] if log else None
        # If the session is still live, nothing of its log was deleted while it was read.
        now = await self.logs.last(key)
        if last is None or now is None or last.ended_at or {last.session_id, now.session_id} != {session_id}:
            return None
        if await self.publisher.is_behind(key):
            await self.publisher.catch_up(key)
        return ExportedSession(key, session_id, last.revision, last.last_at, None, ""), [record for _, record in log]

    async def _read_ended(self, key: SessionKey, session_id: str) -> tuple[ExportedSession, list[CommitRecord]] | None:
        end = await self.js.last(self.names.archive, f"{self.names.archived(key, session_id)}.ended")
        if end is None:
            return None
        events = await self.expiry.ended_log(key, session_id)
        return records.parse_ended(end.data), [CommitRecord(session_id, 0, events, {})] if events else []

    async def _records(self, session: ExportedSession, log: list[CommitRecord]) -> AsyncGenerator[ExportRecord]:
        """Events and receipts are in the log; the rest is in the archive, where later commits are left out."""
        yield session
        receipts: dict[str, CommitReceipt] = {}
        for commit in log:
            receipts |= commit.receipts
            for event in commit.events:
                yield event
        for operation, receipt in sorted(receipts.items()):
            yield ExportedReceipt(operation, receipt.fingerprint, receipt.answer)
        archived = self.names.archived(session.key, session.session_id)
        branches: dict[str, BranchSummary] = defaultdict(BranchSummary)
        async for stored in self._read_archived(f"{archived}.summaries.>", session.revision):
            branches[stored.subject.rpartition(".")[0]].add(stored)
        summaries = [summary for branch in branches.values() if (summary := branch.current)]
        for summary in sorted(summaries, key=lambda summary: summary.branch_id):
            yield summary
        commits: dict[int, list[StoredMessage]] = defaultdict(list)
        async for stored in self._read_archived(f"{archived}.entries.>", session.revision):
            commits[revision_of(stored)].append(stored)
        for _, threads in sorted(commits.items()):
            entries = [entry for stored in threads for entry in await self.archive.entries(stored)]
            for entry in sorted(entries, key=entry_order):
                yield entry

    async def _read_archived(self, subjects: str, revision: int) -> AsyncIterator[StoredMessage]:
        async for stored in read_stored(self.js, StreamQuery(self.names.archive, subjects)):
            if revision_of(stored) <= revision:
                yield stored

    # ---- import

    async def import_all(self, items: Iterable[ExportRecord]) -> None:
        for stream in (self.names.log, self.names.archive):
            if await self.js.last(stream, f"{stream}.>") is not None:
                raise TargetNotEmpty(f"the store has sessions already, or an import was interrupted: {self._advice}")
        # What is imported is as old as it says, whatever the empty store has seen.
        await self.js.purge(self.names.state, self.names.clock)
        given, stored = hashlib.sha256(), hashlib.sha256()
        try:
            await self._import(hash_records(items, given))
            async with aclosing(self.export()) as exported:
                async for record in exported:
                    stored.update(encode_record(record))
        except StoreUnavailable as problem:
            raise StoreUnavailable(f"{problem.reason}. The import is not complete: {self._advice}") from problem
        if stored.digest() != given.digest():
            raise ImportDiffers(f"what was imported is not equal to the file: {self._advice}")

    @property
    def _advice(self) -> str:
        streams = ", ".join(self.names.subjects)
        return f"delete the streams {streams}, or use another --nats-prefix, and import again"

    async def _import(self, items: Iterable[ExportRecord]) -> None:
        session: _SessionImport | None = None
        for item in items:
            if session is not None and isinstance(item, ExportedSession | ExportedLeftOut | ExportedConversation):
                await self._finish(session)
                session = None
            match item:
                case ExportedSession():
                    session = _SessionImport(item)
                case ExportedLeftOut():
                    await self.conversations.keep(item.owner, item.conversation, [item.result])
                case ExportedConversation():
                    await self.conversations.merge(item.owner, item.conversation, item.noted)
                case _:
                    assert session is not None, "the reader checks that a session comes first"
                    if isinstance(item, ArchiveEntry) and session.is_full_before(item):
                        await self._archive_entries(session)
                    session.add(item)
        if session is not None:
            await self._finish(session)

    async def _archive_entries(self, part: _SessionImport) -> None:
        """Write the buffered entries to the archive, as if the last event of them were a commit of all."""
        if part.entries:
            record = CommitRecord(part.session.session_id, part.entries[-1].n, (), {}, entries=part.entries)
            await self.publisher.archive(part.session.key, record)
        part.entries, part.characters = [], 0

    async def _finish(self, part: _SessionImport) -> None:
        """Store what is left: the rest of the entries, and a live session's log as one commit."""
        await self._archive_entries(part)
        session = part.session
        if session.is_live:
            record = CommitRecord(
                session.session_id, 0, part.events, part.receipts, part.summaries, last_at=session.last_at
            )
            self.publisher.publish_soon(await self.logs.append(session.key, record))
            await self.publisher.catch_up(session.key)
        else:
            record = CommitRecord(session.session_id, session.revision, (), {}, part.summaries)
            await self.publisher.archive(session.key, record)
            await self.expiry.put_ended(session, part.events)


@dataclass(slots=True)
class _SessionImport:
    """A session that is being imported: what is not stored yet."""

    session: ExportedSession
    events: list[Event] = field(default_factory=list)
    receipts: dict[str, CommitReceipt] = field(default_factory=dict)
    summaries: list[Summary] = field(default_factory=list)
    entries: list[ArchiveEntry] = field(default_factory=list)
    characters: int = 0

    def add(self, item: Event | ExportedReceipt | Summary | ArchiveEntry) -> None:
        match item:
            case ExportedReceipt():
                self.receipts[item.operation] = CommitReceipt(item.fingerprint, item.answer)
            case Summary():
                self.summaries.append(item)
            case ArchiveEntry():
                self.entries.append(item)
                self.characters += len(item.text)
            case _:
                self.events.append(item)

    def is_full_before(self, entry: ArchiveEntry) -> bool:
        """Whether to write the buffered entries first. Entries of one event stay together."""
        return self.characters >= PART_CHARACTERS and entry.n != self.entries[-1].n
