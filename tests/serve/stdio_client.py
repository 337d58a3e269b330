"""A client of the stdio server that sends and receives raw bytes."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.machine import COMMAND, run_command

ANSWER_WAIT_S = 60.0
INITIALIZE = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}\n'
MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def request(method: str, params: object = None, request_id: object = 1) -> bytes:
    message: dict[str, object] = {"jsonrpc": "2.0", "id": request_id, "method": method}
    if params is not None:
        message["params"] = params
    return json.dumps(message).encode() + b"\n"


def call(tool: str, arguments: object = None, request_id: object = 1) -> bytes:
    params = {"name": tool} if arguments is None else {"name": tool, "arguments": arguments}
    return request("tools/call", params, request_id)


def modern(method: str, params: dict[str, object] | None = None, request_id: object = 1) -> bytes:
    return request(method, {**(params or {}), "_meta": MODERN_META}, request_id)


PARSE_ERROR = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}}
PING = request("ping", request_id="alive")
ALIVE = {"jsonrpc": "2.0", "id": "alive", "result": {}}
RESOLVE: dict[str, object] = {"cache": "docs", "query": "guide", "budget": 4000}
ASK: dict[str, object] = {"cache": "docs", "query": "guide"}
GET: dict[str, object] = {"cache": "docs", "id": "deployment.md"}


def protocol_error(code: int, message: str, request_id: object = 1) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


def environment(root: Path, **variables: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "CONTEXT_CACHE_ROOT": str(root), **variables}


def exchange(root: Path, *lines: bytes, **env: str) -> list[Any]:
    """Sends these bytes and the end of input, and returns all answers. The server must exit with code 0."""
    ran = run_command("serve", "--stdio", env=environment(root, **env), stdin=b"".join(lines))
    assert ran.code == 0, ran.err
    assert ran.out == b"" or ran.out.endswith(b"\n")
    return [json.loads(line) for line in ran.out.splitlines()]


def after_handshake(root: Path, *lines: bytes, **env: str) -> list[Any]:
    return exchange(root, INITIALIZE, *lines, **env)[1:]


def text_of(answer: Any) -> str:
    (block,) = answer["result"]["content"]
    assert block["type"] == "text"
    assert isinstance(block["text"], str)
    return block["text"]


def error_code_of(answer: Any) -> str:
    """Checks the frozen form of a tool error, and returns its code."""
    assert answer["result"]["isError"] is True
    text = text_of(answer)
    assert text.endswith("}\n")
    error = json.loads(text)
    assert error.keys() == {"error"}
    assert error["error"].keys() == {"code", "message"}
    code = error["error"]["code"]
    assert isinstance(code, str)
    return code


def is_running(pid: int) -> bool:
    """Whether a process is running. One that has ended and is not reaped yet is not."""
    try:
        return _state(pid) != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Server:
    """A server that runs until the `with` block ends."""

    def __init__(self, root: Path, **env: str) -> None:
        self.process = subprocess.Popen(
            [COMMAND, "serve", "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(root, **env),
            bufsize=0,
        )
        assert self.process.stdin
        assert self.process.stdout
        self.input, self.output = self.process.stdin, self.process.stdout
        self._received = b""

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream
            stream.close()

    def ask(self, line: bytes) -> Any:
        self.input.write(line)
        return self.answer()

    def answer(self) -> Any:
        deadline = time.monotonic() + ANSWER_WAIT_S
        while b"\n" not in self._received:
            ready, _, _ = select.select([self.output], [], [], deadline - time.monotonic())
            assert ready, "no answer"
            chunk = os.read(self.output.fileno(), 1 << 20)
            assert chunk, "the server has ended"
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    def has_called(self) -> bool:
        """Whether the server has read all input, and a call is in the pipe of a frozen worker."""
        return not _unread_bytes(self.input.fileno()) and any(map(_pending_bytes, self.workers()))

    def workers(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(child) for child in children.split() if is_running(int(child))]

    def freeze_worker(self) -> None:
        for worker in self.workers():
            os.kill(worker, signal.SIGSTOP)


def _unread_bytes(descriptor: int) -> int:
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


def _pending_bytes(pid: int) -> int:
    """The bytes in the pipes that a process could read."""
    pending = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(link).startswith("pipe:") and os.access(link, os.R_OK):
            with suppress(OSError):
                descriptor = os.open(link, os.O_RDONLY | os.O_NONBLOCK)
                pending += _unread_bytes(descriptor)
                os.close(descriptor)
    return pending


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
