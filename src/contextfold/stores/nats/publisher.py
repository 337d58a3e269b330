"""Publishes what is derived from the logs: archive, summaries, and the events and states that other programs watch.

The daemon that made a commit publishes it at once, or another one if that daemon was killed. A process has one
publication of a session in progress at a time. Any number of daemons may publish one session at once, with the same
result: a subject of the archive is written once, each event names the one before it, and a state is replaced only by
one of a later revision. The session state is written last and says up to which revision everything is published.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from contextfold.common.bounded_cache import BoundedCache
from contextfold.errors import FoldError, StoreInvalid, StoreUnavailable
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import BranchCreated, BranchFolded, Event, SessionExpired, WorkFolded, kind_of
from contextfold.fold.session import EMPTY, Branch, LogBroken, State, replay
from contextfold.fold.store import SessionKey
from contextfold.stores.nats import records
from contextfold.stores.nats.archive import message_bytes_max, read_chunks, write_chunks
from contextfold.stores.nats.connection import end_tasks, in_batches
from contextfold.stores.nats.jetstream import EXPECTED_OF, TTL, JetStream, SequenceConflict
from contextfold.stores.nats.log import Committed, SessionLogs
from contextfold.stores.nats.records import CommitRecord, LoggedCommit
from contextfold.stores.nats.streams import NOTHING, SubjectNames, escape_part, unescape_part

EVENT_N: Final = "Cf-N"
NO_STATE: Final = (0, -1)
# Attempts of a publication, or of one of its writes, that conflicts with those of other daemons.
TRIES: Final = 8
RETRY_S: Final = 0.05
# Writes of one session at once.
AT_ONCE: Final = 32
# The most commits of a session in memory. Beyond that they are read from the log.
WAITING_MAX: Final = 256
TEXT_MAX: Final = records.PUBLISHED_MAX + 1
# The most characters of published sessions in memory. A session and each text of a branch count for some more.
PROGRESS_MAX: Final = 64 << 20
SESSION_WEIGHT: Final = 2_000
TEXT_WEIGHT: Final = 200


@dataclass(slots=True)
class PublishedSession:
    """The part of a session that is published. `seq` is the sequence of the last commit in it.

    `states` has sequence and revision by subject.
    """

    session_id: str
    state: State = EMPTY
    seq: int = 0
    event_n: int = 0
    event_seq: int = 0
    prompts: dict[str, str] = field(default_factory=dict)
    summaries: dict[str, str] = field(default_factory=dict)
    states: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        """The size in characters."""
        texts = (*self.prompts.values(), *self.summaries.values())
        return SESSION_WEIGHT + len(texts) * TEXT_WEIGHT + sum(map(len, texts))

    def take(self, commit: LoggedCommit, record: CommitRecord) -> None:
        self.state = replay(record.events, self.state)
        self.seq = commit.seq
        for event in record.events:
            if isinstance(event, BranchCreated):
                self.prompts[event.branch_id] = event.prompt[:TEXT_MAX]
            elif isinstance(event, BranchFolded | WorkFolded):
                self.summaries[event.branch_id] = event.summary[:TEXT_MAX]


class Publisher:
    def __init__(self, js: JetStream, names: SubjectNames, logs: SessionLogs, *, idle_s: int) -> None:
        self._js = js
        self._names = names
        self._logs = logs
        self._ttl = f"{max(1, idle_s)}s"
        # The publications in progress. The result is the error because of which one was given up.
        self._publications: dict[SessionKey, asyncio.Task[FoldError | None]] = {}
        # The commits that a publication has not begun with.
        self._waiting: dict[SessionKey, list[Committed]] = defaultdict(list)
        self._progress = BoundedCache[SessionKey, PublishedSession](PROGRESS_MAX, lambda progress: progress.weight)

    def publish_soon(self, committed: Committed) -> None:
        """Publish a commit soon."""
        waiting = self._waiting[committed[0].key]
        if len(waiting) >= WAITING_MAX:
            # What is left does not follow what is published, so the log is read.
            waiting.clear()
        waiting.append(committed)
        self._start(committed[0].key)

    async def catch_up(self, key: SessionKey) -> None:
        """Wait until everything that was committed before this call is published."""
        for _ in range(TRIES):
            problem = await asyncio.shield(self._start(key))
            if not await self.is_behind(key):
                return
            if problem is not None:
                raise problem
        raise StoreUnavailable("NATS: a session is committed to faster than it is published")

    async def is_behind(self, key: SessionKey) -> bool:
        last = await self._logs.last_if_live(key)
        return last is not None and await self.read_revision(key, PublishedSession(last.session_id)) < last.revision

    def is_busy(self, key: SessionKey) -> bool:
        return key in self._publications

    async def settle(self) -> None:
        """Wait until everything that was committed here is published."""
        while self._publications:
            await asyncio.wait(self._publications.values())

    async def stop(self) -> None:
        """Stop. What is not published yet is left to other daemons, or to a later start."""
        await end_tasks(*self._publications.values())

    # ---- one session

    def _start(self, key: SessionKey) -> asyncio.Task[FoldError | None]:
        if key not in self._publications:
            self._publications[key] = asyncio.create_task(self._publish_waiting(key), name="contextfold-publish")
        return self._publications[key]

    async def _publish_waiting(self, key: SessionKey) -> FoldError | None:
        """Publish what waits, or what the log has if nothing waits, until nothing waits any more.

        What fails is published by the next daemon that looks at the session.
        """
        try:
            while True:
                await self._publish(key, self._waiting.pop(key, []))
                if key not in self._waiting:
                    return None
        except LogBroken as problem:
            return StoreInvalid(f"NATS has a log that cannot be replayed: {problem.reason}")
        except FoldError as problem:
            return problem
        # Nobody may wait for this task, and the session must not stay partly published.
        except Exception as problem:
            self._progress.forget(key)
            return StoreInvalid(f"publishing failed: {type(problem).__name__} {problem}")
        finally:
            self._waiting.pop(key, None)
            del self._publications[key]

    async def _publish(self, key: SessionKey, waiting: list[Committed]) -> None:
        """Publish these commits, or those that the log has, whatever other daemons have published."""
        progress = self._find_predecessor(key, waiting)
        missing = waiting
        for tried in range(TRIES):
            if progress is None:
                await asyncio.sleep(RETRY_S * max(0, tried - 1))
                progress, missing = await self._read_missing(key)
            if progress is None:
                self._progress.forget(key)
                return
            try:
                progress = await self._put(key, progress, missing) if missing else progress
            except SequenceConflict:
                progress = None
                continue
            self._progress.put(key, progress)
            if missing and missing is not waiting:
                await self._clear_if_ended(key, progress)
            return
        raise StoreUnavailable("NATS: too many conflicts with other daemons that publish the session")

    def _find_predecessor(self, key: SessionKey, commits: list[Committed]) -> PublishedSession | None:
        """What is published, if these commits follow it. None if another daemon was in between."""
        first = commits[0][1] if commits else None
        if first is None:
            return None
        progress = PublishedSession(first.session_id) if first.before == 0 else self._progress.get(key)
        # A session begins with revision 0, so commits of another session do not follow.
        if progress is None or progress.session_id != first.session_id:
            return None
        revisions = [progress.state.revision, *(record.revision for _, record in commits[:-1])]
        return progress if revisions == [record.before for _, record in commits] else None

    async def _read_missing(self, key: SessionKey) -> tuple[PublishedSession | None, list[Committed]]:
        """What is published of a session, and the commits that are not. What is in memory is not read again."""
        last = await self._logs.last_if_live(key)
        if last is None:
            return None, []
        progress = self._progress.get(key)
        if progress is None or progress.session_id != last.session_id:
            progress = PublishedSession(last.session_id)
        published = await self.read_revision(key, progress)
        # Its time to live has passed, or it was deleted.
        if published < progress.state.revision:
            progress = PublishedSession(progress.session_id)
            await self.read_revision(key, progress)
        missing = []
        for commit, record in await self._logs.records(key, after=progress.seq):
            if record.is_end or record.session_id != progress.session_id:
                return None, []
            if record.revision <= published:
                progress.take(commit, record)
            else:
                missing.append((commit, record))
        self._progress.put(key, progress)
        return progress, missing

    async def _clear_if_ended(self, key: SessionKey, progress: PublishedSession) -> None:
        """Delete again what was published of a session that ended meanwhile."""
        last = await self._logs.last(key)
        if last is not None and last.seq > progress.seq and (last.ended_at or last.session_id != progress.session_id):
            await self.clear(key, progress.session_id)

    async def read_revision(self, key: SessionKey, progress: PublishedSession) -> int:
        """Return the revision up to which everything is published, or -1, and note the last message of each kind."""
        session = self._names.session(key, progress.session_id)
        subject = self._names.session_state(session)
        state = await self._js.last(self._names.state, subject)
        event = await self._js.last(self._names.events, f"{session}.events.>")
        revision = records.header_number(state.headers, records.REVISION) if state else -1
        progress.states[subject] = (state.seq, revision) if state else NO_STATE
        event_n = records.header_number(event.headers, EVENT_N) if event else 0
        if event_n < 0:
            raise StoreInvalid("NATS has an event of another program")
        progress.event_n, progress.event_seq = event_n, event.seq if event else 0
        return revision

    # ---- the end of a session

    async def publish_end(self, key: SessionKey, event: SessionExpired) -> None:
        """Publish the last event, for as long as a session may be idle, once for all daemons."""
        self._progress.forget(key)
        session = self._names.session(key, event.session_id)

        async def attempt() -> None:
            last = await self._js.last(self._names.events, f"{session}.events.>")
            if last is not None and last.subject.endswith(f".{kind_of(event)}"):
                return
            await self._put_event(session, event, last.seq if last else 0, {TTL: self._ttl})

        await self._js.repeat(attempt)

    async def clear(self, key: SessionKey, session_id: str) -> None:
        """Delete everything of an ended session except the event that says so."""
        session = self._names.session(key, session_id)
        await self._js.purge(self._names.state, f"{session}.>")
        last = await self._js.last(self._names.events, f"{session}.events.>")
        if last is not None:
            below = last.seq if last.subject.endswith(".session.expired") else last.seq + 1
            await self._js.purge(self._names.events, f"{session}.>", below=below)

    # ---- writes

    async def _put(self, key: SessionKey, before: PublishedSession, commits: Sequence[Committed]) -> PublishedSession:
        """Write what these commits add. Raises SequenceConflict if another daemon has published more meanwhile."""
        progress = replace(before)
        # A rollback may undo a change that another daemon has published before it was killed: each commit counts.
        changed = set[str]()
        for commit in commits:
            known = progress.state.branches
            progress.take(*commit)
            now = progress.state.branches
            changed.update(branch_id for branch_id, branch in now.items() if known.get(branch_id) is not branch)
        written = [record for _, record in commits]
        session = self._names.session(key, progress.session_id)
        events = [event for record in written for event in record.events if event.n > progress.event_n]
        branches = (self._put_branch(session, progress, progress.state.branches[branch_id]) for branch_id in changed)
        works = chain([self._put_events(session, progress, events)], self._archive(key, written), branches)
        await in_batches(works, AT_ONCE)
        document = records.encode_session(progress.state)
        await self._put_state(progress, self._names.session_state(session), document, {TTL: self._ttl})
        return progress

    async def _put_events(self, session: str, progress: PublishedSession, events: Iterable[Event]) -> None:
        """Publish each event only after the one before, so that a watcher gets them in order and once."""
        for event in events:
            progress.event_seq = await self._put_event(session, event, progress.event_seq)
            progress.event_n = event.n

    async def _put_event(
        self, session: str, event: Event, before: int, headers: Mapping[str, str] | None = None
    ) -> int:
        data = records.encode_event(unescape_part(session.rpartition(".")[2]), event)
        all_headers = {EXPECTED_OF: f"{session}.events.>", EVENT_N: str(event.n), **(headers or {})}
        return await self._js.put(f"{session}.events.{kind_of(event)}", data, all_headers, expected=before)

    async def _put_branch(self, session: str, progress: PublishedSession, branch: Branch) -> None:
        prompt, summary = progress.prompts.get(branch.id, ""), progress.summaries.get(branch.id, "")
        document = records.encode_branch(branch, prompt, summary, progress.state.revision)
        await self._put_state(progress, self._names.branch(session, branch.id), document)

    async def _put_state(
        self, progress: PublishedSession, subject: str, data: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """Write a state unless a later one is stored."""
        revision = progress.state.revision
        all_headers = {records.REVISION: str(revision), **(headers or {})}
        for _ in range(TRIES):
            expected, stored_revision = progress.states.get(subject, NO_STATE)
            if stored_revision >= revision:
                return
            try:
                seq = await self._js.put(subject, data, all_headers, expected=expected)
            except SequenceConflict:
                stored = await self._js.last(self._names.state, subject)
                known = (stored.seq, records.header_number(stored.headers, records.REVISION)) if stored else NO_STATE
                progress.states[subject] = known
                # The session has ended meanwhile.
                if stored is None and expected:
                    raise
            else:
                progress.states[subject] = (seq, revision)
                return
        raise SequenceConflict(subject)

    async def archive(self, key: SessionKey, *commits: CommitRecord) -> None:
        """Write what the commits add to the archive."""
        await in_batches(self._archive(key, commits), AT_ONCE)

    def _archive(self, key: SessionKey, commits: Sequence[CommitRecord]) -> Iterator[Awaitable[None]]:
        for record in commits:
            archived = self._names.archived(key, record.session_id)
            if record.entries or record.texts:
                yield self._put_entries(archived, record)
            summaries = [(summary.branch_id, records.encode_summary(summary)) for summary in record.summaries]
            for branch_id, data in (*summaries, *((branch_id, records.RETRACTED) for branch_id in record.retracted)):
                subject = f"{archived}.summaries.{escape_part(branch_id)}.{record.revision}"
                yield self._js.put_once(self._names.archive, subject, data)

    async def _put_entries(self, archived: str, record: CommitRecord) -> None:
        """Write one message for each thread, so that the trajectory of a branch is read without the others."""
        chunks, entries = record.texts, record.entries
        if chunks and not entries:
            entries = records.parse_entries(await read_chunks(self._js, archived, chunks))
        threads: dict[str, list[int]] = defaultdict(list)
        for position, entry in enumerate(entries):
            threads[NOTHING if entry.branch_id is None else f"b{escape_part(entry.branch_id)}"].append(position)
        for thread, positions in threads.items():
            mine = [entries[position] for position in positions]
            data = (
                records.encode_reference("texts", chunks, places=positions) if chunks else records.encode_archived(mine)
            )
            if len(data) > message_bytes_max(self._js):
                own_chunks = await write_chunks(self._js, archived, records.encode_entries(mine))
                data = records.encode_reference("texts", own_chunks, places=list(range(len(mine))))
            subject = f"{archived}.entries.{thread}.{_span(mine)}.{record.revision}"
            await self._js.put_once(self._names.archive, subject, data)


def _span(entries: Sequence[ArchiveEntry]) -> str:
    """The first event and whether there is a rollback, as part of the subject, to know them without reading."""
    first = min(entry.n for entry in entries)
    return f"{first}.{'r' if any(entry.kind == 'rollback' for entry in entries) else 'e'}"
