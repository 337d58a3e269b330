"""What a tool and a tool's result are, for every transport. Knows neither JSON-RPC nor HTTP.

Importing this module must stay cheap: a server lists its tools long before it runs one. The tools themselves are in
`resolve_tools` and `fold_tools`.
"""

from __future__ import annotations

from contextfold.common.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from contextfold.common.canonical import Encodable
    from contextfold.fold.service.callers import Caller
    from contextfold.fold.service.fold_service import FoldService
    from contextfold.fold.service.sessions import VerbOutcome
    from contextfold.resolve.root import CacheRoot

    Arguments = Mapping[str, object]

META_STATE = "contextfold/state"
META_COUNTER = "contextfold/counter"


class ToolResult(Record):
    """What a tool gives back: one text, and the state of the session beside it."""

    text: str
    # The code of an error of ours; empty if the call succeeded.
    kind: str = ""
    # For the operator's log, never for the caller.
    reason: str = ""
    # The session's state as JSON; empty where a tool has no session.
    state: str = ""
    # The name of the token counter.
    counter: str = ""

    def meta(self) -> dict[str, object]:
        """What the result's `_meta` carries."""
        if not self.state:
            return {}
        import json

        return {META_STATE: json.loads(self.state), META_COUNTER: self.counter}


class ResolveTool(Record):
    """A tool whose failures are results with a code. `purpose` is a clause for the server's instructions."""

    name: str
    purpose: str
    description: str
    schema: dict[str, Encodable]
    hints: dict[str, bool]
    handler: Callable[[CacheRoot, Arguments], str]


class FoldTool(Record):
    """A tool that reads or changes a session. Its failures are protocol errors."""

    name: str
    purpose: str
    description: str
    schema: dict[str, Encodable]
    hints: dict[str, bool]
    handler: Callable[[FoldService, Caller, Arguments], Awaitable[VerbOutcome]]


if TYPE_CHECKING:
    Tool = ResolveTool | FoldTool


def hints(*, reads: bool, destroys: bool = False, repeatable: bool = False) -> dict[str, bool]:
    """What a host may show its user about a tool. All of them work on this product's own state alone.

    Only what differs from the protocol's defaults is said: a list of tools is paid for with every request.
    """
    if reads:
        return {"readOnlyHint": True, "openWorldHint": False}
    said = {"openWorldHint": False} if destroys else {"destructiveHint": False, "openWorldHint": False}
    return {**said, "idempotentHint": True} if repeatable else said


def listing(tool: Tool) -> dict[str, Encodable]:
    """A tool as `tools/list` returns it."""
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.schema,
        "annotations": tool.hints,
    }


def instructions(tools: Sequence[Tool]) -> str:
    """The `instructions` that a server gives to a model."""
    uses = "; ".join(f"{tool.name}: {tool.purpose}" for tool in tools)
    kinds = {type(tool) for tool in tools}
    about = [text for kind, text in _ABOUT.items() if kind in kinds]
    return f"{' '.join(about)} Tools: {uses}."


_ABOUT: dict[type, str] = {
    ResolveTool: "Whole documents for a question and a token budget, from caches built beforehand.",
    FoldTool: "Keeps a long conversation small: finished work is replaced by a summary and stays readable.",
}
