"""Runs the resolve tools of the daemon in a few stdio servers as child processes, one call at a time in each.

A host would start the same servers, so the text is the same on every transport. Their timeout ends a call that hangs,
and a long resolve does not delay folding. Knows lines and processes, not the tools.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from contextfold.errors import InternalError
from contextfold.serve.mcp.protocol import (
    LINE_MAX_BYTES,
    META_CAPABILITIES,
    META_VERSION,
    STATELESS_VERSIONS,
    TOOLS_CALL,
    encode_message,
    invalid_params,
)
from contextfold.serve.mcp.resolve_tools import RESOURCE_READERS, error_result, failure_result
from contextfold.serve.mcp.tools import ToolResult
from contextfold.serve.request_error import BAD_REQUEST_STATUS, RequestError, busy
from contextfold.settings import CACHE_ROOT, CONFIG, SETTINGS, Settings

PROCESSES = 2
# Half of the requests that the daemon answers at a time, so that folding has the other half.
WAITING_MAX = 128
# A process that has not answered this long after its own timeout is killed.
OVERTIME_S = 5.0
RESPONSE_MAX_BYTES = 1 << 28
INVALID_ARGUMENTS = "invalid_argument"
RESOURCE_MEMBERS = ("resources", "resourceTemplates", "contents")
_SETTING_VARIABLES = frozenset({CONFIG, *(setting.variable for setting in SETTINGS.values())})
ENVELOPE = {META_VERSION: STATELESS_VERSIONS[-1], META_CAPABILITIES: {}}


class Resolvers:
    def __init__(self, settings: Settings) -> None:
        # The most recently used process has the most data in memory, so it is used first.
        self._idle: asyncio.LifoQueue[ResolverProcess] = asyncio.LifoQueue()
        self._processes = [ResolverProcess(settings) for _ in range(PROCESSES)]
        for process in reversed(self._processes):
            self._idle.put_nowait(process)
        self._timeout_s = settings.tool_timeout_secs
        self._waiting = 0

    async def call(self, tool: str, arguments: Mapping[str, object]) -> ToolResult:
        """Call a tool. Raises RequestError for a protocol error, or if too many calls are waiting."""
        if self._waiting >= WAITING_MAX:
            raise busy(f"{WAITING_MAX} calls of resolve tools wait already; try again in a moment")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                process = await self._idle.get()
        except TimeoutError:
            raise busy("No process was free for this call in time; try again in a moment") from None
        finally:
            self._waiting -= 1
        try:
            return await process.call(tool, arguments)
        finally:
            self._idle.put_nowait(process)

    async def close(self) -> None:
        for process in self._processes:
            await process.stop()


class ResolverProcess:
    """A stdio server that is started at its first call, and again after it was killed."""

    def __init__(self, settings: Settings) -> None:
        # The daemon has already read the variables and the file; the child must not read them again.
        inherited = {name: value for name, value in os.environ.items() if name not in _SETTING_VARIABLES}
        self._environment = inherited | {
            CACHE_ROOT: settings.cache_root,
            SETTINGS["tool-timeout-secs"].variable: str(settings.tool_timeout_secs),
        }
        self._timeout_s = settings.tool_timeout_secs + OVERTIME_S
        self._process: asyncio.subprocess.Process | None = None
        self._calls = 0

    async def call(self, tool: str, arguments: Mapping[str, object]) -> ToolResult:
        self._calls += 1
        is_resource = tool in RESOURCE_READERS
        params = arguments if is_resource else {"name": tool, "arguments": arguments}
        method = tool if is_resource else TOOLS_CALL
        message = {"jsonrpc": "2.0", "id": self._calls, "method": method, "params": {**params, "_meta": ENVELOPE}}
        request = encode_message(message) + b"\n"
        if len(request) > LINE_MAX_BYTES:
            raise invalid_params("Invalid params: the arguments are too long")
        try:
            async with asyncio.timeout(self._timeout_s):
                result = _result_of(await self._exchange(request), self._calls)
                return ToolResult(members=_own_members(result)) if is_resource else _parse_result(result)
        except RequestError as error:
            if not is_resource:
                raise
            # The daemon's client may be of the other era, which has another code for this. So only kind and message
            # are passed on.
            kind = str((error.data or {}).get("kind", InternalError.code))
            return error_result(kind, error.message, kind)
        except Exception as problem:
            # A late response must not be taken for the response to the next call.
            await self.stop()
            return failure_result(InternalError(type(problem).__name__))
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _exchange(self, request: bytes) -> bytes:
        if self._process is None or self._process.returncode is not None:
            # Its stderr is discarded: it may quote the request, and the response has the error's code. In a process
            # session of its own it does not receive Ctrl-C on the daemon's terminal.
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "contextfold", "serve", "--stdio"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=self._environment,
                limit=RESPONSE_MAX_BYTES,
                start_new_session=True,
            )
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(request)
        await self._process.stdin.drain()
        return await self._process.stdout.readuntil(b"\n")


def _own_members(result: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a result about resources, without those that the child's era of the protocol adds."""
    return {name: result[name] for name in RESOURCE_MEMBERS if name in result}


def _result_of(line: bytes, request_id: int) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(line)
    if message["id"] != request_id:
        raise ValueError("a response to another request")
    if "error" in message:
        error, kind = message["error"], INVALID_ARGUMENTS
        data, code = error.get("data"), error["code"]
        raise RequestError(BAD_REQUEST_STATUS, kind, error["message"], data=data, code=code, reason=kind)
    result: dict[str, Any] = message["result"]
    return result


def _parse_result(result: Mapping[str, Any]) -> ToolResult:
    text: str = result["content"][0]["text"]
    kind = json.loads(text)["error"]["code"] if result["isError"] else ""
    return ToolResult(text, kind, kind)
