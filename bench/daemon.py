"""The figures of the daemon: branch and return for one and for many clients, and memory, each next to a yardstick.

The yardstick is a bare Starlette handler on the same server, plus a bare SQLite transaction in a thread, measured in
turns with the daemon and with as many clients.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figure, report_progress, show
from bench.stdio import median, p99

COMMAND = Path(sys.executable).parent / "context"
CLIENTS = (1, 16)
ERAS = ("2025-11-25", "2026-07-28")
# The daemon may add at most this multiple of the bare sum.
LIMIT = 3.0
SESSIONS = 10_000
MEMORY_LIMIT = 4.0  # times the bare handler's
TEXT = "x" * 200

BARE = """
import sys
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

async def answer(request: Request) -> Response:
    await request.body()
    return Response(b'{"jsonrpc":"2.0","id":1,"result":{}}', media_type="application/json")

class BenchDaemonServer(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)

app = Starlette(routes=[Route("/mcp", answer, methods=["POST"])])
BenchDaemonServer(uvicorn.Config(app, port=0, http="h11", loop="asyncio", log_level="error", access_log=False)).run()
"""


class ServerProcess(NamedTuple):
    process: subprocess.Popen[bytes]
    port: int

    def memory_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate()


def bare_server() -> ServerProcess:
    process = subprocess.Popen([sys.executable, "-c", BARE], stdout=subprocess.PIPE)
    assert process.stdout
    return ServerProcess(process, int(process.stdout.readline()))


def daemon(folder: str, *options: str) -> ServerProcess:
    argv: list[str | Path] = [COMMAND, "serve", "--port", "0", "--store", f"{folder}/state/state.db", *options]
    env = os.environ | {"CONTEXT_RATE_PER_SECOND": "1000000", "CONTEXT_RATE_BURST": "1000000"}
    with open(f"{folder}/log", "ab") as log:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, env=env)
    assert process.stdout
    return ServerProcess(process, int(process.stdout.readline().split(b":")[-1].removesuffix(b"/mcp\n")))


class RawHttpClient:
    """Sends prepared bytes and reads whole responses, so that the client takes as little time as possible."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, request: bytes) -> bytes:
        self._socket.sendall(request)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._socket.recv(65536)
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        while len(body) < length:
            body += self._socket.recv(65536)
        if not head.startswith(b"HTTP/1.1 200") or b'"error"' in body:
            raise SystemExit(f"the daemon failed: {head[:40]!r} {body[:300]!r}")
        return body

    def close(self) -> None:
        self._socket.close()


