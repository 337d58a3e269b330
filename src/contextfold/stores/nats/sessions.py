"""The live sessions on NATS, and the end of sessions and of what outlives them.

The list of live sessions is made from the last commit of each log and the published revision of each session. It is
used only for queries over several sessions. Each of them first reads what was added since the one before.

Any daemon may do any step of ending a session, also several daemons at once:

    1. session.expired is committed: nothing can be committed to the session any more.
    2. Its states and events are purged, except session.expired, which is published.
    3. Its log is copied into the archive, and an `ended` message put there: from here on its retention counts.
    4. Its log is purged, except session.expired.
    5. A later sweep deletes that message too.

Each step can be repeated. A sequence that was interrupted is continued by the next sweep, or before the next session of
the same key begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import Final, TypeVar

from contextfold.errors import StoreInvalid
from contextfold.fold.events import BranchCreated, Event, SessionExpired
from contextfold.fold.store import SessionKey, StaleRevision
from contextfold.fold.store_export import ExportedSession
from contextfold.stores.nats import records
from contextfold.stores.nats.archive import read_chunks, write_chunks
from contextfold.stores.nats.connection import in_batches
from contextfold.stores.nats.jetstream import TTL, JetStream, StoredMessage, StreamQuery, read_stored
from contextfold.stores.nats.log import SessionLogs
from contextfold.stores.nats.publisher import PublishedSession, Publisher
from contextfold.stores.nats.records import CommitRecord, LoggedCommit
from contextfold.stores.nats.streams import SubjectNames

# Sessions that are worked on at once.
AT_ONCE: Final = 16
# A header of an `ended` message: what is left of the session.
KEPT: Final = "Cf-Kept"
WITHOUT_ARCHIVE: Final = "summaries"
# A header of the note on a session whose last activity is in the future: the commit that it is about.
NOTED_SEQ: Final = "Cf-Seq"
NOTE_TTL: Final = "604800s"
Item = TypeVar("Item")


class SessionTable:
    """The last commit of every key and the published revision of every live session, as of the last `refresh`."""

    def __init__(self, js: JetStream, names: SubjectNames) -> None:
        self._js = js
        self._names = names
        self._rows: dict[SessionKey, LoggedCommit] = {}
        # The published revision, by the subject of the session's state.
        self._published: dict[str, int] = {}
        # The last sequence that was read of each stream.
        self._reached: dict[str, int] = {}
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Read what was committed and published since the last time."""
        names = self._names
        async with self._lock:
            async for stored in self._read_new(names.log, names.every_log):
                # A subject that was not written by us.
                with suppress(ValueError):
                    if commit := records.parse_logged(names.key_of(stored.subject), stored):
                        self._add(commit)
            async for stored in self._read_new(names.state, names.every_session_state):
                # The server's marker for an expired message has no revision.
                revision = records.header_number(stored.headers, records.REVISION)
                self._published[stored.subject] = max(revision, self._published.get(stored.subject, -1))

    def _add(self, commit: LoggedCommit) -> None:
        before = self._rows.get(commit.key, commit)
        if before.session_id != commit.session_id:
            self._published.pop(self._state_of(before), None)
        self._rows[commit.key] = commit

    async def _read_new(self, stream: str, subjects: str) -> AsyncIterator[StoredMessage]:
        reached = self._reached.get(stream, 0)
        query = StreamQuery(stream, subjects, reached, headers_only=True, last_of_each=not reached)
        async for stored in read_stored(self._js, query):
            yield stored
            self._reached[stream] = stored.seq

    def forget(self, row: LoggedCommit) -> None:
        """Forget an ended session whose last event was deleted."""
        if self._rows.get(row.key) == row:
            del self._rows[row.key]
        self._published.pop(self._state_of(row), None)

    def _state_of(self, row: LoggedCommit) -> str:
        return self._names.session_state(self._names.session(row.key, row.session_id))

    # ---- what is known

    def live(self, owner: str | None = None) -> Iterator[LoggedCommit]:
        return (row for row in list(self._rows.values()) if not row.ended_at and owner in (None, row.key.owner))

    def ended(self) -> list[LoggedCommit]:
        return [row for row in self._rows.values() if row.ended_at]

    def behind(self, owner: str | None = None) -> list[LoggedCommit]:
        """Live sessions that are not completely published."""
        return [row for row in self.live(owner) if self._published.get(self._state_of(row), -1) < row.revision]


