"""What MCP offers of caches, for every transport: the resolve tools, and caches and their documents as resources.

A tool has a name, a description, a schema and a handler, which returns a text. There is one resource for each cache,
and one template for the documents of all. Resources are read like tools are called: the transport runs a reader, and
the protocol core encodes the result.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from urllib.parse import quote, unquote_to_bytes

from contextfold.common.answer_format import FORMATS, JSON, TEXT
from contextfold.common.canonical import Encodable, encode
from contextfold.common.question import (
    AROUND_MAX,
    ASK_BUDGET,
    GET_BUDGET,
    check_budget,
    parse_lines,
    quote_briefly,
    read_question,
)
from contextfold.common.tokens import ASK_COUNTERS
from contextfold.errors import (
    REBUILD_IT,
    BudgetInvalid,
    CacheInvalid,
    CacheMissing,
    CacheRootMissing,
    ContextError,
    CounterMissing,
    DocumentMissing,
    IndexMissing,
    InternalError,
    NoCacheNamed,
    OptionInvalid,
    QueryInvalid,
    StorageFailed,
)
from contextfold.resolve.relevance.answer import GetResult, places_of
from contextfold.resolve.relevance.answer_parts import check_format
from contextfold.resolve.relevance.asking import UNITS
from contextfold.resolve.selection import parse_query
from contextfold.resolve.service import CacheRoot, ask_many, check_name, get_first
from contextfold.serve.mcp.tools import Arguments, ResolveTool, ResourceReader, ToolResult, text_schema

# The addresses of resources.
SCHEME = "context://caches/"
JSON_TYPE, MARKDOWN_TYPE, PLAIN_TYPE = "application/json", "text/markdown", "text/plain"
MARKDOWN_ENDINGS = (".md", ".mdx", ".markdown")
DOCUMENTS_LISTED_MAX = 1_000


def _resolve(root: CacheRoot, arguments: Arguments) -> str:
    name = check_name(arguments.get("cache"))
    # The query is checked before the cache is looked up, so that its error comes first.
    query = parse_query(arguments.get("query"), arguments.get("budget"))
    return root.cache(name).resolve(query.text, query.budget).to_json()


def _list_caches(root: CacheRoot, _arguments: Arguments) -> str:
    return encode({"caches": [listed._asdict() for listed in root.list()]})


def _inspect_cache(root: CacheRoot, arguments: Arguments) -> str:
    return encode(root.cache(check_name(arguments.get("cache"))).inspect_folder()._asdict())


def _ask(root: CacheRoot, arguments: Arguments) -> str:
    """Ask one cache, or all caches below the root if none is named."""
    name = arguments.get("cache")
    named = (check_name(name),) if name is not None else ()
    if "query" not in arguments:
        raise QueryInvalid("it is missing; give the question as `query`")
    question = read_question(arguments["query"], arguments.get("budget", ASK_BUDGET))
    unit, counter, format = arguments.get("unit", UNITS[0]), _counter(arguments), _format(arguments)
    if not isinstance(unit, str) or unit not in UNITS:
        raise OptionInvalid(f"unit must be {' or '.join(UNITS)}")
    names = named or root.names_to_ask()
    try:
        caches = [("" if len(names) == 1 else each, root.cache(each)) for each in names]
        # Only a cache that the caller did not name can be left out.
        optional = () if named else names
        result = ask_many(caches, question, unit=unit, counter=counter, format=format, optional=optional)
        return result.to_json() if format == JSON else result.to_text()
    except ContextError as problem:
        if len(names) == 1:
            problem.cache = names[0]
        raise


def _get(root: CacheRoot, arguments: Arguments) -> str:
    """Read a document of the named cache, or of the cache whose name is before the id."""
    name = arguments.get("cache")
    named = (check_name(name),) if name is not None else ()
    document_id, section = arguments.get("id"), arguments.get("section")
    if not isinstance(document_id, str):
        raise OptionInvalid("id must be a text: the id of a document, as context.ask gives it")
    if not isinstance(section, str | None):
        raise OptionInvalid("section must be a text: a heading of the document")
    lines, around = _lines(arguments), arguments.get("around", 0)
    if section is not None and lines is not None:
        raise OptionInvalid("section and lines exclude each other; give one of them")
    if isinstance(around, bool) or not isinstance(around, int) or not 0 <= around <= AROUND_MAX:
        raise OptionInvalid(f"around must be a whole number from 0 to {AROUND_MAX}")
    budget, counter = check_budget(arguments.get("budget", GET_BUDGET)), _counter(arguments)
    format = _format(arguments)

    names = named or root.names()

    def get(cache: str, id_there: str) -> GetResult:
        return root.cache(cache).get(
            id_there,
            budget,
            section=section,
            lines=lines,
            around=around,
            counter=counter,
            format=format,
            name=cache if len(names) > 1 else "",
        )

    places = places_of(document_id, names)
    if not places:
        raise OptionInvalid("there are several caches; give the name of one as `cache`, or an id like CACHE:ID")
    result = get_first(places, get)
    return result.to_json() if format == JSON else result.to_text()


def _lines(arguments: Arguments) -> tuple[int, int] | None:
    lines = arguments.get("lines")
    if lines is None:
        return None
    if not isinstance(lines, str):
        raise OptionInvalid("lines must be a text like 40-58")
    try:
        return parse_lines(lines)
    except ValueError as problem:
        raise OptionInvalid(f"lines {problem}") from None


def _counter(arguments: Arguments) -> str:
    counter = arguments.get("counter", ASK_COUNTERS[0])
    if not isinstance(counter, str) or counter not in ASK_COUNTERS:
        raise CounterMissing(f"counter must be {' or '.join(ASK_COUNTERS)}")
    return counter


def _format(arguments: Arguments) -> str:
    return check_format(arguments.get("format", TEXT))


def _whole_number(description: str, **more: int) -> Encodable:
    return {"type": "integer", "minimum": 0, **more, "description": description}


def _schema(*, optional: Mapping[str, Encodable] | None = None, **properties: Encodable) -> dict[str, Encodable]:
    """A schema with required and optional properties, which allows no others."""
    schema: dict[str, Encodable] = {"type": "object", "properties": properties | dict(optional or {})}
    if properties:
        schema["required"] = list(properties)
    return schema | {"additionalProperties": False}


_COUNTER: Encodable = {
    "type": "string",
    "enum": list(ASK_COUNTERS),
    "description": f"How tokens are counted, {ASK_COUNTERS[0]} if absent",
}
_FORMAT: Encodable = {"type": "string", "enum": list(FORMATS), "description": f"{TEXT} if absent"}
_CACHE: Encodable = text_schema("Path or identifier of a built context cache")

RESOLVE_TOOLS = (
    ResolveTool(
        "context.resolve",
        "get the documents that answer a question best within a token budget, each with the reason it was chosen",
        "Resolve a natural-language query against a pre-built context cache and return a deterministic, explainable "
        "set of documents within a token budget.",
        _schema(
            cache=_CACHE,
            query=text_schema("Natural-language query"),
            budget=_whole_number("Maximum token budget"),
        ),
        _resolve,
    ),
    ResolveTool(
        "context.list_caches",
        "see which caches there are; call it first if you do not know a cache's name",
        "List available context caches.",
        _schema(),
        _list_caches,
    ),
    ResolveTool(
        "context.inspect_cache",
        "see a cache's version, size and whether it is valid",
        "Inspect cache state and metadata.",
        _schema(cache=_CACHE),
        _inspect_cache,
    ),
    ResolveTool(
        "context.ask",
        "find the passages of documents that answer a question, ranked by relevance; better than context.resolve",
        "Find the passages of the documents here that answer a question best. Ask before you search or read files one "
        "by one, in words as you would ask a colleague. The answer never has more tokens than the budget: about 1000 "
        "for a fact, 4000 to learn how something works. Each passage comes with its document, its lines and why it was "
        "chosen; context.get reads on from there.",
        _schema(
            query=text_schema("The question"),
            optional={
                "cache": text_schema("A cache's name; all caches if absent"),
                "budget": _whole_number(f"Maximum tokens, {ASK_BUDGET} if absent"),
                "unit": {"type": "string", "enum": list(UNITS), "description": "What is chosen"},
                "counter": _COUNTER,
                "format": _FORMAT,
            },
        ),
        _ask,
        explains=True,
    ),
    ResolveTool(
        "context.get",
        "read a document that context.ask has named, or a part of it",
        "Read a document of a cache: all of it, the section below a heading, or some lines, with neighbouring sections "
        "if wanted, within a token budget.",
        _schema(
            id=text_schema("The document's id, as context.ask gives it"),
            optional={
                "cache": text_schema("The cache's name; not needed if the id begins with it, or if there is one cache"),
                "section": text_schema("A heading"),
                "lines": text_schema("A range of lines, such as 40-58"),
                "around": _whole_number("Neighbouring sections to add on each side", maximum=AROUND_MAX),
                "budget": _whole_number(f"Maximum tokens, {GET_BUDGET} if absent"),
                "counter": _COUNTER,
                "format": _FORMAT,
            },
        ),
        _get,
        explains=True,
    ),
)


# The tools of a server for one cache of documents. Every request of an agent contains the definitions.
ASK_TOOLS = tuple(tool for tool in RESOLVE_TOOLS if tool.name in ("context.ask", "context.get"))

TEMPLATES: list[dict[str, Encodable]] = [
    {
        "uriTemplate": SCHEME + "{cache}/{+id}",
        "name": "document",
        "title": "A document of a cache",
        "description": "The whole text of a document, by the cache's name and the document's id",
    }
]


def _list_resources(root: CacheRoot, _arguments: Arguments) -> Mapping[str, Encodable]:
    # A root that is not there has no caches. The frozen tool `context.list_caches` answers with an error instead.
    names = [listed.path for listed in root.list() if listed.has_manifest] if os.path.isdir(root.path) else []
    resources = [
        {
            "uri": SCHEME + quote(name, safe=""),
            "name": name,
            "description": "A cache of documents: its version, and the ids and titles of its documents",
            "mimeType": JSON_TYPE,
        }
        for name in names
    ]
    return {"resources": resources}


def _read_resource(root: CacheRoot, arguments: Arguments) -> Mapping[str, Encodable]:
    uri = arguments.get("uri")
    if not isinstance(uri, str) or not uri.startswith(SCHEME):
        raise NoCacheNamed(f"a resource's address begins with {SCHEME}")
    written_name, _, written_id = uri.removeprefix(SCHEME).partition("/")
    try:
        name, document_id = (unquote_to_bytes(part).decode() for part in (written_name, written_id))
    except UnicodeError:
        raise NoCacheNamed("the address is not UTF-8") from None
    try:
        cache = root.cache(check_name(name))
        if document_id:
            kind = MARKDOWN_TYPE if document_id.lower().endswith(MARKDOWN_ENDINGS) else PLAIN_TYPE
            text = cache.document_text(document_id)
        else:
            kind, text = JSON_TYPE, encode(cache.table_of_contents(DOCUMENTS_LISTED_MAX))
    except ContextError as problem:
        problem.cache = name
        raise
    return {"contents": [{"uri": uri, "mimeType": kind, "text": text}]}


def _list_templates(_root: CacheRoot, _arguments: Arguments) -> Mapping[str, Encodable]:
    return {"resourceTemplates": TEMPLATES}


# The readers by method.
RESOURCE_READERS = {
    reader.name: reader
    for reader in (
        ResourceReader("resources/list", _list_resources),
        ResourceReader("resources/read", _read_resource),
        ResourceReader("resources/templates/list", _list_templates),
    )
}


def run_resolve_tool(tool: ResolveTool | ResourceReader, root: CacheRoot, arguments: Arguments) -> ToolResult:
    """Run a tool or a reader of resources; every failure becomes a result with a code."""
    try:
        if isinstance(tool, ResourceReader):
            return ToolResult(members=tool.read(root, arguments))
        return ToolResult(tool.handler(root, arguments))
    except ContextError as problem:
        is_explained = isinstance(tool, ResourceReader) or tool.explains
        return failure_result(problem, explain_error(problem) if is_explained else "")
    except Exception as problem:
        return failure_result(InternalError(f"{type(problem).__name__}: {problem}"))


class ResolveRunner:
    """Runs the tools, and answers the protocol's requests about resources. Caches stay open between calls."""

    def __init__(self, cache_root: str, only: str = "") -> None:
        """Tools on the caches below a root, or `only` on the one with that name."""
        self._cache_root, self._only = cache_root, only
        self._tools = {tool.name: tool for tool in RESOLVE_TOOLS}

    def run(self, name: str, arguments: Mapping[str, object]) -> ToolResult:
        return run_resolve_tool(RESOURCE_READERS.get(name) or self._tools[name], self._root, arguments)

    @cached_property
    def _root(self) -> CacheRoot:
        return CacheRoot(os.fsencode(self._cache_root), self._only)


