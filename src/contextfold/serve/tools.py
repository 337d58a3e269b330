"""The tools, defined once for every transport: name, description, schema, and what a call does.

A tool answers with text, the same over every wire. Knows neither JSON-RPC nor HTTP. Importing this module must stay
cheap: a server lists its tools long before it needs the engine.
"""

from __future__ import annotations

from contextfold.errors import ContextError, InternalError
from contextfold.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from contextfold.canonical import Encodable
    from contextfold.resolve.root import CacheRoot

    Arguments = Mapping[str, object]


class Answer(Record):
    text: str
    is_error: bool = False
    reason: str = ""  # for the operator's log, never for the caller


class Tool(Record):
    name: str
    purpose: str  # a clause for a server's instructions
    description: str
    properties: dict[str, Encodable]
    handler: Callable[[CacheRoot, Arguments], str]

    @property
    def schema(self) -> dict[str, Encodable]:
        """All inputs are required, and no others are taken."""
        schema: dict[str, Encodable] = {"type": "object", "properties": self.properties}
        if self.properties:
            schema["required"] = list(self.properties)
        return schema | {"additionalProperties": False}


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


_CACHE: Encodable = {"type": "string", "description": "Path or identifier of a built context cache"}

RESOLVE_TOOLS = (
    Tool(
        "context.resolve",
        "get the documents that answer a question best within a token budget, each with the reason it was chosen",
        "Resolve a natural-language query against a pre-built context cache and return a deterministic, explainable "
        "set of documents within a token budget.",
        {
            "cache": _CACHE,
            "query": {"type": "string", "description": "Natural-language query"},
            "budget": {"type": "integer", "minimum": 0, "description": "Maximum token budget"},
        },
        _resolve,
    ),
    Tool(
        "context.list_caches",
        "see which caches there are; call it first if you do not know a cache's name",
        "List available context caches.",
        {},
        _list_caches,
    ),
    Tool(
        "context.inspect_cache",
        "see a cache's version, size and whether it is valid",
        "Inspect cache state and metadata.",
        {"cache": _CACHE},
        _inspect_cache,
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
