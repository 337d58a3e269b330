"""The log of each session on NATS: one message for each commit, accepted only if it follows the last one.

The logs are what counts; everything else is derived from them. The index of a log in memory (revisions, operations)
saves requests and decides nothing: the server compares the sequence that a commit expects.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.fold.events import Event
from contextfold.fold.store import Commit, CommitReceipt, KnownRevision, SessionKey, SessionLog, StaleRevision
from contextfold.stores.nats import records
from contextfold.stores.nats.chunks import most_in_one, read_pieces, write_pieces
from contextfold.stores.nats.connection import OutcomeUnknown
from contextfold.stores.nats.jetstream import JetStream, JetStreamError, SequenceConflict, StoredMessage, new_mark
from contextfold.stores.nats.names import SubjectNames, escaped
from contextfold.stores.nats.records import CommitRecord
from contextfold.stores.nats.stream_reader import StreamQuery, read_to

# The most bytes of a commit's texts in its message. Longer ones are stored as chunks, which loading a session skips.
TEXTS_INLINE_BYTES: Final = 8 << 10
# How long a commit may take, with all attempts.
COMMIT_PATIENCE_S: Final = 4.0
RETRY_S: Final = 0.05
LOADS_TRIED: Final = 3
# The most commits in all indexes.
REMEMBERED_MOST: Final = 200_000


@dataclass(slots=True)
class LogIndex:
    """What is known of the log of a key: revision and sequence of each commit, and the sequence of each operation."""

    # Empty if there is no live session.
    session_id: str = ""
    # Of the last message, which may be the end of the previous session.
    seq: int = 0
    last_at: str = ""
    revisions: list[int] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    operations: dict[str, int] = field(default_factory=dict)
    # Whether it starts with the first commit.
    is_whole: bool = True

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
        place = bisect_right(self.revisions, revision)
        if place:
            return self.seqs[place - 1]
        return 0 if self.is_whole else None


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
        wire: JetStream,
        names: SubjectNames,
        before_another: Callable[[SessionKey, StoredMessage], Awaitable[None]],
    ) -> None:
        """`before_another` finishes the end of a session before the next session of its key begins."""
        self._wire = wire
        self._names = names
        self._before_another = before_another
        self._lines: OrderedDict[SessionKey, LogIndex] = OrderedDict()
        # The sizes of the indexes, as counted in the sum.
        self._weights: dict[SessionKey, int] = {}
        self._remembered = 0

    # ---- reading

    async def last(self, key: SessionKey) -> StoredMessage | None:
        """The last message of a key, if its session is live."""
        last = await self.newest(key)
        return None if last is None or is_end(last) else last

    async def newest(self, key: SessionKey) -> StoredMessage | None:
        last = await self._wire.last(self._names.log, self._names.log_of(key))
        if last is not None and not records.is_ours(last.headers):
            raise StoreInvalid("NATS holds a log that something else has written into")
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
        raise StoreInvalid("NATS holds a log with a gap")

    async def _events_after(self, key: SessionKey, last: StoredMessage, after: int) -> list[Event]:
        if int(last.headers[records.REVISION]) <= after:
            return []
        if int(last.headers[records.BEFORE]) <= after:
            found = [await self.record(key, last)]
            line = self._lines.get(key)
            if line and (line.session_id, line.revision) == (found[0].session_id, found[0].before):
                line.add(last, found[0])
        else:
            found = [record async for _, record in self._since(key, last, after)]
        return [event for record in found for event in record.events if event.n > after]

    async def records(self, key: SessionKey, after: int = 0) -> list[tuple[int, CommitRecord]]:
        """The commits of the last session after a sequence, including its end."""
        last = await self.newest(key)
        if last is None:
            return []
        return [each async for each in self._read(key, last, after)]

    async def record(self, key: SessionKey, stored: StoredMessage) -> CommitRecord:
        pieces = records.core_pieces(stored.data) if b'"core"' in stored.data[:64] else None
        if pieces is None:
            return records.record_from(stored.data)
        archived = self._names.archived(key, session_of(stored))
        return records.record_from(await read_pieces(self._wire, self._names.archive, archived, pieces))

    def _since(self, key: SessionKey, last: StoredMessage, revision: int) -> AsyncIterator[tuple[int, CommitRecord]]:
        line = self._lines.get(key)
        start = line.seq_at(revision) if line and line.session_id == session_of(last) else None
        return self._read(key, last, start or 0)

    async def _read(self, key: SessionKey, last: StoredMessage, after: int) -> AsyncIterator[tuple[int, CommitRecord]]:
        """The commits of the session of the last message, after a sequence."""
        reading = StreamQuery(self._names.log, self._names.log_of(key), after)
        line = LogIndex(is_whole=True) if not after else None
        async for stored in read_to(self._wire, reading, last.seq):
            if session_of(stored) != session_of(last):
                continue
            record = await self.record(key, stored)
            if line is not None:
                line.add(stored, record)
            yield stored.seq, record
        if line is not None and not is_end(last):
            self._remember(key, line)

    async def receipt(self, key: SessionKey, operation_id: str) -> CommitReceipt | None:
        line = await self._refreshed(key, whole=True)
        return await self._receipt(key, line, records.digest_of(operation_id))

    async def _receipt(self, key: SessionKey, line: LogIndex, digest: str) -> CommitReceipt | None:
        """None only if the log does not have this operation. One that cannot be read has taken effect too."""
        seq = line.operations.get(digest)
        if seq is None:
            return None
        for _ in range(LOADS_TRIED):
            stored = await self._wire.at(self._names.log, seq)
            if stored is not None:
                return (await self.record(key, stored)).receipts[digest]
            # A server that has just started may be behind for a moment.
            await asyncio.sleep(RETRY_S)
        self._forget(key)
        raise StoreUnavailable("NATS: a commit that was there cannot be read now")

    # ---- indexes

    async def _refreshed(self, key: SessionKey, *, whole: bool) -> LogIndex:
        """The current index."""
        for _ in range(LOADS_TRIED):
            last = await self.newest(key)
            if last is None or is_end(last):
                self._forget(key)
                return LogIndex(seq=last.seq if last else 0)
            line = await self._extended(key, last, whole=whole)
            if line.revision >= int(last.headers[records.REVISION]):
                self._remember(key, line)
                return line
            # The session may have ended while it was read.
            self._forget(key)
        raise StoreInvalid("NATS holds a log with a gap")

    async def _extended(self, key: SessionKey, last: StoredMessage, *, whole: bool) -> LogIndex:
        """The index up to the last message; from the first commit on if it must be complete."""
        line = self._lines.get(key)
        if line is None or line.session_id != session_of(last) or (whole and not line.is_whole):
            line = LogIndex(is_whole=whole)
        if not whole and not line.seqs:
            line.add(last, await self.record(key, last))
        elif line.seq < last.seq:
            reading = StreamQuery(self._names.log, self._names.log_of(key), line.seq)
            async for stored in read_to(self._wire, reading, last.seq):
                record = await self.record(key, stored)
                if record.session_id == session_of(last) and record.before == line.revision:
                    line.add(stored, record)
        return line

    def _remember(self, key: SessionKey, line: LogIndex) -> None:
        self._lines[key] = line
        self._lines.move_to_end(key)
        self._remembered += len(line.seqs) - self._weights.get(key, 0)
        self._weights[key] = len(line.seqs)
        while self._remembered > REMEMBERED_MOST and len(self._lines) > 1:
            self._forget(next(iter(self._lines)))

    def _forget(self, key: SessionKey) -> None:
        self._lines.pop(key, None)
        self._remembered -= self._weights.pop(key, 0)

    # ---- committing

    async def commit(self, commit: Commit) -> AppendResult:
        key, operation = commit.key, commit.operation
        digest = records.digest_of(operation.id) if operation else ""
        line = self._lines.get(key)
        is_known = line is not None and (line.session_id, line.revision) == (
            commit.session_id,
            commit.expected_revision,
        )
        if line is None or not is_known or (digest and not line.is_whole):
            line = await self._refreshed(key, whole=bool(digest))
        return await self._append(key, records.record_of(commit), line, digest, commit.answer)

    async def append(self, key: SessionKey, record: CommitRecord, *, last_at: str = "") -> AppendResult:
        """Append a record that has no operation id. Raises StaleRevision if it does not follow the last one.

        `last_at` is the time of the last activity of a session that is imported in parts.
        """
        line = await self._refreshed(key, whole=False)
        return await self._append(key, record, line, "", "", exact_at=last_at)

    async def _append(
        self, key: SessionKey, record: CommitRecord, line: LogIndex, digest: str, answer: str, *, exact_at: str = ""
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
            done = await self._receipt(key, line, digest)
            if done is not None:
                return AppendResult(replace(done, repeated=True))
            live = (line.session_id, line.revision) if line.session_id else (record.session_id, 0)
            if live != (record.session_id, record.before):
                await self._drop_pieces(key, record, data)
                raise StaleRevision
            # The sequence of this revision. Other tasks may extend the index while this one waits.
            base = line.seq
            last_at = exact_at or max([line.last_at, *(event.at for event in record.events if not record.is_end)])
            if not line.session_id and base:
                await self._finish_before(key, base)
            if not data:
                record, data = await self._laid_out(key, record)
            headers = _headers(record, mark, last_at)
            try:
                seq = await self._wire.put(self._names.log_of(key), data, expected=base, headers=headers)
            except (SequenceConflict, StoreUnavailable) as problem:
                is_unsure = is_unsure or not isinstance(problem, SequenceConflict)
                await self._after_failure(problem, until)
                line = await self._refreshed(key, whole=bool(digest))
                while (
                    is_unsure and line.seq < base
                ):  # whoever answered is behind, and a try may be there for all we know
                    await self._after_failure(StoreUnavailable("NATS: a log is shorter than it was"), until)
                    line = await self._refreshed(key, whole=bool(digest))
                if is_unsure and (seq := await self._found(key, base, line.seq, mark)):
                    return AppendResult(receipt, record, seq, headers)
                continue
            line.add(StoredMessage("", seq, headers, b""), record)
            self._remember(key, line)
            return AppendResult(receipt, record, seq, headers)

    async def _drop_pieces(self, key: SessionKey, record: CommitRecord, data: bytes) -> None:
        """Delete the chunks of a commit that was too late: if its session never begins, nothing else deletes them."""
        archived = self._names.archived(key, record.session_id)
        for pieces in (record.texts, records.core_pieces(data) if data else None):
            if pieces:
                with suppress(StoreUnavailable):
                    await self._wire.purge(self._names.archive, f"{archived}.pieces.{pieces.mark}.*")

    async def _finish_before(self, key: SessionKey, seq: int) -> None:
        end = await self._wire.at(self._names.log, seq)
        if end is not None:
            await self._before_another(key, end)

    async def _after_failure(self, problem: Exception, until: float) -> None:
        """Wait before another attempt, or raise the problem if another attempt is useless."""
        is_late = asyncio.get_running_loop().time() >= until
        if isinstance(problem, SequenceConflict):
            if is_late:
                raise StoreUnavailable(f"NATS: {problem}") from problem
            return
        is_refused = isinstance(problem.__cause__, JetStreamError)
        may_be_there = self._wire.is_ready or isinstance(problem, OutcomeUnknown)
        if is_late or is_refused or not may_be_there:
            raise problem
        await asyncio.sleep(RETRY_S)

    async def _found(self, key: SessionKey, base: int, last: int, mark: str) -> int:
        """The sequence of a commit that got no response; 0 if it is not stored.

        The log is searched up to the last message that was seen: after a later message it can no longer be stored.
        """
        reading = StreamQuery(self._names.log, self._names.log_of(key), base, headers_only=True)
        async with aclosing(read_to(self._wire, reading, last)) as commits:
            async for stored in commits:
                if stored.headers.get(records.MARK) == mark:
                    return stored.seq
        return 0

    async def _laid_out(self, key: SessionKey, record: CommitRecord) -> tuple[CommitRecord, bytes]:
        """The record and its bytes. What is too long for one message is written as chunks first."""
        archived = self._names.archived(key, record.session_id)
        texts = records.texts_of(record.entries) if record.entries else b""
        if len(texts) > TEXTS_INLINE_BYTES:
            record = replace(record, texts=await write_pieces(self._wire, archived, texts))
        data = records.core_of(record)
        if texts and not record.texts:
            data = records.whole_of(data, texts)
        if len(data) <= most_in_one(self._wire):
            return record, data
        return record, records.in_pieces(await write_pieces(self._wire, archived, data))


def is_end(stored: StoredMessage) -> bool:
    return records.ENDED in stored.headers


def session_of(stored: StoredMessage) -> str:
    return records.session_in(stored.headers)


def _headers(record: CommitRecord, mark: str, last_at: str) -> dict[str, str]:
    told = {
        records.SESSION: escaped(record.session_id),
        records.BEFORE: str(record.before),
        records.REVISION: str(record.revision),
        records.LAST_AT: last_at,
        records.MARK: mark,
    }
    return told | ({records.ENDED: record.events[-1].at} if record.is_end else {})
