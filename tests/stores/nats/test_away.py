"""NATS goes away and comes back: calls fail soon with a reason, and nothing acknowledged is lost or done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from contextfold.errors import StoreUnavailable
from contextfold.serve.mcp.fold_tools import META_OPERATION
from contextfold.stores.nats import log
from contextfold.stores.nats.store import NatsStore
from contextfold.stores.nats.wire import connection
from contextfold.stores.nats.wire.connection import NatsOptions
from tests.contract.sessions import commit_of, key_of
from tests.serve.reporting import HookedAgent
from tests.stores.nats.history import Account, Try, effect_of, excerpt, violations
from tests.stores.nats.proxy import Loss, Proxy
from tests.stores.nats.readiness import SOON_S, is_ready, status
from tests.stores.nats.subjects import published
from tests.stores.nats.watchers import Watcher, logs_through
from tests.support.clauses import covers
from tests.support.daemon import Daemon, HttpAgent, Refused
from tests.support.machine import times
from tests.support.nats_servers import NatsServer, random_prefix
from tests.support.waiting import ASKED_EVERY_S, PATIENCE_S, until

PROJECT = "/away"
AWAY_S = 0.3
# Between two commits of the second of many writers; those after it pause longer.
PAUSE_S = 0.002
NEVER_S = 1e6
# What docs/nats.md promises for calls while the connection is known to be lost.
KNOWN_LOST_MOST_S = 0.25
CALLS_IN_A_ROW = 40


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats") as running:
        yield running


class Agent:
    """Gives its operations ids, and records which of them were acknowledged."""

    def __init__(self, daemon: Daemon) -> None:
        self._agent = HttpAgent(daemon.port)
        self._agent.http.within(SOON_S)
        self.acknowledged: list[str] = []

    def records(self, text: str, *, is_numbered: bool = True) -> None:
        meta = {META_OPERATION: text} if is_numbered else None
        self._agent.call("context_record", meta, project_path=PROJECT, type=text, content="c")
        self.acknowledged.append(text)

    def insists(self, text: str) -> None:
        """Repeats a call, because just after a cut the daemon reports readiness for a moment longer."""
        until(lambda: self._is_taken(text))

    def _is_taken(self, text: str) -> bool:
        with suppress(Refused):
            self.records(text)
        return self.acknowledged[-1:] == [text]

    def is_refused(self, text: str) -> Refused:
        with pytest.raises(Refused) as refusal:
            self.records(text)
        return refusal.value

    def close(self) -> None:
        self._agent.close()


def recorded(daemon: Daemon) -> list[str]:
    """The operations in the logs, in order."""
    return [effect[1] for log in logs_through(daemon).values() for event in log if (effect := effect_of(event))]


GOING: dict[str, tuple[Callable[[NatsServer], None], Callable[[NatsServer], None]]] = {
    "stopped": (NatsServer.stop, NatsServer.start),
    "killed": (NatsServer.kill, NatsServer.start),
    "paused": (NatsServer.pause, NatsServer.resume),
}


@covers("store.md#connection-loss")
@pytest.mark.parametrize("how", GOING)
def test_while_nats_is_away_calls_fail_soon_and_afterwards_all_goes_on(
    server: NatsServer, tmp_path: Path, how: str
) -> None:
    go, come = GOING[how]
    daemon = Daemon(tmp_path / "daemon", "--nats-prefix", random_prefix(), store=server.url)
    watcher = Watcher("watcher", 1, [daemon])
    agent = Agent(daemon)
    try:
        agent.records("first")
        watcher.start()
        go(server)
        refusal = agent.is_refused("second")
        assert (refusal.code, refusal.message) == (-32603, "State store is unavailable")
        assert refusal.data["retry"] is True
        until(lambda: not is_ready(daemon))
        assert status(daemon, "/readyz") == (503, "store_unavailable: the state store does not take commits\n")
        assert status(daemon, "/healthz") == (200, "ok\n")
        agent.is_refused("third")
        come(server)
        until(lambda: is_ready(daemon))
        for text in ("second", "third", "fourth"):
            agent.records(text)
        assert sorted(recorded(daemon)) == sorted(agent.acknowledged)
        logs = logs_through(daemon)
        watcher.finish({session_id: len(log) for session_id, log in logs.items()})
        account = Account([], {"daemon": logs}, {"watcher": watcher.connections})
        # The account has no tries, because the test checks the acknowledged calls itself above.
        found = [text for text in violations(account) if "nobody asked for it" not in text]
        assert not found + watcher.broken, excerpt(account, found)
    finally:
        watcher.give_up()
        agent.close()
        daemon.kill()


def test_a_call_fails_without_waiting_when_the_connection_is_known_to_be_lost(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first connection has a long grace period: here it is endless, so that a call that waited would hang."""

    async def act() -> None:
        store = NatsStore(NatsOptions((server.url,), random_prefix()))
        try:
            await store.commit(commit_of(key_of()))
            await asyncio.to_thread(server.kill)
            async with asyncio.timeout(PATIENCE_S):
                for call in (store.load(key_of()), store.commit(commit_of(key_of(), 1)), store.check()):
                    with pytest.raises(StoreUnavailable):
                        await call
            # The grace is that of the loss and not of each call: calls that queue do not wait one after another.
            async with asyncio.timeout(CALLS_IN_A_ROW / 2 * connection.LOST_GRACE_S):
                for _ in range(CALLS_IN_A_ROW):
                    with pytest.raises(StoreUnavailable):
                        await store.load(key_of())
        finally:
            await store.close()

    monkeypatch.setattr(connection, "GRACE_S", NEVER_S)
    assert connection.LOST_GRACE_S + log.RETRY_S < KNOWN_LOST_MOST_S
    asyncio.run(act())


