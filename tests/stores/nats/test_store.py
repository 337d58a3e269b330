"""What is specific to the store on NATS: who publishes what follows from a commit, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import (
    BranchCreated,
    SessionExpired,
    SessionStarted,
)
from contextfold.fold.ports.store import Commit, Operation, StaleRevision
from contextfold.stores.nats import log as nats_log
from contextfold.stores.nats.store import NatsStore
from contextfold.stores.nats.wire.connection import NatsConnection, NatsOptions, OutcomeUnknown, check_server
from contextfold.stores.nats.wire.jetstream import JetStream, SequenceConflict, StoredMessage
from contextfold.stores.nats.wire.names import SubjectNames
from contextfold.stores.nats.wire.records import CommitRecord
from tests.contract.sessions import NOON, commit_of, key_of, take, watching
from tests.stores.nats.on_nats import KEY, OnNats, branching, check_published, everything, on_nats
from tests.support.clauses import covers
from tests.support.machine import times
from tests.support.nats_servers import NatsServer

__all__ = ["on_nats"]


# ---- publishing


@covers("store.md#subjects")
def test_a_commit_is_published_for_those_who_watch(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        store = NatsStore(place)
        for commit in branching(KEY):
            await store.commit(commit)
        await store.settle()
        await store.close()
        await check_published(place)

    on_nats(act)


def test_what_one_daemon_left_half_published_another_finishes(on_nats: OnNats) -> None:
    """Only the log is written, as if the writer were killed at that point."""

    async def act(place: NatsOptions) -> None:
        first, *others = branching(KEY)
        writer = NatsStore(place)
        await writer.commit(first)
        await writer.settle()
        for commit in others:
            await writer._logs.commit(commit)
        # Otherwise the helper would end the session, whose idle time is over.
        helper = NatsStore(place, idle_s=1_000_000_000)
        await helper.reach()
        await helper._table.reach()
        await helper._table.wait_for(lambda: not helper._table.behind(), 30)
        assert helper._table.behind() == []
        await check_published(place)
        for store in (writer, helper):
            await store.close()

    on_nats(act)


def test_any_number_of_publishers_at_once_publish_each_thing_once(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        chance = random.Random(1)
        stores = [NatsStore(place) for _ in range(4)]
        for turn in range(times(3, 100)):
            session_id = f"sess_{turn}"
            for commit in branching(KEY, session_id):
                await chance.choice(stores)._logs.commit(commit)
                await asyncio.gather(
                    *(store._publisher.catch_up(KEY) for store in stores if chance.random() < 0.7),
                    return_exceptions=True,
                )
            await stores[0]._publisher.catch_up(KEY)
            await check_published(place, session_id)
            assert await stores[0].expire("2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z") == 1
        for store in stores:
            await store.close()

    on_nats(act)


def test_a_reader_of_the_archive_waits_for_what_another_daemon_committed(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        writer, reader = NatsStore(place), NatsStore(place)
        for commit in branching(KEY):
            await writer._logs.commit(commit)
        found = await reader.trajectory("local", "p1", "br_1", limit=10)
        assert found is not None
        assert [entry.text for entry in found.entries] == ["Look into it.", "ls"]
        assert [summary.summary for summary in await reader.search("local", "found", None, 10)] == ["Found it"]
        for store in (writer, reader):
            await store.close()

    on_nats(act)


def test_what_cannot_be_read_spoils_nothing_else(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        names, store = SubjectNames(place.prefix), NatsStore(place)
        await store.reach()
        bad = key_of("bad")
        for headers in ({}, {"Cf-Session": "s", "Cf-Revision": "x"}, _headers("sess_9", 1)):
            await store._js.put(names.log_of(bad), b"no record", headers=headers)
        async with watching(store, "local", "0") as watch:
            for commit in branching(KEY):
                await store.commit(commit)
            assert [seen.event.n for seen in await take(watch, 5)] == [1, 2, 3, 4, 5]
        with pytest.raises(StoreInvalid):
            await store.load(bad)
        assert [summary.summary for summary in await store.search("local", "found", None, 10)] == ["Found it"]
        assert await store.expire("2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z") == 1
        assert store._helper is not None
        assert not store._helper.done()
        await store.close()

    on_nats(act)


def _headers(session_id: str, revision: int) -> dict[str, str]:
    """The headers of a commit."""
    return {"Cf-Session": session_id, "Cf-Before": "0", "Cf-Revision": str(revision), "Cf-Last-At": NOON}


# ---- committing


def test_a_commit_decided_on_an_old_state_never_gets_in_whatever_is_remembered(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        one, other = NatsStore(place), NatsStore(place)
        await one.commit(commit_of(KEY))
        await other.load(KEY)
        await one.commit(commit_of(KEY, 1))
        with pytest.raises(StaleRevision):
            await other.commit(replace(commit_of(KEY, 1, operation_id="late"), operation=None))
        assert (await other.commit(commit_of(KEY, 0))).repeated
        await other.commit(commit_of(KEY, 2))
        log = await one.load(KEY)
        assert log is not None
        assert [event.n for event in log.events] == [1, 2, 3]
        for store in (one, other):
            await store.close()

    on_nats(act)


def test_an_operation_is_known_again_by_a_daemon_that_has_forgotten_the_session(
    on_nats: OnNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_log, "REMEMBERED_MOST", 1)

    async def act(place: NatsOptions) -> None:
        store = NatsStore(place)
        for revision in range(5):
            await store.commit(commit_of(KEY, revision, operation_id=f"op {revision}"))
        await store.commit(commit_of(key_of("another")))
        again = await store.commit(commit_of(KEY, 5, operation_id="op 2"))
        assert (again.answer, again.repeated) == ("answer of 2", True)
        await store.close()

    on_nats(act)


def test_a_commit_larger_than_a_message_is_kept_whole(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        store = NatsStore(place)
        prompt = "α" * 1_500_000
        created = BranchCreated(2, NOON, "br_1", None, "Look", prompt, 4, 0)
        started = SessionStarted(1, NOON, "sess_1", "/work/project", None)
        await store.commit(
            Commit(KEY, "sess_1", 0, [started, created], None, "", [ArchiveEntry("br_1", 2, NOON, "prompt", prompt)])
        )
        other = NatsStore(place)
        log = await other.load(KEY)
        await other.close()
        assert log is not None
        assert list(log.events) == [started, created]
        found = await store.trajectory("local", "p1", "br_1", limit=1)
        assert found is not None
        assert found.entries[0].text == prompt
        await store.close()

    on_nats(act)


class Behind(JetStream):
    """A server that has just come back and for a while does not have the commits that it is asked for."""

    looks_missed = 0

    async def at(self, stream: str, seq: int) -> StoredMessage | None:
        self.looks_missed -= stream.endswith("_log")
        return None if self.looks_missed >= 0 else await super().at(stream, seq)


@pytest.mark.parametrize("looks_missed", [1, 100])
def test_an_operation_is_done_once_though_its_commit_cannot_be_read(on_nats: OnNats, looks_missed: int) -> None:
    async def act(place: NatsOptions) -> None:
        store = NatsStore(place)
        await store.commit(commit_of(KEY))
        again = replace(commit_of(KEY, 1, answer="once"), operation=Operation("op", "same"))
        await store.commit(again)
        wire = store._js
        wire.__class__ = Behind
        assert isinstance(wire, Behind)
        wire.looks_missed = looks_missed
        sent_again = replace(commit_of(KEY, 2), operation=again.operation)
        for asked in (store.receipt(KEY, "op"), store.commit(sent_again)):
            try:
                told = await asked
            except StoreUnavailable:
                assert looks_missed > 1
            else:
                assert told is not None
                assert (looks_missed, told.answer) == (1, "once")
        log = await store.load(KEY)
        assert log is not None
        assert [event.n for event in log.events] == [1, 2]
        await store.close()

    on_nats(act)


class Straggling(JetStream):
    """Delays one message: it counts as unanswered, and is stored right after a read that misses it."""

    late: tuple[Any, Any] | None = None
    looks_before = 0
    # After the message has landed, this many answers still come from a server that does not know the log.
    looks_in_vain = 0

    async def put(self, *given: Any, **options: Any) -> int:
        if self.late is None and options.get("headers", {}).get("Cf-Before") == "1":
            self.late = given, options
            raise OutcomeUnknown("late")
        return await super().put(*given, **options)

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        found = await super().last(stream, subject)
        if self.late and stream.endswith("_log"):
            self.looks_before -= 1
            if self.looks_before == -1:
                with contextlib.suppress(SequenceConflict):
                    # The message was sent again in the meantime and is already stored.
                    await super().put(*self.late[0], **self.late[1])
            if self.looks_before < 0 < self.looks_in_vain:
                self.looks_in_vain -= 1
                return None
        return found


@pytest.mark.parametrize(("looks_before", "looks_in_vain"), [(0, 0), (1, 0), (2, 0), (0, 1), (1, 3)])
def test_a_commit_that_lands_late_is_known_for_our_own(on_nats: OnNats, looks_before: int, looks_in_vain: int) -> None:
    """This holds without an operation id too: after a conflict error, the caller would do it a second time."""

    async def act(place: NatsOptions) -> None:
        store = NatsStore(place)
        wire = store._js
        wire.__class__ = Straggling
        assert isinstance(wire, Straggling)
        wire.looks_before, wire.looks_in_vain = looks_before, looks_in_vain
        await store.commit(commit_of(KEY))
        told = await store.commit(replace(commit_of(KEY, 1, answer="once"), operation=None))
        assert (told.answer, told.repeated) == ("once", False)
        wire.looks_in_vain = 0
        await store.commit(commit_of(KEY, 2))
        log = await store.load(KEY)
        assert log is not None
        assert [event.n for event in log.events] == [1, 2, 3]
        await store.close()

    on_nats(act)


# ---- the end


def test_a_session_whose_ender_was_killed_in_the_middle_stays_ended(on_nats: OnNats) -> None:
    later = ["2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z", "2026-01-04T00:00:00Z"]

    async def act(place: NatsOptions) -> None:
        ender, other = NatsStore(place), NatsStore(place)
        for commit in branching(KEY):
            await ender.commit(commit)
        await ender.settle()
        end = CommitRecord("sess_1", 5, [SessionExpired(6, later[0], "sess_1")], {})
        done = await ender._logs.append(KEY, end)
        stored = await ender._js.at(SubjectNames(place.prefix).log, done.seq)
        assert stored is not None
        # The process is killed after this step.
        await ender._expiry._keep_only_the_archive(KEY, "sess_1", stored)
        for now in later:
            assert await other.expire(now, now) == 0
            assert await other.load(KEY) is None
            assert await other.count() == 0
        assert await everything(place, SubjectNames(place.prefix).log, ">") == []
        await other.commit(branching(KEY, "sess_2")[0])
        for store in (ender, other):
            await store.close()

    on_nats(act)


def test_what_is_past_its_time_is_found_by_no_daemon(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        stores = [NatsStore(place), NatsStore(place)]
        for commit in branching(KEY):
            await stores[0].commit(commit)
        for store in stores:
            assert await store.search("local", "found", None, 10)
        await stores[0].expire("2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z")
        for store in stores:
            await store.retain("2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z")
            assert await store.search("local", "found", None, 10) == []
            await store.close()

    on_nats(act)


# ---- what is refused


@pytest.mark.parametrize("version", ["2.9.10", "<nats server v2.11.99>", "2.2", "", "dev"])
def test_a_server_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(StoreInvalid, match=r"2\.12 or later"):
        check_server(version)


@pytest.mark.parametrize("version", ["2.12.0", "<nats server v2.15.1>", "3.0.0-beta.1"])
def test_a_server_that_is_new_enough_is_taken(version: str) -> None:
    check_server(version)


async def _made(place: NatsOptions, stream: str, **config: object) -> None:
    async def make(wire: JetStream) -> None:
        await wire.request_once(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{stream}.>"], **config})

    wire = JetStream(place, make)
    await wire.open()
    await wire.close()


def test_a_stream_of_somebody_elses_is_not_touched(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        await _made(place, f"{place.prefix}_log")
        store = NatsStore(place)
        with pytest.raises(StoreInvalid, match="another --nats-prefix"):
            await store.reach()
        await store.close()

    on_nats(act)


def test_sessions_of_a_newer_version_are_refused(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        await _made(place, f"{place.prefix}_log", metadata={"contextfold.format": "2"})
        store = NatsStore(place)
        with pytest.raises(StoreInvalid, match="newer version"):
            await store.reach()
        await store.close()

    on_nats(act)


def test_whoever_only_looks_makes_no_streams(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        for _ in range(2):
            store = NatsStore(place, may_make=False)
            with pytest.raises(StoreInvalid, match="no stream"):
                await store.load(KEY)
            await store.close()

    on_nats(act)


def test_more_replicas_than_servers_are_refused(on_nats: OnNats) -> None:
    async def act(place: NatsOptions) -> None:
        store = NatsStore(replace(place, replicas=3))
        with pytest.raises(StoreInvalid, match="replicas"):
            await store.reach()
        await store.close()

    on_nats(act)


def test_a_server_without_jetstream_is_refused(tmp_path: Path) -> None:
    async def act() -> None:
        with NatsServer(tmp_path, config="jetstream: disabled") as server:
            store = NatsStore(NatsOptions((server.url,)))
            with pytest.raises(StoreInvalid, match="no JetStream"):
                await store.reach()
            await store.close()

    asyncio.run(act())


def test_tls_that_was_asked_for_is_not_done_without(nats_server: NatsServer) -> None:
    async def nothing() -> None:
        pytest.fail("connected")

    async def act() -> None:
        link = NatsConnection(NatsOptions((nats_server.url.replace("nats://", "tls://"),)), nothing)
        with pytest.raises(StoreInvalid, match="TLS"):
            await link.open()
        await link.close()

    asyncio.run(act())


def test_nobody_there_is_told_soon(tmp_path: Path) -> None:
    async def act() -> None:
        with NatsServer(tmp_path) as server:
            url = server.url
        store = NatsStore(NatsOptions((url,)))
        with pytest.raises(StoreUnavailable):
            await store.load(KEY)
        await store.close()

    asyncio.run(act())
