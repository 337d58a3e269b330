"""What is derived from the logs: archive, summaries, and the events and states that anybody with NATS can watch.

Any number of writers may work on one session at once, and what comes out is the same: archive and summaries have
subjects that are used once, events form a chain in which each names the one before, a state is replaced only by one of
a later revision, and the session state, written last, says up to where all of it is there. Knows how things are
written, not who writes them when.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.fold.archive import Entry
from contextfold.fold.events import BranchCreated, BranchFolded, Event, SessionExpired, WorkFolded
from contextfold.fold.session import EMPTY, State, replay
from contextfold.fold.store import SessionKey
from contextfold.stores.nats import records
from contextfold.stores.nats.chunks import most_in_one, read_pieces, write_pieces
from contextfold.stores.nats.connection import OutcomeUnknown
from contextfold.stores.nats.jetstream import TTL, JetStream, SequenceConflict, StoredMessage
from contextfold.stores.nats.names import NOTHING, SubjectNames, escaped, unescaped
from contextfold.stores.nats.records import CommitRecord

N: Final = "Cf-N"
NO_STATE: Final = (0, -1)
TRIES: Final = 8  # of a write that others get in the way of
AT_ONCE: Final = 32  # writes of one session on their way
TEXT_MOST: Final = records.TOLD_MOST + 1
SHOWN_LEAST: Final = 2_000  # characters that a session counts for in memory, and each of its branches a tenth


@dataclass(slots=True)
class PublishedSession:
    """A session as far as it is published."""

    session_id: str
    state: State = EMPTY
    seq: int = 0  # of the last commit that is in it
    prompts: dict[str, str] = field(default_factory=dict)
    summaries: dict[str, str] = field(default_factory=dict)
    event_n: int = 0
    event_seq: int = 0
    states: dict[str, tuple[int, int]] = field(default_factory=dict)  # sequence and revision, by subject
    weight: int = SHOWN_LEAST

    def take(self, seq: int, record: CommitRecord) -> None:
        self.state = replay(record.events, self.state)
        self.seq = seq
        for event in record.events:
            if isinstance(event, BranchCreated):
                self.prompts[event.branch_id] = event.prompt[:TEXT_MOST]
                self.weight += len(self.prompts[event.branch_id]) + SHOWN_LEAST // 10
            elif isinstance(event, BranchFolded | WorkFolded):
                self.summaries[event.branch_id] = event.summary[:TEXT_MOST]
                self.weight += len(self.summaries[event.branch_id])


Committed = tuple[int, CommitRecord]  # a commit, and where it is in the log


class DerivedState:
    def __init__(self, wire: JetStream, names: SubjectNames, *, idle_s: int) -> None:
        self._wire = wire
        self._names = names
        self._ttl = f"{max(1, idle_s)}s"

    async def publish(self, key: SessionKey, shown: PublishedSession, commits: Sequence[Committed]) -> None:
        """What these commits add to what is shown; Conflict if somebody else has got further meanwhile."""
        before = shown.state, shown.seq, shown.weight
        try:
            for commit in commits:
                shown.take(*commit)
            await self._put(key, shown, before[0], [record for _, record in commits])
        except BaseException:
            shown.state, shown.seq, shown.weight = before
            raise

    async def published(self, key: SessionKey, shown: PublishedSession) -> int:
        """Up to which revision all is there, -1 for nothing; and what is the last of each is noted."""
        session = self._names.session(key, shown.session_id)
        place = self._names.session_state(session)
        state = await self._wire.last(self._names.state, place)
        event = await self._wire.last(self._names.events, f"{session}.events.>")
        revision = records.revision_in(state.headers if state else {})
        shown.states[place] = (state.seq, revision) if state else NO_STATE
        shown.event_n, shown.event_seq = (_number(event), event.seq) if event else (0, 0)
        return revision

    async def clear(self, key: SessionKey, session_id: str) -> None:
        """Leave nothing of a session that is over but the event that says so, if that is told."""
        session = self._names.session(key, session_id)
        await self._wire.purge(self._names.state, f"{session}.>")
        last = await self._wire.last(self._names.events, f"{session}.events.>")
        if last is not None:
            below = last.seq if last.subject.endswith(f".{SessionExpired.kind}") else last.seq + 1
            await self._wire.purge(self._names.events, f"{session}.>", below=below)

    async def tell_end(self, key: SessionKey, event: SessionExpired) -> None:
        """The last event of the chain, for as long as a session may be idle; once, whoever tells it."""
        session = self._names.session(key, event.session_id)
        for _ in range(TRIES):
            last = await self._wire.last(self._names.events, f"{session}.events.>")
            if last is not None and last.subject.endswith(f".{event.kind}"):
                return
            try:
                await self._put_event(session, event, last.seq if last else 0, {TTL: self._ttl})
            except SequenceConflict:
                continue
            return
        raise StoreUnavailable("NATS: others publish a session that is over")

    async def archive(self, key: SessionKey, *commits: CommitRecord) -> None:
        """What commits leave in the archive."""
        await _all(*self._archive(key, commits))

    # ---- one thing at a time

    async def _put(
        self, key: SessionKey, shown: PublishedSession, before: State, commits: Sequence[CommitRecord]
    ) -> None:
        session = self._names.session(key, shown.session_id)
        events = [event for record in commits for event in record.events if event.n > shown.event_n]
        changed = [branch for branch in shown.state.branches.values() if before.branches.get(branch.id) is not branch]
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
        await _all(self._put_events(session, shown, events), *self._archive(key, commits), *states)
        told = records.session_told(shown.state)
        await self._put_state(shown, self._names.session_state(session), told, {TTL: self._ttl})

    async def _put_events(self, session: str, shown: PublishedSession, events: Iterable[Event]) -> None:
        """Each only if the one before is the last, so that a watcher has them in order and once."""
        for event in events:
            shown.event_seq = await self._put_event(session, event, shown.event_seq)
            shown.event_n = event.n

    async def _put_event(
        self, session: str, event: Event, before: int, headers: Mapping[str, str] | None = None
    ) -> int:
        return await self._wire.put(
            f"{session}.events.{event.kind}",
            records.event_told(unescaped(session.rpartition(".")[2]), event),
            expected=before,
            expected_of=f"{session}.events.>",
            headers={N: str(event.n), **(headers or {})},
        )

    async def _put_state(
        self, shown: PublishedSession, subject: str, data: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """Unless a later one is there."""
        revision = shown.state.revision
        told = {records.REVISION: str(revision), **(headers or {})}
        for _ in range(TRIES):
            expected, there = shown.states.get(subject, NO_STATE)
            if there >= revision:
                return
            try:
                seq = await self._wire.put(subject, data, expected=expected, headers=told)
            except SequenceConflict:
                found = await self._wire.last(self._names.state, subject)
                shown.states[subject] = (found.seq, records.revision_in(found.headers)) if found else NO_STATE
                if found is None and expected:  # the session was ended meanwhile
                    raise
            else:
                shown.states[subject] = (seq, revision)
                return
        raise SequenceConflict(subject)

    def _archive(self, key: SessionKey, commits: Sequence[CommitRecord]) -> Iterator[Awaitable[None]]:
        for record in commits:
            archived = self._names.archived(key, record.session_id)
            if record.entries or record.texts:
                yield self._put_entries(archived, record)
            for summary in record.summaries:
                subject = f"{archived}.summaries.{escaped(summary.branch_id)}.{record.revision}"
                yield self._put_once(subject, records.summary_told(summary))
            for branch_id in record.retracted:
                subject = f"{archived}.summaries.{escaped(branch_id)}.{record.revision}"
                yield self._put_once(subject, records.RETRACTED)

    async def _put_entries(self, archived: str, record: CommitRecord) -> None:
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
            except SequenceConflict:  # it is there
                return
            except OutcomeUnknown:
                if not left:
                    raise
            else:
                return


def _number(event: StoredMessage) -> int:
    told = event.headers.get(N, "")
    if not (told.isascii() and told.isdigit()):
        raise StoreInvalid("NATS holds an event that something else has written")
    return int(told)


def _span(entries: Sequence[Entry]) -> str:
    """From which event on, and whether a rollback is among them: known from the subject, before anything is read."""
    first = min(entry.n for entry in entries)
    return f"{first}.{'r' if any(entry.kind == 'rollback' for entry in entries) else 'e'}"


async def _all(*works: Awaitable[None]) -> None:
    """All of them, some at a time; the first that fails is told, once none is on its way any more."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def in_turn(work: Awaitable[None]) -> None:
        async with turns:
            await work

    for outcome in await asyncio.gather(*map(in_turn, works), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