def request(era: str, tool: str, **arguments: object) -> bytes:
    params: dict[str, object] = {"name": tool, "arguments": arguments}
    headers = [f"mcp-protocol-version: {era}"]
    if era == ERAS[-1]:
        prefix = "io.modelcontextprotocol/"
        params["_meta"] = {f"{prefix}protocolVersion": era, f"{prefix}clientCapabilities": {}}
        headers += ["mcp-method: tools/call", f"mcp-name: {tool}"]
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    head = [
        "POST /mcp HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        "accept: application/json, text/event-stream",
        f"content-length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def branch_and_return(era: str, project: str) -> tuple[bytes, bytes]:
    """A branch and a return from it."""
    branch = request(era, "context_branch", description="Find it", prompt=TEXT, project_path=project)
    return branch, request(era, "context_return", message=TEXT, project_path=project)


class CallTimes(NamedTuple):
    # One duration for each call.
    seconds: list[float]
    wall_s: float

    @property
    def per_second(self) -> float:
        return len(self.seconds) / self.wall_s


def run_concurrently(workers: list[Callable[[list[float]], None]]) -> CallTimes:
    """Starts all workers at the same moment; each records the durations of its calls."""
    durations: list[list[float]] = [[] for _ in workers]
    threads = [threading.Thread(target=work, args=(seconds,)) for work, seconds in zip(workers, durations, strict=True)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return CallTimes([second for seconds in durations for second in seconds], time.perf_counter() - begin)


def calling_worker(port: int, requests: tuple[bytes, ...], rounds: int) -> Callable[[list[float]], None]:
    def work(seconds: list[float]) -> None:
        client = RawHttpClient(port)
        for _ in range(rounds):
            for sent in requests:
                begin = time.perf_counter()
                client.call(sent)
                seconds.append(time.perf_counter() - begin)
        client.close()

    return work


def bare_commits(path: str, clients: int, rounds: int) -> CallTimes:
    """Runs transactions of the size of a call's commit, 2 KB of state and an event, each as one call into a thread.

    A program that must not block its event loop, and does not combine waiting commits, works like this.
    """
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = FULL")
    turn = threading.Lock()
    seconds: list[float] = []

    def transaction() -> None:
        with turn:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO states VALUES (?)", ("s" * 2000,))
            connection.execute("INSERT INTO events VALUES (1, ?)", ("e" * 300,))
            connection.execute("COMMIT")

    async def client() -> None:
        for _ in range(2 * rounds):
            begin = time.perf_counter()
            await asyncio.to_thread(transaction)
            seconds.append(time.perf_counter() - begin)

    async def all_clients() -> None:
        await asyncio.gather(*(client() for _ in range(clients)))

    begin = time.perf_counter()
    asyncio.run(all_clients())
    connection.close()
    return CallTimes(seconds, time.perf_counter() - begin)


def prepared_database(folder: str) -> str:
    path = f"{folder}/bare.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE states (body TEXT)")
    connection.execute("CREATE TABLE events (n INTEGER, body TEXT)")
    connection.close()
    return path


def combined(blocks: list[CallTimes]) -> CallTimes:
    return CallTimes([second for block in blocks for second in block.seconds], sum(block.wall_s for block in blocks))


def speed_figure(
    our_daemon: ServerProcess, bare: ServerProcess, database: str, *, era: str, clients: int, turns: int
) -> Figure:
    rounds = max(1, 60 // clients)
    blocks: list[tuple[CallTimes, CallTimes, CallTimes]] = []
    for turn in range(turns + 1):
        projects = [f"/bench/{era}/{clients}/{turn}/{number}" for number in range(clients)]
        ours = run_concurrently(
            [calling_worker(our_daemon.port, branch_and_return(era, project), rounds) for project in projects]
        )
        handler = run_concurrently(
            [calling_worker(bare.port, branch_and_return(era, project), rounds) for project in projects]
        )
        commit = bare_commits(database, clients, rounds)
        blocks.append((ours, handler, commit))
    # The first turn is a warm-up, so it is left out.
    ours, handler, commit = (combined(list(column)) for column in zip(*blocks[1:], strict=True))
    bare_sum = median(handler.seconds) + median(commit.seconds)
    measured = (
        f"p50 {precise_ms(median(ours.seconds))}, p99 {precise_ms(p99(ours.seconds))}, {ours.per_second:,.0f} calls/s"
    )
    yardstick = f"{precise_ms(median(handler.seconds))} handler + {precise_ms(median(commit.seconds))} transaction"
    name = f"a call of branch + return, {clients} client{'s' if clients > 1 else ''}, {era}: added"
    return Figure(name, measured, yardstick, median(ours.seconds) / bare_sum - 1, LIMIT)


def memory_figure(our_daemon: ServerProcess, bare: ServerProcess, sessions: int) -> Figure:
    before = our_daemon.memory_mb()
    client = RawHttpClient(our_daemon.port)
    for number in range(sessions):
        client.call(branch_and_return(ERAS[-1], f"/memory/{number}")[0])
    client.close()
    after, least = our_daemon.memory_mb(), bare.memory_mb()
    each_kb = (after - before) * 1024 / sessions
    return Figure(
        f"memory with {sessions:,} open sessions",
        f"{after:.0f} MB, {each_kb:.1f} KB a session",
        f"bare handler {least:.0f} MB",
        after / least,
        MEMORY_LIMIT,
    )


def precise_ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def main(turns: int = 9, sessions: int = SESSIONS) -> bool:
    report_progress("daemon")
    with tempfile.TemporaryDirectory() as folder:
        our_daemon, bare, database = daemon(folder), bare_server(), prepared_database(folder)
        try:
            figures = [
                speed_figure(our_daemon, bare, database, era=era, clients=clients, turns=turns)
                for clients in CLIENTS
                for era in ERAS
            ]
            figures.append(memory_figure(our_daemon, bare, sessions))
        finally:
            our_daemon.stop()
            bare.stop()
    return show("daemon", figures)
