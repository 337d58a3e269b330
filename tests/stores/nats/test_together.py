"""Several daemons on NATS at the same session at the same moment, at the worst place for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from contextfold.errors import StoreUnavailable
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.ports.store import StaleRevision
from contextfold.stores.nats.store import NatsStore
from contextfold.stores.nats.wire.connection import NatsOptions
from contextfold.stores.nats.wire.jetstream import JetStream, StoredMessage
from contextfold.stores.nats.wire.names import SubjectNames
from contextfold.stores.nats.wire.stream_reader import StreamQuery, read_to
from contextfold.stores.nats.wire.streams import prepare
from tests.contract.sessions import NOON, commit_of, key_of, summary_of
from tests.stores.nats.on_nats import KEY, OnNats, branching, check_published, everything, on_nats, told
from tests.support.machine import times

__all__ = ["on_nats"]

NEXT_DAY, NEXT_YEAR = "2026-01-02T00:00:00Z", "2027-06-01T00:00:00Z"


class Interrupted(JetStream):
    """A wire on which something happens right after the first look at the last message of certain subjects."""

    ends_with = ""
    happens: Callable[[], Awaitable[object]] | None = None

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        found = await super().last(stream, subject)
        if self.happens and subject.endswith(self.ends_with):
            happens, self.happens = self.happens, None
            await happens()
        return found


def interrupt(store: NatsStore, ends_with: str, happens: Callable[[], Awaitable[object]]) -> None:
    wire = store._js
    wire.__class__ = Interrupted
    assert isinstance(wire, Interrupted)
    wire.ends_with, wire.happens = ends_with, happens


async def closed(*stores: NatsStore) -> None:
    for store in stores:
        await store.close()


def test_commits_of_two_daemons_in_turn_are_published_in_order_and_soon(on_nats: OnNats) -> None:
    """Also where one's commits wait together and another's lies between them."""
    commits = times(80, 2000)

    async def act(place: NatsOptions) -> None:
        stores = [NatsStore(place), NatsStore(place)]
        for revision in range(commits):
            await stores[revision % 2].commit(commit_of(KEY, revision))
        for store in stores:
            await store.settle()
        await stores[0]._publisher.catch_up(KEY)
        session = SubjectNames(place.prefix).session(KEY, "sess_1")
        seen = await everything(place, SubjectNames(place.prefix).events, f"{session}.events.>")
        assert [told(each)["n"] for each in seen] == list(range(1, commits + 1))
        (state,) = await everything(place, SubjectNames(place.prefix).state, f"{session}.meta.>")
        assert told(state)["revision"] == commits
        await closed(*stores)

    on_nats(act)


def test_what_another_daemon_did_is_read_once_and_not_again_with_each_commit(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        one, other = NatsStore(place), NatsStore(place)
        read: list[int] = []
        inner = one._logs.records

        async def records(key: object, after: int = 0) -> object:
            found = await inner(key, after)  # type: ignore[arg-type]
            read.append(len(found))
            return found

        one._logs.records = records  # type: ignore[method-assign, assignment]
        for revision in range(100):
            await (one if revision % 2 else other).commit(commit_of(KEY, revision))
            await (one if revision % 2 else other).settle()
        assert sum(read) < 300
        await closed(one, other)

    on_nats(act)


def test_an_end_is_told_once_though_two_daemons_finish_it(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        one, other = NatsStore(place), NatsStore(place)
        for commit in branching(KEY):
            await one.commit(commit)
        await one.settle()
        interrupt(one, ".ended", lambda: other.expire(NEXT_DAY, NEXT_DAY))
        assert await one.expire(NEXT_DAY, NEXT_DAY) == 1
        names = SubjectNames(place.prefix)
        session = names.session(KEY, "sess_1")
        seen = await everything(place, names.events, f"{session}.>")
        assert [told(each)["event"] for each in seen] == ["session.expired"]
        assert await everything(place, names.state, f"{session}.>") == []
        await closed(one, other)

    on_nats(act)


def test_nothing_comes_back_of_a_session_that_ends_while_it_is_published(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        one, other = NatsStore(place), NatsStore(place)
        for commit in branching(KEY):
            await one._logs.commit(commit)
        interrupt(one, ".meta.session_state", lambda: other.expire(NEXT_DAY, NEXT_DAY))
        await asyncio.gather(one._publisher.catch_up(KEY), return_exceptions=True)
        names = SubjectNames(place.prefix)
        assert await everything(place, names.state, f"{names.session(KEY, 'sess_1')}.>") == []
        seen = await everything(place, names.events, f"{names.session(KEY, 'sess_1')}.>")
        assert {told(each)["event"] for each in seen} == {"session.expired"}
        assert (await one.search("local", "found", None, 10))[0].summary == "Found it"
        await closed(one, other)

    on_nats(act)


def test_a_commit_that_meets_the_end_of_its_session_is_too_late(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        one, other = NatsStore(place), NatsStore(place)
        for revision in range(3):
            await one.commit(commit_of(KEY, revision))
        await one.settle()
        await other.count()
        log = SubjectNames(place.prefix).log_of(KEY)
        interrupt(other, log, lambda: one.expire(NEXT_DAY, NEXT_DAY))
        with pytest.raises(StaleRevision):
            await other.commit(commit_of(KEY, 3))
        assert await other.load(KEY) is None
        await closed(one, other)

    on_nats(act)


def test_a_commit_that_is_too_late_takes_nothing_with_it(on_nats: OnNats) -> None:
    """The texts that it wrote before it are deleted again, and no others."""
    long = "x" * 100_000

    async def act(place: NatsOptions) -> None:
        one, other = NatsStore(place), NatsStore(place)
        await one.commit(commit_of(KEY, entries=[ArchiveEntry("br_1", 1, NOON, "operation", long)]))
        await other.load(KEY)
        await one.expire(NEXT_DAY, NEXT_DAY)
        for revision, session_id in ((1, "sess_1"), (2, "sess_2")):
            late = commit_of(
                KEY, revision, session_id=session_id, entries=[ArchiveEntry("br_1", 2, NOON, "operation", long)]
            )
            with pytest.raises(StaleRevision):
                await other.commit(late)
        found = await other.trajectory("local", "p1", "br_1", limit=10)
        assert found is not None
        assert [entry.text for entry in found.entries] == [long]
        await closed(one, other)

    on_nats(act)


class Forgetful(JetStream):
    """A wire whose server, once something was published, for a moment knows nothing of the log."""

    has_forgotten = False

    async def put(self, subject: str, *given: Any, **options: Any) -> int:
        seq = await super().put(subject, *given, **options)
        self.has_forgotten = subject.endswith(".meta.session_state")
        return seq

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        has_forgotten, self.has_forgotten = self.has_forgotten, False
        return None if has_forgotten and stream.endswith("_log") else await super().last(stream, subject)


def test_one_answer_that_knows_of_no_session_ends_none(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        store = NatsStore(place)
        for commit in branching(KEY):
            await store._logs.commit(commit)
        store._js.__class__ = Forgetful
        await store._publisher.catch_up(KEY)
        await check_published(place)
        await closed(store)

    on_nats(act)


def test_a_search_that_is_given_up_does_not_spoil_the_next(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        store = NatsStore(place)
        made = [summary_of(KEY, f"br_{number}", "the same words") for number in range(300)]
        await store.commit(commit_of(KEY, summaries=made))
        for _ in range(20):
            store._archive.forget()
            given_up = asyncio.ensure_future(store.search("local", "same", None, 10))
            await asyncio.wait([given_up], timeout=0.005)
            given_up.cancel()
            assert len(await store.search("local", "same", None, 1000)) == 300
        await closed(store)

    on_nats(act)


def test_two_daemons_may_forget_the_same_at_once(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        one, other = NatsStore(place), NatsStore(place)
        for number in range(3):
            key, session_id = key_of(f"p{number}"), f"sess_{number}"
            summary = summary_of(key, "br_1", "plan", session_id=session_id)
            await one.commit(commit_of(key, session_id=session_id, summaries=[summary]))
        await one.expire(NEXT_DAY, NEXT_DAY)
        interrupt(other, ".ended", lambda: one.retain(NEXT_YEAR, NEXT_YEAR))
        await other.retain(NEXT_YEAR, NEXT_YEAR)
        assert await everything(place, SubjectNames(place.prefix).archive, ">") == []
        await closed(one, other)

    on_nats(act)


def test_a_read_ends_where_the_last_message_was_deleted(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        store, names = NatsStore(place), SubjectNames(place.prefix)
        for number in range(3):
            await store.commit(commit_of(key_of(f"p{number}"), session_id=f"sess_{number}"))
        wire = JetStream(place, prepare)
        last = await wire.last(names.log, ">")
        assert last is not None
        await wire.delete(names.log, last.seq)
        read = [each.seq async for each in read_to(wire, StreamQuery(names.log, names.every_log), last.seq)]
        assert len(read) == 2
        await wire.close()
        await closed(store)

    on_nats(act)


def test_an_event_of_somebody_elses_hurts_its_own_session_alone(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        store, names = NatsStore(place, idle_s=1_000_000_000), SubjectNames(place.prefix)
        await store.reach()
        bad = key_of("bad")
        await store.commit(commit_of(bad, session_id="sess_bad"))
        await store.settle()
        await store._js.put(f"{names.session(bad, 'sess_bad')}.events.hello", b"{}")
        await store._logs.commit(commit_of(bad, 1, session_id="sess_bad"))
        for commit in branching(KEY):
            await store.commit(commit)
        assert (await store.search("local", "found", None, 10))[0].summary == "Found it"
        await check_published(place)
        assert await store.expire(NEXT_DAY, NEXT_DAY) == 1
        assert store._helper is not None
        assert not store._helper.done()
        await closed(store)

    on_nats(act)


@pytest.mark.parametrize("limit", ["max_msgs", "max_bytes"])
def test_a_store_that_is_full_says_so_before_a_commit_does(on_nats: OnNats, limit: str) -> None:
    """A limit of bytes leaves room for a small message, but not for a commit of ordinary size."""

    async def act(place: NatsOptions) -> None:
        store, names = NatsStore(place), SubjectNames(place.prefix)
        await store.commit(commit_of(KEY, at=NOON))
        await store.check()
        config = (await store._js.api(f"STREAM.INFO.{names.log}"))["config"]
        room = {"max_msgs": 1, "max_bytes": 10_000}[limit]
        await store._js.api(f"STREAM.UPDATE.{names.log}", {**config, limit: room})
        with pytest.raises(StoreUnavailable):
            await store.check()
        with pytest.raises(StoreUnavailable):
            await store.commit(commit_of(KEY, 1, answer="x" * 20_000))
        log = await store.load(KEY)
        assert log is not None
        assert len(log.events) == 1
        await closed(store)

    on_nats(act)
