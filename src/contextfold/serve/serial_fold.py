"""The folding service for a process without concurrency: a stdio server's worker, or a command. Knows no transport."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import TypeVar

from contextfold.common.event_loop import asyncio, run_at_once
from contextfold.errors import FoldError
from contextfold.fold.ports.store import LOCAL_OWNER
from contextfold.fold.project import Caller
from contextfold.fold.service.fold_service import FoldService
from contextfold.serve.mcp.fold_tools import call as run_fold_tool
from contextfold.serve.mcp.fold_tools import caller_from, request_error
from contextfold.serve.mcp.tools import FoldTool, ToolResult

MAINTENANCE_EVERY_S = 60.0
Result = TypeVar("Result")


class SerialFold:
    """A fold service for one call at a time. Its event loop runs only during a call."""

    def __init__(self, service: FoldService, *, has_loop: bool = True) -> None:
        """Without an event loop, only what never waits can be run. A store that works in place never waits."""
        self.service = service
        self._has_loop = has_loop
        self._runner: asyncio.Runner | None = None
        self._maintained_s = -MAINTENANCE_EVERY_S

    def call(self, tool: FoldTool, arguments: Mapping[str, object], meta: Mapping[str, object]) -> ToolResult:
        """Run a tool. Raises RequestError if it fails."""
        return self.run(self._call(tool, arguments, meta))

    def run(self, work: Awaitable[Result]) -> Result:
        return self.run_waiting(work) if self._has_loop else run_at_once(work)

    def run_waiting(self, work: Awaitable[Result]) -> Result:
        """Run something that waits, for example for the next event, in any case in an event loop."""

        async def working() -> Result:
            return await work

        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(working())

    def close(self) -> None:
        self.run(self.service.store.close())
        if self._runner is not None:
            self._runner.close()

    async def _call(self, tool: FoldTool, arguments: Mapping[str, object], meta: Mapping[str, object]) -> ToolResult:
        # Commands call no tools.

        try:
            caller = caller_from(LOCAL_OWNER, meta)
        except FoldError as problem:
            raise await request_error(problem, self.service, Caller(LOCAL_OWNER), {}) from problem
        await self._maintain()
        try:
            return await run_fold_tool(tool, self.service, caller, arguments)
        finally:
            # Background work of the store would not continue between calls.
            await self.service.store.settle()

    async def _maintain(self) -> None:
        """End idle sessions and delete expired data. A daemon does this in the background, but none may be running."""
        now_s = time.monotonic()
        if now_s - self._maintained_s >= MAINTENANCE_EVERY_S:
            self._maintained_s = now_s
            # If the store is unavailable, the call itself reports it.
            with suppress(FoldError):
                await self.service.end_idle()
                await self.service.forget()
