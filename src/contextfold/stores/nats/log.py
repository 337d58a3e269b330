"""The log of each session on NATS: one message for each commit, accepted only if it follows the last one.

The logs are what counts; everything else is derived from them. The index of a log in memory (revisions, operations)
saves requests and decides nothing: the server compares the sequence that a commit expects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from contextfold.common.bounded_cache import BoundedCache
from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.fold.events import Event
from contextfold.fold.store import (
    Commit,
    CommitReceipt,
    KnownRevision,
    SessionKey,
    SessionLog,
    StaleRevision,
    hash_operation_id,
)
from contextfold.stores.nats import records
from contextfold.stores.nats.archive import message_bytes_max, read_chunks, write_chunks
from contextfold.stores.nats.jetstream import (
    MESSAGE_ID,
    JetStream,
    StoredMessage,
    StreamQuery,
    new_mark,
    read_to,
)
from contextfold.stores.nats.records import ChunkReference, CommitRecord, LoggedCommit
from contextfold.stores.nats.streams import SubjectNames

# The most bytes of a commit's texts in its message. Longer ones are stored as chunks, which loading a session skips.
TEXTS_INLINE_BYTES: Final = 8 << 10
RETRY_S: Final = 0.05
LOADS_TRIED: Final = 3
# The most sessions and operations in all indexes.
REMEMBERED_MAX: Final = 200_000
# A commit in a log, and its content, which says where long texts are.
Committed = tuple[LoggedCommit, CommitRecord]


@dataclass(slots=True)
class LogIndex:
    """What is known of a key's log: its end, and the sequence of each operation up to there."""

    # Empty if there is no live session.
    session_id: str = ""
    # The sequence of the last message, which may be the end of the previous session.
    seq: int = 0
    revision: int = 0
    last_at: str = ""
    operations: dict[str, int] = field(default_factory=dict)

    def is_before(self, record: CommitRecord) -> bool:
        """Whether the commit is the next one. Without a live session that is one which begins a session."""
        return record.before == self.revision and self.session_id in ("", record.session_id)

    def add(self, commit: LoggedCommit, record: CommitRecord) -> None:
        if self.is_before(record):
            self.session_id, self.seq, self.last_at = record.session_id, commit.seq, commit.last_at
            self.revision = record.revision
            self.operations |= dict.fromkeys(record.receipts, commit.seq)


class _EncodedCommit(NamedTuple):
    """A commit as it is sent: its record, which refers to long texts, its bytes, and the chunks that it refers to."""

    record: CommitRecord
    data: bytes
    chunks: Sequence[ChunkReference]


