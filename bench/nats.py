"""Commits on NATS: an operation recorded on a branch, for one and many clients, on one server and on three.

A commit counts when everything that is derived from it is published, too. The yardstick is a plain loop on the same
servers: as many compare-and-set writes, of the same sizes, by as many clients, measured in turns with the commits.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import nats
import nats.errors
from nats.aio.client import Client
from nats.js.api import StreamConfig
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from bench.daemon import CallTimes, combined, precise_ms
from bench.figures import Figure, report_progress, show
from bench.stdio import median, p99
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import BranchCreated, OperationCompleted, SessionStarted
from contextfold.fold.store import Commit, Operation, SessionKey
from contextfold.settings import NatsOptions
from contextfold.stores.nats.store import NatsStore

SERVER = Path(sys.executable).parent / "nats-server"
NODES = (1, 3)
CLIENTS = (1, 16)
# One client makes this many commits in a turn; many clients together make twice as many.
COMMITS = 160
# The commits may take at most this many times as long as the plain writes.
LIMIT = 2.5
# On one server with many clients, at least this many commits a second are expected.
RATE = 1000
READY_S = 60.0
RETRY_EVERY_S = 0.02
AT = "2026-01-01T00:00:00Z"
TEXT = "".join(f"src/app/login_{number}.py:{number}: def check(session, user):\n" for number in range(20))  # 1 KB
ANSWER = '{"operation":"recorded"}' + " " * 300
STREAMS = ("log", "events", "state", "archive")
PLAIN_STREAM = "raw"
# This is JetStream's error code for a failed compare-and-set.
WRONG_LAST_SEQUENCE = 10071
# A replicated server says this of a subject while another write of it is not finished.
WRITE_IN_FLIGHT = 10164
LOOKS_MAX, LOOK_EVERY_S = 200, 0.01
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
# A stream stores this many bytes for a message in addition to its subject, headers and data.
STORED_OVERHEAD = 34


# ---- servers


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [bound.getsockname()[1] for bound in sockets]
    for bound in sockets:
        bound.close()
    return ports


@contextmanager
def nats_servers(nodes: int) -> Iterator[list[str]]:
    """Runs servers, each with its own folder, as one cluster if there are several. Gives their URLs."""
    ports = free_ports(2 * nodes)
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports[nodes:])
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number, (port, cluster_port) in enumerate(zip(ports[:nodes], ports[nodes:], strict=True)):
                cluster = f'cluster {{ name: "bench", listen: "127.0.0.1:{cluster_port}", routes: [{routes}] }}\n'
                config = Path(folder) / f"{number}.conf"
                config.write_text(
                    f'server_name: "n{number}"\nlisten: "127.0.0.1:{port}"\n'
                    f'jetstream {{ store_dir: "{folder}/{number}" }}\n' + (cluster if nodes > 1 else "")
                )
                processes.append(subprocess.Popen([SERVER, "-c", config], stderr=subprocess.DEVNULL))
            yield [f"nats://127.0.0.1:{port}" for port in ports[:nodes]]
        finally:
            for process in processes:
                process.kill()
                process.wait()


async def connect_when_ready(urls: Sequence[str]) -> Client:
    """Connects once the servers answer and have elected a leader."""

    async def ignore(_problem: Exception) -> None:
        """Ignores the error, because the connection is tried again."""

    for _ in range(int(READY_S / RETRY_EVERY_S)):
        with suppress(OSError, nats.errors.Error, TimeoutError):
            client = await nats.connect(list(urls), error_cb=ignore, allow_reconnect=False)
            try:
                await client.jetstream().add_stream(
                    StreamConfig(name=PLAIN_STREAM, subjects=["raw.*"], num_replicas=len(urls))
                )
            except BaseException:
                await client.close()
                raise
            return client
        await asyncio.sleep(RETRY_EVERY_S)
    raise SystemExit("the NATS servers did not come up")


# ---- commits


def key_of(client: int, run: str) -> SessionKey:
    return SessionKey("bench", f"{client:064x}", run)


class BenchSession:
    """The session of one client: it starts with a branch, then each commit records one operation."""

    def __init__(self, client: int) -> None:
        self.key = key_of(client, secrets.token_hex(8))
        self.id = f"sess_{secrets.token_hex(8)}"
        self.branch = f"br_{secrets.token_hex(8)}"
        self.revision = 0

    def begin(self) -> Commit:
        events = (
            SessionStarted(1, AT, self.id, "/bench", None),
            BranchCreated(2, AT, self.branch, None, "Find it", TEXT[:200], 50, 0),
        )
        self.revision = 2
        return Commit(self.key, self.id, 0, events, None, "")

    def operation(self) -> Commit:
        before, n = self.revision, self.revision + 1
        self.revision = n
        event = OperationCompleted(n, AT, self.branch, "Bash", len(TEXT) // 4, "hook", False, 0)
        entry = ArchiveEntry(self.branch, n, AT, "operation", TEXT, event.tokens, event.type, event.source)
        operation = Operation(secrets.token_hex(16), secrets.token_hex(32))
        return Commit(self.key, self.id, before, (event,), operation, ANSWER, (entry,))


async def commits(store: NatsStore, sessions: Sequence[BenchSession], number: int) -> CallTimes:
    """Each client makes `number` commits, one after the other; the measurement ends when everything is published.

    A single client waits for publication after each commit. Many clients go on, and what is unpublished of a
    session is then published together.
    """
    seconds: list[float] = []

    async def client(session: BenchSession) -> None:
        for _ in range(number):
            commit = session.operation()
            begin = time.perf_counter()
            await store.commit(commit)
            seconds.append(time.perf_counter() - begin)
            if len(sessions) == 1:
                await store.settle()

    begin = time.perf_counter()
    await asyncio.gather(*(client(session) for session in sessions))
    await store.settle()
    return CallTimes(seconds, time.perf_counter() - begin)


# ---- the yardstick


class StreamTotals(NamedTuple):
    """The number and the mean size of the messages in each stream."""

    # Messages that were deleted since are counted too.
    messages: dict[str, int]
    # Only messages that are still stored are counted.
    mean_bytes: dict[str, float]

    @classmethod
    async def now(cls, client: Client, prefix: str) -> StreamTotals:
        states = {name: (await client.jetstream().stream_info(f"{prefix}_{name}")).state for name in STREAMS}
        return cls(
            {name: state.last_seq for name, state in states.items()},
            {name: state.bytes / max(1, state.messages) for name, state in states.items()},
        )

    def sizes_since(self, before: StreamTotals) -> list[int]:
        """The size of every message, stream by stream."""
        return [
            round(self.mean_bytes[name]) for name in STREAMS for _ in range(self.messages[name] - before.messages[name])
        ]


async def plain_writes(client: Client, sizes: Sequence[int], clients: int) -> CallTimes:
    """Writes messages of these sizes, divided among the clients; each write expects the client's own last sequence."""
    js = client.jetstream()
    seconds: list[float] = []

    async def work(number: int) -> None:
        subject, last = f"raw.{secrets.token_hex(16)}", 0
        for size in sizes[number::clients]:
            headers = {EXPECTED: str(last)}
            overhead = STORED_OVERHEAD + len(subject) + len(EXPECTED) + len(str(last)) + len("NATS/1.0\r\n: \r\n\r\n")
            begin = time.perf_counter()
            last = await _publish(js, subject, b"x" * max(1, size - overhead), headers)
            seconds.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    await asyncio.gather(*(work(number) for number in range(clients)))
    return CallTimes(seconds, time.perf_counter() - begin)


