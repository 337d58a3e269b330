"""The end of sessions on NATS, and of what outlives them. Any daemon may do any of it, also several at once.

    1. session.expired is committed: nothing can be committed to the session any more.
    2. Its states and events are purged, except session.expired, which is published.
    3. An `ended` message is put into the archive: from here on its retention counts.
    4. Its log is purged, except session.expired.
    5. A later sweep deletes that message too.

Each step can be repeated. A sequence that was interrupted is continued by the next sweep, or before the next session of
the same key begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, TypeVar

from contextfold.errors import StoreInvalid
from contextfold.fold.events import SessionExpired
from contextfold.fold.ports.store import StaleRevision
from contextfold.fold.ports.store_export import ExportedSession
from contextfold.stores.nats.log import SessionLogs
from contextfold.stores.nats.publisher import PublishedSession, Publisher
from contextfold.stores.nats.session_table import SessionTable
from contextfold.stores.nats.wire import records
from contextfold.stores.nats.wire.jetstream import TTL, JetStream, StoredMessage
from contextfold.stores.nats.wire.names import SubjectNames
from contextfold.stores.nats.wire.records import CommitRecord, LoggedCommit
from contextfold.stores.nats.wire.stream_reader import StreamQuery, read_stored
from contextfold.stores.nats.wire.tasks import in_batches
from contextfold.stores.session_document import figures_of

# Sessions that are worked on at once.
AT_ONCE: Final = 16
# A header of an `ended` message: what is left of the session.
KEPT: Final = "Cf-Kept"
WITHOUT_ARCHIVE: Final = "summaries"
# A header of the note on a session whose last activity is in the future: the commit that it is about.
NOTED_SEQ: Final = "Cf-Seq"
NOTE_TTL: Final = "604800s"

Item = TypeVar("Item")


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
        await self.table.reach()
        await _each(self.table.ended(), lambda row: self._delete_end(row, idle_since))
        live = list(self.table.live())
        idle = [row for row in live if row.last_at <= idle_since]
        for row in [row for row in live if row.last_at > at]:
            if await self._noted_at(row, at) <= idle_since:
                idle.append(row)
        idle.sort(key=lambda row: row.last_at)
        return await _each(idle, lambda row: self.end(row, at))

    async def _noted_at(self, row: LoggedCommit, at: str) -> str:
        """When a sweep first saw a commit whose time is in the future, because a clock was wrong.

        The time in the commit cannot be changed, so it is noted beside the log.
        """
        log = self.names.log_of(row.key)
        subject = self.names.alive(f"future-{sha256(log.encode()).hexdigest()[:32]}")
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
        self.table.note(end)
        await self.finish(end)
        return True

    async def finish(self, end: LoggedCommit) -> None:
        """Do what is left to do after the commit that ended a session."""
        subject = f"{self.names.archived(end.key, end.session_id)}.ended"
        if await self.js.last(self.names.archive, subject) is None:
            await self._keep_only_the_archive(end)
        await self.js.purge(self.names.log, self.names.log_of(end.key), below=end.seq)

    async def _finish_row(self, row: LoggedCommit) -> None:
        """Finish an end unless another daemon has deleted it already."""
        if await self.logs.at(row.key, row.seq):
            await self.finish(row)

    async def _keep_only_the_archive(self, end: LoggedCommit) -> None:
        key, session_id = end.key, end.session_id
        log = [record for _, record in await self.logs.records(key) if not record.is_end]
        if await self.publisher.revision(key, PublishedSession(session_id)) < end.before:
            await self.publisher.archive(key, *log)
        await self.publisher.publish_end(key, SessionExpired(end.revision, end.ended_at, session_id))
        await self.publisher.clear(key, session_id)
        # Activity after the end was recorded by a clock that was wrong.
        last_at = min(end.last_at, end.ended_at)
        figures = figures_of(lambda: [event for record in log for event in record.events])
        await self.put_ended(ExportedSession(key, session_id, end.revision, last_at, end.ended_at, figures))

    async def put_ended(self, session: ExportedSession) -> None:
        headers = {records.LAST_AT: session.last_at, records.ENDED: session.ended_at or session.last_at}
        subject = f"{self.names.archived(session.key, session.session_id)}.ended"
        await self.js.put_last(subject, records.encode_ended(session), headers)

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
        await self.table.reach()
        for row in self.table.ended():
            await self._finish_row(row)
        return list(self.table.live())

    async def ended(self, subjects: str) -> list[ExportedSession]:
        """The sessions whose `ended` messages match these subjects."""
        query = StreamQuery(self.names.archive, subjects)
        return [records.ended_from(stored.data) async for stored in read_stored(self.js, query)]

    # ---- retention

    async def retain(self, archive_since: str, summaries_since: str) -> None:
        query = StreamQuery(self.names.archive, self.names.every_end, headers_only=True)
        due = [
            stored
            async for stored in read_stored(self.js, query)
            if stored.headers.get(records.LAST_AT, "~") < max(archive_since, summaries_since)
        ]
        await _each(due, lambda stored: self._forget(stored, archive_since, summaries_since))

    async def _forget(self, stored: StoredMessage, archive_since: str, summaries_since: str) -> None:
        archived = stored.subject.removesuffix(".ended")
        last_at = stored.headers.get(records.LAST_AT, "~")
        had_archive = KEPT not in stored.headers
        has_archive, has_summaries = had_archive and last_at >= archive_since, last_at >= summaries_since
        forgotten = ["entries", "pieces"] if had_archive and not has_archive else []
        for kind in forgotten if has_summaries else [*forgotten, "summaries"]:
            await self.js.purge(self.names.archive, f"{archived}.{kind}.>")
        if not has_archive and not has_summaries:
            await self.js.purge(self.names.archive, stored.subject)
        elif forgotten:
            whole = await self.js.last(self.names.archive, stored.subject)
            headers = {name: stored.headers[name] for name in (records.LAST_AT, records.ENDED)}
            if whole is not None:
                await self.js.put_last(stored.subject, whole.data, {**headers, KEPT: WITHOUT_ARCHIVE})


async def _each(items: Sequence[Item], work: Callable[[Item], Awaitable[bool | None]]) -> int:
    """Work on the items, except those that cannot be read. Return for how many the result was True."""

    async def work_if_readable(item: Item) -> bool:
        try:
            return await work(item) is True
        except StoreInvalid:
            return False

    return sum(await in_batches(map(work_if_readable, items), AT_ONCE))
