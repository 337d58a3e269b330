"""The resolve tools, defined once for every transport: name, description, schema, and what a call does.

A tool returns a text, the same on every transport. Importing this module is cheap; a call imports what it needs.
"""

from __future__ import annotations

from contextfold.errors import ContextError, InternalError
from contextfold.serve.mcp.tools import ResolveTool, ToolResult, hints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from contextfold.common.canonical import Encodable
    from contextfold.resolve.root import CacheRoot

    Arguments = Mapping[str, object]


def _resolve(root: CacheRoot, arguments: Arguments) -> str:
    from contextfold.resolve.root import check_name
    from contextfold.resolve.selection import ask

    name = check_name(arguments.get("cache"))
    question = ask(arguments.get("query"), arguments.get("budget"))
    return root.cache(name).resolve(question.text, question.budget).to_json()


def _list_caches(root: CacheRoot, _arguments: Arguments) -> str:
    from contextfold.common.canonical import encode

    return encode({"caches": [listed._asdict() for listed in root.list()]})


def _inspect_cache(root: CacheRoot, arguments: Arguments) -> str:
    from contextfold.resolve.root import check_name

    return root.summary(check_name(arguments.get("cache"))).to_json()


def _schema(**properties: Encodable) -> dict[str, Encodable]:
    """A schema whose properties are all required, and which allows no others."""
    schema: dict[str, Encodable] = {"type": "object", "properties": properties}
    if properties:
        schema["required"] = list(properties)
    return schema | {"additionalProperties": False}


_READS = hints(reads=True, repeatable=True)
_CACHE: Encodable = {"type": "string", "description": "Path or identifier of a built context cache"}

RESOLVE_TOOLS = (
    ResolveTool(
        "context.resolve",
        "get the documents that answer a question best within a token budget, each with the reason it was chosen",
        "Resolve a natural-language query against a pre-built context cache and return a deterministic, explainable "
        "set of documents within a token budget.",
        _schema(
            cache=_CACHE,
            query={"type": "string", "description": "Natural-language query"},
            budget={"type": "integer", "minimum": 0, "description": "Maximum token budget"},
        ),
        _READS,
        _resolve,
    ),
    ResolveTool(
        "context.list_caches",
        "see which caches there are; call it first if you do not know a cache's name",
        "List available context caches.",
        _schema(),
        _READS,
        _list_caches,
    ),
    ResolveTool(
        "context.inspect_cache",
        "see a cache's version, size and whether it is valid",
        "Inspect cache state and metadata.",
        _schema(cache=_CACHE),
        _READS,
        _inspect_cache,
    ),
)


def call(tool: ResolveTool, root: CacheRoot, arguments: Arguments) -> ToolResult:
    """Run a tool; every failure becomes a result with a code."""
    try:
        return ToolResult(tool.handler(root, arguments))
    except ContextError as problem:
        return failure(problem)
    except Exception as problem:
        return failure(InternalError(f"{type(problem).__name__}: {problem}"))


def failure(problem: ContextError) -> ToolResult:
    """The frozen error schema: a code, a message, and nothing else."""
    from contextfold.common.canonical import encode

    text = encode({"error": {"code": problem.code, "message": problem.message}}) + "\n"
    return ToolResult(text, problem.code, f"{problem.code}: {problem.reason}")