async def _publish(js: JetStreamContext, subject: str, data: bytes, headers: dict[str, str]) -> int:
    """Publishes a message and gives its sequence.

    If an acknowledgement is lost, the client library sends the message again, and the server refuses the second one.
    Then the first was stored or is about to be, and its sequence will be the last one of the subject, which nobody else
    writes.
    """
    try:
        return (await js.publish(subject, data, headers=headers)).seq
    except APIError as refusal:
        if refusal.err_code not in (WRONG_LAST_SEQUENCE, WRITE_IN_FLIGHT):
            raise
        for _ in range(LOOKS_MAX):
            with suppress(NotFoundError):
                last = (await js.get_last_msg(PLAIN_STREAM, subject)).seq
                if last is not None and str(last) != headers[EXPECTED]:
                    return last
            await asyncio.sleep(LOOK_EVERY_S)
        raise


# ---- figures


@asynccontextmanager
async def open_store(urls: Sequence[str]) -> AsyncIterator[tuple[NatsStore, Client]]:
    client = await connect_when_ready(urls)
    store = NatsStore(NatsOptions(tuple(urls), "bench", replicas=len(urls)))
    try:
        await store.reach()
        yield store, client
    finally:
        await store.close()
        await client.close()


async def speed(
    store: NatsStore, client: Client, *, clients: int, turns: int, number: int
) -> tuple[CallTimes, CallTimes]:
    """The times of all turns of the commits, and of the plain writes of the same sizes."""
    each = max(1, number // clients)
    sessions = [BenchSession(one) for one in range(clients)]
    for session in sessions:
        await store.commit(session.begin())
    blocks: list[tuple[CallTimes, CallTimes]] = []
    for _ in range(turns + 1):
        await store.settle()
        before = await StreamTotals.now(client, "bench")
        ours = await commits(store, sessions, each)
        sizes = (await StreamTotals.now(client, "bench")).sizes_since(before)
        blocks.append((ours, await plain_writes(client, sizes, clients)))
    # The first turn is a warm-up, so it is left out.
    ours, plain = (combined(list(column)) for column in zip(*blocks[1:], strict=True))
    return ours, plain


def speed_figure(ours: CallTimes, plain: CallTimes, *, nodes: int, clients: int) -> Figure:
    writes = len(plain.seconds) / len(ours.seconds)
    latency = f"until committed p50 {precise_ms(median(ours.seconds))}, p99 {precise_ms(p99(ours.seconds))}"
    plain_text = f"{writes:.1f} plain writes each, p50 {precise_ms(median(plain.seconds))}"
    return Figure(
        f"commits, {_counted(clients, 'client')}, {_counted(nodes, 'server')}",
        f"{ours.per_second:,.0f}/s; {latency}",
        f"{plain.per_second / writes:,.0f}/s; {plain_text}",
        ours.wall_s / plain.wall_s,
        LIMIT,
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


async def figures_of(urls: Sequence[str], *, turns: int, number: int) -> list[Figure]:
    figures: list[Figure] = []
    nodes = len(urls)
    async with open_store(urls) as (store, client):
        for clients in CLIENTS:
            ours, plain = await speed(store, client, clients=clients, turns=turns, number=number * min(clients, 2))
            figures.append(speed_figure(ours, plain, nodes=nodes, clients=clients))
            if (nodes, clients) == (NODES[0], CLIENTS[-1]):
                name = f"the least of them, {_counted(clients, 'client')}, {_counted(nodes, 'server')}"
                figures.append(Figure(name, f"{ours.per_second:,.0f}/s", f"{RATE:,}/s", RATE / ours.per_second, 1.0))
    return figures


def main(turns: int = 5, number: int = COMMITS) -> bool:
    report_progress("nats")
    figures: list[Figure] = []
    for nodes in NODES:
        with nats_servers(nodes) as urls:
            figures += asyncio.run(figures_of(urls, turns=turns, number=number))
    return show("nats", figures)
