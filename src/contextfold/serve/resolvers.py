"""The worker processes in which the daemon runs the resolve tools.

The timeout ends a call that hangs, and a long resolve does not delay folding. Both transports pass the same values to
the same function, so they give the same answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from contextfold.errors import INVALID_PARAMS, InternalError
from contextfold.serve.mcp.resolve_tools import RESOLVE_TOOLS, ResolveRunner, failure_result
from contextfold.serve.mcp.tools import ToolResult, describe_unknown_arguments
from contextfold.serve.request_error import BAD_REQUEST_STATUS, RequestError, busy
from contextfold.serve.worker import Worker, WorkerFailed
from contextfold.settings import Settings

PROCESSES = 2
# Half of the requests that the daemon answers at a time, so that folding has the other half.
WAITING_MAX = 128
INVALID_ARGUMENTS = "invalid_argument"
TOOLS = {tool.name: tool for tool in RESOLVE_TOOLS}


class Resolvers:
    """The daemon's workers, which are started when they are first needed."""

    def __init__(self, settings: Settings) -> None:
        runner = ResolveRunner(settings.cache_root)
        # The daemon has threads, so its workers cannot be forked.
        self._workers = [Worker(runner.run, "spawn") for _ in range(PROCESSES)]
        # Each call waits for its worker in a thread.
        self._threads = ThreadPoolExecutor(PROCESSES, "contextfold-resolve")
        # The most recently used worker has the most data in memory, so it is used first.
        self._idle: asyncio.LifoQueue[Worker] = asyncio.LifoQueue()
        for worker in reversed(self._workers):
            self._idle.put_nowait(worker)
        self._timeout_s = settings.tool_timeout_secs
        self._waiting = 0

    async def call(self, name: str, arguments: Mapping[str, object]) -> ToolResult:
        """Call a tool or a reader of resources. Raises RequestError for unknown arguments, or if too many wait."""
        unknown = describe_unknown_arguments(TOOLS[name], arguments) if name in TOOLS else ""
        if unknown:
            kind = INVALID_ARGUMENTS
            raise RequestError(BAD_REQUEST_STATUS, kind, unknown, code=INVALID_PARAMS, reason=kind)
        if self._waiting >= WAITING_MAX:
            raise busy(f"{WAITING_MAX} calls of resolve tools wait already; try again in a moment")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                worker = await self._idle.get()
        except TimeoutError:
            raise busy("No process was free for this call in time; try again in a moment") from None
        finally:
            self._waiting -= 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._run, worker, name, arguments)
        except WorkerFailed as problem:
            return failure_result(InternalError(str(problem)))
        finally:
            # Calls are cancelled only when the daemon ends, so no thread uses the worker any more.
            self._idle.put_nowait(worker)

    def _run(self, worker: Worker, name: str, arguments: Mapping[str, object]) -> ToolResult:
        result: ToolResult = worker.call(name, arguments, timeout_s=self._timeout_s)
        return result

    async def close(self) -> None:
        for worker in self._workers:
            await asyncio.to_thread(worker.close)
        self._threads.shutdown(wait=False, cancel_futures=True)
