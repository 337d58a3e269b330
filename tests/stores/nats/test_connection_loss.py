"""While NATS is unavailable, calls fail soon with a reason; no acknowledged call is lost or done twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from contextfold.errors import StoreUnavailable
from contextfold.fold.events import RequestSent
from contextfold.serve.mcp.fold_tools import META_OPERATION
from contextfold.settings import NatsOptions
from contextfold.stores.nats import connection, jetstream
from contextfold.stores.nats.store import NatsStore
from tests.contract.sessions import commit_of, key_of
from tests.serve.reporting import HookedAgent
from tests.stores.nats.history_checker import Attempt, History, effect_of, excerpt, violations
from tests.stores.nats.lossy_proxy import Loss, LossyProxy
from tests.stores.nats.readiness import SOON_S, is_ready, status
from tests.stores.nats.subjects import published
from tests.stores.nats.watchers import Watcher, logs_through
from tests.support.daemon import Daemon, Http, HttpAgent, Refused, read_log
from tests.support.machine import times
from tests.support.nats_servers import NatsServer, random_prefix
from tests.support.upstream import Upstream
from tests.support.waiting import POLL_INTERVAL_S, WAIT_TIMEOUT_S, until

PROJECT = "/away"
OUTAGE_S = 0.3
# The second of many writers pauses this long between two commits; those after it pause longer.
PAUSE_S = 0.002
NEVER_S = 1e6
# What docs/nats.md promises for calls while the connection is known to be lost.
KNOWN_LOST_MAX_S = 1.0
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

    def record(self, text: str, *, has_operation_id: bool = True) -> None:
        meta = {META_OPERATION: text} if has_operation_id else None
        self._agent.call("context_record", meta, project_path=PROJECT, type=text, content="c")
        self.acknowledged.append(text)

    def record_until_acknowledged(self, text: str) -> None:
        """Repeats a call, because just after a cut the daemon reports readiness for a moment longer."""
        until(lambda: self._is_acknowledged(text))

    def _is_acknowledged(self, text: str) -> bool:
        with suppress(Refused):
            self.record(text)
        return self.acknowledged[-1:] == [text]

    def record_refused(self, text: str) -> Refused:
        with pytest.raises(Refused) as refusal:
            self.record(text)
        return refusal.value

    def close(self) -> None:
        self._agent.close()


def recorded_operations(daemon: Daemon) -> list[str]:
    """The operations in the logs, in order."""
    return [effect[1] for log in logs_through(daemon).values() for event in log if (effect := effect_of(event))]


OUTAGES: dict[str, tuple[Callable[[NatsServer], None], Callable[[NatsServer], None]]] = {
    "stopped": (NatsServer.stop, NatsServer.start),
    "killed": (NatsServer.kill, NatsServer.start),
    "paused": (NatsServer.pause, NatsServer.resume),
}


@pytest.mark.parametrize("outage", OUTAGES)
def test_calls_fail_soon_during_an_outage_and_succeed_after_it(server: NatsServer, tmp_path: Path, outage: str) -> None:
    take_away, bring_back = OUTAGES[outage]
    daemon = Daemon(tmp_path / "daemon", "--nats-prefix", random_prefix(), store=server.url)
    watcher = Watcher("watcher", 1, [daemon])
    agent = Agent(daemon)
    try:
        agent.record("first")
        watcher.start()
        take_away(server)
        refusal = agent.record_refused("second")
        assert (refusal.code, refusal.message) == (-32603, "State store is unavailable")
        assert refusal.data["retry"] is True
        until(lambda: not is_ready(daemon))
        assert status(daemon, "/readyz") == (503, "store_unavailable: the state store does not take commits\n")
        assert status(daemon, "/healthz") == (200, "ok\n")
        agent.record_refused("third")
        bring_back(server)
        until(lambda: is_ready(daemon))
        for text in ("second", "third", "fourth"):
            agent.record(text)
        assert sorted(recorded_operations(daemon)) == sorted(agent.acknowledged)
        logs = logs_through(daemon)
        watcher.finish({session_id: len(log) for session_id, log in logs.items()})
        history = History([], {"daemon": logs}, {"watcher": watcher.connections})
        # The history has no attempts, because the test itself checks the acknowledged calls above.
        sentences = [text for text in violations(history) if "no call asked for it" not in text]
        assert not sentences + watcher.failures, excerpt(history, sentences)
    finally:
        watcher.give_up()
        agent.close()
        daemon.kill()


def test_a_call_fails_without_waiting_when_the_connection_is_known_to_be_lost(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first connection has a long grace period. Here it is endless, so a call that waits for it would hang."""

    async def act() -> None:
        store = NatsStore(NatsOptions((server.url,), random_prefix()))
        try:
            await store.commit(commit_of(key_of()))
            await asyncio.to_thread(server.kill)
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                for call in (store.load(key_of()), store.commit(commit_of(key_of(), 1)), store.check()):
                    with pytest.raises(StoreUnavailable):
                        await call
            # The grace period belongs to the loss and not to each call, so queued calls do not add up their waits.
            async with asyncio.timeout(CALLS_IN_A_ROW / 2 * connection.LOST_GRACE_S):
                for _ in range(CALLS_IN_A_ROW):
                    with pytest.raises(StoreUnavailable):
                        await store.load(key_of())
        finally:
            await store.close()

    monkeypatch.setattr(connection, "FIRST_GRACE_S", NEVER_S)
    assert connection.LOST_GRACE_S + jetstream.RETRY_S < KNOWN_LOST_MAX_S
    asyncio.run(act())