@dataclass(slots=True, eq=False)
class SessionExpiry:
    js: JetStream
    names: SubjectNames
    logs: SessionLogs
    publisher: Publisher
    table: SessionTable
    # Sequences of ends after which nothing is left to do until they are deleted.
    finished: set[int] = field(default_factory=set)

    # ---- sessions

    async def expire(self, idle_since: str, at: str) -> int:
        await self.table.refresh()
        await _each(self.table.ended(), lambda row: self._delete_end(row, idle_since))
        live = list(self.table.live())
        idle = [row for row in live if row.last_at <= idle_since]
        for row in [row for row in live if row.last_at > at]:
            if await self._first_seen_at(row, at) <= idle_since:
                idle.append(row)
        idle.sort(key=lambda row: row.last_at)
        return await _each(idle, lambda row: self.end(row, at))

    async def _first_seen_at(self, row: LoggedCommit, at: str) -> str:
        """When a sweep first saw a commit whose time is in the future, because a clock was wrong.

        The time in the commit cannot be changed, so it is noted beside the log.
        """
        log = self.names.log_of(row.key)
        subject = self.names.daemon_note(f"future-{sha256(log.encode()).hexdigest()[:32]}")
        note = await self.js.last(self.names.state, subject)
        if note is not None and note.headers.get(NOTED_SEQ) == str(row.seq):
            return note.headers[records.LAST_AT]
        await self.js.put_last(subject, b"", {records.LAST_AT: at, NOTED_SEQ: str(row.seq), TTL: NOTE_TTL})
        return at

    async def end(self, row: LoggedCommit, at: str) -> bool:
        """End a session. False if it was active after all, or if another daemon has ended it."""
        await self.publisher.catch_up(row.key)
        expired = SessionExpired(row.revision + 1, at, row.session_id)
        try:
            end, _ = await self.logs.append(row.key, CommitRecord(row.session_id, row.revision, [expired], {}))
        except StaleRevision:
            return False
        await self.finish(end)
        return True

    async def finish(self, end: LoggedCommit) -> None:
        """Do what is left to do after the commit that ended a session."""
        subject = f"{self.names.archived(end.key, end.session_id)}.ended"
        if await self.js.last(self.names.archive, subject) is None:
            await self._archive_session(end)
        await self.js.purge(self.names.log, self.names.log_of(end.key), below=end.seq)

    async def _finish_row(self, row: LoggedCommit) -> None:
        """Finish an end unless another daemon has deleted it already."""
        if await self.logs.at(row.key, row.seq):
            await self.finish(row)

    async def _archive_session(self, end: LoggedCommit) -> None:
        key, session_id = end.key, end.session_id
        log = [record for _, record in await self.logs.records(key) if not record.is_end]
        if await self.publisher.read_revision(key, PublishedSession(session_id)) < end.before:
            await self.publisher.archive(key, *log)
        expired = SessionExpired(end.revision, end.ended_at, session_id)
        await self.publisher.publish_end(key, expired)
        await self.publisher.clear(key, session_id)
        # Activity after the end was recorded by a clock that was wrong.
        last_at = min(end.last_at, end.ended_at)
        events = [*(event for record in log for event in record.events), expired]
        if len(events) < end.revision:
            # Another daemon has finished this end meanwhile and purged the log, or the log is damaged.
            if await self.js.last(self.names.archive, f"{self.names.archived(key, session_id)}.ended") is not None:
                return
            events = []
        await self.put_ended(ExportedSession(key, session_id, end.revision, last_at, end.ended_at, ""), events)

    async def put_ended(
        self, session: ExportedSession, log: Sequence[Event], others: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Store an ended session and its log. Chunks without an `ended` message are deleted with the session."""
        archived = self.names.archived(session.key, session.session_id)
        chunks = await write_chunks(self.js, f"{archived}.log", records.encode_log(log)) if log else None
        headers = {records.LAST_AT: session.last_at, records.ENDED: session.ended_at or session.last_at, **others}
        await self.js.put_last(f"{archived}.ended", records.encode_ended(session, chunks), headers)

    async def ended_log(self, key: SessionKey, session_id: str) -> list[Event]:
        """The log of an ended session; empty if an earlier version deleted it."""
        archived = self.names.archived(key, session_id)
        ended = await self.js.last(self.names.archive, f"{archived}.ended")
        chunks = records.ended_log(ended.data) if ended else None
        return records.parse_log(await read_chunks(self.js, f"{archived}.log", chunks)) if chunks else []

    async def _delete_end(self, row: LoggedCommit, idle_since: str) -> None:
        if row.seq not in self.finished:
            await self._finish_row(row)
            self.finished.add(row.seq)
        if row.ended_at <= idle_since:
            await self.js.delete(self.names.log, row.seq)
            self.table.forget(row)
            self.finished.discard(row.seq)

    # ---- lists

    async def live(self) -> list[LoggedCommit]:
        """The live sessions of every owner, after interrupted ends are finished."""
        await self.table.refresh()
        for row in self.table.ended():
            await self._finish_row(row)
        return list(self.table.live())

    async def list_ended(self, subjects: str) -> list[ExportedSession]:
        """The sessions whose `ended` messages match these subjects."""
        query = StreamQuery(self.names.archive, subjects)
        return [records.parse_ended(stored.data) async for stored in read_stored(self.js, query)]

    # ---- retention

    async def newest_time(self) -> str:
        """The time of the last activity in any session, live or ended; empty if there is none."""
        await self.table.refresh()
        query = StreamQuery(self.names.archive, self.names.every_end, headers_only=True)
        ended = [stored.headers.get(records.ENDED, "") async for stored in read_stored(self.js, query)]
        return max([*ended, *(row.last_at for row in self.table.live())], default="")

    async def retain(self, archive_since: str, summaries_since: str) -> None:
        query = StreamQuery(self.names.archive, self.names.every_end, headers_only=True)
        due = [
            stored
            async for stored in read_stored(self.js, query)
            if stored.headers.get(records.LAST_AT, "~") < max(archive_since, summaries_since)
        ]
        await _each(due, lambda stored: self._delete(stored, archive_since, summaries_since))

    async def _delete(self, stored: StoredMessage, archive_since: str, summaries_since: str) -> None:
        archived = stored.subject.removesuffix(".ended")
        last_at = stored.headers.get(records.LAST_AT, "~")
        had_archive = KEPT not in stored.headers
        has_archive, has_summaries = had_archive and last_at >= archive_since, last_at >= summaries_since
        deleted = ["entries", "pieces"] if had_archive and not has_archive else []
        for kind in deleted if has_summaries else [*deleted, "summaries"]:
            await self.js.purge(self.names.archive, f"{archived}.{kind}.>")
        if not has_archive and not has_summaries:
            await self.js.purge(self.names.archive, f"{archived}.log.>")
            await self.js.purge(self.names.archive, stored.subject)
        elif deleted:
            await self._delete_prompts(stored.subject)

    async def _delete_prompts(self, subject: str) -> None:
        """Store an ended session whose archive was deleted with a log without prompts."""
        ended = await self.js.last(self.names.archive, subject)
        if ended is None:
            return
        session, written = records.parse_ended(ended.data), await self.js.last_seq(self.names.archive)
        log = [
            event._replace(prompt="") if isinstance(event, BranchCreated) else event
            for event in await self.ended_log(session.key, session.session_id)
        ]
        await self.put_ended(session, log, {KEPT: WITHOUT_ARCHIVE})
        await self.js.purge(self.names.archive, f"{subject.removesuffix('.ended')}.log.>", below=written + 1)


async def _each(items: Sequence[Item], work: Callable[[Item], Awaitable[bool | None]]) -> int:
    """Work on the items, except those that cannot be read. Return for how many the result was True."""

    async def work_if_readable(item: Item) -> bool:
        try:
            return await work(item) is True
        except StoreInvalid:
            return False

    return sum(await in_batches(map(work_if_readable, items), AT_ONCE))
