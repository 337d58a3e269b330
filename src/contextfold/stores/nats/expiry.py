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
from hashlib import sha256
from typing import Final, TypeVar

from contextfold.errors import StoreInvalid
from contextfold.fold.events import SessionExpired
from contextfold.fold.ports.store import SessionKey, StaleRevision
from contextfold.fold.ports.store_export import ExportedSession
from contextfold.stores.nats.derived_state import DerivedState, PublishedSession
from contextfold.stores.nats.log import SessionLogs, session_of
from contextfold.stores.nats.publisher import Publisher
from contextfold.stores.nats.session_table import SessionRow, SessionTable
from contextfold.stores.nats.wire import records
from contextfold.stores.nats.wire.jetstream import TTL, JetStream, StoredMessage
from contextfold.stores.nats.wire.names import SubjectNames
from contextfold.stores.nats.wire.records import CommitRecord
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


class SessionExpiry:
    def __init__(
        self,
        js: JetStream,
        names: SubjectNames,
        logs: SessionLogs,
        *,
        derived: DerivedState,
        publisher: Publisher,
        table: SessionTable,
    ) -> None:
        self._js = js
        self._names = names
        self._logs = logs
        self._derived = derived
        self._publisher = publisher
        self._table = table
        # Sequences of ends after which nothing is left to do until they are deleted.
        self._finished: set[int] = set()

    # ---- sessions

    async def expire(self, idle_since: str, at: str) -> int:
        await self._table.reach()
        await _each(self._table.ended(), lambda row: self._delete_end(row, idle_since))
        live = list(self._table.live())
        idle = [row for row in live if row.last_at <= idle_since]
        for row in [row for row in live if row.last_at > at]:
            if await self._noted_at(row, at) <= idle_since:
                idle.append(row)
        idle.sort(key=lambda row: row.last_at)
        return await _each(idle, lambda row: self.end(row, at))

    async def _noted_at(self, row: SessionRow, at: str) -> str:
        """When a sweep first saw a commit whose time is in the future, because a clock was wrong.

        The time in the commit cannot be changed, so it is noted beside the log.
        """
        log = self._names.log_of(row.key)
        subject = self._names.alive(f"future-{sha256(log.encode()).hexdigest()[:32]}")
        note = await self._js.last(self._names.state, subject)
        if note is not None and note.headers.get(NOTED_SEQ) == str(row.seq):
            return note.headers[records.LAST_AT]
        await self._js.put(subject, b"", headers={records.LAST_AT: at, NOTED_SEQ: str(row.seq), TTL: NOTE_TTL})
        return at

    async def end(self, row: SessionRow, at: str) -> bool:
        """End a session. False if it was active after all, or if another daemon has ended it."""
        await self._publisher.catch_up(row.key)
        expired = SessionExpired(row.revision + 1, at, row.session_id)
        try:
            done = await self._logs.append(row.key, CommitRecord(row.session_id, row.revision, [expired], {}))
        except StaleRevision:
            return False
        end = await self._js.at(self._names.log, done.seq)
        if end is not None:
            self._table.note(row.key, end)
            await self.finish(row.key, end)
        return True

    async def finish(self, key: SessionKey, end: StoredMessage) -> None:
        """Do what is left to do after the commit that ended a session."""
        session_id = session_of(end)
        if await self._js.last(self._names.archive, f"{self._names.archived(key, session_id)}.ended") is None:
            await self._keep_only_the_archive(key, session_id, end)
        await self._js.purge(self._names.log, self._names.log_of(key), below=end.seq)

    async def _finish_row(self, row: SessionRow) -> None:
        end = await self._js.at(self._names.log, row.seq)
        if end is not None:
            await self.finish(row.key, end)

    async def _keep_only_the_archive(self, key: SessionKey, session_id: str, end: StoredMessage) -> None:
        log = [record for _, record in await self._logs.records(key) if not record.is_end]
        if await self._derived.published(key, PublishedSession(session_id)) < int(end.headers[records.BEFORE]):
            await self._derived.archive(key, *log)
        self._publisher.forget(key)
        event = (await self._logs.record(key, end)).events[-1]
        assert isinstance(event, SessionExpired)
        await self._derived.publish_end(key, event)
        await self._derived.clear(key, session_id)
        ended_at = end.headers[records.ENDED]
        await self.put_ended(
            ExportedSession(
                key,
                session_id,
                int(end.headers[records.REVISION]),
                # Activity after the end was recorded by a clock that was wrong.
                min(end.headers[records.LAST_AT], ended_at),
                ended_at,
                figures_of(lambda: [event for record in log for event in record.events]),
            )
        )

    async def put_ended(self, session: ExportedSession) -> None:
        headers = {records.LAST_AT: session.last_at, records.ENDED: session.ended_at or session.last_at}
        subject = f"{self._names.archived(session.key, session.session_id)}.ended"
        await self._js.put(subject, records.encode_ended(session), headers=headers)

    async def _delete_end(self, row: SessionRow, idle_since: str) -> None:
        if row.seq not in self._finished:
            await self._finish_row(row)
            self._finished.add(row.seq)
        if row.ended_at <= idle_since:
            await self._js.delete(self._names.log, row.seq)
            self._table.forget(row)
            self._finished.discard(row.seq)

    # ---- lists

    async def live(self) -> list[SessionRow]:
        """The live sessions of every owner, after interrupted ends are finished."""
        await self._table.reach()
        for row in self._table.ended():
            await self._finish_row(row)
        return list(self._table.live())

    async def ended(self, subjects: str) -> list[ExportedSession]:
        """The sessions whose `ended` messages match these subjects."""
        query = StreamQuery(self._names.archive, subjects)
        return [records.ended_from(stored.data) async for stored in read_stored(self._js, query)]

    # ---- retention

    async def retain(self, archive_since: str, summaries_since: str) -> None:
        query = StreamQuery(self._names.archive, self._names.every_end, headers_only=True)
        due = [
            stored
            async for stored in read_stored(self._js, query)
            if stored.headers.get(records.LAST_AT, "~") < max(archive_since, summaries_since)
        ]
        await _each(due, lambda stored: self._forget(stored, archive_since, summaries_since))

    async def _forget(self, stored: StoredMessage, archive_since: str, summaries_since: str) -> None:
        archived = stored.subject.removesuffix(".ended")
        last_at = stored.headers.get(records.LAST_AT, "~")
        has_archive = KEPT not in stored.headers
        if last_at < archive_since and has_archive:
            await self._js.purge(self._names.archive, f"{archived}.entries.>")
            await self._js.purge(self._names.archive, f"{archived}.pieces.>")
            has_archive = False
        if last_at < summaries_since:
            await self._js.purge(self._names.archive, f"{archived}.summaries.>")
        if last_at < summaries_since and not has_archive:
            await self._js.purge(self._names.archive, stored.subject)
        elif not has_archive and KEPT not in stored.headers:
            whole = await self._js.last(self._names.archive, stored.subject)
            headers = {name: stored.headers[name] for name in (records.LAST_AT, records.ENDED)}
            if whole is not None:
                await self._js.put(stored.subject, whole.data, headers={**headers, KEPT: WITHOUT_ARCHIVE})


async def _each(items: Sequence[Item], work: Callable[[Item], Awaitable[bool | None]]) -> int:
    """Work on the items, except those that cannot be read. Return for how many the result was True."""

    async def work_if_readable(item: Item) -> bool:
        try:
            return await work(item) is True
        except StoreInvalid:
            return False

    return sum(await in_batches(work_if_readable, items, AT_ONCE))
