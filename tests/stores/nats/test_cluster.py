"""Three servers, three daemons and many agents, while servers and daemons are killed, paused and restarted.

What agents and watchers received is compared with what is stored, law by law.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.stores.nats.agents import Agent, Book, Session
from tests.stores.nats.history import Account, Logs, Published, excerpt, violations
from tests.stores.nats.nemesis import Nemesis, Servers, daemons
from tests.stores.nats.proxy import Proxy
from tests.stores.nats.readiness import is_ready
from tests.stores.nats.routes import Routes
from tests.stores.nats.subjects import logged, published_up_to
from tests.stores.nats.watchers import Watcher, logs_through, wrong_views
from tests.support.clauses import covers
from tests.support.daemon import Daemon, HttpAgent
from tests.support.machine import times
from tests.support.nats_servers import NatsCluster
from tests.support.waiting import until

SESSIONS = times(9, 50)
AGENTS, WATCHERS, DAEMONS = times(3, 12), times(1, 2), 3
SEED = os.environ.get("CONTEXTFOLD_SEED") or (str(random.SystemRandom().getrandbits(32)) if times(0, 1) else "1")


class Drama:
    """All participants of a test, from the first call to the final check."""

    def __init__(self, folder: Path, store: str, servers: Servers | None, *argv: str, faults: int) -> None:
        self._folder, self._store, self._argv, self._servers, self._faults = folder, store, argv, servers, faults
        self.book = Book()

    def play(self) -> None:
        """Lets agents work during faults, then checks the result."""
        with daemons(self._folder, DAEMONS, self._store, *self._argv) as fleet:
            sessions = [Session(f"/cluster/{number}") for number in range(SESSIONS)]
            agents = [Agent(f"agent {number}", SEED, fleet, sessions, self.book) for number in range(AGENTS)]
            watchers = [Watcher(f"watcher {number}", SEED, fleet) for number in range(WATCHERS)]
            nemesis = Nemesis(random.Random(SEED), self.book, fleet, self._servers)
            for thread in (*watchers, *agents):
                thread.start()
            try:
                nemesis.plague(self._chosen(nemesis))
                self._finish(agents)
                account = self._left(fleet, watchers)
                wrong = [text for daemon in fleet for text in wrong_views(daemon, account.logs[daemon.url])]
            finally:
                self._finish(agents)
                for watcher in watchers:
                    watcher.give_up()
        found = [*violations(account), *wrong, *self.book.broken, *(text for one in watchers for text in one.broken)]
        assert not found, self._story(account, found, nemesis)

    def _left(self, fleet: list[Daemon], watchers: list[Watcher]) -> Account:
        """What every reader reports at the end."""
        logs: dict[str, Logs] = {daemon.url: logs_through(daemon) for daemon in fleet}
        wanted = {name: len(log) for name, log in next(iter(logs.values())).items()}
        committed: dict[str, list[str]] = {}
        seen: dict[str, Published] | None = None
        if self._servers:
            urls, prefix = self._servers.cluster.urls, self._servers.prefix
            logs["nats"], committed = asyncio.run(logged(urls, prefix))
            seen = asyncio.run(published_up_to(urls, prefix, wanted))
        for watcher in watchers:
            watcher.finish(wanted)
        followed = {watcher.name: watcher.connections for watcher in watchers}
        return Account(self.book.tries, logs, followed, seen, committed)

    def _chosen(self, nemesis: Nemesis) -> list[Callable[[], None]]:
        """Each kind of fault at least once, both in the short run and in the long one."""
        dice = random.Random(f"faults {SEED}")
        first = nemesis.faults[: self._faults]
        return first + dice.choices(nemesis.faults, k=self._faults - len(first))

    def _finish(self, agents: list[Agent]) -> None:
        for agent in agents:
            agent.stopping.set()
        for agent in agents:
            agent.join()

    def _story(self, account: Account, found: list[str], nemesis: Nemesis) -> str:
        return "\n".join([excerpt(account, found), "", f"seed {SEED}", *nemesis.told, f"logs are in {self._folder}"])


def test_nothing_is_lost_doubled_or_reordered_though_daemons_of_one_file_die(tmp_path: Path) -> None:
    """The same test on a file, which shows whether a failure on NATS comes from the test itself."""
    Drama(tmp_path, str(tmp_path / "state.db"), None, faults=times(2, 20)).play()


@covers("store.md#port", "store.md#connection-loss")
def test_nothing_is_lost_doubled_or_reordered_though_servers_and_daemons_die(tmp_path: Path) -> None:
    with Routes() as routes, NatsCluster(tmp_path / "nats", lead_to=routes.lead_to) as cluster:
        argv = ("--nats-prefix", "drama", "--nats-replicas", "3")
        servers = Servers(cluster, routes, "drama")
        Drama(tmp_path, ",".join(cluster.urls), servers, *argv, faults=times(5, 60)).play()


def test_a_daemon_leaves_a_server_that_is_cut_off_from_the_others(tmp_path: Path) -> None:
    with ExitStack() as opened:
        routes = opened.enter_context(Routes())
        cluster = opened.enter_context(NatsCluster(tmp_path / "nats", lead_to=routes.lead_to))
        ways = [opened.enter_context(Proxy(server.port)) for server in cluster.servers]
        argv = ("--nats-prefix", "left", "--nats-replicas", "3")
        store = ",".join(way.url for way in ways)
        (daemon,) = opened.enter_context(daemons(tmp_path, 1, store, *argv))
        until(lambda: is_ready(daemon))
        taken = next(number for number, way in enumerate(ways) if way.is_used)
        routes.cut_off(cluster.servers[taken].name)
        until(lambda: not is_ready(daemon))
        until(lambda: is_ready(daemon))
        agent = HttpAgent(daemon.port)
        agent.call("context_record", type="t", content="c", project_path="/left")
        agent.close()
        # The proxy notices a moment later that a daemon has closed its connection.
        until(lambda: not ways[taken].is_used)
