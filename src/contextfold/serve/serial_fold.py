"""The folding tools of the stdio server, one call at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress

from contextfold.errors import FoldError
from contextfold.fold.project import Caller
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.store import LOCAL_OWNER
from contextfold.serve.mcp.fold_tools import caller_from, run_fold_tool, to_request_error
from contextfold.serve.mcp.tools import FoldTool, ToolResult

MAINTENANCE_EVERY_S = 60.0


class SerialFold:
    """A fold service for one call at a time. Its event loop runs only during a call."""

    def __init__(self, service: FoldService) -> None:
        self._service = service
        self._runner = asyncio.Runner()
        self._maintained_s = -MAINTENANCE_EVERY_S

    def call(self, tool: FoldTool, arguments: Mapping[str, object], meta: Mapping[str, object]) -> ToolResult:
        """Run a tool. Raises RequestError if it fails."""
        return self._runner.run(self._call(tool, arguments, meta))

    async def _call(self, tool: FoldTool, arguments: Mapping[str, object], meta: Mapping[str, object]) -> ToolResult:
        try:
            caller = caller_from(LOCAL_OWNER, meta)
        except FoldError as problem:
            raise await to_request_error(problem, self._service, Caller(LOCAL_OWNER), {}) from problem
        await self._maintain()
        try:
            return await run_fold_tool(tool, self._service, caller, arguments)
        finally:
            # Background work of the store would not continue between calls.
            await self._service.store.settle()

    async def _maintain(self) -> None:
        """End idle sessions and delete expired data. A daemon does this in the background, but none may be running."""
        now_s = time.monotonic()
        if now_s - self._maintained_s >= MAINTENANCE_EVERY_S:
            self._maintained_s = now_s
            # If the store is unavailable, the call itself reports it.
            with suppress(FoldError):
                await self._service.end_idle()
                await self._service.forget()
