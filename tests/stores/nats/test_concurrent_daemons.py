"""Several stores on NATS work on the same session at once, and interrupt each other at the most critical steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from contextfold.errors import StoreUnavailable
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.store import ArchivedThread, KnownRevision, StaleRevision
from contextfold.settings import NatsOptions
from contextfold.stores.nats import jetstream
from contextfold.stores.nats.jetstream import JetStream, StoredMessage, StreamQuery, read_to
from contextfold.stores.nats.store import NatsStore
from contextfold.stores.nats.streams import SubjectNames, prepare_streams
from tests.contract.sessions import NOON, commit_of, key_of, numbers, summary_of, take, watching
from tests.stores.nats.sample_commits import (
    KEY,
    Pair,
    branch_commits,
    check_published,
    parsed,
    stored_messages,
)
from tests.support.waiting import POLL_INTERVAL_S, WAIT_TIMEOUT_S

# More than a client receives before it has received all messages of a watcher in this file.
ENOUGH_MESSAGES = 1_000
NEXT_DAY, NEXT_YEAR = "2026-01-02T00:00:00Z", "2027-06-01T00:00:00Z"


class InterruptedJetStream(JetStream):
    """Runs an action once, right after the last message of certain subjects is read."""

    subject_suffix = ""
    action: Callable[[], Awaitable[object]] | None = None

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        last = await super().last(stream, subject)
        if self.action and subject.endswith(self.subject_suffix):
            action, self.action = self.action, None
            await action()
        return last


def interrupt(store: NatsStore, subject_suffix: str, action: Callable[[], Awaitable[object]]) -> None:
    wire = store._js
    wire.__class__ = InterruptedJetStream
    assert isinstance(wire, InterruptedJetStream)
    wire.subject_suffix, wire.action = subject_suffix, action


async def close_all(*stores: NatsStore) -> None:
    for store in stores:
        await store.close()


async def test_the_end_of_a_session_is_published_once_when_two_stores_end_it(
    stores: Pair, options: NatsOptions
) -> None:
    one, other = stores
    for commit in branch_commits(KEY):
        await one.commit(commit)
    await one.settle()
    interrupt(one, ".ended", lambda: other.expire(NEXT_DAY, NEXT_DAY))
    assert await one.expire(NEXT_DAY, NEXT_DAY) == 1
    names = SubjectNames(options.prefix)
    session = names.session(KEY, "sess_1")
    events = await stored_messages(options, names.events, f"{session}.>")
    assert [parsed(each)["event"] for each in events] == ["session.expired"]
    assert await stored_messages(options, names.state, f"{session}.>") == []


async def test_a_session_that_ends_while_it_is_published_leaves_no_state(stores: Pair, options: NatsOptions) -> None:
    one, other = stores
    for commit in branch_commits(KEY):
        await one._logs.commit(commit)
    interrupt(one, ".meta.session_state", lambda: other.expire(NEXT_DAY, NEXT_DAY))
    await asyncio.gather(one._publisher.catch_up(KEY), return_exceptions=True)
    names = SubjectNames(options.prefix)
    assert await stored_messages(options, names.state, f"{names.session(KEY, 'sess_1')}.>") == []
    events = await stored_messages(options, names.events, f"{names.session(KEY, 'sess_1')}.>")
    assert {parsed(each)["event"] for each in events} == {"session.expired"}
    assert (await one.search("local", "found", None, 10))[0].summary == "Found it"


async def test_a_commit_to_a_session_that_has_just_ended_is_refused(stores: Pair, options: NatsOptions) -> None:
    one, other = stores
    for revision in range(3):
        await one.commit(commit_of(KEY, revision))
    await one.settle()
    await other.count()
    log = SubjectNames(options.prefix).log_of(KEY)
    interrupt(other, log, lambda: one.expire(NEXT_DAY, NEXT_DAY))
    with pytest.raises(StaleRevision):
        await other.commit(commit_of(KEY, 3))
    assert await other.load(KEY) is None


async def test_a_refused_commit_deletes_only_its_own_texts(stores: Pair, options: NatsOptions) -> None:
    """A commit writes its texts first. If it is refused, these are deleted again, and no others."""
    long = "x" * 100_000
    one, other = stores
    await one.commit(commit_of(KEY, entries=[ArchiveEntry("br_1", 1, NOON, "operation", long)]))
    await other.load(KEY)
    await one.expire(NEXT_DAY, NEXT_DAY)
    for revision, session_id in ((1, "sess_1"), (2, "sess_2")):
        late = commit_of(
            KEY, revision, session_id=session_id, entries=[ArchiveEntry("br_1", 2, NOON, "operation", long)]
        )
        with pytest.raises(StaleRevision):
            await other.commit(late)
    trajectory = await other.trajectory(ArchivedThread("local", "p1", "br_1"), limit=10)
    assert trajectory is not None
    assert [entry.text for entry in trajectory.entries] == [long]


class ForgetfulJetStream(JetStream):
    """Returns no log once, right after a session state was published."""

    has_forgotten = False

    async def put(self, subject: str, *args: Any, **options: Any) -> int:
        seq = await super().put(subject, *args, **options)
        self.has_forgotten = subject.endswith(".meta.session_state")
        return seq

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        has_forgotten, self.has_forgotten = self.has_forgotten, False
        return None if has_forgotten and stream.endswith("_log") else await super().last(stream, subject)


async def test_one_read_without_a_log_does_not_end_the_session(store: NatsStore, options: NatsOptions) -> None:
    for commit in branch_commits(KEY):
        await store._logs.commit(commit)
    store._js.__class__ = ForgetfulJetStream
    await store._publisher.catch_up(KEY)
    await check_published(options)


async def test_a_cancelled_search_does_not_affect_the_next(store: NatsStore) -> None:
    summaries = [summary_of(KEY, f"br_{number}", "the same words") for number in range(300)]
    await store.commit(commit_of(KEY, summaries=summaries))
    for _ in range(20):
        store._recall._indexes.clear()
        cancelled = asyncio.ensure_future(store.search("local", "same", None, 10))
        await asyncio.wait([cancelled], timeout=0.005)
        cancelled.cancel()
        assert len(await store.search("local", "same", None, 1000)) == 300


async def test_two_stores_may_delete_the_same_archive_at_once(stores: Pair, options: NatsOptions) -> None:
    one, other = stores
    for number in range(3):
        key, session_id = key_of(f"p{number}"), f"sess_{number}"
        summary = summary_of(key, "br_1", "plan", session_id=session_id)
        await one.commit(commit_of(key, session_id=session_id, summaries=[summary]))
    await one.expire(NEXT_DAY, NEXT_DAY)
    interrupt(other, ".ended", lambda: one.retain(NEXT_YEAR, NEXT_YEAR))
    await other.retain(NEXT_YEAR, NEXT_YEAR)
    assert await stored_messages(options, SubjectNames(options.prefix).archive, ">") == []


async def test_a_read_ends_when_the_last_message_was_deleted(options: NatsOptions) -> None:
    store, names = NatsStore(options), SubjectNames(options.prefix)
    for number in range(3):
        await store.commit(commit_of(key_of(f"p{number}"), session_id=f"sess_{number}"))
    wire = JetStream(options, prepare_streams)
    last = await wire.last(names.log, ">")
    assert last is not None
    await wire.delete(names.log, last.seq)
    read = [each.seq async for each in read_to(wire, StreamQuery(names.log, names.every_log), last.seq)]
    assert len(read) == 2
    await wire.close()
    await close_all(store)


async def test_a_read_leaves_no_consumer_behind(
    store: NatsStore, options: NatsOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server has a limit of consumers, and deletes them by itself only after a while; here never."""
    monkeypatch.setattr(jetstream, "CONSUMER_IDLE_S", 3600.0)
    for revision in range(3):
        await store.commit(commit_of(KEY, revision))
    for known in (None, KnownRevision("sess_1", 1)):
        assert await store.load(KEY, known) is not None
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while (await store._js.info(SubjectNames(options.prefix).log)).state.consumer_count:
            await asyncio.sleep(POLL_INTERVAL_S)


