"""Export of a store on NATS as records, and import of records into an empty one.

A live session is exported from its log alone, so it is consistent while daemons work on it. An ended one has no log and
is exported from the archive. An import appends each live session to the log in a few commits; everything else is
derived as usual. It cannot be one transaction, so it compares at the end and says what to do after a failure.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Final

from contextfold.common.dataclass import dataclass, field, replace
from contextfold.errors import StoreUnavailable
from contextfold.export_errors import ImportDiffers, TargetNotEmpty
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import Event
from contextfold.fold.ports.store import CommitReceipt, SessionKey, Summary
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
from contextfold.stores.nats.archive import ArchiveReader, BranchSummary
from contextfold.stores.nats.conversations import NatsConversations
from contextfold.stores.nats.derived_state import DerivedState
from contextfold.stores.nats.expiry import SessionExpiry
from contextfold.stores.nats.log import SessionLogs, session_of
from contextfold.stores.nats.publisher import Publisher
from contextfold.stores.nats.wire import records
from contextfold.stores.nats.wire.chunks import read_chunks
from contextfold.stores.nats.wire.jetstream import JetStream
from contextfold.stores.nats.wire.names import SubjectNames
from contextfold.stores.nats.wire.records import CommitRecord
from contextfold.stores.nats.wire.stream_reader import StreamQuery, read_stored

AT_ONCE: Final = 16
# A session that ends while it is read is read again at most this many times.
TRIES: Final = 3
# The most characters of the entries of an imported commit.
PART_CHARACTERS: Final = 4 << 20


class NatsExport:
    def __init__(
        self,
        js: JetStream,
        names: SubjectNames,
        logs: SessionLogs,
        *,
        derived: DerivedState,
        publisher: Publisher,
        expiry: SessionExpiry,
        conversations: NatsConversations,
    ) -> None:
        self._js = js
        self._names = names
        self._logs = logs
        self._derived = derived
        self._publisher = publisher
        self._expiry = expiry
        self._conversations = conversations
        self._archive = ArchiveReader(js, names)

    # ---- export

    async def export(self) -> AsyncGenerator[ExportRecord]:
        for key, session_id in await self._sessions():
            for _ in range(TRIES):
                log = await self._log(key, session_id)
                if log is not None:
                    async for record in self._live(*log):
                        yield record
                    break
                end = await self._js.last(self._names.archive, f"{self._names.archived(key, session_id)}.ended")
                if end is not None:
                    async for record in self._ended(records.ended_from(end.data)):
                        yield record
                    break
                # It is being ended at this moment, or was forgotten.
                await asyncio.sleep(0)
        async for record in self._conversations.export():
            yield record

    async def _sessions(self) -> list[tuple[SessionKey, str]]:
        listed = {(row.key, row.session_id) for row in await self._expiry.live()}
        listed |= {(session.key, session.session_id) for session in await self._expiry.ended(self._names.every_end)}
        return sorted(listed, key=lambda each: (each[0].owner, each[0].project_hash, each[0].name_hash, each[1]))

    async def _log(self, key: SessionKey, session_id: str) -> tuple[ExportedSession, list[CommitRecord]] | None:
        """The session as of its last commit; None if it is not live."""
        last = await self._logs.last(key)
        if last is None or session_of(last) != session_id:
            return None
        revision = int(last.headers[records.REVISION])
        log = [record for seq, record in await self._logs.records(key) if seq <= last.seq]
        if not log or (log[-1].session_id, log[-1].revision) != (session_id, revision):
            return None
        return ExportedSession(key, session_id, revision, last.headers[records.LAST_AT], None, ""), log

    async def _live(self, session: ExportedSession, log: list[CommitRecord]) -> AsyncGenerator[ExportRecord]:
        yield session
        receipts: dict[str, CommitReceipt] = {}
        summaries: dict[str, Summary] = {}
        for commit in log:
            for event in commit.events:
                yield event
            receipts |= commit.receipts
            for branch_id in commit.retracted:
                if branch_id in summaries:
                    summaries[branch_id] = replace(summaries[branch_id], undone=True)
            summaries |= {summary.branch_id: summary for summary in commit.summaries}
        for operation, receipt in sorted(receipts.items(), key=lambda item: item[0]):
            yield ExportedReceipt(operation, receipt.fingerprint, receipt.answer)
        for _, summary in sorted(summaries.items()):
            yield summary
        archived = self._names.archived(session.key, session.session_id)
        for commit in log:
            entries = commit.entries
            if commit.texts:
                data = await read_chunks(self._js, archived, commit.texts)
                entries = records.entries_in(data)
            for entry in sorted(entries, key=entry_order):
                yield entry

    async def _ended(self, session: ExportedSession) -> AsyncGenerator[ExportRecord]:
        yield session
        archived = self._names.archived(session.key, session.session_id)
        for summary in await self._summaries(f"{archived}.summaries.>"):
            yield summary
        commits: dict[int, list[str]] = defaultdict(list)
        for subject in await self._js.counts(self._names.archive, f"{archived}.entries.>"):
            commits[int(subject.rpartition(".")[2])].append(subject)
        for _, subjects in sorted(commits.items()):
            threads = await asyncio.gather(*map(self._archive.entries, subjects))
            for entry in sorted((entry for thread in threads for entry in thread), key=entry_order):
                yield entry

    async def _summaries(self, subjects: str) -> list[Summary]:
        branches: dict[str, BranchSummary] = defaultdict(BranchSummary)
        async for stored in read_stored(self._js, StreamQuery(self._names.archive, subjects)):
            branches[stored.subject.rpartition(".")[0]].add(stored)
        summaries = [summary for branch in branches.values() if (summary := branch.current)]
        return sorted(summaries, key=lambda summary: summary.branch_id)

    # ---- import

    async def import_all(self, items: Iterable[ExportRecord]) -> None:
        for stream in (self._names.log, self._names.archive):
            if await self._js.last(stream, f"{stream}.>") is not None:
                raise TargetNotEmpty(f"the store has sessions already, or an import was interrupted: {self._advice}")
        given, stored = hashlib.sha256(), hashlib.sha256()
        try:
            await self._import(hashed(items, given))
            async with aclosing(self.export()) as exported:
                async for record in exported:
                    stored.update(encode_record(record))
        except StoreUnavailable as problem:
            raise StoreUnavailable(f"{problem.reason}. The import is not complete: {self._advice}") from problem
        if stored.digest() != given.digest():
            raise ImportDiffers(f"what was imported is not equal to the file: {self._advice}")

    @property
    def _advice(self) -> str:
        streams = ", ".join(self._names.subjects)
        return f"delete the streams {streams}, or use another --nats-prefix, and import again"

    async def _import(self, items: Iterable[ExportRecord]) -> None:
        session: _SessionImport | None = None
        for item in items:
            match item:
                case ExportedSession() | ExportedLeftOut() | ExportedConversation():
                    if session is not None:
                        await self._store(session, is_last=True)
                    session = _SessionImport(item) if isinstance(item, ExportedSession) else None
                    if isinstance(item, ExportedLeftOut):
                        await self._conversations.keep(item.owner, item.conversation, [item.result])
                    if isinstance(item, ExportedConversation):
                        await self._conversations.note(item.owner, item.conversation, item.noted)
                case _:
                    assert session is not None, "the reader checks that a session comes first"
                    if isinstance(item, ArchiveEntry) and session.is_full_before(item):
                        await self._store(session, is_last=False)
                    session.add(item)
        if session is not None:
            await self._store(session, is_last=True)

    async def _store(self, part: _SessionImport, *, is_last: bool) -> None:
        """Store what is buffered: all of it, or the entries, and the events up to the last of them."""
        session = part.session
        to = session.revision if is_last else part.entries[-1].n
        summaries = part.summaries if is_last else ()
        entries, part.entries, part.characters = part.entries, [], 0
        if not session.is_live:
            await self._derived.archive(
                session.key,
                CommitRecord(session.session_id, to, (), {}, entries=entries),
                CommitRecord(session.session_id, session.revision, (), {}, summaries),
            )
            if is_last:
                await self._expiry.put_ended(session)
        elif part.reached < to:
            receipts = part.receipts if is_last else {}
            events = part.events[part.reached : to]
            record = CommitRecord(session.session_id, part.reached, events, receipts, summaries, (), entries)
            done = await self._logs.append(session.key, record, last_at=session.last_at)
            assert done.record is not None, "it has no operation id, so it is no repetition"
            self._publisher.offer(session.key, done.seq, done.record)
            await self._publisher.catch_up(session.key)
            part.reached = to


@dataclass(slots=True)
class _SessionImport:
    """A session that is being imported: what is not stored yet."""

    session: ExportedSession
    events: list[Event] = field(default_factory=list)
    receipts: dict[str, CommitReceipt] = field(default_factory=dict)
    summaries: list[Summary] = field(default_factory=list)
    entries: list[ArchiveEntry] = field(default_factory=list)
    characters: int = 0
    reached: int = 0

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
        """Whether to store the buffered entries first. Entries of one event stay together."""
        return self.characters >= PART_CHARACTERS and entry.n != self.entries[-1].n