@pytest.mark.parametrize("outage", OUTAGES)
async def test_a_store_with_much_unsent_data_recovers_from_each_outage(server: NatsServer, outage: str) -> None:
    """Unsent data of a connection must not prevent the store from giving the connection up."""
    take_away, bring_back = OUTAGES[outage]
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
                await asyncio.sleep(POLL_INTERVAL_S)
            # Commits of other workers are on their way meanwhile.
            await asyncio.sleep(worker * PAUSE_S)

    workers = [asyncio.ensure_future(work(number)) for number in range(16)]
    try:
        for _ in range(times(2, 50)):
            await asyncio.sleep(OUTAGE_S)
            take_away(server)
            await asyncio.sleep(OUTAGE_S)
            bring_back(server)
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                while not await _is_available(store):
                    await asyncio.sleep(POLL_INTERVAL_S)
    finally:
        stopping.set()
        await asyncio.gather(*workers)
        await store.close()


async def _is_available(store: NatsStore) -> bool:
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
        assert agent.record_refused("early").message == "State store is unavailable"
        server.start()
        until(lambda: is_ready(daemon))
        agent.record("late")
        assert recorded_operations(daemon) == ["late"]
    finally:
        agent.close()
        assert daemon.stop() == 0
    lines = read_log(daemon.log)
    changes = [line for line in lines if line["event"].startswith("store.")]
    assert [line["event"] for line in changes[:2]] == ["store.away", "store.connected"]
    assert changes[0]["reason"]


def test_a_proxied_request_during_an_outage_passes_and_its_receipt_and_ledger_say_so(
    server: NatsServer, tmp_path: Path
) -> None:
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "go"}]}).encode()
    headers = {"content-type": "application/json", "x-api-key": "k", "anthropic-version": "2023-06-01"}
    headers["x-context-project"] = "/work/away"
    prefix = ("--nats-prefix", random_prefix())
    with Upstream() as upstream, Daemon(tmp_path / "d", *prefix, *upstream.argv(), store=server.url) as daemon:
        until(lambda: is_ready(daemon))
        with Http(daemon.port) as http:

            def ask() -> object:
                reply = http.ask("POST", "/proxy/anthropic/v1/messages", body, headers)
                assert reply.status == 200
                return json.loads(reply.headers["x-context-fold"])["reason"]

            server.kill()
            assert ask() == "store_unavailable"
            server.start()
            # A busy server may be ready and still answer a read too late.
            until(lambda: ask() is None)

        def reasons() -> list[str]:
            logs = logs_through(daemon).values()
            return [event.reason for log in logs for event in log if isinstance(event, RequestSent)]

        until(lambda: "" in reasons())
        assert set(reasons()) == {"", "store_unavailable"}


