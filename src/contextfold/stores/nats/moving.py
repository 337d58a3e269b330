"""Sessions on NATS as what is moved from or to. Owns the order of that; the messages are the store's own.

A part of a live session is one commit, with what belongs to several; everything else follows from the log as always. A
session that has ended has no log: its part goes to the archive at once, and its end, written last, says how far that
is. What a stopped mover left beyond that is deleted by the next. A daemon that works here is in nobody's way.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from contextfold.fold.archive import Entry
from contextfold.fold.moving import PAGE_CHARACTERS, PAGE_ENTRIES, Held, Kept, Part, Whole
from contextfold.fold.store import Receipt, SessionKey, StaleRevision, Summary
from contextfold.stores.nats import records
from contextfold.stores.nats.chunks import read_pieces
from contextfold.stores.nats.connection import Place
from contextfold.stores.nats.derived_state import View
from contextfold.stores.nats.expiry import Ends
from contextfold.stores.nats.jetstream import Conflict, Stored, Wire
from contextfold.stores.nats.log import Logs, is_end, session_of
from contextfold.stores.nats.names import Names
from contextfold.stores.nats.publisher import Publisher
from contextfold.stores.nats.records import Ended, Record
from contextfold.stores.nats.session_table import Row, Table
from contextfold.stores.nats.stream_reader import Reading, read_to
from contextfold.stores.nats.streams import expect, prepare

TRIES: Final = 3  # to look at a session that ends meanwhile
AT_ONCE: Final = 16  # commits whose entries are read together
ARCHIVED: Final = "Cf-Archived"  # of the end of a session that came from elsewhere: how far its archive is


class NatsMoving:
    def __init__(self, place: Place, *, idle_s: int, is_source: bool) -> None:
        self._names = Names(place.prefix)
        self._wire = Wire(place, expect if is_source else prepare)
        self._logs = Logs(self._wire, self._names, self._finish)
        self._view = View(self._wire, self._names, idle_s=idle_s)
        self._publisher = Publisher(self._logs, self._view)
        self._table = Table(self._wire, self._names)
        self._ends = Ends(
            self._wire, self._names, self._logs, view=self._view, publisher=self._publisher, table=self._table
        )
        self._tidied: set[tuple[SessionKey, str]] = set()  # ended ones without anything beyond their end

    @classmethod
    async def open(cls, place: Place, *, idle_s: int, is_source: bool) -> NatsMoving:
        """StoreInvalid if NATS refuses us, or has no streams where there must be some already."""
        opened = cls(place, idle_s=idle_s, is_source=is_source)
        try:
            await opened._wire.open()
        except BaseException:
            await opened.close()
            raise
        return opened

    async def close(self) -> None:
        await self._publisher.stop()
        await self._table.stop()
        await self._wire.close()

    # ---- which sessions there are

    async def count(self) -> int:
        return len(await self._listed())

    async def sessions(self) -> AsyncGenerator[Held, None]:
        for held in await self._listed():
            yield held

    async def _listed(self) -> list[Held]:
        await self._table.reach()
        for row in self._table.ended():  # by whoever was stopped in the middle of ending it
            end = await self._wire.at(self._names.log, row.seq)
            if end is not None:
                await self._ends.finish(row.key, end)
        listed = [Held(row.key, row.session_id, row.revision, row.last_at, None) for row in self._table.live()]
        last = await self._wire.last(self._names.archive, self._names.every_end)
        if last is not None:
            reading = Reading(self._names.archive, self._names.every_end)
            listed += [
                _held(records.ended_from(stored.data)) async for stored in read_to(self._wire, reading, last.seq)
            ]
        return sorted(listed, key=lambda held: (_told(held.key), held.session_id))

    async def live(self, key: SessionKey) -> str | None:
        last = await self._logs.last(key)
        return session_of(last) if last else None

    # ---- one session

    async def look(self, key: SessionKey, session_id: str) -> Whole | None:
        for _ in range(TRIES):
            last = await self._wire.last(self._names.log, self._names.log_of(key))
            if last is None or session_of(last) != session_id:
                break
            if is_end(last):
                await self._ends.finish(key, last)
                break
            if (whole := await self._live(key, last)) is not None:
                return whole
        stored = await self._ended(key, session_id)
        if stored is None:
            return None
        held = _held(records.ended_from(stored.data))
        archived_to = await self._archived_to(key, session_id, stored)
        return Whole(held, archived_to, (), (), await self._summaries(key, session_id)) if held.key == key else None

    async def _live(self, key: SessionKey, last: Stored) -> Whole | None:
        """As of a commit, though others may follow; archive and summaries have it then. None if it has just ended."""
        session_id, revision = session_of(last), int(last.headers[records.REVISION])
        if await self._publisher.is_behind(key):
            await self._publisher.catch_up(key)
        log = [record for _, record in await self._logs.records(key) if record.revision <= revision]
        if not log or log[0].session_id != session_id or log[-1].revision != revision:
            return None
        kept = {digest: receipt for record in log for digest, receipt in record.receipts.items()}
        return Whole(
            Held(key, session_id, revision, last.headers[records.LAST_AT], None),
            await self._archived_to(key, session_id, None),
            [event for record in log for event in record.events],
            [Kept(digest, receipt.fingerprint, receipt.answer) for digest, receipt in kept.items()],
            await self._summaries(key, session_id),
        )

    async def _ended(self, key: SessionKey, session_id: str) -> Stored | None:
        return await self._wire.last(self._names.archive, f"{self._names.archived(key, session_id)}.ended")

    async def _archived_to(self, key: SessionKey, session_id: str, end: Stored | None) -> int:
        if end is not None and ARCHIVED in end.headers:
            return int(end.headers[ARCHIVED])
        commits = await self._commits(key, session_id)
        last = await self._entries_of(key, session_id, commits[max(commits)]) if commits else []
        return max((entry.n for entry in last), default=0)

    async def _summaries(self, key: SessionKey, session_id: str) -> list[Summary]:
        subjects = f"{self._names.archived(key, session_id)}.summaries.>"
        last = await self._wire.last(self._names.archive, subjects)
        found: dict[str, tuple[int, Summary | None]] = {}
        if last is not None:
            async for stored in read_to(self._wire, Reading(self._names.archive, subjects), last.seq):
                branch, revision = stored.subject.split(".")[-2:]
                if found.get(branch, (-1, None))[0] < int(revision):
                    found[branch] = int(revision), records.summary_from(stored.data)
        return [summary for _, summary in found.values() if summary is not None]

    # ---- its archive

    async def entries(self, key: SessionKey, session_id: str, after: int) -> AsyncGenerator[Sequence[Entry], None]:
        commits = await self._commits(key, session_id)
        revisions = sorted(revision for revision in commits if revision > after)
        page: list[Entry] = []
        for start in range(0, len(revisions), AT_ONCE):
            some = [commits[revision] for revision in revisions[start : start + AT_ONCE]]
            for found in await asyncio.gather(*(self._entries_of(key, session_id, each) for each in some)):
                page += [entry for entry in found if entry.n > after]
                if len(page) >= PAGE_ENTRIES or sum(len(entry.text) for entry in page) >= PAGE_CHARACTERS:
                    yield page
                    page = []
        if page:
            yield page

    async def _commits(self, key: SessionKey, session_id: str) -> dict[int, list[str]]:
        """The subjects of its entries, by the revision after the commit they come from."""
        commits: dict[int, list[str]] = defaultdict(list)
        archived = self._names.archived(key, session_id)
        for subject in await self._wire.counts(self._names.archive, f"{archived}.entries.>"):
            commits[_revision(subject)].append(subject)
        return commits

    async def _entries_of(self, key: SessionKey, session_id: str, subjects: Sequence[str]) -> list[Entry]:
        """Of one commit, in order. Its threads may have their texts in the same pieces."""
        archived = self._names.archived(key, session_id)
        entries: list[Entry] = []
        whole: dict[str, list[Entry]] = {}
        for stored in await asyncio.gather(*(self._wire.last(self._names.archive, each) for each in subjects)):
            if stored is None:  # its time was over just now
                continue
            told = records.archived_from(stored.data)
            pieces = told.pieces
            if pieces is not None and pieces.mark not in whole:
                data = await read_pieces(self._wire, self._names.archive, archived, pieces)
                whole[pieces.mark] = records.entries_in(data)
            entries += [whole[pieces.mark][place] for place in told.places] if pieces else told.entries
        return sorted(entries, key=lambda entry: entry.n)

    # ---- taking

    async def take(self, part: Part) -> None:
        if part.held.is_live:
            await self._take_live(part)
        else:
            await self._take_ended(part)

    async def _take_live(self, part: Part) -> None:
        key, held = part.held.key, part.held
        if not part.after and await self._ended(key, held.session_id) is not None:
            raise StaleRevision
        receipts = {kept.operation: Receipt(kept.fingerprint, kept.answer) for kept in part.receipts}
        record = Record(
            held.session_id, part.after, part.events, receipts, part.summaries, part.retracted, part.entries
        )
        done = await self._logs.append(key, record, last_at=held.last_at)
        assert done.record is not None
        self._publisher.offer(key, done.seq, done.record)
        await self._publisher.settle()  # what waits to be published is in memory

    async def _take_ended(self, part: Part) -> None:
        key, held = part.held.key, part.held
        last = await self._logs.last(key)
        if last is not None and session_of(last) == held.session_id:
            await self._end(held, last)
        stored = await self._ended(key, held.session_id)
        reached = await self._archived_to(key, held.session_id, stored) if stored else 0
        if reached != part.after:
            raise StaleRevision
        seq = await self._put_end(held, reached, stored.seq if stored else 0)
        await self._tidy(held, reached)
        if part.entries:
            reached = part.entries[-1].n
            await self._view.archive(key, Record(held.session_id, reached, (), {}, entries=part.entries))
        summaries = Record(held.session_id, held.revision, (), {}, part.summaries, part.retracted)
        await self._view.archive(key, summaries)
        await self._put_end(held, reached, seq)

    async def _end(self, held: Held, last: Stored) -> None:
        """What is live here, and has ended where it comes from."""
        revision, last_at = int(last.headers[records.REVISION]), last.headers[records.LAST_AT]
        place = self._names.session(held.key, held.session_id)
        row = Row(held.key, held.session_id, revision, last_at, last.seq, place)
        if not await self._ends.end(row, held.ended_at or held.last_at):
            raise StaleRevision

    async def _put_end(self, held: Held, archived_to: int, expected: int) -> int:
        key, at = held.key, held.ended_at or held.last_at
        told = Ended(held.session_id, *_told(key), held.revision, held.last_at, at)
        headers = {records.LAST_AT: held.last_at, records.ENDED: at, ARCHIVED: str(archived_to)}
        subject = f"{self._names.archived(key, held.session_id)}.ended"
        try:
            return await self._wire.put(subject, records.ended_told(told), expected=expected, headers=headers)
        except Conflict:
            raise StaleRevision from None

    async def _tidy(self, held: Held, reached: int) -> None:
        """Once for each session: what was put there after the end was last told."""
        if (held.key, held.session_id) not in self._tidied:
            commits = await self._commits(held.key, held.session_id)
            for subject in [each for revision, some in commits.items() if revision > reached for each in some]:
                await self._wire.purge(self._names.archive, subject)
            self._tidied.add((held.key, held.session_id))

    async def _finish(self, key: SessionKey, end: Stored) -> None:
        await self._ends.finish(key, end)


def _told(key: SessionKey) -> tuple[str, str, str]:
    return key.owner, key.project_hash, key.name_hash


def _held(ended: Ended) -> Held:
    key = SessionKey(ended.owner, ended.project_hash, ended.name_hash)
    return Held(key, ended.session_id, ended.revision, ended.last_at, ended.ended_at)


def _revision(subject: str) -> int:
    return int(subject.rpartition(".")[2])
