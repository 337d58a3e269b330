"""The embedded store: one SQLite file in WAL mode, for any number of processes on one machine.

SQLite is called in threads (`threads`), so that the event loop never waits for a disk. A commit is on disk when it is
acknowledged (`synchronous = FULL`), and one flush serves many commits. The tables are in `schema`, the statements in
`statements` and `sweeps`. The revision is checked inside the transaction, so other processes on the same file need no
coordination. An export or import is one transaction on its own connection, because the writer's work has a timeout.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from contextfold.errors import ImportDiffers, StoreUnavailable, TargetNotEmpty
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import to_json
from contextfold.fold.store import (
    ArchivedResult,
    Commit,
    CommitReceipt,
    LeftOutDecision,
    SessionKey,
    Summary,
    WatchedEvent,
    cursor_number,
    cursor_unknown,
)
from contextfold.fold.store_export import (
    ExportedConversation,
    ExportedLeftOut,
    ExportedReceipt,
    ExportedSession,
    ExportRecord,
    encode_record,
    hash_records,
)
from contextfold.stores.sqlite import schema, state_file, statements, sweeps
from contextfold.stores.sqlite.threads import Readers, Work, Writer

T = TypeVar("T")
Arguments = ParamSpec("Arguments")

# The interval after which a watcher sees commits of other processes. It sees those of this process at once.
POLL_S: Final = 0.4
# This timeout applies to the readers, and again to the writer.
CLOSE_TIMEOUT_S: Final = 4.0
# Steps of each kind in one sweep: enough for more than half a million sessions.
SWEEP_STEPS: Final = 10_000
# The readiness check writes as many bytes as a commit with a long tool result.
CHECK_BYTES: Final = 64 << 10


def _method_that_reads(
    query: Work[Arguments, T],
) -> Callable[Concatenate[SqliteStore, Arguments], Coroutine[Any, Any, T]]:
    """The query as a method of the store, in the thread of a reader."""

    async def method(self: SqliteStore, /, *args: Arguments.args, **named: Arguments.kwargs) -> T:
        return await self._readers.read(query, *args, **named)

    return method


def _method_that_writes(
    work: Work[Arguments, T],
) -> Callable[Concatenate[SqliteStore, Arguments], Coroutine[Any, Any, T]]:
    """The unit of work as a method of the store, in the thread of the writer."""

    async def method(self: SqliteStore, /, *args: Arguments.args, **named: Arguments.kwargs) -> T:
        return await self._writer.write(work, *args, **named)

    return method


class SqliteStore:
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout_s: float = state_file.BUSY_TIMEOUT_S,
        poll_s: float = POLL_S,
        may_migrate: bool = True,
    ) -> None:
        """Open the store in this file. Raises StoreInvalid if it cannot be used.

        With `may_migrate` a missing file is created, and an older one migrated.
        """
        self._path = os.path.realpath(os.fspath(path))
        self._poll_s = poll_s
        self._closed = False
        # The owner of each watcher, by the event that wakes it.
        self._watchers: dict[asyncio.Event, str] = {}
        self._polling: asyncio.Task[None] | None = None
        connection = state_file.open_for_writing(self._path, busy_timeout_s=busy_timeout_s, may_migrate=may_migrate)
        self._file = _identity(self._path)
        self._writer = Writer(connection, self._check_file)
        self._readers = Readers(lambda: state_file.open_for_reading(self._path, busy_timeout_s))

    # ---- reading

    load = _method_that_reads(statements.load)
    receipt = _method_that_reads(statements.receipt)
    sessions = _method_that_reads(statements.sessions)
    ended_sessions = _method_that_reads(statements.ended_sessions)
    ended_log = _method_that_reads(statements.ended_log)
    find = _method_that_reads(statements.find)
    count = _method_that_reads(statements.count)
    cursor = _method_that_reads(statements.cursor)
    search = _method_that_reads(statements.search)
    summaries = _method_that_reads(statements.summaries)
    trajectory = _method_that_reads(statements.trajectory)
    unindexed = _method_that_reads(statements.unindexed)
    recall = _method_that_reads(statements.recall)
    left_out = _method_that_reads(statements.left_out)
    left_out_text = _method_that_reads(statements.left_out_text)
    read_clock = _method_that_reads(sweeps.read_clock)
    conversation = _method_that_reads(statements.find_conversation)

    # ---- writing

    write_clock = _method_that_writes(sweeps.write_clock)
    index = _method_that_writes(statements.index)
    keep_left_out = _method_that_writes(statements.keep_left_out)
    note_conversation = _method_that_writes(statements.note_conversation)

    async def commit(self, commit: Commit) -> CommitReceipt:
        receipt = await self._writer.write(statements.prepare_commit(commit))
        self._wake(commit.key.owner)
        return receipt

    # ---- watching

    async def check_cursor(self, cursor: str) -> None:
        await self._begin_at(cursor_number(cursor))

    def watch(self, owner: str, after: str | None = None) -> AsyncIterator[WatchedEvent]:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        return self._follow(owner, None if after is None else cursor_number(after))

    async def _follow(self, owner: str, position: int | None) -> AsyncIterator[WatchedEvent]:
        changed = asyncio.Event()
        self._watchers[changed] = owner
        self._polling = self._polling or asyncio.create_task(self._poll())
        try:
            reached = await self._begin_at(position)
            while not self._closed:
                # Cleared before reading, so that a later commit sets it again.
                changed.clear()
                try:
                    events, reached = await self._readers.read(statements.events_after, owner, reached)
                except StoreUnavailable:
                    # Closing the store ends a watch and is not a failure.
                    if self._closed:
                        return
                    raise
                for seen in events:
                    yield seen
                if len(events) < statements.EVENTS_MAX:
                    await changed.wait()
        finally:
            del self._watchers[changed]

    async def _poll(self) -> None:
        """Check at intervals, once for all watchers, whether another process has committed."""
        reached = -1
        try:
            while self._watchers:
                try:
                    last = await self._readers.read(statements.last_seq)
                except StoreUnavailable:
                    # The next read reports the failure.
                    last = -1
                if last != reached:
                    reached = last
                    self._wake()
                await asyncio.sleep(self._poll_s)
        finally:
            self._polling = None

    async def _begin_at(self, position: int | None) -> int:
        reached = await self._readers.read(statements.last_seq)
        if position is not None and position > reached:
            raise cursor_unknown()
        return reached if position is None else position

    def _wake(self, owner: str | None = None) -> None:
        """Wake an owner's watchers, or all. They run in the event loop of the caller."""
        for changed, watcher in self._watchers.items():
            if owner in (None, watcher):
                changed.set()

    # ---- export and import

    async def export(self) -> AsyncGenerator[ExportRecord]:
        """Export a snapshot: commits during the export are not in it, and do not wait for it."""
        connection = state_file.connect(self._path, state_file.BUSY_TIMEOUT_S)
        with state_file.transaction(connection, "BEGIN"):
            for record in _all_records(connection):
                yield record

    async def import_all(self, records: Iterable[ExportRecord]) -> None:
        """One transaction, the comparison included. A process that imports does nothing else."""
        connection = state_file.connect(self._path, state_file.BUSY_TIMEOUT_S)
        with state_file.transaction(connection, "BEGIN IMMEDIATE"):
            _import(connection, records)

    # ---- sweeps: many short transactions, so that commits can go between them

    async def expire(self, idle_since: str, at: str) -> int:
        await self._writer.write(sweeps.hide_ends, idle_since)
        await self._writer.write(sweeps.correct_future, at)
        ended = 0
        for _ in range(SWEEP_STEPS):
            idle = await self._readers.read(sweeps.idle_sessions, idle_since)
            ended += await self._writer.write(sweeps.end_idle, idle, idle_since, at)
            if len(idle) < sweeps.STEP_SESSIONS:
                break
        if ended:
            self._wake()
        return ended

    async def retain(self, archive_since: str, summaries_since: str) -> None:
        async for sessions in self._ended_before(archive_since):
            await self._repeat(sweeps.delete_archive, sessions)
            await self._repeat(sweeps.delete_prompts, sessions)
        async for sessions in self._ended_before(summaries_since):
            await self._repeat(sweeps.delete_rows, "summaries", sessions)
        async for sessions in self._ended_before(min(archive_since, summaries_since)):
            # Receipts may be left of a session that an earlier version has ended.
            for table in ("events", "operations"):
                await self._repeat(sweeps.delete_rows, table, sessions)
            await self._writer.write(sweeps.delete_sessions, sessions)
        await self._repeat(sweeps.delete_left_out, archive_since)
        await self._repeat(sweeps.delete_conversations, archive_since)

    async def _ended_before(self, before: str) -> AsyncIterator[Sequence[int]]:
        """The ended sessions that were last active before, some at a time."""
        last = 0
        for _ in range(SWEEP_STEPS):
            sessions = await self._readers.read(sweeps.ended_before, before, last)
            if not sessions:
                return
            last = sessions[-1]
            yield sessions

    async def _repeat(self, step: Work[Arguments, bool], *args: Arguments.args, **named: Arguments.kwargs) -> None:
        """Repeat until nothing is left to do. The next sweep continues where this one stops."""
        for _ in range(SWEEP_STEPS):
            if not await self._writer.write(step, *args, **named):
                return

    # ---- the store itself

    async def reach(self) -> None:
        """The file was opened by the constructor."""

    async def settle(self) -> None:
        """A commit leaves no background work."""

    async def check(self) -> None:
        """A real write of ordinary size: only that notices a disk on which a commit does not fit."""
        await self._writer.write(statements.write_check, CHECK_BYTES)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._wake()
        if self._polling is not None:
            self._polling.cancel()
        await asyncio.to_thread(self._readers.stop, CLOSE_TIMEOUT_S)
        await asyncio.to_thread(self._writer.stop, CLOSE_TIMEOUT_S)

    def _check_file(self, connection: sqlite3.Connection) -> None:
        """Refuse a commit to a file that was replaced, or that has tables of another version."""
        if _identity(self._path) != self._file:
            raise StoreUnavailable(f"{self._path} was moved or deleted while in use: restart to go on with a new one")
        if state_file.version_of(connection) != schema.FORMAT:
            raise StoreUnavailable(
                f"{self._path} was brought to another format while in use: restart with that version"
            )


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _all_records(connection: sqlite3.Connection) -> Iterator[ExportRecord]:
    sessions = connection.execute(
        "SELECT id, owner, project_hash, name_hash, session_id, revision, last_at,"
        f" CASE stage WHEN 0 THEN NULL ELSE ended_at END, figures FROM sessions WHERE {schema.intact('sessions')}"
        " ORDER BY owner, project_hash, name_hash, session_id, id"
    ).fetchall()
    for row, owner, project_hash, name_hash, *others in sessions:
        session = ExportedSession(SessionKey(owner, project_hash, name_hash), *others)
        yield session
        yield from _of_session(connection, row, session)
    # In the order of an index, so that no text is part of a sort.
    left_out = connection.execute(
        f"SELECT owner, conversation, text, {statements.DECISION_COLUMNS} FROM left_out"
        f" WHERE {schema.intact('left_out')} AND {schema.INTACT_TEXT}"
        " ORDER BY owner, conversation, call_id, text_hash"
    )
    for owner, conversation, text, *decision in left_out:
        yield ExportedLeftOut(owner, conversation, ArchivedResult(LeftOutDecision(*decision), text))
    conversations = connection.execute(
        "SELECT owner, conversation, last_request_at, outcomes, cache_life_s FROM conversations"
        f" WHERE {schema.intact('conversations')} ORDER BY owner, conversation"
    )
    for owner, conversation, *noted in conversations:
        yield ExportedConversation(owner, conversation, statements.conversation_of(*noted))