def failure_result(problem: ContextError, explained: str = "") -> ToolResult:
    """An error in the frozen format, which has only a code and a message."""
    message = f"{problem.message}: {explained}" if explained else problem.message
    return error_result(problem.code, message, f"{problem.code}: {problem.reason}")


def error_result(code: str, message: str, reason: str) -> ToolResult:
    text = encode({"error": {"code": code, "message": message}}) + "\n"
    return ToolResult(text, code, reason, message)


def explain_error(problem: ContextError) -> str:
    """What was wrong and what to do, for the caller of a tool that explains its errors. It contains no path."""
    name = quote_briefly(problem.cache)
    cache = f"the cache {name}" if problem.cache else "a cache"
    explained = ""
    match problem:
        case DocumentMissing():
            explained = f"context.ask gives the ids of the documents in {cache}"
            if problem.similar:
                explained += f"; did you mean {' or '.join(map(quote_briefly, problem.similar))}?"
        case NoCacheNamed() | QueryInvalid() | BudgetInvalid():
            explained = problem.reason
        case CacheMissing():
            explained = f"none below the cache root is called {name}; " if problem.cache else ""
            explained += "context.list_caches lists the caches"
        case IndexMissing():
            explained = f"{cache} cannot be asked: {problem.advice}"
        case CacheInvalid():
            explained = f"{cache} is damaged, a file is not as it was built; {REBUILD_IT}"
        case CacheRootMissing():
            explained = "the cache root does not exist; `context build DIR --cache ROOT/NAME` makes a cache"
        case StorageFailed():
            unread = cache if problem.cache else "the cache root"
            explained = f"the server cannot read {unread}; it may lack the permission"
    return explained
