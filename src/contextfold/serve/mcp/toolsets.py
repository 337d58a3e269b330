"""The tools by the names that `--tools` and `/mcp?tools=` choose them by, and the server for a choice of them.

The stdio server imports this module at its start, so the tools for folding are imported only where they are chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from contextfold.serve.mcp.fold_tools import AFTERWARDS_TOOLS, FOLD_TOOLS
from contextfold.serve.mcp.protocol import McpServer
from contextfold.serve.mcp.resolve_tools import RESOLVE_TOOLS
from contextfold.serve.mcp.resources import RESOURCE_READERS
from contextfold.serve.mcp.tools import ResolveTool, Tool
from contextfold.serve.request_error import BAD_REQUEST_STATUS, INVALID_REQUEST, RequestError
from contextfold.settings import ALL_TOOLSETS, offers_folding


def tools_of(names: Collection[str]) -> list[Tool]:
    """The tools of the sets with these names."""
    tools: list[Tool] = list(RESOLVE_TOOLS) if "resolve" in names else []
    if offers_folding(names):
        tools += FOLD_TOOLS if "fold" in names else AFTERWARDS_TOOLS
    return tools


def chosen_tools(offered: Sequence[Tool], names: str) -> list[Tool]:
    """Of the offered tools, those of the sets with these names, separated by commas."""
    wanted = names.split(",")
    if not set(wanted) <= set(ALL_TOOLSETS):
        message = f"tools must be one or more of {', '.join(ALL_TOOLSETS)}, separated by commas"
        raise RequestError(BAD_REQUEST_STATUS, "unknown_toolset", message, code=INVALID_REQUEST)
    return [tool for tool in tools_of(wanted) if tool in offered]


def server_of(tools: Sequence[Tool]) -> McpServer:
    """The server with these tools. Caches are its resources if it has tools for them."""
    has_caches = any(isinstance(tool, ResolveTool) for tool in tools)
    return McpServer(tools, RESOURCE_READERS if has_caches else {})