class SessionLogs:
    def __init__(
        self, js: JetStream, names: SubjectNames, finish_end: Callable[[LoggedCommit], Awaitable[None]]
    ) -> None:
        """`finish_end` finishes the end of a session before the next session of its key begins."""
        self._js, self._names, self._finish_end = js, names, finish_end
        self._indexes = BoundedCache[SessionKey, LogIndex](REMEMBERED_MAX, lambda index: len(index.operations) + 1)

    # ---- reading

    async def last_if_live(self, key: SessionKey) -> LoggedCommit | None:
        last = await self.last(key)
        return None if last is None or last.ended_at else last

    async def last(self, key: SessionKey) -> LoggedCommit | None:
        return _parse_logged(key, await self._js.last(self._names.log, self._names.log_of(key)))

    async def at(self, key: SessionKey, seq: int) -> LoggedCommit | None:
        return _parse_logged(key, await self._js.at(self._names.log, seq))

    async def load(self, key: SessionKey, known: KnownRevision | None = None) -> SessionLog | None:
        for _ in range(LOADS_TRIED):
            last = await self.last_if_live(key)
            if last is None:
                return None
            after = known.revision if known and known.session_id == last.session_id else 0
            events = await self._events_after(last, after)
            if len(events) == max(0, last.revision - after):
                return SessionLog(last.session_id, events)
        # A gap that disappears on another attempt was a session that ended while it was read.
        raise StoreInvalid("NATS has a log with a gap")

    async def _events_after(self, last: LoggedCommit, after: int) -> list[Event]:
        if last.revision <= after:
            return []
        index = self._index_of(last)
        if last.before <= after:
            found = [await self.record(last)]
            index.add(last, found[0])
        else:
            found = [record async for _, record in self._read(last, index.seq if index.revision <= after else 0)]
        return [event for record in found for event in record.events if event.n > after]

    async def records(self, key: SessionKey, after: int = 0) -> list[Committed]:
        """The commits of the last session after a sequence, including its end."""
        last = await self.last(key)
        return [each async for each in self._read(last, after)] if last else []

    async def record(self, commit: LoggedCommit) -> CommitRecord:
        record = records.parse_record(commit.data)
        if isinstance(record, ChunkReference):
            archived = self._names.archived(commit.key, commit.session_id)
            record = records.parse_record(await read_chunks(self._js, archived, record))
        if isinstance(record, ChunkReference):
            raise StoreInvalid("NATS has a commit whose pieces are no commit")
        return record

    async def _read(self, last: LoggedCommit, after: int) -> AsyncIterator[Committed]:
        """The commits of the session of the last message, after a sequence. They are added to its index."""
        index = self._index_of(last)
        reading = StreamQuery(self._names.log, self._names.log_of(last.key), after)
        async for stored in read_to(self._js, reading, last.seq):
            commit = records.parse_logged(last.key, stored)
            if commit and commit.session_id == last.session_id:
                record = await self.record(commit)
                index.add(commit, record)
                yield commit, record
        if index.session_id and not last.ended_at:
            self._indexes.put(last.key, index)

    async def receipt(self, key: SessionKey, operation_id: str) -> CommitReceipt | None:
        index = await self._refresh(key)
        return await self._receipt(key, index, hash_operation_id(operation_id).hex())

    async def _receipt(self, key: SessionKey, index: LogIndex, digest: str) -> CommitReceipt | None:
        """None only if the log does not have this operation. One that cannot be read has taken effect too."""
        seq = index.operations.get(digest)
        if seq is None:
            return None
        for _ in range(LOADS_TRIED):
            commit = await self.at(key, seq)
            if commit is not None:
                return (await self.record(commit)).receipts[digest]._replace(repeated=True)
            # A server that has just started may be behind for a moment.
            await asyncio.sleep(RETRY_S)
        self._indexes.forget(key)
        raise StoreUnavailable("NATS: a commit that was there cannot be read now")

    async def _refresh(self, key: SessionKey) -> LogIndex:
        """The current index."""
        for _ in range(LOADS_TRIED):
            last = await self.last(key)
            if last is None or last.ended_at:
                self._indexes.forget(key)
                return LogIndex(seq=last.seq if last else 0)
            index = self._index_of(last)
            if index.revision < last.revision:
                async for _ in self._read(last, index.seq):
                    pass
                index = self._index_of(last)
            if index.revision >= last.revision:
                return index
            # The session may have ended while it was read.
            self._indexes.forget(key)
        raise StoreInvalid("NATS has a log with a gap")

    def _index_of(self, commit: LoggedCommit) -> LogIndex:
        """The index of the session of a commit, as far as it is known."""
        index = self._indexes.get(commit.key)
        return index if index and index.session_id == commit.session_id else LogIndex()

    # ---- committing

    async def commit(self, commit: Commit) -> tuple[CommitReceipt, Committed | None]:
        """Append a commit, unless an earlier one has the same operation id: then return the receipt of that one."""
        commit.check()
        operation = commit.operation
        digest = hash_operation_id(operation.id).hex() if operation else ""
        index = self._indexes.get(commit.key)
        expected = commit.session_id, commit.expected_revision
        if index is None or (index.session_id, index.revision) != expected:
            index = await self._refresh(commit.key)
        done = await self._append(commit.key, records.record_of(commit), index, digest)
        if isinstance(done, CommitReceipt):
            return done, None
        return CommitReceipt(operation.fingerprint if operation else "", commit.answer), done

    async def append(self, key: SessionKey, record: CommitRecord) -> Committed:
        """Append a record that has no operation id. Raises StaleRevision if it does not follow the last one."""
        done = await self._append(key, record, await self._refresh(key))
        assert not isinstance(done, CommitReceipt), "it has no operation id, so it is no repetition"
        return done

    async def _append(
        self, key: SessionKey, record: CommitRecord, index: LogIndex, digest: str = ""
    ) -> Committed | CommitReceipt:
        """Try until the outcome is known. Another attempt is harmless: it is stale if an earlier one was stored."""
        subject, message_id = self._names.log_of(key), new_mark()
        encoded: _EncodedCommit | None = None
        # The sequence that the last attempt expected, and its commit if no response says whether it was stored.
        expected: int | None = None
        unsure: LoggedCommit | None = None

        async def attempt() -> Committed | CommitReceipt:
            nonlocal index, encoded, expected, unsure
            if expected is not None:
                index = await self._refresh(key)
                if unsure and encoded and (seq := await self._find_sent(subject, message_id, expected, index)):
                    return replace(unsure, seq=seq), encoded.record
            if earlier := await self._receipt(key, index, digest):
                return earlier
            if not index.is_before(record):
                if encoded:
                    await self._delete_chunks(key, encoded)
                raise StaleRevision
            # The sequence of this revision. Other tasks may extend the index while this one waits.
            expected = index.seq
            if not index.session_id and expected and (end := await self.at(key, expected)):
                await self._finish_end(end)
            encoded = encoded or await self._encode(key, record)
            commit = encoded.record.to_logged(key, index.last_at)
            try:
                headers = {MESSAGE_ID: message_id, **commit.headers()}
                seq = await self._js.put(subject, encoded.data, headers=headers, expected=expected)
            except StoreUnavailable:
                unsure = commit
                raise
            return self._add_to_index(index, replace(commit, seq=seq), encoded.record)

        return await self._js.repeat(attempt)

    async def _find_sent(self, subject: str, message_id: str, expected: int, index: LogIndex) -> int | None:
        """The sequence of a message that was sent without a response; None if it was not stored."""
        # It is the next message after what it expected. After another one it can no longer be stored.
        stored = await self._js.next_after(self._names.log, subject, expected)
        if stored is None and index.seq != expected:
            raise StoreUnavailable("NATS: a log is shorter than it was, so a server is behind")
        return stored.seq if stored and stored.headers.get(MESSAGE_ID) == message_id else None

    def _add_to_index(self, index: LogIndex, commit: LoggedCommit, record: CommitRecord) -> Committed:
        index.add(commit, record)
        if record.is_end:
            self._indexes.forget(commit.key)
        else:
            self._indexes.put(commit.key, index)
        return commit, record

    async def _delete_chunks(self, key: SessionKey, encoded: _EncodedCommit) -> None:
        """Delete the chunks of a commit that was too late: if its session never begins, nothing else deletes them."""
        archived = self._names.archived(key, encoded.record.session_id)
        for chunks in encoded.chunks:
            with suppress(StoreUnavailable):
                await self._js.purge(self._names.archive, f"{archived}.pieces.{chunks.mark}.*")

    async def _encode(self, key: SessionKey, record: CommitRecord) -> _EncodedCommit:
        """Encode a commit, and write what is too long for one message in chunks."""
        archived = self._names.archived(key, record.session_id)
        texts = records.encode_entries(record.entries)
        if len(texts) > TEXTS_INLINE_BYTES:
            record = replace(record, texts=await write_chunks(self._js, archived, texts))
        chunks = [record.texts] if record.texts else []
        data = records.encode_core(record)
        if len(data) > message_bytes_max(self._js):
            chunks.append(await write_chunks(self._js, archived, data))
            data = records.encode_reference("core", chunks[-1])
        return _EncodedCommit(record, data, chunks)


def _parse_logged(key: SessionKey, stored: StoredMessage | None) -> LoggedCommit | None:
    if stored is None:
        return None
    commit = records.parse_logged(key, stored)
    if commit is None:
        raise StoreInvalid("NATS has a log with a message of another program")
    return commit