async def test_a_slow_watcher_gets_every_event_once(store: NatsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client drops messages without an error when too many wait."""
    monkeypatch.setattr(jetstream, "WAITING_MAX", 3)
    monkeypatch.setattr(jetstream, "SILENCE_S", 0.2)
    for revision in range(40):
        await store.commit(commit_of(KEY, revision))
    async with watching(store, "local", "0") as watch:
        seen = await take(watch, 1)
        while (client := store._js._client) is None or client.stats["in_msgs"] < ENOUGH_MESSAGES:
            await store.cursor()
        # There is room again for the next message, which does not follow those that wait.
        seen += await take(watch, 3)
        await store.commit(commit_of(KEY, 40))
        await store.cursor()
        seen += await take(watch, 37)
    assert numbers(seen) == [("sess_1", n) for n in range(1, 42)]


async def test_a_foreign_event_affects_only_the_session_whose_subject_it_is_on(options: NatsOptions) -> None:
    store, names = NatsStore(options, idle_s=1_000_000_000), SubjectNames(options.prefix)
    await store.reach()
    bad = key_of("bad")
    await store.commit(commit_of(bad, session_id="sess_bad"))
    await store.settle()
    await store._js.put(f"{names.session(bad, 'sess_bad')}.events.hello", b"{}")
    await store._logs.commit(commit_of(bad, 1, session_id="sess_bad"))
    for commit in branch_commits(KEY):
        await store.commit(commit)
    assert (await store.search("local", "found", None, 10))[0].summary == "Found it"
    await check_published(options)
    assert await store.expire(NEXT_DAY, NEXT_DAY) == 1
    assert store._publishing_for_others is not None
    assert not store._publishing_for_others.done()
    await close_all(store)


@pytest.mark.parametrize("limit", ["max_msgs", "max_bytes"])
async def test_a_full_store_is_noticed_by_the_check_before_a_commit_fails(options: NatsOptions, limit: str) -> None:
    """A limit of bytes leaves room for a small message, but not for a commit of ordinary size."""
    store, names = NatsStore(options), SubjectNames(options.prefix)
    await store.commit(commit_of(KEY, at=NOON))
    await store.check()
    config = (await store._js.info(names.log)).config.evolve(**{limit: {"max_msgs": 1, "max_bytes": 10_000}[limit]})
    await store._js.call("update", lambda context: context.update_stream(config))
    with pytest.raises(StoreUnavailable):
        await store.check()
    with pytest.raises(StoreUnavailable):
        await store.commit(commit_of(KEY, 1, answer="x" * 20_000))
    log = await store.load(KEY)
    assert log is not None
    assert len(log.events) == 1
    await close_all(store)
