"""What is derived from the logs: archive, summaries, and the events and states that anybody with NATS can watch.

Written after the commit, by whoever committed; by anybody else, if that one died. Any number of writers may work on
one session at once, and what comes out is the same: archive and summaries have subjects that are used once, events form
a chain in which each names the one before, a state is replaced only by one of a later revision, and the session state,
written last, says up to where all of it is there. Knows nothing of commits and their rules.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from contextfold.errors import FoldError, StoreInvalid, StoreUnavailable
from contextfold.fold.archive import Entry
from contextfold.fold.events import BranchCreated, BranchFolded, Event
from contextfold.fold.session import EMPTY, LogBroken, State, replay
from contextfold.fold.store import SessionKey
from contextfold.stores import nats_records as records
from contextfold.stores.nats_link import Unanswered
from contextfold.stores.nats_log import Logs
from contextfold.stores.nats_names import NOTHING, Names, escaped
from contextfold.stores.nats_pieces import most_in_one, read_pieces, write_pieces
from contextfold.stores.nats_records import Record
from contextfold.stores.nats_wire import TTL, Conflict, Wire

N: Final = "Cf-N"
TRIES: Final = 8  # of one publication that others get in the way of
RETRY_S: Final = 0.05
AT_ONCE: Final = 32  # writes of one session on their way
SHOWN_MOST: Final = 64 << 20  # characters of sessions that are kept between commits
SHOWN_LEAST: Final = 2_000  # that one of them counts for, and each of its branches a tenth
WAITING_MOST: Final = 256  # commits of a session; beyond that they are read from the log instead
TEXT_MOST: Final = records.TOLD_MOST + 1


@dataclass(slots=True)
class _Shown:
    """A session as far as it is published."""

    session_id: str
    state: State = EMPTY
    prompts: dict[str, str] = field(default_factory=dict)
    summaries: dict[str, str] = field(default_factory=dict)
    event_n: int = 0
    event_seq: int = 0
    seqs: dict[str, int] = field(default_factory=dict)  # of the states, by subject
    weight: int = SHOWN_LEAST

    def take(self, record: Record) -> None:
        for event in record.events:
            if isinstance(event, BranchCreated):
                self.prompts[event.branch_id] = event.prompt[:TEXT_MOST]
                self.weight += len(self.prompts[event.branch_id]) + SHOWN_LEAST // 10
            elif isinstance(event, BranchFolded):
                self.summaries[event.branch_id] = event.summary[:TEXT_MOST]
                self.weight += len(self.summaries[event.branch_id])
        self.state = replay(record.events, self.state)


@dataclass(slots=True)
class _Work:
    task: asyncio.Task[None] | None = None
    waiting: list[Record] = field(default_factory=list)
    is_lost: bool = False  # what waits is not all there is: the log has it
    problem: FoldError | None = None  # why it was given up


class View:
    def __init__(self, wire: Wire, names: Names, logs: Logs, *, idle_s: int) -> None:
        self._wire = wire
        self._names = names
        self._logs = logs
        self._ttl = f"{max(1, idle_s)}s"
        self._shown: OrderedDict[SessionKey, _Shown] = OrderedDict()
        self._weights: dict[SessionKey, int] = {}  # as they are counted in
        self._weight = 0
        self._works: dict[SessionKey, _Work] = {}

    # ---- who publishes what, when

    def offer(self, key: SessionKey, record: Record) -> None:
        """Publish what was committed, soon."""
        work = self._works.setdefault(key, _Work())
        if len(work.waiting) < WAITING_MOST:
            work.waiting.append(record)
        else:
            work.waiting.clear()
            work.is_lost = True
        self._start(key, work)

    async def catch_up(self, key: SessionKey) -> None:
        """Until everything is published that was committed before this was asked for."""
        for _ in range(TRIES):
            work = self._works.setdefault(key, _Work())
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

    async def settle(self) -> None:
        """Until nothing is left to publish of what was committed here."""
        while tasks := [work.task for work in self._works.values() if work.task]:
            await asyncio.wait(tasks)

    async def stop(self) -> None:
        """What is not published by now is left to others, or to later."""
        for task in [work.task for work in self._works.values() if work.task]:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def archive(self, key: SessionKey, record: Record) -> None:
        """What a record leaves in the archive, for one that is in no log."""
        await _all(*self._archive(key, [record]))

    async def publish_ended(self, key: SessionKey) -> None:
        """What an ended session has left for the archive, if its log is still there."""
        log = [record for _, record in await self._logs.records(key)]
        await _all(*self._archive(key, [record for record in log if not record.is_end]))

    def is_busy(self, key: SessionKey) -> bool:
        return key in self._works

    async def is_behind(self, key: SessionKey) -> bool:
        last = await self._logs.last(key)
        if last is None:
            return False
        subject = self._names.session_state(self._session(key, records.session_in(last.headers)))
        state = await self._wire.last(self._names.state, subject)
        return records.revision_in(state.headers if state else {}) < int(last.headers[records.REVISION])

    def forget(self, key: SessionKey) -> None:
        self._shown.pop(key, None)
        self._weight -= self._weights.pop(key, 0)

    def _start(self, key: SessionKey, work: _Work) -> None:
        if work.task is None:
            work.task = asyncio.create_task(self._work(key, work), name="contextfold-publish")

    async def _work(self, key: SessionKey, work: _Work) -> None:
        """One session's publications, one after the other: two at once would each go on from what the other knows.

        What cannot be done now is done by whoever looks next.
        """
        try:
            while work.waiting or work.is_lost:
                waiting, work.waiting = work.waiting, []
                is_lost, work.is_lost = work.is_lost, False
                if is_lost or not self._follows(key, waiting[0]):
                    await self._publish_anew(key)
                else:
                    await self._publish_next(key, self._shown[key], waiting)
        except LogBroken as problem:
            work.problem = StoreInvalid(f"NATS holds a log that makes no sense: {problem}")
            self.forget(key)
        except FoldError as problem:
            work.problem = problem
            self.forget(key)
        finally:
            work.task = None
            self._works.pop(key, None)

    def _follows(self, key: SessionKey, record: Record) -> bool:
        shown = self._shown.get(key)
        if record.before == 0:
            self._keep(key, _Shown(record.session_id))
            return True
        return shown is not None and (shown.session_id, shown.state.revision) == (record.session_id, record.before)

    def _keep(self, key: SessionKey, shown: _Shown) -> None:
        self._shown[key] = shown
        self._shown.move_to_end(key)
        self._weight += shown.weight - self._weights.get(key, 0)
        self._weights[key] = shown.weight
        while self._weight > SHOWN_MOST and len(self._shown) > 1:
            self.forget(next(iter(self._shown)))

    async def _publish_next(self, key: SessionKey, shown: _Shown, waiting: Sequence[Record]) -> None:
        try:
            await self._publish(key, shown, waiting)
        except Conflict:
            await self._publish_anew(key)

    async def _publish_anew(self, key: SessionKey) -> None:
        """From the log, whatever somebody else may have done of it already."""
        for tried in range(TRIES):
            self.forget(key)
            if tried:
                await asyncio.sleep(RETRY_S * tried)
            shown, missing = await self._missing(key)
            if not missing:
                return
            self._keep(key, shown)
            try:
                await self._publish(key, shown, missing)
            except Conflict:
                continue
            return
        raise StoreUnavailable("NATS: others publish the same session again and again")

    async def _missing(self, key: SessionKey) -> tuple[_Shown, list[Record]]:
        """What is published of a session, and the commits that are not."""
        log = [record for _, record in await self._logs.records(key)]
        if not log or log[-1].is_end:
            return _Shown(""), []
        shown = _Shown(log[0].session_id)
        session = self._session(key, shown.session_id)
        place = self._names.session_state(session)
        state = await self._wire.last(self._names.state, place)
        event = await self._wire.last(self._names.events, f"{session}.events.>")
        if state is not None:
            shown.seqs[place] = state.seq
        if event is not None:
            shown.event_n, shown.event_seq = int(event.headers[N]), event.seq
        revision = records.revision_in(state.headers if state else {})
        for record in log:
            if record.revision <= revision:
                shown.take(record)
        return shown, [record for record in log if record.revision > revision]

    # ---- what is published

    async def _publish(self, key: SessionKey, shown: _Shown, waiting: Sequence[Record]) -> None:
        session = self._session(key, shown.session_id)
        before = shown.state
        for record in waiting:
            shown.take(record)
        events = [event for record in waiting for event in record.events if event.n > shown.event_n]
        changed = [branch for branch in shown.state.branches.values() if before.branches.get(branch.id) is not branch]
        texts = self._archive(key, waiting)
        states = (
            self._put_state(
                shown,
                self._names.branch(session, branch.id),
                records.branch_told(
                    branch,
                    shown.prompts.get(branch.id, ""),
                    shown.summaries.get(branch.id, ""),
                    shown.state.revision,
                ),
            )
            for branch in changed
        )
        await _all(self._put_events(session, shown, events), *texts, *states)
        self._keep(key, shown)
        told = records.session_told(shown.state)
        await self._put_state(shown, self._names.session_state(session), told, {TTL: self._ttl})

    async def _put_events(self, session: str, shown: _Shown, events: Iterable[Event]) -> None:
        """Each only if the one before is the last, so that a watcher has them in order and once."""
        for event in events:
            shown.event_seq = await self._wire.put(
                f"{session}.events.{event.kind}",
                records.event_told(shown.session_id, event),
                expected=shown.event_seq,
                expected_of=f"{session}.events.>",
                headers={N: str(event.n)},
            )
            shown.event_n = event.n

    async def _put_state(self, shown: _Shown, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        """Unless a later one is there."""
        revision = shown.state.revision
        told = {records.REVISION: str(revision), **(headers or {})}
        for _ in range(TRIES):
            expected = shown.seqs.get(subject, 0)
            try:
                shown.seqs[subject] = await self._wire.put(subject, data, expected=expected, headers=told)
            except Conflict:
                found = await self._wire.last(self._names.state, subject)
                if found is None and expected:  # the session was ended meanwhile
                    raise
                shown.seqs[subject] = found.seq if found else 0
                if found and records.revision_in(found.headers) >= revision:
                    return
            else:
                return
        raise Conflict(subject)

    def _archive(self, key: SessionKey, waiting: Sequence[Record]) -> Iterator[Awaitable[None]]:
        for record in waiting:
            archived = self._names.archived(key, record.session_id)
            if record.entries or record.texts:
                yield self._put_entries(archived, record)
            for summary in record.summaries:
                subject = f"{archived}.summaries.{escaped(summary.branch_id)}.{record.revision}"
                yield self._put_once(subject, records.summary_told(summary))
            for branch_id in record.retracted:
                subject = f"{archived}.summaries.{escaped(branch_id)}.{record.revision}"
                yield self._put_once(subject, records.RETRACTED)

    async def _put_entries(self, archived: str, record: Record) -> None:
        """One message for each thread: a branch's trajectory is read without the others'."""
        pieces, entries = record.texts, record.entries
        if pieces and not entries:
            entries = records.entries_in(await read_pieces(self._wire, self._names.archive, archived, pieces))
        threads: dict[str, list[int]] = defaultdict(list)
        for place, entry in enumerate(entries):
            threads[NOTHING if entry.branch_id is None else f"b{escaped(entry.branch_id)}"].append(place)
        for thread, places in threads.items():
            mine = [entries[place] for place in places]
            data = records.archived_in(pieces, places) if pieces else records.archived(mine)
            if len(data) > most_in_one(self._wire):
                again = await write_pieces(self._wire, archived, records.texts_of(mine))
                data = records.archived_in(again, range(len(mine)))
            await self._put_once(f"{archived}.entries.{thread}.{_span(mine)}.{record.revision}", data)

    async def _put_once(self, subject: str, data: bytes) -> None:
        for left in reversed(range(TRIES)):
            try:
                await self._wire.put(subject, data, expected=0)
            except Conflict:  # it is there
                return
            except Unanswered:
                if not left:
                    raise
            else:
                return

    def _session(self, key: SessionKey, session_id: str) -> str:
        return self._names.session(key, session_id)


def _span(entries: Sequence[Entry]) -> str:
    """From which event on, and whether a rollback is among them: known from the subject, before anything is read."""
    first = min(entry.n for entry in entries)
    return f"{first}.{'r' if any(entry.kind == 'rollback' for entry in entries) else 'e'}"


async def _all(*works: Awaitable[None]) -> None:
    """All of them, some at a time; the first that fails is told, once none is on its way any more."""
    for start in range(0, len(works), AT_ONCE):
        outcomes = await asyncio.gather(*works[start : start + AT_ONCE], return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
