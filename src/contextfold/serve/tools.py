"""The tools, defined once for every transport: name, description, schema, and what a call does.

A tool answers with text, the same over every wire. Knows neither JSON-RPC nor HTTP. Importing this module must stay
cheap: a server lists its tools long before it needs the engine.
"""

from __future__ import annotations

from contextfold.errors import ContextError, InternalError
from contextfold.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from contextfold.canonical import Encodable
    from contextfold.resolve.root import CacheRoot
    from contextfold.serve.fold_tools import FoldTool

    Arguments = Mapping[str, object]


META_STATE = "contextfold/state"
META_COUNTER = "contextfold/counter"


class Answer(Record):
    text: str
    is_error: bool = False
    reason: str = ""  # for the operator's log, never for the caller
    state: str = ""  # of the session, as JSON; empty where a tool has none
    counter: str = ""  # what counted its tokens

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
    message: str
    data: str  # as JSON
    reason: str
    state: str


class Tool(Record):
    name: str
    purpose: str  # a clause for a server's instructions
    description: str
    schema: dict[str, Encodable]
    handler: Callable[[CacheRoot, Arguments], str]
    hints: dict[str, bool]


def hints(*, reads: bool, destroys: bool = False, repeatable: bool = False) -> dict[str, bool]:
    """What a host may tell its user about a tool. All of them work on this product's own state alone."""
    return {
        "readOnlyHint": reads,
        "destructiveHint": destroys,
        "idempotentHint": repeatable,
        "openWorldHint": False,
    }


def listing(tool: Tool | FoldTool) -> dict[str, Encodable]:
    """A tool as `tools/list` shows it."""
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.schema,
        "annotations": tool.hints,
    }


def instructions(tools: Sequence[Tool | FoldTool]) -> str:
    """What a server tells a model about itself."""
    uses = "; ".join(f"{tool.name}: {tool.purpose}" for tool in tools)
    has_resolve = any(isinstance(tool, Tool) for tool in tools)
    has_fold = not all(isinstance(tool, Tool) for tool in tools)
    resolve = "Whole documents for a question and a token budget, from caches built beforehand. " if has_resolve else ""
    fold = (
        "Do a subtask in a branch and fold it back to a short summary, so that the main thread stays small. "
        if has_fold
        else ""
    )
    return f"{resolve}{fold}Tools: {uses}."


def _resolve(root: CacheRoot, arguments: Arguments) -> str:
    from contextfold.resolve.root import check_name
    from contextfold.resolve.selection import ask

    name = check_name(arguments.get("cache"))
    question = ask(arguments.get("query"), arguments.get("budget"))
    return root.cache(name).resolve(question.text, question.budget).to_json()


def _list_caches(root: CacheRoot, _arguments: Arguments) -> str:
    from contextfold.canonical import encode

    return encode({"caches": [listed._asdict() for listed in root.list()]})


def _inspect_cache(root: CacheRoot, arguments: Arguments) -> str:
    from contextfold.resolve.root import check_name

    return root.summary(check_name(arguments.get("cache"))).to_json()


def _schema(**properties: Encodable) -> dict[str, Encodable]:
    """All inputs are required, and no others are taken."""
    schema: dict[str, Encodable] = {"type": "object", "properties": properties}
    if properties:
        schema["required"] = list(properties)
    return schema | {"additionalProperties": False}


_READS = hints(reads=True, repeatable=True)
_CACHE: Encodable = {"type": "string", "description": "Path or identifier of a built context cache"}

RESOLVE_TOOLS = (
    Tool(
        "context.resolve",
        "get the documents that answer a question best within a token budget, each with the reason it was chosen",
        "Resolve a natural-language query against a pre-built context cache and return a deterministic, explainable "
        "set of documents within a token budget.",
        _schema(
            cache=_CACHE,
            query={"type": "string", "description": "Natural-language query"},
            budget={"type": "integer", "minimum": 0, "description": "Maximum token budget"},
        ),
        _resolve,
        _READS,
    ),
    Tool(
        "context.list_caches",
        "see which caches there are; call it first if you do not know a cache's name",
        "List available context caches.",
        _schema(),
        _list_caches,
        _READS,
    ),
    Tool(
        "context.inspect_cache",
        "see a cache's version, size and whether it is valid",
        "Inspect cache state and metadata.",
        _schema(cache=_CACHE),
        _inspect_cache,
        _READS,
    ),
)


def call(tool: Tool, root: CacheRoot, arguments: Arguments) -> Answer:
    """Run a tool; every failure becomes a typed answer."""
    try:
        return Answer(tool.handler(root, arguments))
    except ContextError as problem:
        return failure(problem)
    except Exception as problem:  # whatever it is, the caller gets a code and the server goes on
        return failure(InternalError(f"{type(problem).__name__}: {problem}"))


def failure(problem: ContextError) -> Answer:
    """The frozen error schema: a code, a message, and nothing else."""
    from contextfold.canonical import encode

    text = encode({"error": {"code": problem.code, "message": problem.message}}) + "\n"
    return Answer(text, True, f"{problem.code}: {problem.reason}")
