"""The end of sessions on NATS, and of what outlives them. Any daemon may do any of it, several at once too.

    session.expired is committed                  the session is over; nothing can be committed on it any more
    states and events are purged, and session.expired told to those who watch
    the archive is told that it has ended         from here its retention counts
    its log is purged but for session.expired
    a sweep later that message is deleted too

Each step can be done again. One that was cut short is gone on with by the next sweep, or before the key's next session
begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from contextfold.errors import StoreInvalid
from contextfold.fold.events import SessionExpired
from contextfold.fold.store import SessionKey, StaleRevision
from contextfold.stores.nats import records
from contextfold.stores.nats.derived_state import Shown, View
from contextfold.stores.nats.jetstream import Stored, Wire
from contextfold.stores.nats.log import Logs, session_of
from contextfold.stores.nats.names import Names
from contextfold.stores.nats.publisher import Publisher
from contextfold.stores.nats.records import Record
from contextfold.stores.nats.session_table import Row, Table
from contextfold.stores.nats.stream_reader import Reading, read_to

AT_ONCE: Final = 16  # sessions
KEPT: Final = "Cf-Kept"  # of an ended session: what is still there of it
WITHOUT_ARCHIVE: Final = "summaries"

Item = TypeVar("Item")


class Ends:
    def __init__(self, wire: Wire, names: Names, logs: Logs, *, view: View, publisher: Publisher, table: Table) -> None:
        self._wire = wire
        self._names = names
        self._logs = logs
        self._view = view
        self._publisher = publisher
        self._table = table
        self._finished: set[int] = set()  # ends after which nothing is left to do, until they are buried

    # ---- sessions

    async def expire(self, idle_since: str, at: str) -> int:
        await self._table.reach()
        ended: list[Row] = self._table.ended()
        await _each(ended, lambda row: self._bury(row, idle_since))
        idle = sorted((row for row in self._table.live() if row.last_at <= idle_since), key=lambda row: row.last_at)
        return sum(await _each(idle, lambda row: self.end(row, at)))

    async def end(self, row: Row, at: str) -> bool:
        """False if it was active after all, or somebody else has ended it."""
        await self._publisher.catch_up(row.key)
        expired = SessionExpired(row.revision + 1, at, row.session_id)
        try:
            done = await self._logs.append(row.key, Record(row.session_id, row.revision, [expired], {}))
        except StaleRevision:
            return False
        end = await self._wire.at(self._names.log, done.seq)
        if end is not None:
            self._table.note(row.key, end)
            await self.finish(row.key, end)
        return True

    async def finish(self, key: SessionKey, end: Stored) -> None:
        """Whatever is left to do after the commit that ended a session."""
        session_id = session_of(end)
        if await self._wire.last(self._names.archive, f"{self._names.archived(key, session_id)}.ended") is None:
            await self._leave_only_the_archive(key, session_id, end)
        await self._wire.purge(self._names.log, self._names.log_of(key), below=end.seq)

    async def _leave_only_the_archive(self, key: SessionKey, session_id: str, end: Stored) -> None:
        if await self._view.published(key, Shown(session_id)) < int(end.headers[records.BEFORE]):
            log = [record for _, record in await self._logs.records(key)]
            await self._view.archive(key, *(record for record in log if not record.is_end))
        self._publisher.forget(key)
        event = (await self._logs.record(key, end)).events[-1]
        assert isinstance(event, SessionExpired)
        await self._view.tell_end(key, event)
        await self._view.clear(key, session_id)
        await self._put_ended(key, end)

    async def _put_ended(self, key: SessionKey, end: Stored) -> None:
        headers = {name: end.headers[name] for name in (records.LAST_AT, records.ENDED)}
        whose = (session_of(end), key.owner, key.project_hash, key.name_hash)
        told = records.Ended(*whose, int(end.headers[records.REVISION]), *headers.values())
        subject = f"{self._names.archived(key, session_of(end))}.ended"
        await self._wire.put(subject, records.ended_told(told), headers=headers)

    async def _bury(self, row: Row, idle_since: str) -> None:
        if row.seq not in self._finished:
            end = await self._wire.at(self._names.log, row.seq)
            if end is not None:
                await self.finish(row.key, end)
            self._finished.add(row.seq)
        if row.ended_at <= idle_since:
            await self._wire.delete(self._names.log, row.seq)
            self._table.forget(row)
            self._finished.discard(row.seq)

    # ---- what outlives them

    async def retain(self, archive_since: str, summaries_since: str) -> None:
        last = await self._wire.last(self._names.archive, self._names.every_end)
        if last is None:
            return
        reading = Reading(self._names.archive, self._names.every_end, headers_only=True)
        due = [
            stored
            async for stored in read_to(self._wire, reading, last.seq)
            if stored.headers.get(records.LAST_AT, "~") < max(archive_since, summaries_since)
        ]
        await _each(due, lambda stored: self._forget(stored, archive_since, summaries_since))

    async def _forget(self, stored: Stored, archive_since: str, summaries_since: str) -> None:
        archived = stored.subject.removesuffix(".ended")
        last_at = stored.headers.get(records.LAST_AT, "~")
        is_kept = KEPT not in stored.headers
        if last_at < archive_since and is_kept:
            await self._wire.purge(self._names.archive, f"{archived}.entries.>")
            await self._wire.purge(self._names.archive, f"{archived}.pieces.>")
            is_kept = False
        if last_at < summaries_since:
            await self._wire.purge(self._names.archive, f"{archived}.summaries.>")
        if last_at < summaries_since and not is_kept:
            await self._wire.purge(self._names.archive, stored.subject)
        elif not is_kept and KEPT not in stored.headers:
            whole = await self._wire.last(self._names.archive, stored.subject)
            headers = {name: stored.headers[name] for name in (records.LAST_AT, records.ENDED)}
            if whole is not None:
                await self._wire.put(stored.subject, whole.data, headers={**headers, KEPT: WITHOUT_ARCHIVE})


async def _each(items: Sequence[Item], do: Callable[[Item], Awaitable[bool | None]]) -> list[bool]:
    """Some at a time; the first that fails is told, once none is on its way any more. What cannot be read is left."""
    done: list[bool] = []
    for start in range(0, len(items), AT_ONCE):
        outcomes = await asyncio.gather(*map(do, items[start : start + AT_ONCE]), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, StoreInvalid):
                raise outcome
            done.append(outcome is True)
    return done
