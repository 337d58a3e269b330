"""The store for several daemons on several machines: NATS JetStream, one message for each commit.

Combines the parts: the logs (`log`), what is derived from them (`publisher`), the list of live sessions and their end
(`sessions`), the archive with proxied conversations (`archive`) and `export`. The reasons for this layout are in
docs/decisions/0011.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeVar

from contextfold.errors import FoldError, StoreInvalid, StoreUnavailable
from contextfold.fold.events import Event, timestamp
from contextfold.fold.store import (
    ArchivedThread,
    Commit,
    CommitReceipt,
    EndedSession,
    ListedSession,
    SessionKey,
    Trajectory,
    WatchedEvent,
    cursor_number,
    cursor_unknown,
)
from contextfold.fold.store_clock import StoreClock
from contextfold.fold.store_export import ExportedSession
from contextfold.settings import NatsOptions
from contextfold.stores.nats import records
from contextfold.stores.nats.archive import ArchiveReader, NatsConversations, message_bytes_max
from contextfold.stores.nats.connection import OnConnectionChange, end_tasks
from contextfold.stores.nats.export import NatsExport
from contextfold.stores.nats.jetstream import TTL, JetStream, StreamQuery, follow, new_mark
from contextfold.stores.nats.log import SessionLogs
from contextfold.stores.nats.publisher import Publisher
from contextfold.stores.nats.recall import NatsRecall
from contextfold.stores.nats.records import LoggedCommit
from contextfold.stores.nats.sessions import SessionExpiry, SessionTable
from contextfold.stores.nats.streams import SubjectNames, prepare_streams

CLOSE_TIMEOUT_S: Final = 4.0
PUBLISH_FOR_OTHERS_S: Final = 1.0
# The time to live of a daemon's own message if it is killed.
ALIVE: Final = "3600s"
# The readiness check writes as many bytes as a commit with a long tool result.
CHECK_BYTES: Final = 64 << 10
CURSOR_RETRY_S: Final = 0.02

Row = TypeVar("Row", LoggedCommit, ExportedSession)


class NatsStore:
    def __init__(
        self,
        options: NatsOptions,
        *,
        idle_s: int = 24 * 3600,
        may_make: bool = True,
        on_change: OnConnectionChange = lambda _: None,
    ) -> None:
        """Nothing is connected yet: the first call connects. Streams must exist if they may not be made."""
        self._names = SubjectNames(options.prefix)
        self._idle_s = idle_s
        self._closed = False
        self._mark = new_mark()
        # The number of commits in progress.
        self._commits = 0
        self._no_commits = asyncio.Event()
        self._no_commits.set()
        self._publishing_for_others: asyncio.Task[None] | None = None
        self._js = JetStream(options, partial(prepare_streams, may_make=may_make), on_change)
        # The expiry needs the logs, so it is made after them.
        self._logs = SessionLogs(self._js, self._names, lambda end: self._expiry.finish(end))  # noqa: PLW0108
        self._publisher = Publisher(self._js, self._names, self._logs, idle_s=idle_s)
        self._table = SessionTable(self._js, self._names)
        self._conversations = NatsConversations(self._js, self._names)
        self._archive = ArchiveReader(self._js, self._names)
        self._recall = NatsRecall(self._js, self._names, self._conversations, self._settle)
        self._expiry = SessionExpiry(self._js, self._names, self._logs, self._publisher, self._table)
        self._export = NatsExport(
            self._js, self._names, self._logs, self._publisher, self._expiry, self._conversations, self._archive
        )
        # What one part does alone.
        self.load, self.receipt = self._logs.load, self._logs.receipt
        self.left_out, self.keep_left_out = self._conversations.decisions, self._conversations.keep
        self.left_out_text = self._conversations.text
        self.conversation, self.note_conversation = self._conversations.read, self._conversations.merge
        self.ended_log, self.expire = self._expiry.ended_log, self._expiry.expire
        self.export, self.settle = self._export.export, self._publisher.settle
        self.import_all = self._export.import_all
        self.search, self.summaries = self._recall.search, self._recall.summaries
        self.unindexed, self.index, self.recall = self._recall.unindexed, self._recall.index, self._recall.recall

    async def reach(self) -> None:
        """Connect, and from now on publish what other daemons were killed before publishing."""
        if self._publishing_for_others is None:
            self._publishing_for_others = asyncio.create_task(self._publish_for_others(), name="contextfold-others")
        await self._js.open()

    # ---- one session

    async def commit(self, commit: Commit) -> CommitReceipt:
        self._check_open()
        self._commits += 1
        self._no_commits.clear()
        try:
            receipt, committed = await self._logs.commit(commit)
            if committed is not None:
                self._publisher.publish_soon(committed)
        finally:
            self._commits -= 1
            if not self._commits:
                self._no_commits.set()
        return receipt

    async def sessions(
        self, owner: str, *, after: tuple[str, str] | None = None, limit: int
    ) -> Sequence[ListedSession]:
        await self._table.refresh()
        rows = _page(self._table.live(owner), after, limit)
        return [ListedSession(row.key, row.session_id, row.last_at) for row in rows]

    async def ended_sessions(
        self, owner: str, *, after: tuple[str, str] | None = None, limit: int, session_id: str | None = None
    ) -> Sequence[EndedSession]:
        ended = await self._expiry.list_ended(self._names.archived_of(owner, None, "ended"))
        listed = (session for session in ended if session_id in (None, session.session_id))
        return [
            EndedSession(session.key, session.session_id, session.last_at, session.ended_at or "", session.figures)
            for session in _page(listed, after, limit)
        ]

    async def find(self, owner: str, session_id: str) -> SessionKey | None:
        await self._table.refresh()
        return next((row.key for row in self._table.live(owner) if row.session_id == session_id), None)

    # ---- watching

    async def cursor(self) -> str:
        return str(await self._js.last_seq(self._names.log))

    async def check_cursor(self, cursor: str) -> None:
        await self._start_at(_position(cursor))

    def watch(self, owner: str, after: str | None = None) -> AsyncIterator[WatchedEvent]:
        self._check_open()
        return self._follow(owner, None if after is None else _position(after))

    async def _follow(self, owner: str, position: tuple[int, int] | None) -> AsyncIterator[WatchedEvent]:
        """A cursor is a commit and an event within it."""
        seq, offset = await self._start_at(position)
        # A commit of which a part was seen is read again.
        start = seq - 1 if offset else seq
        query = StreamQuery(self._names.log, self._names.log_of_owner(owner), max(start, 0))
        async with aclosing(follow(self._js, query)) as commits:
            async for stored in commits:
                commit = records.parse_logged(self._names.key_of(stored.subject), stored)
                events = await self._events(commit) if commit else ()
                for number, event in enumerate(events, 1):
                    if commit and (stored.seq, number) > (seq, offset):
                        cursor = str(stored.seq) if number == len(events) else f"{stored.seq}-{number}"
                        yield WatchedEvent(cursor, commit.key, commit.session_id, event)

    async def _start_at(self, position: tuple[int, int] | None) -> tuple[int, int]:
        reached = await self._js.last_seq(self._names.log)
        if position is None:
            return reached, 0
        # The server that responded may have been the leader until just now.
        if position[0] > reached:
            await asyncio.sleep(CURSOR_RETRY_S)
            if position[0] > await self._js.last_seq(self._names.log):
                raise cursor_unknown()
        return position

    async def _events(self, commit: LoggedCommit) -> Sequence[Event]:
        """No events of a commit that cannot be read: loading that session reports it, and other sessions continue."""
        try:
            return (await self._logs.record(commit)).events
        except StoreInvalid:
            return ()

    # ---- summaries and archive

    async def trajectory(
        self, thread: ArchivedThread, *, after_n: int = 0, limit: int, characters: int | None = None
    ) -> Trajectory | None:
        await self._settle(thread.owner, thread.project_hash)
        return await self._archive.trajectory(thread, after_n=after_n, limit=limit, characters=characters)

    async def _settle(self, owner: str, project_hash: str | None = None) -> None:
        """Publish what was committed to sessions of an owner and is not in the archive yet."""
        await self._table.refresh()
        for row in self._table.behind(owner):
            if project_hash in (None, row.key.project_hash):
                # A session that cannot be read has nothing to publish.
                with suppress(StoreInvalid):
                    await self._publisher.catch_up(row.key)

    # ---- sweeps

    async def read_clock(self) -> StoreClock:
        stored = await self._js.last(self._names.state, self._names.clock)
        if stored is not None:
            return StoreClock.from_json(stored.data)
        conversations = (await self._conversations.times()).values()
        newest = max([await self._expiry.newest_time(), *(at for times in conversations for at, _ in times)])
        return StoreClock.of_content(newest)

    async def write_clock(self, clock: StoreClock) -> None:
        await self._js.put_last(self._names.clock, clock.to_json().encode())

    async def retain(self, archive_since: str, summaries_since: str) -> None:
        await self._expiry.retain(archive_since, summaries_since)
        await self._conversations.retain(archive_since)
        # Another daemon may have deleted summaries, and deletions are not announced.
        self._recall.check_deletions()

    async def _publish_for_others(self) -> None:
        """Publish what a daemon that was killed has committed and not published."""
        seen: set[SessionKey] = set()
        while True:
            await asyncio.sleep(PUBLISH_FOR_OTHERS_S * random.uniform(0.7, 1.3))  # noqa: S311 - so that not all do it at once
            try:
                await self._table.refresh()
            except FoldError:
                continue
            # A session without activity since then is left to the sweep that ends it.
            since = timestamp(datetime.now(UTC) - timedelta(seconds=self._idle_s))
            late = (row.key for row in self._table.behind() if row.last_at > since)
            behind = {key for key in late if not self._publisher.is_busy(key)}
            # What was not behind the last time may still be published by its own daemon.
            for key in behind & seen:
                with suppress(FoldError):
                    await self._publisher.catch_up(key)
            seen = behind

    # ---- the store itself

    async def count(self, owner: str | None = None) -> int:
        await self._table.refresh()
        return sum(1 for _ in self._table.live(owner))

    async def check(self) -> None:
        """Write a message of ordinary size beside the logs, because one among them would move cursors."""
        size = min(CHECK_BYTES, message_bytes_max(self._js)) if self._js.is_ready else 0
        write = self._js.put(self._names.daemon_note(self._mark), bytes(size), {TTL: ALIVE})
        rooms = (self._js.check_room(stream, CHECK_BYTES) for stream in self._names.subjects)
        await asyncio.gather(write, *rooms)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with suppress(TimeoutError, FoldError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._no_commits.wait()
                if self._js.is_ready:
                    await self._publisher.settle()
                    await self._js.purge(self._names.state, self._names.daemon_note(self._mark))
        await end_tasks(self._publishing_for_others)
        await self._publisher.stop()
        await self._js.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")


def _page(rows: Iterable[Row], after: tuple[str, str] | None, limit: int) -> list[Row]:
    """The rows after a position, the most recently active first."""
    later = [row for row in rows if after is None or (row.last_at, row.session_id) < after]
    return sorted(later, key=lambda row: (row.last_at, row.session_id), reverse=True)[: max(limit, 0)]


def _position(cursor: str) -> tuple[int, int]:
    seq, dash, offset = cursor.partition("-")
    return cursor_number(seq), cursor_number(offset) if dash else 0
