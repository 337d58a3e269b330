"""A real daemon as its own process, and clients that connect to it over real sockets."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from tests.support.processes import ForkedProcess, run_context

LEGACY, MODERN = "2025-11-25", "2026-07-28"
ANSWER_TIMEOUT_S = 60
SHIFTED_CLOCK = Path(__file__).parent / "shifted_clock.py"
# MCP over HTTP requires these headers.
RPC = {
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
}


class Refused(Exception):
    """A JSON-RPC error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: Any = error.get("data")


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def reserve_port() -> socket.socket:
    """A socket that reserves a port while it is open. Only programs that allow address reuse can listen there."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def read_log(log: Path) -> list[dict[str, Any]]:
    """The records that a daemon has logged. It may be writing another one, whose line has no end yet."""
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


class Daemon:
    """`context serve` on a free port, with its state and its log below a folder."""

    def __init__(
        self,
        folder: Path,
        *argv: str,
        env: Mapping[str, str] | None = None,
        store: str = "",
        port: int = 0,
        prepare: Callable[[], None] | None = None,
        program: Sequence[str | Path] = (),
    ) -> None:
        """`prepare` is called in the daemon's process before the command runs.

        `program` is for tests of the start itself: the installed command, or a script that calls it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        # This file is used unless another store is named.
        self.store = folder / "state" / "state.db"
        self.log = folder / "daemon.log"
        self._argv = ["serve", "--store", store or str(self.store), *argv]
        self.port = port
        if not port:
            # The port stays reserved for this daemon, also while the daemon is down.
            reserved = reserve_port()
            weakref.finalize(self, reserved.close)
            self.port = int(reserved.getsockname()[1])
        self._env = {**os.environ, "XDG_DATA_HOME": str(folder / "data"), **(env or {})}
        self._prepare, self._program = prepare, program
        self.start()

    def start(self) -> None:
        argv = [*self._argv, "--port", str(self.port)]
        self.process: subprocess.Popen[bytes] | ForkedProcess
        if self._program:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [*self._program, *argv], stdout=subprocess.PIPE, stderr=log, env=self._env
                )
        else:
            self.process = ForkedProcess(run_context, argv, self._prepare, log=self.log, env=self._env)
        assert self.process.stdout
        line = self.process.stdout.readline().decode()
        if not line.startswith("contextfold listens on "):
            self.kill()
            raise AssertionError(self.log.read_text()[-2000:])
        self.url = line.split()[-1].removesuffix("/mcp")
        self.port = int(urlsplit(self.url).port or 0)

    def kill(self) -> None:
        self.process.kill()
        self._reap()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._reap()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        code = self.stop()
        assert kind or code == 0

    def _reap(self) -> int:
        code = self.process.wait(timeout=ANSWER_TIMEOUT_S)
        assert self.process.stdout
        self.process.stdout.close()
        return code


def advance_clock(offset_file: Path, pause_s: float) -> None:
    """Advance the clock of a daemon that reads this file, which is replaced in one step: it may be read at any time."""
    staged = offset_file.with_suffix(".new")
    staged.write_text(str(float(offset_file.read_text()) + pause_s))
    staged.rename(offset_file)


class ShiftedClockDaemon(Daemon):
    """A daemon whose clock the test can advance."""

    def __init__(self, folder: Path, *argv: str) -> None:
        folder.mkdir()
        self._offset_file = folder / "ahead_s"
        self._offset_file.write_text("0")
        super().__init__(folder, *argv, program=[sys.executable, SHIFTED_CLOCK, self._offset_file])

    def advance_clock(self, pause_s: float) -> None:
        advance_clock(self._offset_file, pause_s)

    def restart(self) -> None:
        assert self.stop() == 0
        self.start()


class Http:
    """A persistent connection, as agents use it."""

    def __init__(self, port: int, **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def within(self, timeout_s: float) -> Http:
        """Sets the timeout for answers."""
        self._connection.timeout = timeout_s
        return self

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        self._connection.request(method, path, body, {**self.headers, **(headers or {})})
        response = self._connection.getresponse()
        return Reply(response.status, {key.lower(): value for key, value in response.getheaders()}, response.read())

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def decode_answer(text: str) -> Any:
    """The object in a tool's text; a text for a model as it is."""
    return json.loads(text) if text.startswith("{") else text


class HttpAgent:
    """An MCP client over HTTP that does only what the protocol requires."""

    def __init__(self, port: int, era: str = LEGACY, path: str = "/mcp", **headers: str) -> None:
        self.http = Http(port, **headers)
        self.era, self.path = era, path
        self.last: Reply | None = None

    def rpc(self, method: str, params: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Any:
        sent = {**RPC, "mcp-protocol-version": self.era}
        meta = dict(params.get("_meta", {}))
        if self.era == MODERN:
            sent["mcp-method"] = method
            if "name" in params:
                sent["mcp-name"] = params["name"]
            meta |= {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {},
            }
        message = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": method,
            "params": {**params, **({"_meta": meta} if meta else {})},
        }
        self.last = self.http.ask("POST", self.path, json.dumps(message).encode(), {**sent, **(headers or {})})
        answer = self.last.json
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["result"]

    def call(
        self,
        tool: str,
        _meta: Mapping[str, Any] | None = None,
        _headers: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> Any:
        params = {"name": tool, "arguments": arguments, **({"_meta": _meta} if _meta else {})}
        self.result = self.rpc("tools/call", params, _headers)
        return decode_answer(self.result["content"][0]["text"])

    @property
    def state(self) -> Any:
        """The state from the last answer's header."""
        assert self.last
        return json.loads(self.last.headers["x-context-state"])

    def close(self) -> None:
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