@pytest.mark.parametrize("how", GOING)
def test_a_store_with_much_on_its_way_comes_back_each_time(server: NatsServer, how: str) -> None:
    """Unsent data of a connection must not prevent the store from giving the connection up."""
    go, come = GOING[how]

    async def act() -> None:
        store = NatsStore(NatsOptions(servers=(server.url,), prefix=random_prefix()))
        stopping = asyncio.Event()

        async def work(worker: int) -> None:
            key, revision = key_of(f"p{worker}"), 0
            while not stopping.is_set():
                try:
                    log = await store.load(key)
                    revision = len(log.events) if log else 0
                    await store.commit(commit_of(key, revision, session_id=f"sess_{worker}", answer="x" * 50_000))
                except StoreUnavailable:
                    await asyncio.sleep(ASKED_EVERY_S)
                # Others are on their way meanwhile.
                await asyncio.sleep(worker * PAUSE_S)

        workers = [asyncio.ensure_future(work(number)) for number in range(16)]
        try:
            for _ in range(times(2, 50)):
                await asyncio.sleep(AWAY_S)
                go(server)
                await asyncio.sleep(AWAY_S)
                come(server)
                async with asyncio.timeout(PATIENCE_S):
                    while not await _is_there(store):
                        await asyncio.sleep(ASKED_EVERY_S)
        finally:
            stopping.set()
            await asyncio.gather(*workers)
            await store.close()

    asyncio.run(act())


async def _is_there(store: NatsStore) -> bool:
    try:
        await store.check()
    except StoreUnavailable:
        return False
    return True


def test_a_daemon_that_starts_before_nats_waits_for_it(server: NatsServer, tmp_path: Path) -> None:
    server.stop()
    daemon = Daemon(tmp_path / "daemon", "--nats-prefix", random_prefix(), store=server.url)
    agent = Agent(daemon)
    try:
        assert status(daemon, "/healthz") == (200, "ok\n")
        assert not is_ready(daemon)
        assert agent.is_refused("early").message == "State store is unavailable"
        server.start()
        until(lambda: is_ready(daemon))
        agent.records("late")
        assert recorded(daemon) == ["late"]
    finally:
        agent.close()
        assert daemon.stop() == 0


