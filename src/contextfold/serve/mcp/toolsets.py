"""The tools by the names that `--tools` and `/mcp?tools=` choose them by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from contextfold.serve.mcp.fold_tools import AFTERWARDS_TOOLS, FOLD_TOOLS
from contextfold.serve.mcp.resolve_tools import RESOLVE_TOOLS
from contextfold.serve.request_error import BAD_REQUEST_STATUS, INVALID_REQUEST, RequestError
from contextfold.settings_table import FOLD_AFTERWARDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextfold.serve.mcp.tools import Tool

TOOLSETS: Mapping[str, Sequence[Tool]] = {
    "resolve": RESOLVE_TOOLS,
    "fold": FOLD_TOOLS,
    FOLD_AFTERWARDS: AFTERWARDS_TOOLS,
}


def chosen_tools(offered: Sequence[Tool], names: str) -> list[Tool]:
    """Of the offered tools, those of the sets with these names, separated by commas."""
    unknown = set(names.split(",")) - TOOLSETS.keys()
    if unknown:
        message = f"tools must be one or more of {', '.join(TOOLSETS)}, separated by commas"
        raise RequestError(BAD_REQUEST_STATUS, "unknown_toolset", message, code=INVALID_REQUEST)
    wanted = {tool.name for name in names.split(",") for tool in TOOLSETS[name]}
    return [tool for tool in offered if tool.name in wanted]