def test_a_daemon_can_be_stopped_during_an_outage(server: NatsServer, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "daemon", "--nats-prefix", random_prefix(), store=server.url)
    agent = Agent(daemon)
    agent.record("first")
    agent.close()
    server.kill()
    assert daemon.stop() == 0


@pytest.mark.parametrize("loss", ["answer", "request"])
def test_a_commit_is_done_once_when_its_request_or_its_answer_is_lost(
    server: NatsServer, tmp_path: Path, loss: Loss
) -> None:
    prefix = random_prefix()
    with LossyProxy(server.port) as proxy:
        daemon = Daemon(tmp_path / "daemon", "--nats-prefix", prefix, store=proxy.url)
        agent = Agent(daemon)
        done: list[str] = []
        try:
            for turn in range(times(2, 200)):
                agent.record_until_acknowledged(f"calm {turn}")
                proxy.lose(loss, f"{prefix}_log")
                has_operation_id = turn % 2 == 0
                with suppress(Refused):
                    # The store could not find the commit again in time.
                    agent.record(f"lost {turn}", has_operation_id=has_operation_id)
                assert proxy.lost.wait(SOON_S)
                until(lambda: is_ready(daemon))
                if agent.acknowledged[-1] != f"lost {turn}" and has_operation_id:
                    agent.record_until_acknowledged(f"lost {turn}")
                done.append(f"calm {turn}")
                if agent.acknowledged[-1] == f"lost {turn}" or f"lost {turn}" in recorded_operations(daemon):
                    done.append(f"lost {turn}")
            assert recorded_operations(daemon) == done
            assert set(agent.acknowledged) <= set(done)
        finally:
            agent.close()
            assert daemon.stop() == 0


def test_another_daemon_finishes_publishing_after_one_is_killed(server: NatsServer, tmp_path: Path) -> None:
    prefix = random_prefix()
    with LossyProxy(server.port) as proxy:
        dying = Daemon(tmp_path / "dying", "--nats-prefix", prefix, store=proxy.url)
        other = Daemon(tmp_path / "other", "--nats-prefix", prefix, store=server.url)
        agent = Agent(dying)
        try:
            agent.record("first")
            until(lambda: _revisions(server, prefix) == [2])
            proxy.lose("request", prefix, for_good=True)
            # The commit is stored, but what would be published from it is lost.
            agent.record("second")
            assert proxy.lost.wait(SOON_S)
            dying.kill()
            (log,) = logs_through(other).values()
            until(lambda: _revisions(server, prefix) == [len(log)])
            sentences = asyncio.run(published(server.url, prefix))
            attempts = [
                Attempt(PROJECT, text, ("operation.completed", text), 0, 0, "unknown") for text in ("first", "second")
            ]
            history = History(attempts, {"other": logs_through(other)}, {}, sentences)
            assert not violations(history), excerpt(history, violations(history))
        finally:
            agent.close()
            if dying.process.poll() is None:
                dying.kill()
            assert other.stop() == 0


def _revisions(server: NatsServer, prefix: str) -> list[int]:
    """The published revision of each session."""
    sentences = asyncio.run(published(server.url, prefix)).values()
    return [each.session_state["revision"] for each in sentences if each.session_state]


def test_hook_reports_during_an_outage_are_recorded_once_after_it(server: NatsServer, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "daemon", "--nats-prefix", random_prefix(), store=server.url)
    agent = HookedAgent(daemon, PROJECT)
    try:
        assert agent.uses("Before").status == 200
        until(lambda: recorded_operations(daemon) == ["Before"])
        server.kill()
        for number in range(5):
            assert agent.uses(f"During {number}").status == 200
        server.start()
        until(lambda: is_ready(daemon))
        assert agent.uses("After").status == 200
        until(lambda: "After" in recorded_operations(daemon))
        assert recorded_operations(daemon) == ["Before", *(f"During {number}" for number in range(5)), "After"]
    finally:
        agent.close()
        daemon.kill()
