"""The NATS store: publishing, commits with an unclear outcome, the end of sessions, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import Any

import pytest

from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import (
    BranchCreated,
    BranchFolded,
    Event,
    SessionRolledBack,
    SessionStarted,
)
from contextfold.fold.store import ArchivedThread, Commit, Operation, StaleRevision
from contextfold.settings import NatsOptions
from contextfold.stores.nats import log as nats_log
from contextfold.stores.nats.connection import OutcomeUnknown
from contextfold.stores.nats.jetstream import JetStream, SequenceConflict, StoredMessage
from contextfold.stores.nats.store import NatsStore
from contextfold.stores.nats.streams import SubjectNames
from tests.contract.sessions import NOON, commit_of, key_of
from tests.stores.nats.sample_commits import (
    KEY,
    Pair,
    branch_commits,
    check_published,
    parsed,
    stored_messages,
)
from tests.support.machine import times
from tests.support.nats_servers import connect

# ---- publishing


async def test_a_commit_is_published_to_its_subjects(store: NatsStore, options: NatsOptions) -> None:
    for commit in branch_commits(KEY):
        await store.commit(commit)
    await store.settle()
    await store.close()
    await check_published(options)


async def test_concurrent_publishers_publish_every_event_once(options: NatsOptions) -> None:
    rng = random.Random(1)
    stores = [NatsStore(options) for _ in range(4)]
    for turn in range(times(3, 100)):
        session_id = f"sess_{turn}"
        for commit in branch_commits(KEY, session_id):
            await rng.choice(stores)._logs.commit(commit)
            await asyncio.gather(
                *(store._publisher.catch_up(KEY) for store in stores if rng.random() < 0.7),
                return_exceptions=True,
            )
        await stores[0]._publisher.catch_up(KEY)
        await check_published(options, session_id)
        assert await stores[0].expire("2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z") == 1
    for store in stores:
        await store.close()


async def test_a_state_that_a_killed_daemon_published_before_a_rollback_is_replaced(
    store: NatsStore, options: NatsOptions
) -> None:
    """The rollback restores what this store knows, so nothing has changed between the two for it."""

    async def commit(event: Event) -> None:
        await store._logs.commit(Commit(KEY, "sess_1", event.n - 1, [event], Operation(f"op {event.n}", "asked"), ""))

    await commit(SessionStarted(1, NOON, "sess_1", "/work/project", None))
    await commit(BranchCreated(2, NOON, "br_1", None, "outer", "Look.", 2, 0))
    await commit(BranchCreated(3, NOON, "br_2", "br_1", "inner", "Look.", 2, 0))
    await store._publisher.catch_up(KEY)
    await commit(BranchFolded(4, NOON, "br_2", "found it", 3, 2, 0, forced=False))
    connection = await connect(options.servers[0])
    jetstream, subject = connection.jetstream(), f"{options.prefix}.local.p1.sess_1.branches.br_1"
    await jetstream.publish(subject, b'{"tokens":5}', headers={"Cf-Revision": "4"})
    await commit(SessionRolledBack(5, NOON, "br_2", restore_state=True))
    await store._publisher.catch_up(KEY)
    last = await jetstream.get_last_msg(f"{options.prefix}_state", subject)
    assert json.loads(last.data or b"")["tokens"] == 2
    await connection.close()


async def test_an_archive_read_includes_what_another_store_committed(stores: Pair, options: NatsOptions) -> None:
    writer, reader = stores
    for commit in branch_commits(KEY):
        await writer._logs.commit(commit)
    trajectory = await reader.trajectory(ArchivedThread("local", "p1", "br_1"), limit=10)
    assert trajectory is not None
    assert [entry.text for entry in trajectory.entries] == ["Look into it.", "ls"]
    assert [summary.summary for summary in await reader.search("local", "found", None, 10)] == ["Found it"]


class WriteInFlight(JetStream):
    """Refuses the first entry of the archive, as a leader does while a write that is lost afterwards is in flight."""

    has_refused = False

    async def put(self, subject: str, *args: Any, **options: Any) -> int:
        if ".entries." in subject and not self.has_refused:
            self.has_refused = True
            raise SequenceConflict("wrong last sequence")
        return await super().put(subject, *args, **options)


async def test_an_entry_that_was_refused_because_of_a_write_in_flight_is_archived(
    store: NatsStore, options: NatsOptions
) -> None:
    store._js.__class__ = WriteInFlight
    for commit in branch_commits(KEY):
        await store.commit(commit)
    await store.settle()
    await check_published(options)


# ---- committing


async def test_a_commit_based_on_an_old_revision_is_refused_whatever_the_store_has_cached(stores: Pair) -> None:
    one, other = stores
    await one.commit(commit_of(KEY))
    await other.load(KEY)
    await one.commit(commit_of(KEY, 1))
    with pytest.raises(StaleRevision):
        await other.commit(commit_of(KEY, 1, operation_id="late")._replace(operation=None))
    assert (await other.commit(commit_of(KEY, 0))).repeated
    await other.commit(commit_of(KEY, 2))
    log = await one.load(KEY)
    assert log is not None
    assert [event.n for event in log.events] == [1, 2, 3]


async def test_a_repeated_operation_is_recognised_after_the_session_has_left_the_cache(
    options: NatsOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_log, "REMEMBERED_MAX", 1)
    store = NatsStore(options)
    for revision in range(5):
        await store.commit(commit_of(KEY, revision, operation_id=f"op {revision}"))
    await store.commit(commit_of(key_of("another")))
    again = await store.commit(commit_of(KEY, 5, operation_id="op 2"))
    assert (again.answer, again.repeated) == ("answer of 2", True)
    await store.close()


async def test_a_commit_larger_than_a_message_is_stored_completely(store: NatsStore, options: NatsOptions) -> None:
    prompt = "α" * 1_500_000
    created = BranchCreated(2, NOON, "br_1", None, "Look", prompt, 4, 0)
    started = SessionStarted(1, NOON, "sess_1", "/work/project", None)
    await store.commit(
        Commit(KEY, "sess_1", 0, [started, created], None, "", [ArchiveEntry("br_1", 2, NOON, "prompt", prompt)])
    )
    other = NatsStore(options)
    log = await other.load(KEY)
    await other.close()
    assert log is not None
    assert list(log.events) == [started, created]
    trajectory = await store.trajectory(ArchivedThread("local", "p1", "br_1"), limit=1)
    assert trajectory is not None
    assert trajectory.entries[0].text == prompt
    # What is published is not the archive, and has a limit.
    await store.settle()
    subject = SubjectNames(options.prefix).branch(SubjectNames(options.prefix).session(KEY, "sess_1"), "br_1")
    (branch,) = await stored_messages(options, SubjectNames(options.prefix).state, subject)
    assert parsed(branch)["prompt"] == "α" * 64_000 + "…"


class LaggingServer(JetStream):
    """A server that has just restarted and for a few reads does not have the commits yet."""

    missed_reads = 0

    async def at(self, stream: str, seq: int) -> StoredMessage | None:
        self.missed_reads -= stream.endswith("_log")
        return None if self.missed_reads >= 0 else await super().at(stream, seq)


@pytest.mark.parametrize("missed_reads", [1, 100])
async def test_an_operation_is_done_once_when_its_commit_cannot_be_read(store: NatsStore, missed_reads: int) -> None:
    await store.commit(commit_of(KEY))
    again = commit_of(KEY, 1, answer="once")._replace(operation=Operation("op", "same"))
    await store.commit(again)
    wire = store._js
    wire.__class__ = LaggingServer
    assert isinstance(wire, LaggingServer)
    wire.missed_reads = missed_reads
    sent_again = commit_of(KEY, 2)._replace(operation=again.operation)
    for call in (store.receipt(KEY, "op"), store.commit(sent_again)):
        try:
            receipt = await call
        except StoreUnavailable:
            assert missed_reads > 1
        else:
            assert receipt is not None
            assert (missed_reads, receipt.answer) == (1, "once")
    log = await store.load(KEY)
    assert log is not None
    assert [event.n for event in log.events] == [1, 2]


class LateMessage(JetStream):
    """Delays one message: the sender gets no answer, and the message is stored right after a read that misses it."""

    late: tuple[Any, Any] | None = None
    reads_before = 0
    # After the message is stored, this many reads are still answered by a server that does not have the log.
    empty_reads = 0

    async def put(self, *args: Any, **options: Any) -> int:
        if self.late is None and options.get("headers", {}).get("Cf-Before") == "1":
            self.late = args, options
            raise OutcomeUnknown("late")
        return await super().put(*args, **options)

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        last = await super().last(stream, subject)
        if self.late and stream.endswith("_log"):
            self.reads_before -= 1
            if self.reads_before == -1:
                with contextlib.suppress(SequenceConflict):
                    # The message was sent again in the meantime and is already stored.
                    await super().put(*self.late[0], **self.late[1])
            if self.reads_before < 0 < self.empty_reads:
                self.empty_reads -= 1
                return None
        return last


@pytest.mark.parametrize(("reads_before", "empty_reads"), [(0, 0), (1, 0), (2, 0), (0, 1), (1, 3)])
async def test_a_commit_that_is_stored_late_is_recognised_as_our_own(
    store: NatsStore, reads_before: int, empty_reads: int
) -> None:
    """This is needed without an operation id too: after a conflict error, the caller would repeat the operation."""
    wire = store._js
    wire.__class__ = LateMessage
    assert isinstance(wire, LateMessage)
    wire.reads_before, wire.empty_reads = reads_before, empty_reads
    await store.commit(commit_of(KEY))
    receipt = await store.commit(commit_of(KEY, 1, answer="once")._replace(operation=None))
    assert (receipt.answer, receipt.repeated) == ("once", False)
    wire.empty_reads = 0
    await store.commit(commit_of(KEY, 2))
    log = await store.load(KEY)
    assert log is not None
    assert [event.n for event in log.events] == [1, 2, 3]


# ---- the end of sessions


async def test_no_store_finds_summaries_after_their_retention(options: NatsOptions) -> None:
    stores = [NatsStore(options), NatsStore(options)]
    for commit in branch_commits(KEY):
        await stores[0].commit(commit)
    for store in stores:
        assert await store.search("local", "found", None, 10)
    await stores[0].expire("2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z")
    for store in stores:
        await store.retain("2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z")
        assert await store.search("local", "found", None, 10) == []
        await store.close()


# ---- what is refused


async def _create_stream(options: NatsOptions, stream: str, metadata: dict[str, str] | None = None) -> None:
    connection = await connect(options.servers)
    await connection.jetstream().add_stream(name=stream, subjects=[f"{stream}.>"], metadata=metadata)
    await connection.close()


async def test_a_stream_of_another_program_is_refused(options: NatsOptions) -> None:
    await _create_stream(options, f"{options.prefix}_log")
    store = NatsStore(options)
    with pytest.raises(StoreInvalid, match="another --nats-prefix"):
        await store.reach()
    await store.close()


async def test_sessions_of_a_newer_version_are_refused(options: NatsOptions) -> None:
    await _create_stream(options, f"{options.prefix}_log", metadata={"contextfold.format": "2"})
    store = NatsStore(options)
    with pytest.raises(StoreInvalid, match="newer version"):
        await store.reach()
    await store.close()
