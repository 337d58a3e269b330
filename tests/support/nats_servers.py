"""Real NATS servers for tests: one, or a cluster of three; tests can kill, pause and restart them.

Every server ends with its `with`, also when the test fails.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client

from contextfold.settings import NatsOptions
from tests.support.prerequisites import NATS, NATS_SERVER, require

# At most this many workers run tests at once, and each of them has its own ports.
WORKERS_MAX = 8
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS_MAX
# These ports are below the range that the system uses for outgoing connections.
PORTS = range(20_000 + WORKER, 30_000, WORKERS_MAX)
PORTS_TRIED_MAX = 50
STARTS_TRIED_MAX = 5
# This only bounds a hang.
ANSWER_S = 60.0
# After this long the request is sent again, because no server answers while a leader is elected.
PROBE_S = 2.0
POLL_INTERVAL_S = 0.01
NODES = 3
LOG_TAIL_CHARS = 3_000
# The keys are the names of servers, the values are their ports.
RoutePorts = Callable[[Mapping[str, int]], Mapping[str, int]]


_started: set[subprocess.Popen[bytes]] = set()
# Some of these ports are not in use yet, or are free for a moment during a restart.
_chosen: set[int] = set()


@atexit.register
def _end_all() -> None:
    """Kills the servers that are left if the test runner itself fails inside a `with`."""
    for process in _started:
        process.kill()


def random_prefix() -> str:
    """A prefix for the streams of one test, which no other test uses."""
    return f"t{secrets.token_hex(6)}"


def free_port() -> int:
    for _ in range(PORTS_TRIED_MAX):
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as candidate, contextlib.suppress(OSError):
            candidate.bind(("127.0.0.1", port))
            if port not in _chosen:
                _chosen.add(port)
                return port
    raise AssertionError("no free port")


class _PortTaken(Exception):
    """Another process took the port first."""


class NatsServer:
    """`nats-server` with JetStream, with all its files below a folder."""

    def __init__(self, folder: Path, *, name: str = "n1", port: int = 0, config: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.name, self.port = folder, name, port
        self.log = folder / "nats.log"
        self.is_paused = False
        self.config = config
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> NatsServer:
        for _ in range(STARTS_TRIED_MAX):
            try:
                self.start()
            except _PortTaken:
                self.port = 0
            else:
                return self
        raise AssertionError(self.log_tail())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Starts the server, or restarts it with the same port and folder."""
        require(NATS)
        assert not self.is_up
        self.port = self.port or free_port()
        config_file = self.folder / "nats.conf"
        config_file.write_text(
            f'listen: "127.0.0.1:{self.port}"\nserver_name: "{self.name}"\nlog_file: "{self.log}"\n'
            f'jetstream {{ store_dir: "{self.folder / "js"}", max_file_store: 20GB }}\n{self.config}\n'
        )
        argv = [str(NATS_SERVER), "--config", str(config_file)]
        self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _started.add(self._process)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Waits until the server answers."""
        assert self._process is not None
        deadline_s = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                raise (
                    _PortTaken(self.log_tail())
                    if "address already in use" in self.log_tail()
                    else AssertionError(self.log_tail())
                )
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_S) as connection,
            ):
                if connection.recv(5) == b"INFO ":
                    return
            # Polling is the only way to learn that the server answers.
            time.sleep(POLL_INTERVAL_S)
        raise AssertionError(f"no answer from {self.url}: {self.log_tail()}")

    def stop(self) -> None:
        """Stops the server as an operator does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        if self.is_paused:
            self.resume()
        self._process.wait(timeout=ANSWER_S)
        _started.discard(self._process)
        self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # Until all of its threads have stopped, it may still answer.
        os.waitpid(self._process.pid, os.WUNTRACED)
        self.is_paused = True

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_TAIL_CHARS:] if self.log.exists() else "(no log)"


