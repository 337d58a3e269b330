"""The definitions of the resolve tools, for every transport: name, description, schema and handler of each.

A tool returns a text, the same on every transport. Importing this module is cheap; a call imports what it needs.
"""

from __future__ import annotations

from contextfold.common.relevance.defaults import AROUND_MAX, ASK_BUDGET, GET_BUDGET
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


def _ask(root: CacheRoot, arguments: Arguments) -> str:
    """Ask one cache, or all caches below the root if none is named."""
    from contextfold.common.relevance.question import read_question
    from contextfold.resolve.root import check_name
    from contextfold.resolve.service import ask_many

    name = arguments.get("cache")
    named = (check_name(name),) if name is not None else ()
    question = read_question(arguments.get("query"), arguments.get("budget", ASK_BUDGET))
    unit = _unit(arguments.get("unit", "section"))
    names = named or root.names()
    caches = [("" if len(names) == 1 else each, root.cache(each)) for each in names]
    return ask_many(caches, question, unit=unit).to_json()


def _get(root: CacheRoot, arguments: Arguments) -> str:
    from contextfold.common.relevance.question import checked_budget, line_range
    from contextfold.errors import QueryInvalid
    from contextfold.resolve.root import check_name

    name = check_name(arguments.get("cache"))
    document_id, section, lines = (arguments.get(key) for key in ("id", "section", "lines"))
    around = arguments.get("around", 0)
    if not isinstance(document_id, str) or not isinstance(section, str | None) or not isinstance(lines, str | None):
        raise QueryInvalid("id, section and lines are texts")
    if section is not None and lines is not None:
        raise QueryInvalid("section and lines exclude each other; give one of them")
    if isinstance(around, bool) or not isinstance(around, int) or not 0 <= around <= AROUND_MAX:
        raise QueryInvalid(f"around is a whole number from 0 to {AROUND_MAX}")
    try:
        wanted = line_range(lines) if lines is not None else None
    except ValueError as problem:
        raise QueryInvalid(f"lines {problem}") from None
    budget = checked_budget(arguments.get("budget", GET_BUDGET))
    return root.cache(name).get(document_id, budget, section=section, lines=wanted, around=around).to_json()


def _unit(value: object) -> str:
    from contextfold.errors import QueryInvalid

    if value not in ("section", "document"):
        raise QueryInvalid("unit is section or document")
    return str(value)


def _schema(*, optional: Mapping[str, Encodable] | None = None, **properties: Encodable) -> dict[str, Encodable]:
    """A schema with required and optional properties, which allows no others."""
    schema: dict[str, Encodable] = {"type": "object", "properties": properties | dict(optional or {})}
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
    ResolveTool(
        "context.ask",
        "find the passages of documents that answer a question, ranked by relevance; better than context.resolve",
        "Find the sections of documents that answer a question best, within a token budget. Every section comes with "
        "its place, its text and the terms it was chosen for. Ask in words, as you would ask a colleague.",
        _schema(
            query={"type": "string", "description": "The question"},
            optional={
                "cache": {"type": "string", "description": "A cache's name; all caches if absent"},
                "budget": {
                    "type": "integer",
                    "minimum": 0,
                    "description": f"Maximum tokens, {ASK_BUDGET} if absent",
                },
                "unit": {"type": "string", "enum": ["section", "document"], "description": "What is chosen"},
            },
        ),
        _READS,
        _ask,
    ),
    ResolveTool(
        "context.get",
        "read a document that context.ask has named, or a part of it",
        "Read a document of a cache: all of it, the section below a heading, or some lines, with neighbouring sections "
        "if wanted, within a token budget.",
        _schema(
            cache=_CACHE,
            id={"type": "string", "description": "The document's id, as context.ask gives it"},
            optional={
                "section": {"type": "string", "description": "A heading"},
                "lines": {"type": "string", "description": "A range of lines, such as 40-58"},
                "around": {"type": "integer", "minimum": 0, "description": "Neighbouring sections to add on each side"},
                "budget": {"type": "integer", "minimum": 0, "description": f"Maximum tokens, {GET_BUDGET} if absent"},
            },
        ),
        _READS,
        _get,
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
    """An error in the frozen format, which has only a code and a message."""
    from contextfold.common.canonical import encode

    text = encode({"error": {"code": problem.code, "message": problem.message}}) + "\n"
    return ToolResult(text, problem.code, f"{problem.code}: {problem.reason}")
