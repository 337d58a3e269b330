"""NATS goes away and comes back: calls fail soon and say why, nothing acknowledged is lost or done twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from contextfold.serve.fold_tools import META_OPERATION
from daemon import Daemon, HttpAgent, Refused
from jetstream.history import Account, effect_of, excerpt, violations
from jetstream.proxy import Loss, Proxy
from jetstream.waiting import SOON_S, is_ready, status, until
from jetstream.watchers import Watcher, logs_through
from machine import times
from nats_servers import NatsServer, random_prefix

PROJECT = "/away"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats") as running:
        yield running


class Agent:
    """Numbers its operations, and tells what it was answered."""

    def __init__(self, daemon: Daemon) -> None:
        self._agent = HttpAgent(daemon.port)
        self._agent.http.within(SOON_S)
        self.acknowledged: list[str] = []

    def records(self, text: str) -> None:
        self._agent.call("context_record", {META_OPERATION: text}, project_path=PROJECT, type=text, content="c")
        self.acknowledged.append(text)

    def is_refused(self, text: str) -> Refused:
        with pytest.raises(Refused) as refusal:
            self.records(text)
        return refusal.value

    def close(self) -> None:
        self._agent.close()


def recorded(daemon: Daemon) -> list[str]:
    """What stands in the log, in order."""
    (log,) = logs_through(daemon).values()
    return [effect[1] for event in log if (effect := effect_of(event))]


GOING: dict[str, tuple[Callable[[NatsServer], None], Callable[[NatsServer], None]]] = {
    "stopped": (NatsServer.stop, NatsServer.start),
    "killed": (NatsServer.kill, NatsServer.start),
    "paused": (NatsServer.pause, NatsServer.resume),
}


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
        found = [text for text in violations(account) if "nobody asked for it" not in text]  # the tries are above
        assert not found + watcher.broken, excerpt(account, found)
    finally:
        watcher.give_up()
        agent.close()
        daemon.kill()


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
            for turn in range(times(4, 200)):
                agent.records(f"calm {turn}")
                proxy.lose(what, f"{prefix}_log")
                with suppress(Refused):  # it was not found again in time
                    agent.records(f"lost {turn}")
                assert proxy.lost.wait(SOON_S)
                until(lambda: is_ready(daemon))
                if agent.acknowledged[-1] != f"lost {turn}":
                    agent.records(f"lost {turn}")
                done += [f"calm {turn}", f"lost {turn}"]
            assert recorded(daemon) == done == agent.acknowledged
        finally:
            agent.close()
            assert daemon.stop() == 0
