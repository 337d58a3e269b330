"""Kills, stops and restarts servers and daemons while agents use them: one fault at a time, each of them repaired."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.stores.nats.agents import CallRecorder
from tests.stores.nats.routes import Routes
from tests.stores.nats.subjects import leader_of
from tests.support.daemon import Daemon
from tests.support.machine import times
from tests.support.nats_servers import NatsServer

# A fault ends when this many calls were answered during it.
FAULT_CALLS = 5
# It also ends after this long, because without a leader no call is answered.
FAULT_S = 6.0
# The other servers may elect another leader during the pause, or not.
PAUSED_S = (5.0, 5.0) if times(1, 0) else (0.5, 12.0)
# This many calls must be answered between two faults.
CALM_CALLS = times(20, 60)
# This bounds a hang.
CALM_S = 90.0
ATTEMPTS_SHOWN = 20


class Servers(NamedTuple):
    """The servers of an installation, its prefix, and the connections between them if there are several."""

    all: Sequence[NatsServer]
    prefix: str
    routes: Routes | None = None

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.all]


@contextmanager
def daemons(
    folder: Path, count: int, store: str, *argv: str, env: Mapping[str, str] | None = None
) -> Iterator[list[Daemon]]:
    """Daemons on one store; each tries another of its servers first. All of them are killed at the end."""
    running: list[Daemon] = []
    servers = store.split(",")
    try:
        for number in range(count):
            first = number % len(servers)
            mine = ",".join(servers[first:] + servers[:first])
            running.append(Daemon(folder / f"d{number}", *argv, store=mine, env=env))
        yield running
    finally:
        for daemon in running:
            if daemon.process.poll() is None:
                daemon.kill()


class FaultInjector:
    """Each method causes one fault and repairs it. `injected` lists the faults, for the report of a failure."""

    def __init__(
        self, rng: random.Random, recorder: CallRecorder, fleet: Sequence[Daemon], servers: Servers | None
    ) -> None:
        self._rng, self._recorder, self._fleet, self._servers = rng, recorder, fleet, servers
        self.injected: list[str] = []

    @property
    def faults(self) -> list[Callable[[], None]]:
        daemon_faults = [self.kill_daemon, self.pause_daemon]
        if self._servers is None:
            return daemon_faults
        partitions = [self.cut_off_leader] if self._servers.routes else []
        return [self.kill_leader, *partitions, self.pause_leader, *daemon_faults, self.stop_server]

    def inject(self, faults: Sequence[Callable[[], None]]) -> None:
        """Causes the faults one after the other, with time for agents to work in between."""
        for fault in faults:
            self._wait_for_calls()
            fault()
        self._wait_for_calls()

    def _wait_for_calls(self) -> None:
        """Waits until agents have worked for a while without a fault."""
        is_working = self._recorder.wait_for(CALM_CALLS, CALM_S) and not self._recorder.failures
        last = map(str, self._recorder.attempts[-ATTEMPTS_SHOWN:])
        assert is_working, "\n".join(["no call is answered any more", *self._recorder.failures, *self.injected, *last])

    def kill_leader(self) -> None:
        server = self._leader()
        self._note(f"kill server {server.name}")
        server.kill()
        self._recorder.wait_for(FAULT_CALLS, FAULT_S)
        server.start()

    def cut_off_leader(self) -> None:
        """The leader runs, and daemons may be connected to it, but the other servers cannot reach it."""
        assert self._servers is not None
        assert self._servers.routes is not None
        server = self._leader()
        self._note(f"cut off server {server.name}")
        self._servers.routes.cut_off(server.name)
        try:
            self._recorder.wait_for(10**9, self._rng.uniform(*PAUSED_S))
        finally:
            self._servers.routes.heal()

    def pause_leader(self) -> None:
        server = self._leader()
        self._note(f"pause server {server.name}")
        server.pause()
        self._recorder.wait_for(10**9, self._rng.uniform(*PAUSED_S))
        server.resume()

    def stop_server(self) -> None:
        assert self._servers is not None
        server = self._rng.choice(self._servers.all)
        self._note(f"stop server {server.name}")
        server.stop()
        self._recorder.wait_for(FAULT_CALLS, FAULT_S)
        server.start()

    def kill_daemon(self) -> None:
        daemon = self._rng.choice(self._fleet)
        self._note(f"kill daemon {daemon.url}")
        daemon.kill()
        self._recorder.wait_for(FAULT_CALLS, FAULT_S)
        daemon.start()

    def pause_daemon(self) -> None:
        daemon = self._rng.choice(self._fleet)
        self._note(f"pause daemon {daemon.url}")
        daemon.pause()
        try:
            self._recorder.wait_for(10**9, self._rng.uniform(*PAUSED_S))
        finally:
            daemon.resume()

    def summary(self) -> str:
        """The number of faults of each kind."""
        kinds = Counter(" ".join(text.partition(": ")[2].split()[:-1]) for text in self.injected)
        return ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))

    def _leader(self) -> NatsServer:
        """The server that leads the logs, or any if none does."""
        assert self._servers is not None
        servers = self._servers.all
        if len(servers) == 1:
            return servers[0]
        name = asyncio.run(leader_of(self._servers.urls, f"{self._servers.prefix}_log"))
        return next((server for server in servers if server.name == name), self._rng.choice(servers))

    def _note(self, text: str) -> None:
        self.injected.append(f"after {len(self._recorder.attempts)} attempts: {text}")
