"""What is derived from the logs: archive, summaries, and the events and states that other programs watch.

Any number of daemons may write one session at once, with the same result: a subject of the archive is written once,
each event names the one before it, and a state is replaced only by one of a later revision. The session state is
written last and says up to which revision everything is published. Knows how to write, not who writes when.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from contextfold.common.dataclass import dataclass, field
from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import BranchCreated, BranchFolded, Event, SessionExpired, WorkFolded
from contextfold.fold.ports.store import SessionKey
from contextfold.fold.session import EMPTY, State, replay
from contextfold.stores.nats.wire import records
from contextfold.stores.nats.wire.chunks import most_in_one, read_chunks, write_chunks
from contextfold.stores.nats.wire.jetstream import TTL, JetStream, SequenceConflict, StoredMessage
from contextfold.stores.nats.wire.names import NOTHING, SubjectNames, escaped, unescaped
from contextfold.stores.nats.wire.records import CommitRecord
from contextfold.stores.nats.wire.tasks import in_batches

N: Final = "Cf-N"
NO_STATE: Final = (0, -1)
# Attempts of a write that conflicts with those of other daemons.
TRIES: Final = 8
# Writes of one session at once.
AT_ONCE: Final = 32
TEXT_MOST: Final = records.PUBLISHED_MOST + 1
# What a session and each text of a branch count for in memory, in characters, beside the texts.
SESSION_WEIGHT: Final = 2_000
BRANCH_WEIGHT: Final = 200


@dataclass(slots=True)
class PublishedSession:
    """The part of a session that is published. `seq` is the sequence of the last commit in it.

    `states` has sequence and revision by subject.
    """

    session_id: str
    state: State = EMPTY
    seq: int = 0
    prompts: dict[str, str] = field(default_factory=dict)
    summaries: dict[str, str] = field(default_factory=dict)
    event_n: int = 0
    event_seq: int = 0
    states: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        """The size in characters."""
        texts = (*self.prompts.values(), *self.summaries.values())
        return SESSION_WEIGHT + len(texts) * BRANCH_WEIGHT + sum(map(len, texts))

    def take(self, seq: int, record: CommitRecord) -> None:
        self.state = replay(record.events, self.state)
        self.seq = seq
        for event in record.events:
            if isinstance(event, BranchCreated):
                self.prompts[event.branch_id] = event.prompt[:TEXT_MOST]
            elif isinstance(event, BranchFolded | WorkFolded):
                self.summaries[event.branch_id] = event.summary[:TEXT_MOST]


# A commit and its sequence in the log.
Committed = tuple[int, CommitRecord]


class DerivedState:
    def __init__(self, js: JetStream, names: SubjectNames, *, idle_s: int) -> None:
        self._js = js
        self._names = names
        self._ttl = f"{max(1, idle_s)}s"

    async def publish(self, key: SessionKey, progress: PublishedSession, commits: Sequence[Committed]) -> None:
        """Publish what these commits add. Raises SequenceConflict if another daemon has published more meanwhile."""
        before = progress.state, progress.seq
        try:
            for commit in commits:
                progress.take(*commit)
            await self._put(key, progress, before[0], [record for _, record in commits])
        except BaseException:
            progress.state, progress.seq = before
            raise

    async def published(self, key: SessionKey, progress: PublishedSession) -> int:
        """Return the revision up to which everything is published, or -1, and note the last message of each kind."""
        session = self._names.session(key, progress.session_id)
        subject = self._names.session_state(session)
        state = await self._js.last(self._names.state, subject)
        event = await self._js.last(self._names.events, f"{session}.events.>")
        revision = records.number_in(state.headers, records.REVISION) if state else -1
        progress.states[subject] = (state.seq, revision) if state else NO_STATE
        progress.event_n, progress.event_seq = (_number(event), event.seq) if event else (0, 0)
        return revision

    async def clear(self, key: SessionKey, session_id: str) -> None:
        """Delete everything of an ended session except the event that says so."""
        session = self._names.session(key, session_id)
        await self._js.purge(self._names.state, f"{session}.>")
        last = await self._js.last(self._names.events, f"{session}.events.>")
        if last is not None:
            below = last.seq if last.subject.endswith(f".{SessionExpired.kind}") else last.seq + 1
            await self._js.purge(self._names.events, f"{session}.>", below=below)

    async def publish_end(self, key: SessionKey, event: SessionExpired) -> None:
        """Publish the last event, for as long as a session may be idle, once for all daemons."""
        session = self._names.session(key, event.session_id)
        for _ in range(TRIES):
            last = await self._js.last(self._names.events, f"{session}.events.>")
            if last is not None and last.subject.endswith(f".{event.kind}"):
                return
            try:
                await self._put_event(session, event, last.seq if last else 0, {TTL: self._ttl})
            except SequenceConflict:
                continue
            return
        raise StoreUnavailable("NATS: too many conflicts with other daemons that publish an ended session")

    async def archive(self, key: SessionKey, *commits: CommitRecord) -> None:
        """Write what the commits add to the archive."""
        await in_batches(self._archive(key, commits), AT_ONCE)

    # ---- single writes

    async def _put(
        self, key: SessionKey, progress: PublishedSession, before: State, commits: Sequence[CommitRecord]
    ) -> None:
        session = self._names.session(key, progress.session_id)
        events = [event for record in commits for event in record.events if event.n > progress.event_n]
        changed = [
            branch for branch in progress.state.branches.values() if before.branches.get(branch.id) is not branch
        ]
        states = (
            self._put_state(
                progress,
                self._names.branch(session, branch.id),
                records.encode_branch(
                    branch,
                    progress.prompts.get(branch.id, ""),
                    progress.summaries.get(branch.id, ""),
                    progress.state.revision,
                ),
            )
            for branch in changed
        )
        works = chain([self._put_events(session, progress, events)], self._archive(key, commits), states)
        await in_batches(works, AT_ONCE)
        document = records.encode_session(progress.state)
        await self._put_state(progress, self._names.session_state(session), document, {TTL: self._ttl})

    async def _put_events(self, session: str, progress: PublishedSession, events: Iterable[Event]) -> None:
        """Publish each event only after the one before, so that a watcher gets them in order and once."""
        for event in events:
            progress.event_seq = await self._put_event(session, event, progress.event_seq)
            progress.event_n = event.n

    async def _put_event(
        self, session: str, event: Event, before: int, headers: Mapping[str, str] | None = None
    ) -> int:
        return await self._js.put(
            f"{session}.events.{event.kind}",
            records.encode_event(unescaped(session.rpartition(".")[2]), event),
            expected=before,
            expected_of=f"{session}.events.>",
            headers={N: str(event.n), **(headers or {})},
        )

    async def _put_state(
        self, progress: PublishedSession, subject: str, data: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """Write a state unless a later one is stored."""
        revision = progress.state.revision
        all_headers = {records.REVISION: str(revision), **(headers or {})}
        for _ in range(TRIES):
            expected, there = progress.states.get(subject, NO_STATE)
            if there >= revision:
                return
            try:
                seq = await self._js.put(subject, data, expected=expected, headers=all_headers)
            except SequenceConflict:
                stored = await self._js.last(self._names.state, subject)
                progress.states[subject] = (
                    (stored.seq, records.number_in(stored.headers, records.REVISION)) if stored else NO_STATE
                )
                # The session has ended meanwhile.
                if stored is None and expected:
                    raise
            else:
                progress.states[subject] = (seq, revision)
                return
        raise SequenceConflict(subject)

    def _archive(self, key: SessionKey, commits: Sequence[CommitRecord]) -> Iterator[Awaitable[None]]:
        for record in commits:
            archived = self._names.archived(key, record.session_id)
            if record.entries or record.texts:
                yield self._put_entries(archived, record)
            for summary in record.summaries:
                subject = f"{archived}.summaries.{escaped(summary.branch_id)}.{record.revision}"
                yield self._js.put_once(self._names.archive, subject, records.encode_summary(summary))
            for branch_id in record.retracted:
                subject = f"{archived}.summaries.{escaped(branch_id)}.{record.revision}"
                yield self._js.put_once(self._names.archive, subject, records.RETRACTED)

    async def _put_entries(self, archived: str, record: CommitRecord) -> None:
        """Write one message for each thread, so that the trajectory of a branch is read without the others."""
        chunks, entries = record.texts, record.entries
        if chunks and not entries:
            entries = records.entries_in(await read_chunks(self._js, archived, chunks))
        threads: dict[str, list[int]] = defaultdict(list)
        for position, entry in enumerate(entries):
            threads[NOTHING if entry.branch_id is None else f"b{escaped(entry.branch_id)}"].append(position)
        for thread, positions in threads.items():
            mine = [entries[position] for position in positions]
            data = records.encode_archived_reference(chunks, positions) if chunks else records.archived(mine)
            if len(data) > most_in_one(self._js):
                again = await write_chunks(self._js, archived, records.encode_entries(mine))
                data = records.encode_archived_reference(again, range(len(mine)))
            subject = f"{archived}.entries.{thread}.{_span(mine)}.{record.revision}"
            await self._js.put_once(self._names.archive, subject, data)


def _number(event: StoredMessage) -> int:
    number = records.number_in(event.headers, N)
    if number < 0:
        raise StoreInvalid("NATS has an event of another program")
    return number


def _span(entries: Sequence[ArchiveEntry]) -> str:
    """The first event and whether there is a rollback, as part of the subject, to know them without reading."""
    first = min(entry.n for entry in entries)
    return f"{first}.{'r' if any(entry.kind == 'rollback' for entry in entries) else 'e'}"
