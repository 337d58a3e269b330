"""Resolve tools of a daemon under stress: more calls than may wait, and workers that do not answer or die."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from contextfold import build
from contextfold.serve.resolvers import PROCESSES, WAITING_MAX
from tests.serve.stdio_client import is_running
from tests.support.daemon import Daemon, HttpAgent
from tests.support.waiting import until

# More than may wait, but fewer than the requests that the daemon accepts at once.
CALLS = WAITING_MAX + PROCESSES + 20


def request(path: str, body: object) -> bytes:
    content = json.dumps(body).encode()
    accepted = "application/json, text/event-stream"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: {accepted}\r\n"
    return f"{head}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content


def read_answer(connection: socket.socket) -> tuple[int, bytes, dict[str, object]]:
    received = b""
    while part := connection.recv(1 << 16):
        received += part
    connection.close()
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.lower(), json.loads(body)


@pytest.fixture
def caches(tmp_path: Path) -> str:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "a.md").write_text("# Roll back\n\nRun it again.\n", encoding="utf-8")
    build(sources, tmp_path / "caches" / "docs")
    return str(tmp_path / "caches")


def workers(daemon: Daemon) -> set[int]:
    """The daemon's child processes, one of which is Python's resource tracker."""
    tasks = Path(f"/proc/{daemon.process.pid}/task").iterdir()
    return {int(child) for task in tasks for child in (task / "children").read_text().split()}


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_stuck_or_dead_worker_is_replaced(tmp_path: Path, caches: str, number: int) -> None:
    env = {"CONTEXT_TOOL_TIMEOUT_SECS": "3"}
    with Daemon(tmp_path / "daemon", "--cache-root", caches, env=env) as daemon, HttpAgent(daemon.port) as agent:

        def resolve() -> bool:
            arguments = {"cache": "docs", "query": "again", "budget": 100}
            return bool(agent.rpc("tools/call", {"name": "context.resolve", "arguments": arguments})["isError"])

        assert resolve() is False
        for worker in workers(daemon):
            os.kill(worker, number)
        # A worker that is already dead is noticed before the call, and one that dies during it is not.
        assert resolve() or number == signal.SIGKILL
        assert agent.http.ask("GET", "/healthz").status == 200
        assert resolve() is False
        workers_left = workers(daemon)
    until(lambda: not any(map(is_running, workers_left)))


def test_calls_over_the_limit_are_refused_and_may_be_retried(tmp_path: Path, caches: str) -> None:
    with Daemon(tmp_path / "daemon", "--cache-root", caches) as daemon:
        tool = {"name": "context.ask", "arguments": {"query": "roll back", "budget": 200}}
        bodies = {
            "/v1/ask": tool["arguments"],
            "/mcp": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": tool},
        }
        paths = ["/v1/ask"] * (CALLS - 1) + ["/mcp"]
        connections = [socket.create_connection(("127.0.0.1", daemon.port), timeout=60) for _ in paths]
        for connection, path in zip(connections, paths, strict=True):
            connection.sendall(request(path, bodies[path]))
        answers = [read_answer(connection) for connection in connections]
        refused = [(head, body) for status, head, body in answers if status == 503]
        assert sum(status == 200 for status, _, _ in answers) + len(refused) == CALLS
        assert refused
        for head, body in refused:
            error = body["error"]
            assert isinstance(error, dict)
            assert b"retry-after: " in head
            assert error["data"]["retry"] is True