def test_a_daemon_can_be_stopped_while_nats_is_away(server: NatsServer, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "daemon", "--nats-prefix", random_prefix(), store=server.url)
    agent = Agent(daemon)
    agent.records("first")
    agent.close()
    server.kill()
    assert daemon.stop() == 0


@covers("store.md#connection-loss")
@pytest.mark.parametrize("what", ["answer", "request"])
def test_a_commit_is_done_once_though_its_answer_or_itself_was_lost(
    server: NatsServer, tmp_path: Path, what: Loss
) -> None:
    prefix = random_prefix()
    with Proxy(server.port) as proxy:
        daemon = Daemon(tmp_path / "daemon", "--nats-prefix", prefix, store=proxy.url)
        agent = Agent(daemon)
        done: list[str] = []
        try:
            for turn in range(times(2, 200)):
                agent.insists(f"calm {turn}")
                proxy.lose(what, f"{prefix}_log")
                is_numbered = turn % 2 == 0
                with suppress(Refused):
                    # The store could not find the commit again in time.
                    agent.records(f"lost {turn}", is_numbered=is_numbered)
                assert proxy.lost.wait(SOON_S)
                until(lambda: is_ready(daemon))
                if agent.acknowledged[-1] != f"lost {turn}" and is_numbered:
                    agent.insists(f"lost {turn}")
                done.append(f"calm {turn}")
                if agent.acknowledged[-1] == f"lost {turn}" or f"lost {turn}" in recorded(daemon):
                    done.append(f"lost {turn}")
            assert recorded(daemon) == done
            assert set(agent.acknowledged) <= set(done)
        finally:
            agent.close()
            assert daemon.stop() == 0


def test_what_a_daemon_left_half_published_another_finishes(server: NatsServer, tmp_path: Path) -> None:
    prefix = random_prefix()
    with Proxy(server.port) as proxy:
        dying = Daemon(tmp_path / "dying", "--nats-prefix", prefix, store=proxy.url)
        other = Daemon(tmp_path / "other", "--nats-prefix", prefix, store=server.url)
        agent = Agent(dying)
        try:
            agent.records("first")
            until(lambda: _revisions(server, prefix) == [2])
            proxy.lose("request", prefix, for_good=True)
            # The commit is stored, but what would be published from it is lost.
            agent.records("second")
            assert proxy.lost.wait(SOON_S)
            dying.kill()
            (log,) = logs_through(other).values()
            until(lambda: _revisions(server, prefix) == [len(log)])
            found = asyncio.run(published(server.url, prefix))
            tries = [Try(PROJECT, text, ("operation.completed", text), 0, 0, "unknown") for text in ("first", "second")]
            account = Account(tries, {"other": logs_through(other)}, {}, found)
            assert not violations(account), excerpt(account, violations(account))
        finally:
            agent.close()
            if dying.process.poll() is None:
                dying.kill()
            assert other.stop() == 0


def _revisions(server: NatsServer, prefix: str) -> list[int]:
    """The published revision of each session."""
    found = asyncio.run(published(server.url, prefix)).values()
    return [each.session_state["revision"] for each in found if each.session_state]


def test_what_hosts_report_while_nats_is_away_is_written_once_when_it_is_back(
    server: NatsServer, tmp_path: Path
) -> None:
    daemon = Daemon(tmp_path / "daemon", "--nats-prefix", random_prefix(), store=server.url)
    agent = HookedAgent(daemon, PROJECT)
    try:
        assert agent.uses("Before").status == 200
        until(lambda: recorded(daemon) == ["Before"])
        server.kill()
        for number in range(5):
            assert agent.uses(f"During {number}").status == 200
        server.start()
        until(lambda: is_ready(daemon))
        assert agent.uses("After").status == 200
        until(lambda: "After" in recorded(daemon))
        assert recorded(daemon) == ["Before", *(f"During {number}" for number in range(5)), "After"]
    finally:
        agent.close()
        daemon.kill()
