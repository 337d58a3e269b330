"""Three servers, three daemons and many agents, while servers and daemons are killed, paused and restarted.

The history checker compares what agents and watchers received with what is stored.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.stores.nats.agents import Agent, CallRecorder, Session
from tests.stores.nats.fault_injection import FaultInjector, Servers, daemons
from tests.stores.nats.history_checker import History, Logs, Published, excerpt, violations
from tests.stores.nats.lossy_proxy import LossyProxy
from tests.stores.nats.readiness import is_ready
from tests.stores.nats.routes import Routes
from tests.stores.nats.subjects import published_up_to, stored_logs
from tests.stores.nats.watchers import Watcher, logs_through, wrong_views
from tests.support.daemon import Daemon, HttpAgent
from tests.support.machine import times
from tests.support.nats_servers import NatsCluster, NatsServer
from tests.support.waiting import until

SESSIONS = times(9, 50)
AGENTS, WATCHERS, DAEMONS = times(3, 12), times(1, 2), 3
SEED = os.environ.get("CONTEXTFOLD_SEED") or (str(random.SystemRandom().getrandbits(32)) if times(0, 1) else "1")


class FaultRun:
    """All participants of a test, from the first call to the final check."""

    def __init__(self, folder: Path, store: str, servers: Servers | None, *argv: str, faults: int) -> None:
        self._folder, self._store, self._argv, self._servers, self._faults = folder, store, argv, servers, faults
        self.recorder = CallRecorder()

    def run(self) -> None:
        """Lets agents work during faults, then checks the result."""
        with daemons(self._folder, DAEMONS, self._store, *self._argv) as fleet:
            sessions = [Session(f"/cluster/{number}") for number in range(SESSIONS)]
            agents = [Agent(f"agent {number}", SEED, fleet, sessions, self.recorder) for number in range(AGENTS)]
            watchers = [Watcher(f"watcher {number}", SEED, fleet) for number in range(WATCHERS)]
            injector = FaultInjector(random.Random(SEED), self.recorder, fleet, self._servers)
            for thread in (*watchers, *agents):
                thread.start()
            try:
                injector.inject(self._chosen_faults(injector))
                self._finish(agents)
                history = self._history(fleet, watchers)
                wrong = [text for daemon in fleet for text in wrong_views(daemon, history.logs[daemon.url])]
            finally:
                self._finish(agents)
                for watcher in watchers:
                    watcher.give_up()
        faults = [
            *violations(history),
            *wrong,
            *self.recorder.failures,
            *(text for watcher in watchers for text in watcher.failures),
        ]
        assert not faults, self._report(history, faults, injector)
        # `pytest -rP` shows this, for a table of faults.
        print(injector.summary(), f"{self._acknowledged()} calls acknowledged, 0 lost, 0 doubled", f"seed {SEED}")

    def _acknowledged(self) -> int:
        return sum(attempt.outcome == "acknowledged" for attempt in self.recorder.attempts)

    def _history(self, fleet: list[Daemon], watchers: list[Watcher]) -> History:
        """The history of the run, with what every reader reports at the end."""
        logs: dict[str, Logs] = {daemon.url: logs_through(daemon) for daemon in fleet}
        wanted = {name: len(log) for name, log in next(iter(logs.values())).items()}
        committed: dict[str, list[str]] = {}
        published: dict[str, Published] | None = None
        if self._servers:
            urls, prefix = self._servers.urls, self._servers.prefix
            logs["nats"], committed = asyncio.run(stored_logs(urls, prefix))
            published = asyncio.run(published_up_to(urls, prefix, wanted))
        for watcher in watchers:
            watcher.finish(wanted)
        connections = {watcher.name: watcher.connections for watcher in watchers}
        return History(self.recorder.attempts, logs, connections, published, committed)

    def _chosen_faults(self, injector: FaultInjector) -> list[Callable[[], None]]:
        """Each kind of fault at least once, both in the short run and in the long one."""
        rng = random.Random(f"faults {SEED}")
        first = injector.faults[: self._faults]
        return first + rng.choices(injector.faults, k=self._faults - len(first))

    def _finish(self, agents: list[Agent]) -> None:
        for agent in agents:
            agent.stopping.set()
        for agent in agents:
            agent.join()

    def _report(self, history: History, faults: list[str], injector: FaultInjector) -> str:
        return "\n".join(
            [excerpt(history, faults), "", f"seed {SEED}", *injector.injected, f"logs are in {self._folder}"]
        )


def test_no_call_is_lost_repeated_or_reordered_when_daemons_on_one_file_fail(tmp_path: Path) -> None:
    """The same test on a file, which shows whether a failure on NATS comes from the test itself."""
    FaultRun(tmp_path, str(tmp_path / "state.db"), None, faults=times(2, 20)).run()


def test_no_call_is_lost_repeated_or_reordered_when_servers_and_daemons_fail(tmp_path: Path) -> None:
    with Routes() as routes, NatsCluster(tmp_path / "nats", route_ports=routes.route_ports) as cluster:
        argv = ("--nats-prefix", "cluster", "--nats-replicas", "3")
        servers = Servers(cluster.servers, "cluster", routes)
        FaultRun(tmp_path, ",".join(cluster.urls), servers, *argv, faults=times(5, 60)).run()


def test_no_call_is_lost_repeated_or_reordered_when_the_only_server_and_daemons_fail(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats") as server:
        FaultRun(tmp_path, server.url, Servers([server], "alone"), "--nats-prefix", "alone", faults=times(1, 20)).run()


def test_a_daemon_changes_to_another_server_when_its_server_is_cut_off(tmp_path: Path) -> None:
    with ExitStack() as stack:
        routes = stack.enter_context(Routes())
        cluster = stack.enter_context(NatsCluster(tmp_path / "nats", route_ports=routes.route_ports))
        proxies = [stack.enter_context(LossyProxy(server.port)) for server in cluster.servers]
        argv = ("--nats-prefix", "left", "--nats-replicas", "3")
        store = ",".join(proxy.url for proxy in proxies)
        (daemon,) = stack.enter_context(daemons(tmp_path, 1, store, *argv))
        until(lambda: is_ready(daemon))
        used = next(number for number, proxy in enumerate(proxies) if proxy.wires)
        routes.cut_off(cluster.servers[used].name)
        until(lambda: not is_ready(daemon))
        until(lambda: is_ready(daemon))
        agent = HttpAgent(daemon.port)
        agent.call("context_record", type="t", content="c", project_path="/left")
        agent.close()
        # The proxy notices a moment later that a daemon has closed its connection.
        until(lambda: not proxies[used].wires)
