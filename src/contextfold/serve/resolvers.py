"""The resolve tools for the daemon: a few stdio servers of our own, each asked one thing at a time.

They are the very servers a host would start, so the text is the same on every transport, a stuck call ends by their
time-out, and a long resolve takes no time from those who fold. Knows lines and processes, not what a tool does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress

from contextfold.error_codes import INVALID_PARAMS
from contextfold.errors import InternalError
from contextfold.serve.mcp.jsonrpc import LINE_MAX_BYTES
from contextfold.serve.mcp.protocol import META_CAPABILITIES, META_VERSION, MODERN_VERSIONS
from contextfold.serve.mcp.resolve_tools import failure
from contextfold.serve.mcp.tools import Answer, Refusal
from contextfold.settings import CACHE_ROOT, CONFIG, SETTINGS, TOOL_TIMEOUT, Settings

SERVERS = 2
WAITING_MOST = 128  # for a server: half of what the daemon takes at a time, so that those who fold have the rest
OVERTIME_S = 5.0  # beyond the server's own time-out, after which it is ended
ANSWER_MAX_BYTES = 1 << 28
INVALID_ARGUMENTS = "invalid_argument"
_SETTLED = frozenset({CONFIG, *(setting.variable for setting in SETTINGS.values())})
ENVELOPE = {META_VERSION: MODERN_VERSIONS[-1], META_CAPABILITIES: {}}


class Resolvers:
    def __init__(self, settings: Settings, servers: int = SERVERS) -> None:
        self._idle: asyncio.LifoQueue[_Server] = asyncio.LifoQueue()  # the last one used has most in memory
        self._servers = [_Server(settings) for _ in range(servers)]
        for server in reversed(self._servers):
            self._idle.put_nowait(server)
        self._timeout_s = settings.tool_timeout_s
        self._waiting = 0

    async def call(self, tool: str, arguments: Mapping[str, object]) -> Answer | Refusal:
        if self._waiting >= WAITING_MOST:
            return failure(InternalError(f"{WAITING_MOST} calls wait for a server already"))
        self._waiting += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                server = await self._idle.get()
        except TimeoutError:
            return failure(InternalError("no server was free in time"))
        finally:
            self._waiting -= 1
        try:
            return await server.call(tool, arguments)
        finally:
            self._idle.put_nowait(server)

    async def close(self) -> None:
        for server in self._servers:
            await server.stop()


class _Server:
    def __init__(self, settings: Settings) -> None:
        # Our own settings are settled: what a variable or a file says counts for less, and must not count again.
        inherited = {name: value for name, value in os.environ.items() if name not in _SETTLED}
        self._environment = inherited | {
            CACHE_ROOT: os.fsdecode(settings.cache_root),
            TOOL_TIMEOUT: str(settings.tool_timeout_s),
        }
        self._timeout_s = settings.tool_timeout_s + OVERTIME_S
        self._process: asyncio.subprocess.Process | None = None
        self._calls = 0

    async def call(self, tool: str, arguments: Mapping[str, object]) -> Answer | Refusal:
        self._calls += 1
        params = {"name": tool, "arguments": arguments, "_meta": ENVELOPE}
        message = {"jsonrpc": "2.0", "id": self._calls, "method": "tools/call", "params": params}
        request = json.dumps(message).encode() + b"\n"
        if len(request) > LINE_MAX_BYTES:
            return _refused(INVALID_PARAMS, "Invalid params: the arguments are too long", None)
        try:
            async with asyncio.timeout(self._timeout_s):
                return _read(await self._ask(request), self._calls)
        except Exception as problem:  # whatever it was: the answer that is still to come must not be the next one's
            await self.stop()
            return failure(InternalError(type(problem).__name__))
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _ask(self, request: bytes) -> bytes:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "contextfold", "serve", "--stdio"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,  # its lines may quote what was asked; the answer holds the code
                env=self._environment,
                limit=ANSWER_MAX_BYTES,
                start_new_session=True,  # Ctrl-C on the daemon's terminal is the daemon's to handle
            )
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(request)
        await self._process.stdin.drain()
        return await self._process.stdout.readuntil(b"\n")


def _read(line: bytes, request_id: int) -> Answer | Refusal:
    message = json.loads(line)
    if message["id"] != request_id:
        raise ValueError("an answer to something else")
    if "error" in message:
        error = message["error"]
        return _refused(error["code"], error["message"], error.get("data"))
    result = message["result"]
    text: str = result["content"][0]["text"]
    kind = json.loads(text)["error"]["code"] if result["isError"] else ""
    return Answer(text, kind, kind)


def _refused(code: int, message: str, data: object) -> Refusal:
    return Refusal(code, INVALID_ARGUMENTS, message, json.dumps(data), INVALID_ARGUMENTS, "")
