"""What a tool is, and what it may answer: the same records for every transport. Knows neither JSON-RPC nor HTTP.

Importing this module must stay cheap: a server lists its tools long before it needs an engine. The tools themselves are
in `resolve_tools` and `fold_tools`.
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


class Answer(Record):
    text: str
    kind: str = ""  # the error's code, if it is one
    reason: str = ""  # for the operator's log, never for the caller
    state: str = ""  # of the session, as JSON; empty where a tool has none
    counter: str = ""  # what counted its tokens
    line: str = ""  # for the model, beside the text

    @property
    def is_error(self) -> bool:
        return bool(self.kind)

    @property
    def texts(self) -> tuple[str, ...]:
        """What the model reads: the answer, and a line beside it where there is one."""
        return (self.text, self.line) if self.line else (self.text,)

    @property
    def meta(self) -> dict[str, object]:
        """What rides beside the answer, where a model can see it."""
        if not self.state:
            return {}
        import json

        return {META_STATE: json.loads(self.state), META_COUNTER: self.counter}


class Refusal(Record):
    """An answer that is an error of the protocol."""

    code: int
    kind: str  # the code's name among ours
    message: str
    data: str  # as JSON
    reason: str
    state: str


class ResolveTool(Record):
    """Gives a text. Failures are texts too, with a code."""

    name: str
    purpose: str  # a clause for a server's instructions
    description: str
    schema: dict[str, Encodable]
    hints: dict[str, bool]
    handler: Callable[[CacheRoot, Arguments], str]


class FoldTool(Record):
    """Looks at a session or changes it. Failures are errors of the protocol."""

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
    """A tool as `tools/list` shows it."""
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.schema,
        "annotations": tool.hints,
    }


def instructions(tools: Sequence[Tool]) -> str:
    """What a server tells a model about itself."""
    uses = "; ".join(f"{tool.name}: {tool.purpose}" for tool in tools)
    kinds = {type(tool) for tool in tools}
    about = [text for kind, text in _ABOUT.items() if kind in kinds]
    return f"{' '.join(about)} Tools: {uses}."


_ABOUT: dict[type, str] = {
    ResolveTool: "Whole documents for a question and a token budget, from caches built beforehand.",
    FoldTool: "Keeps a long conversation small: finished work is replaced by a summary and stays readable.",
}