def _of_session(connection: sqlite3.Connection, row: int, session: ExportedSession) -> Iterator[ExportRecord]:
    if session.is_live:
        bodies = f"SELECT body FROM events WHERE session = ? AND {schema.intact('events')} ORDER BY n"
        for (body,) in connection.execute(bodies, (row,)):
            yield statements.event_of(body)
        receipts = connection.execute(
            "SELECT lower(hex(operation)), fingerprint, answer FROM operations WHERE session = ?"
            f" AND {schema.intact('operations')} ORDER BY operation",
            (row,),
        )
        for receipt in receipts:
            yield ExportedReceipt(*receipt)
    else:
        yield from statements.ended_log_of(connection, row)
    yield from statements.summaries_of(connection, row)
    # The ids are sorted first, so that no text is part of a sort.
    entries = connection.execute(
        "SELECT id FROM archive WHERE session = ? ORDER BY n, branch_id, id", (row,)
    ).fetchall()
    for entry in entries:
        intact_entry = f"SELECT {statements.ENTRY_COLUMNS} FROM archive WHERE id = ? AND {schema.intact('archive')}"
        columns = connection.execute(intact_entry, entry)
        yield statements.entry_of(columns.fetchone())


def _import(connection: sqlite3.Connection, records: Iterable[ExportRecord]) -> None:
    """Import into an empty store and compare. A failure leaves the store empty."""
    for table in ("sessions", "left_out", "conversations"):
        if connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone():
            raise TargetNotEmpty("the store has sessions already: import into a new file")
    # What is imported is as old as it says, whatever the empty store has seen.
    connection.execute("DELETE FROM clock")
    given, stored = hashlib.sha256(), hashlib.sha256()
    _insert(connection, hash_records(records, given))
    for record in _all_records(connection):
        stored.update(encode_record(record))
    if stored.digest() != given.digest():
        raise ImportDiffers("what was imported is not equal to the file; nothing was stored")


def _insert(connection: sqlite3.Connection, records: Iterable[ExportRecord]) -> None:
    row: int | None = None
    for record in records:
        match record:
            case ExportedSession():
                stage = schema.LIVE if record.is_live else schema.UNSEEN
                known = (*record.key, record.session_id, record.revision, record.last_at)
                columns = (*known, stage, record.ended_at, record.figures)
                row = connection.execute(statements.INSERT_SESSION, columns).lastrowid
            case ExportedReceipt():
                receipt = (row, bytes.fromhex(record.operation), record.fingerprint, record.answer)
                connection.execute(statements.INSERT_RECEIPT, receipt)
            case Summary():
                connection.execute(statements.INSERT_SUMMARY, (row, *statements.summary_row(record)))
            case ArchiveEntry():
                connection.execute(statements.INSERT_ENTRY, (row, *statements.entry_row(record)))
            case ExportedConversation():
                statements.note_conversation(connection, record.owner, record.conversation, record.noted)
            case ExportedLeftOut():
                statements.keep_left_out(connection, record.owner, record.conversation, [record.result])
            case _:
                connection.execute(statements.INSERT_EVENT, (row, record.n, to_json(record)))
