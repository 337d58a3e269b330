"""The log of each session on NATS: one message for each commit, accepted only if it follows the last one.

The logs are what counts; everything else is derived from them. The index of a log in memory (revisions, operations)
saves requests and decides nothing: the server compares the sequence that a commit expects.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Final

from contextfold.common.dataclass import dataclass, field, replace
from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.fold.events import Event
from contextfold.fold.ports.store import Commit, CommitReceipt, KnownRevision, SessionKey, SessionLog, StaleRevision
from contextfold.stores.nats.session_cache import SessionCache
from contextfold.stores.nats.wire import records
from contextfold.stores.nats.wire.chunks import most_in_one, read_chunks, write_chunks
from contextfold.stores.nats.wire.connection import OutcomeUnknown
from contextfold.stores.nats.wire.jetstream import JetStream, JetStreamError, SequenceConflict, StoredMessage, new_mark
from contextfold.stores.nats.wire.names import SubjectNames, escaped
from contextfold.stores.nats.wire.records import CommitRecord
from contextfold.stores.nats.wire.stream_reader import StreamQuery, read_to

# The most bytes of a commit's texts in its message. Longer ones are stored as chunks, which loading a session skips.
TEXTS_INLINE_BYTES: Final = 8 << 10
# The longest time that a commit takes, with all attempts.
COMMIT_PATIENCE_S: Final = 4.0
RETRY_S: Final = 0.05
LOADS_TRIED: Final = 3
# The most commits in all indexes.
REMEMBERED_MOST: Final = 200_000


@dataclass(slots=True)
class LogIndex:
    """The index of a key's log: revision and sequence of each commit, and the sequence of each operation."""

    # Empty if there is no live session.
    session_id: str = ""
    # The sequence of the last message, which may be the end of the previous session.
    seq: int = 0
    last_at: str = ""
    revisions: list[int] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    operations: dict[str, int] = field(default_factory=dict)
    # Whether the index starts with the first commit.
    is_complete: bool = True

    @property
    def revision(self) -> int:
        return self.revisions[-1] if self.revisions else 0

    def add(self, stored: StoredMessage, record: CommitRecord) -> None:
        # Another task has added it meanwhile.
        if stored.seq <= self.seq:
            return
        self.session_id, self.seq = record.session_id, stored.seq
        self.last_at = stored.headers.get(records.LAST_AT, "")
        self.revisions.append(record.revision)
        self.seqs.append(stored.seq)
        self.operations |= dict.fromkeys(record.receipts, stored.seq)

    def seq_at(self, revision: int) -> int | None:
        """The sequence to continue reading after a revision, or None if it is not known."""
        position = bisect_right(self.revisions, revision)
        if position:
            return self.seqs[position - 1]
        return 0 if self.is_complete else None


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The result of a commit. An earlier commit with the same operation id has no record here."""

    receipt: CommitReceipt
    record: CommitRecord | None = None
    seq: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)


class SessionLogs:
    def __init__(
        self,
        js: JetStream,
        names: SubjectNames,
        before_another: Callable[[SessionKey, StoredMessage], Awaitable[None]],
    ) -> None:
        """`before_another` finishes the end of a session before the next session of its key begins."""
        self._js = js
        self._names = names
        self._before_another = before_another
        self._indexes = SessionCache[LogIndex](lambda index: len(index.seqs), REMEMBERED_MOST)

    # ---- reading

    async def last(self, key: SessionKey) -> StoredMessage | None:
        """The last message of a key, if its session is live."""
        last = await self.newest(key)
        return None if last is None or is_end(last) else last

    async def newest(self, key: SessionKey) -> StoredMessage | None:
        last = await self._js.last(self._names.log, self._names.log_of(key))
        if last is not None and not records.is_ours(last.headers):
            raise StoreInvalid("NATS has a log with a message of another program")
        return last

    async def load(self, key: SessionKey, known: KnownRevision | None) -> SessionLog | None:
        for _ in range(LOADS_TRIED):
            last = await self.last(key)
            if last is None:
                return None
            session_id = session_of(last)
            after = known.revision if known and known.session_id == session_id else 0
            events = await self._events_after(key, last, after)
            if len(events) == max(0, int(last.headers[records.REVISION]) - after):
                return SessionLog(session_id, events)
        # A gap that disappears on another attempt was a session that ended while it was read.
        raise StoreInvalid("NATS has a log with a gap")

    async def _events_after(self, key: SessionKey, last: StoredMessage, after: int) -> list[Event]:
        if int(last.headers[records.REVISION]) <= after:
            return []
        index = self._indexes.get(key)
        if int(last.headers[records.BEFORE]) <= after:
            found = [await self.record(key, last)]
            if index and (index.session_id, index.revision) == (found[0].session_id, found[0].before):
                index.add(last, found[0])
        else:
            start = index.seq_at(after) if index and index.session_id == session_of(last) else None
            found = [record async for _, record in self._read(key, last, start or 0)]
        return [event for record in found for event in record.events if event.n > after]

    async def records(self, key: SessionKey, after: int = 0) -> list[tuple[int, CommitRecord]]:
        """The commits of the last session after a sequence, including its end."""
        last = await self.newest(key)
        if last is None:
            return []
        return [each async for each in self._read(key, last, after)]

    async def record(self, key: SessionKey, stored: StoredMessage) -> CommitRecord:
        chunks = records.core_chunks(stored.data) if b'"core"' in stored.data[:64] else None
        if chunks is None:
            return records.record_from(stored.data)
        archived = self._names.archived(key, session_of(stored))
        return records.record_from(await read_chunks(self._js, archived, chunks))

    async def _read(self, key: SessionKey, last: StoredMessage, after: int) -> AsyncIterator[tuple[int, CommitRecord]]:
        """The commits of the session of the last message, after a sequence."""
        reading = StreamQuery(self._names.log, self._names.log_of(key), after)
        index = LogIndex(is_complete=True) if not after else None
        async for stored in read_to(self._js, reading, last.seq):
            if session_of(stored) != session_of(last):
                continue
            record = await self.record(key, stored)
            if index is not None:
                index.add(stored, record)
            yield stored.seq, record
        if index is not None and not is_end(last):
            self._indexes.put(key, index)

    async def receipt(self, key: SessionKey, operation_id: str) -> CommitReceipt | None:
        index = await self._refreshed(key, complete=True)
        return await self._receipt(key, index, records.digest_of(operation_id))

    async def _receipt(self, key: SessionKey, index: LogIndex, digest: str) -> CommitReceipt | None:
        """None only if the log does not have this operation. One that cannot be read has taken effect too."""
        seq = index.operations.get(digest)
        if seq is None:
            return None
        for _ in range(LOADS_TRIED):
            stored = await self._js.at(self._names.log, seq)
            if stored is not None:
                return (await self.record(key, stored)).receipts[digest]
            # A server that has just started may be behind for a moment.
            await asyncio.sleep(RETRY_S)
        self._indexes.forget(key)
        raise StoreUnavailable("NATS: a commit that was there cannot be read now")

    # ---- indexes

    async def _refreshed(self, key: SessionKey, *, complete: bool) -> LogIndex:
        """The current index."""
        for _ in range(LOADS_TRIED):
            last = await self.newest(key)
            if last is None or is_end(last):
                self._indexes.forget(key)
                return LogIndex(seq=last.seq if last else 0)
            index = await self._extended(key, last, complete=complete)
            if index.revision >= int(last.headers[records.REVISION]):
                self._indexes.put(key, index)
                return index
            # The session may have ended while it was read.
            self._indexes.forget(key)
        raise StoreInvalid("NATS has a log with a gap")

    async def _extended(self, key: SessionKey, last: StoredMessage, *, complete: bool) -> LogIndex:
        """The index up to the last message; from the first commit on if it must be complete."""
        index = self._indexes.get(key)
        if index is None or index.session_id != session_of(last) or (complete and not index.is_complete):
            index = LogIndex(is_complete=complete)
        if not complete and not index.seqs:
            index.add(last, await self.record(key, last))
        elif index.seq < last.seq:
            reading = StreamQuery(self._names.log, self._names.log_of(key), index.seq)
            async for stored in read_to(self._js, reading, last.seq):
                record = await self.record(key, stored)
                if record.session_id == session_of(last) and record.before == index.revision:
                    index.add(stored, record)
        return index

    # ---- committing

    async def commit(self, commit: Commit) -> AppendResult:
        key, operation = commit.key, commit.operation
        digest = records.digest_of(operation.id) if operation else ""
        index = self._indexes.get(key)
        is_known = index is not None and (index.session_id, index.revision) == (
            commit.session_id,
            commit.expected_revision,
        )
        if index is None or not is_known or (digest and not index.is_complete):
            index = await self._refreshed(key, complete=bool(digest))
        return await self._append(key, records.record_of(commit), index, digest, commit.answer)

    async def append(self, key: SessionKey, record: CommitRecord, *, last_at: str = "") -> AppendResult:
        """Append a record that has no operation id. Raises StaleRevision if it does not follow the last one.

        `last_at` is the time of the last activity of a session that is imported in parts.
        """
        index = await self._refreshed(key, complete=False)
        return await self._append(key, record, index, "", "", exact_at=last_at)

    async def _append(
        self, key: SessionKey, record: CommitRecord, index: LogIndex, digest: str, answer: str, *, exact_at: str = ""
    ) -> AppendResult:
        """Try until the outcome is known. Another attempt is harmless: it is stale if an earlier one was stored."""
        mark = new_mark()
        receipt = record.receipts.get(digest) or CommitReceipt("", answer)
        data = b""
        # Whether an attempt may have been stored, or may still be, without a response.
        is_unsure = False
        loop = asyncio.get_running_loop()
        until = loop.time() + COMMIT_PATIENCE_S
        while True:
            done = await self._receipt(key, index, digest)
            if done is not None:
                return AppendResult(replace(done, repeated=True))
            live = (index.session_id, index.revision) if index.session_id else (record.session_id, 0)
            if live != (record.session_id, record.before):
                await self._delete_chunks(key, record, data)
                raise StaleRevision
            # The sequence of this revision. Other tasks may extend the index while this one waits.
            base = index.seq
            last_at = exact_at or max([index.last_at, *(event.at for event in record.events if not record.is_end)])
            if not index.session_id and base:
                await self._finish_before(key, base)
            if not data:
                record, data = await self._encoded(key, record)
            headers = _headers(record, mark, last_at)
            try:
                seq = await self._js.put(self._names.log_of(key), data, expected=base, headers=headers)
            except (SequenceConflict, StoreUnavailable) as problem:
                is_unsure = is_unsure or not isinstance(problem, SequenceConflict)
                await self._after_failure(problem, until)
                index = await self._refreshed(key, complete=bool(digest))
                # The server that responded is behind, so an attempt may be stored that it does not know.
                while is_unsure and index.seq < base:
                    await self._after_failure(StoreUnavailable("NATS: a log is shorter than it was"), until)
                    index = await self._refreshed(key, complete=bool(digest))
                if is_unsure and (seq := await self._find_commit(key, base, index.seq, mark)):
                    return AppendResult(receipt, record, seq, headers)
                continue
            index.add(StoredMessage("", seq, headers, b""), record)
            self._indexes.put(key, index)
            return AppendResult(receipt, record, seq, headers)

    async def _delete_chunks(self, key: SessionKey, record: CommitRecord, data: bytes) -> None:
        """Delete the chunks of a commit that was too late: if its session never begins, nothing else deletes them."""
        archived = self._names.archived(key, record.session_id)
        for chunks in (record.texts, records.core_chunks(data) if data else None):
            if chunks:
                with suppress(StoreUnavailable):
                    await self._js.purge(self._names.archive, f"{archived}.pieces.{chunks.mark}.*")

    async def _finish_before(self, key: SessionKey, seq: int) -> None:
        end = await self._js.at(self._names.log, seq)
        if end is not None:
            await self._before_another(key, end)

    async def _after_failure(self, problem: Exception, until: float) -> None:
        """Wait before another attempt, or raise the problem if another attempt is useless."""
        is_late = asyncio.get_running_loop().time() >= until
        if isinstance(problem, SequenceConflict):
            if is_late:
                raise StoreUnavailable(f"NATS: {problem}") from problem
            return
        is_refused = isinstance(problem, JetStreamError)
        may_be_there = self._js.is_ready or isinstance(problem, OutcomeUnknown)
        if is_late or is_refused or not may_be_there:
            raise problem
        await asyncio.sleep(RETRY_S)

    async def _find_commit(self, key: SessionKey, base: int, last: int, mark: str) -> int:
        """The sequence of a commit that got no response; 0 if it is not stored.

        The log is searched up to the last message that was seen: after a later message it can no longer be stored.
        """
        reading = StreamQuery(self._names.log, self._names.log_of(key), base, headers_only=True)
        async with aclosing(read_to(self._js, reading, last)) as commits:
            async for stored in commits:
                if stored.headers.get(records.MARK) == mark:
                    return stored.seq
        return 0

    async def _encoded(self, key: SessionKey, record: CommitRecord) -> tuple[CommitRecord, bytes]:
        """The record and its bytes. What is too long for one message is written as chunks first."""
        archived = self._names.archived(key, record.session_id)
        texts = records.encode_entries(record.entries) if record.entries else b""
        if len(texts) > TEXTS_INLINE_BYTES:
            record = replace(record, texts=await write_chunks(self._js, archived, texts))
        data = records.encode_core(record)
        if texts and not record.texts:
            data = records.encode_with_texts(data, texts)
        if len(data) <= most_in_one(self._js):
            return record, data
        return record, records.encode_chunk_reference(await write_chunks(self._js, archived, data))


def is_end(stored: StoredMessage) -> bool:
    return records.ENDED in stored.headers


def session_of(stored: StoredMessage) -> str:
    return records.session_in(stored.headers)


def _headers(record: CommitRecord, mark: str, last_at: str) -> dict[str, str]:
    headers = {
        records.SESSION: escaped(record.session_id),
        records.BEFORE: str(record.before),
        records.REVISION: str(record.revision),
        records.LAST_AT: last_at,
        records.MARK: mark,
    }
    return headers | ({records.ENDED: record.events[-1].at} if record.is_end else {})
