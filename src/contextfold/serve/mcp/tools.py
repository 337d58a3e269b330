"""The types of tools and their results, for every transport. Knows neither JSON-RPC nor HTTP.

The tools are defined in `resolve_tools` and `fold_tools`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from contextfold.common.canonical import Encodable
from contextfold.resolve.service import CacheRoot

if TYPE_CHECKING:
    # A server without folding tools starts without the folding service.
    from contextfold.fold.project import Caller
    from contextfold.fold.service.fold_service import FoldService
    from contextfold.fold.service.sessions import VerbOutcome

Arguments = Mapping[str, object]

# An error repeats at most this many characters of an argument's name.
ARGUMENT_NAME_MAX = 60
META_STATE = "contextfold/state"
META_COUNTER = "contextfold/counter"


class ToolResult(NamedTuple):
    """The result of a tool: one text, and the state of the session. A reader of resources has members instead."""

    text: str = ""
    # The error code; empty if the call succeeded.
    kind: str = ""
    # The reason of an error, for the operator's log and never for the caller.
    reason: str = ""
    # The message of an error.
    message: str = ""
    # The members of the protocol's own result, for a request about resources.
    members: Mapping[str, Encodable] | None = None
    # What every response says about the session; None if the tool has no session.
    state: Mapping[str, Encodable] | None = None
    # The name of the token counter.
    counter: str = ""

    def meta(self) -> dict[str, object]:
        """The result's `_meta`."""
        return {META_STATE: self.state, META_COUNTER: self.counter} if self.state is not None else {}


class ResolveTool(NamedTuple):
    """A tool whose failures are results with a code. `purpose` is a clause for the server's instructions."""

    name: str
    purpose: str
    description: str
    schema: dict[str, Encodable]
    handler: Callable[[CacheRoot, Arguments], str]
    # Whether its errors say what was wrong. The messages of the tools of v0 are frozen.
    explains: bool = False


class ResourceReader(NamedTuple):
    """Answers a method of the protocol about resources. It runs like a resolve tool, but is not listed as one."""

    name: str
    read: Callable[[CacheRoot, Arguments], Mapping[str, Encodable]]


class FoldTool(NamedTuple):
    """A tool that reads or changes a session. Its failures are protocol errors."""

    name: str
    purpose: str
    description: str
    schema: dict[str, Encodable]
    handler: Callable[[FoldService, Caller, Arguments], Awaitable[VerbOutcome]]
    reads: bool = True
    destroys: bool = False


Tool = ResolveTool | FoldTool


def text_schema(description: str) -> dict[str, Encodable]:
    """The schema of an argument that is a text."""
    return {"type": "string", "description": description}


def describe_tool(tool: Tool) -> dict[str, Encodable]:
    """A tool as `tools/list` returns it. A host may show the annotations to its user.

    Only values that differ from the protocol's defaults are included, because every request contains the tools.
    """
    if isinstance(tool, ResolveTool) or tool.reads:
        hints: dict[str, Encodable] = {"readOnlyHint": True}
    else:
        hints = {} if tool.destroys else {"destructiveHint": False}
    # No tool works outside of this product.
    hints["openWorldHint"] = False
    return {"name": tool.name, "description": tool.description, "inputSchema": tool.schema, "annotations": hints}


def describe_unknown_arguments(tool: Tool, arguments: Arguments) -> str:
    """What is wrong if a call has arguments that the tool does not take; empty if it has none."""
    properties = tool.schema.get("properties")
    if tool.schema.get("additionalProperties") is not False or not isinstance(properties, dict):
        return ""
    unknown = sorted(arguments.keys() - properties.keys())
    if not unknown:
        return ""
    if not (isinstance(tool, ResolveTool) and tool.explains):
        return "Invalid params"
    # Escaped, because a name may be any text.
    name = ascii(unknown[0][:ARGUMENT_NAME_MAX])
    return f"Invalid params: {tool.name} has no argument {name}; it takes {', '.join(properties)}"


def instructions(tools: Sequence[Tool]) -> str:
    """The `instructions` that a server gives to a model."""
    uses = "; ".join(f"{tool.name}: {tool.purpose}" for tool in tools)
    kinds = {type(tool) for tool in tools}
    about = [text for kind, text in _ABOUT.items() if kind in kinds]
    return f"{' '.join(about)} Tools: {uses}."


_ABOUT: dict[type, str] = {
    ResolveTool: "Finds the passages and documents that answer a question, within a token budget, in caches that were "
    "built beforehand.",
    FoldTool: "Keeps a long conversation small: finished work is replaced by a summary and stays readable.",
}
