"""Decides who publishes a commit and when: the daemon that made it, at once; another one if that daemon was killed.

This process has one publication of a session in progress at a time. The server detects conflicts with other processes.
Knows nothing of how things are written.
"""

from __future__ import annotations

import asyncio
from typing import Final

from contextfold.common.dataclass import dataclass, field
from contextfold.errors import FoldError, StoreInvalid, StoreUnavailable
from contextfold.fold.ports.store import SessionKey
from contextfold.fold.session import LogBroken
from contextfold.stores.nats.derived_state import Committed, DerivedState, PublishedSession
from contextfold.stores.nats.log import AppendedCommit, SessionLogs
from contextfold.stores.nats.session_cache import SessionCache
from contextfold.stores.nats.wire.jetstream import SequenceConflict
from contextfold.stores.nats.wire.tasks import end_tasks

# Attempts of one publication that conflicts with those of other daemons.
TRIES: Final = 8
RETRY_S: Final = 0.05
# The most commits of a session in memory. Beyond that they are read from the log.
WAITING_MOST: Final = 256
# The most characters of published sessions in memory.
PROGRESS_MOST: Final = 64 << 20


@dataclass(slots=True)
class _Publication:
    # The result is the error because of which the publication was given up.
    task: asyncio.Task[FoldError | None]
    waiting: list[Committed] = field(default_factory=list)


class Publisher:
    def __init__(self, logs: SessionLogs, view: DerivedState) -> None:
        self._logs = logs
        self._view = view
        self._works: dict[SessionKey, _Publication] = {}
        self._progress = SessionCache[PublishedSession](lambda progress: progress.weight, PROGRESS_MOST)

    def offer(self, appended: AppendedCommit) -> None:
        """Publish a commit soon."""
        waiting = self._started(appended.commit.key).waiting
        if len(waiting) >= WAITING_MOST:
            # What is left does not follow what is published, so the log is read.
            waiting.clear()
        waiting.append((appended.commit.seq, appended.record))

    async def catch_up(self, key: SessionKey) -> None:
        """Wait until everything that was committed before this call is published."""
        for _ in range(TRIES):
            problem = await asyncio.shield(self._started(key).task)
            if not await self.is_behind(key):
                return
            if problem is not None:
                raise problem
        raise StoreUnavailable("NATS: a session is committed to faster than it is published")

    async def is_behind(self, key: SessionKey) -> bool:
        last = await self._logs.last(key)
        if last is None:
            return False
        return await self._view.published(key, PublishedSession(last.session_id)) < last.revision

    def is_busy(self, key: SessionKey) -> bool:
        return key in self._works

    async def settle(self) -> None:
        """Wait until everything that was committed here is published."""
        while tasks := [work.task for work in self._works.values()]:
            await asyncio.wait(tasks)

    async def stop(self) -> None:
        """Stop. What is not published yet is left to other daemons, or to a later start."""
        await end_tasks(*(work.task for work in self._works.values()))

    def forget(self, key: SessionKey) -> None:
        self._progress.forget(key)

    # ---- one session

    def _started(self, key: SessionKey) -> _Publication:
        if key not in self._works:
            self._works[key] = _Publication(asyncio.create_task(self._publish(key), name="contextfold-publish"))
        return self._works[key]

    async def _publish(self, key: SessionKey) -> FoldError | None:
        """Publish what waits, or what the log has if nothing waits, until nothing waits any more.

        What fails is published by the next daemon that looks at the session.
        """
        work = self._works[key]
        try:
            while True:
                waiting, work.waiting = work.waiting, []
                if not (waiting and await self._published_next(key, waiting)):
                    await self._publish_missing(key)
                if not work.waiting:
                    return None
        except LogBroken as problem:
            return StoreInvalid(f"NATS has a log that cannot be replayed: {problem.reason}")
        except FoldError as problem:
            return problem
        # Nobody may wait for this task, and the session must not stay partly published.
        except Exception as problem:
            self.forget(key)
            return StoreInvalid(f"publishing failed: {type(problem).__name__} {problem}")
        finally:
            del self._works[key]

    async def _published_next(self, key: SessionKey, waiting: list[Committed]) -> bool:
        """Publish these commits if they follow what was published here. False if another daemon was in between."""
        progress = self._progress.get(key)
        first = waiting[0][1]
        if first.before == 0:
            progress = PublishedSession(first.session_id)
        # A session begins with revision 0, so commits of another session do not follow.
        if progress is None or progress.session_id != first.session_id:
            return False
        revisions = [progress.state.revision, *(record.revision for _, record in waiting[:-1])]
        if revisions != [record.before for _, record in waiting]:
            return False
        try:
            await self._view.publish(key, progress, waiting)
        except SequenceConflict:
            return False
        self._progress.put(key, progress)
        return True

    async def _publish_missing(self, key: SessionKey) -> None:
        """Publish from the log what is missing, whatever other daemons have published."""
        for tried in range(TRIES):
            if tried:
                await asyncio.sleep(RETRY_S * tried)
            progress, missing = await self._missing(key)
            if progress is None:
                self.forget(key)
                return
            self._progress.put(key, progress)
            if not missing:
                return
            try:
                await self._view.publish(key, progress, missing)
            except SequenceConflict:
                continue
            self._progress.put(key, progress)
            await self._take_back_if_over(key, progress)
            return
        raise StoreUnavailable("NATS: too many conflicts with other daemons that publish the session")

    async def _missing(self, key: SessionKey) -> tuple[PublishedSession | None, list[Committed]]:
        """What is published of a session, and the commits that are not. What is in memory is not read again."""
        last = await self._logs.last(key)
        if last is None:
            return None, []
        progress = self._progress.get(key)
        if progress is None or progress.session_id != last.session_id:
            progress = PublishedSession(last.session_id)
        published = await self._view.published(key, progress)
        # Its time to live has passed, or it was deleted.
        if published < progress.state.revision:
            progress = PublishedSession(progress.session_id)
            await self._view.published(key, progress)
        missing = []
        for seq, record in await self._logs.records(key, after=progress.seq):
            if record.is_end or record.session_id != progress.session_id:
                return None, []
            if record.revision <= published:
                progress.take(seq, record)
            else:
                missing.append((seq, record))
        return progress, missing

    async def _take_back_if_over(self, key: SessionKey, progress: PublishedSession) -> None:
        """Delete again what was published of a session that ended meanwhile."""
        last = await self._logs.newest(key)
        if last is not None and last.seq > progress.seq and (last.ended_at or last.session_id != progress.session_id):
            await self._view.clear(key, progress.session_id)
