"""Who publishes what is committed, and when: whoever committed it, at once; anybody else, if that one died.

One publication of a session at a time in this process, for two at once would each go on from what the other knows. What
other processes do meanwhile is the server's to judge. Knows nothing of how things are written.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from contextfold.errors import FoldError, StoreInvalid, StoreUnavailable
from contextfold.fold.session import LogBroken
from contextfold.fold.store import SessionKey
from contextfold.stores.nats import records
from contextfold.stores.nats.connection import end_tasks
from contextfold.stores.nats.derived_state import Committed, DerivedState, PublishedSession
from contextfold.stores.nats.jetstream import SequenceConflict
from contextfold.stores.nats.log import SessionLogs, is_end, session_of
from contextfold.stores.nats.records import CommitRecord

TRIES: Final = 8  # of one publication that others get in the way of
RETRY_S: Final = 0.05
WAITING_MOST: Final = 256  # commits of a session; beyond that they are read from the log instead
SHOWN_MOST: Final = 64 << 20  # characters of sessions that are kept between commits


@dataclass(slots=True)
class _Publication:
    task: asyncio.Task[None] | None = None
    waiting: list[Committed] = field(default_factory=list)
    is_lost: bool = False  # what waits is not all there is: the log has it
    problem: FoldError | None = None  # why it was given up


class Publisher:
    def __init__(self, logs: SessionLogs, view: DerivedState) -> None:
        self._logs = logs
        self._view = view
        self._works: dict[SessionKey, _Publication] = {}
        self._shown: OrderedDict[SessionKey, PublishedSession] = OrderedDict()
        self._weights: dict[SessionKey, int] = {}  # as they are counted in
        self._weight = 0

    def offer(self, key: SessionKey, seq: int, record: CommitRecord) -> None:
        """Publish what was committed, soon."""
        work = self._works.setdefault(key, _Publication())
        if len(work.waiting) < WAITING_MOST:
            work.waiting.append((seq, record))
        else:
            work.waiting.clear()
            work.is_lost = True
        self._start(key, work)

    async def catch_up(self, key: SessionKey) -> None:
        """Until everything is published that was committed before this was asked for."""
        for _ in range(TRIES):
            work = self._works.setdefault(key, _Publication())
            if work.task is None:
                work.is_lost = True
                self._start(key, work)
            assert work.task is not None
            await asyncio.shield(work.task)
            if not await self.is_behind(key):
                return
            if work.problem is not None:
                raise work.problem
        raise StoreUnavailable("NATS: a session is committed to faster than it is published")

    async def is_behind(self, key: SessionKey) -> bool:
        last = await self._logs.last(key)
        if last is None:
            return False
        published = await self._view.published(key, PublishedSession(session_of(last)))
        return published < int(last.headers[records.REVISION])

    def is_busy(self, key: SessionKey) -> bool:
        return key in self._works

    async def settle(self) -> None:
        """Until nothing is left to publish of what was committed here."""
        while tasks := [work.task for work in self._works.values() if work.task]:
            await asyncio.wait(tasks)

    async def stop(self) -> None:
        """What is not published by now is left to others, or to later."""
        await end_tasks(*(work.task for work in self._works.values()))

    def forget(self, key: SessionKey) -> None:
        self._shown.pop(key, None)
        self._weight -= self._weights.pop(key, 0)

    # ---- one session

    def _start(self, key: SessionKey, work: _Publication) -> None:
        if work.task is None:
            work.task = asyncio.create_task(self._work(key, work), name="contextfold-publish")

    async def _work(self, key: SessionKey, work: _Publication) -> None:
        """One after the other. What cannot be done now is done by whoever looks next."""
        try:
            while work.waiting or work.is_lost:
                waiting, work.waiting = work.waiting, []
                is_lost, work.is_lost = work.is_lost, False
                if is_lost or not await self._published_next(key, waiting):
                    await self._publish_missing(key)
        except LogBroken as problem:
            work.problem = StoreInvalid(f"NATS holds a log that makes no sense: {problem}")
        except FoldError as problem:
            work.problem = problem
        except Exception as problem:  # nobody waits for this task, and the session must not stay half published
            work.problem = StoreInvalid(f"publishing failed: {type(problem).__name__} {problem}")
            self.forget(key)
        finally:
            work.task = None
            self._works.pop(key, None)

    async def _published_next(self, key: SessionKey, waiting: list[Committed]) -> bool:
        """Whether these followed what was published here, and nobody else was in between."""
        shown = self._shown.get(key)
        first = waiting[0][1]
        if first.before == 0:
            shown = PublishedSession(first.session_id)
        if shown is None or not _follow(shown, [record for _, record in waiting]):
            return False
        try:
            await self._view.publish(key, shown, waiting)
        except SequenceConflict:
            return False
        self._keep(key, shown)
        return True

    async def _publish_missing(self, key: SessionKey) -> None:
        """From the log, whatever somebody else may have done of it already."""
        for tried in range(TRIES):
            if tried:
                await asyncio.sleep(RETRY_S * tried)
            shown, missing = await self._missing(key)
            if shown is None:
                self.forget(key)
                return
            self._keep(key, shown)
            if not missing:
                return
            try:
                await self._view.publish(key, shown, missing)
            except SequenceConflict:
                continue
            self._keep(key, shown)
            await self._take_back_if_over(key, shown)
            return
        raise StoreUnavailable("NATS: others publish the same session again and again")

    async def _missing(self, key: SessionKey) -> tuple[PublishedSession | None, list[Committed]]:
        """What is published of a session, and the commits that are not. Of what is known already, nothing is read."""
        last = await self._logs.last(key)
        if last is None:
            return None, []
        shown = self._shown.get(key)
        if shown is None or shown.session_id != session_of(last):
            shown = PublishedSession(session_of(last))
        published = await self._view.published(key, shown)
        if published < shown.state.revision:  # its time to live was over, or somebody has deleted it
            shown = PublishedSession(shown.session_id)
            await self._view.published(key, shown)
        missing = []
        for seq, record in await self._logs.records(key, after=shown.seq):
            if record.is_end or record.session_id != shown.session_id:
                return None, []
            if record.revision <= published:
                shown.take(seq, record)
            else:
                missing.append((seq, record))
        return shown, missing

    async def _take_back_if_over(self, key: SessionKey, shown: PublishedSession) -> None:
        """A session that was ended while it was published has been cleared before we were done."""
        last = await self._logs.newest(key)
        if last is not None and last.seq > shown.seq and (is_end(last) or session_of(last) != shown.session_id):
            await self._view.clear(key, shown.session_id)

    def _keep(self, key: SessionKey, shown: PublishedSession) -> None:
        self._shown[key] = shown
        self._shown.move_to_end(key)
        self._weight += shown.weight - self._weights.get(key, 0)
        self._weights[key] = shown.weight
        while self._weight > SHOWN_MOST and len(self._shown) > 1:
            self.forget(next(iter(self._shown)))


def _follow(shown: PublishedSession, commits: list[CommitRecord]) -> bool:
    """Whether each goes on where the one before it stopped, the first where the session is shown up to."""
    revision = shown.state.revision
    for record in commits:
        if (record.session_id, record.before) != (shown.session_id, revision):
            return False
        revision = record.revision
    return True