class NatsCluster:
    """A cluster of three servers. As long as two of them run, it can commit."""

    def __init__(self, folder: Path, *, route_ports: RoutePorts = lambda ports: ports) -> None:
        """With `route_ports`, the servers reach each other by other ports than those that they listen on."""
        self.folder = folder
        self._route_ports = route_ports
        self.servers: list[NatsServer] = []

    def __enter__(self) -> NatsCluster:
        for attempt in range(STARTS_TRIED_MAX):
            try:
                self._start(self.folder / str(attempt))
            except _PortTaken:
                self.kill()
            except BaseException:
                self.kill()
                raise
            else:
                return self
        raise AssertionError("no free ports for a cluster")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _start(self, folder: Path) -> None:
        require(NATS)
        listen_ports = {f"n{number}": free_port() for number in range(1, NODES + 1)}
        routed = self._route_ports(listen_ports)
        self.servers = [
            NatsServer(
                folder / name,
                name=name,
                config=_cluster_config(port, routed[name], [routed[other] for other in routed if other != name]),
            )
            for name, port in listen_ports.items()
        ]
        for server in self.servers:
            server.start(wait=False)
        for server in self.servers:
            server.wait()
        self.wait()

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def wait(self, replicas: int = NODES) -> None:
        """Waits until a stream with this many replicas can be created and accepts a message."""
        up = [server.url for server in self.servers if server.is_up and not server.is_paused]
        asyncio.run(_wait_for_leader(up, replicas))

    def heal(self) -> None:
        """Resumes or restarts all servers, and waits until they have a leader."""
        for server in self.servers:
            if server.is_paused:
                server.resume()
            if not server.is_up:
                server.start()
        self.wait()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()


def _cluster_config(port: int, advertised: int, others: Sequence[int]) -> str:
    routes = ", ".join(f'"nats://127.0.0.1:{other}"' for other in others)
    return (
        f'cluster {{ name: "tests", listen: "127.0.0.1:{port}", advertise: "127.0.0.1:{advertised}", '
        f"routes: [{routes}], no_advertise: true }}"
    )


async def _ignore_error(_error: Exception) -> None:
    """Ignores errors, because the user of the connection notices them."""


async def connect(urls: Sequence[str] | str) -> Client:
    servers = [urls] if isinstance(urls, str) else list(urls)
    return await nats.connect(servers, error_cb=_ignore_error, connect_timeout=5, max_reconnect_attempts=-1)


async def _wait_for_leader(urls: Sequence[str], replicas: int) -> None:
    connection = await connect(urls)
    try:
        async with asyncio.timeout(ANSWER_S):
            for _ in range(int(ANSWER_S / POLL_INTERVAL_S)):
                if await _accepts_a_message(connection, replicas):
                    return
                await asyncio.sleep(POLL_INTERVAL_S)
    finally:
        await connection.close()
    raise AssertionError("no leader")


async def _accepts_a_message(connection: Client, replicas: int) -> bool:
    name = f"probe_{secrets.token_hex(4)}"
    stream = {"name": name, "subjects": [name], "num_replicas": replicas, "storage": "memory"}
    try:
        created = await _request(connection, f"$JS.API.STREAM.CREATE.{name}", stream, PROBE_S)
        if "error" in created:
            return False
        published = await _request(connection, name, {}, PROBE_S)
        await _request(connection, f"$JS.API.STREAM.DELETE.{name}", {}, PROBE_S)
    except (nats.errors.Error, TimeoutError):
        return False
    return "seq" in published


async def _request(
    connection: Client, subject: str, body: dict[str, Any], timeout_s: float = ANSWER_S
) -> dict[str, Any]:
    response = await connection.request(subject, json.dumps(body).encode(), timeout=timeout_s)
    parsed: dict[str, Any] = json.loads(response.data)
    return parsed


async def delete_streams(options: NatsOptions) -> None:
    """Delete the streams of a prefix, so that a server shared by many tests stays small."""
    connection = await connect(options.servers)
    try:
        response = await _request(connection, "$JS.API.STREAM.NAMES", {})
        for name in response.get("streams") or ():
            if name.startswith(f"{options.prefix}_"):
                await _request(connection, f"$JS.API.STREAM.DELETE.{name}", {})
    finally:
        await connection.close()
