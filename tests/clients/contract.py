"""What every MCP client must see of the server, independent of its author and of the transport.

A client is a function: it takes a server and operations, and returns one outcome for each operation, in the client's
own words. The test files provide the clients; `OverStdio` here and `OverHttp` in `folding.py` provide the server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import pytest

from contextfold import __version__
from tests.clients.servers import Command, Server, serving, with_a_frozen_worker
from tests.support.clauses import covers
from tests.support.machine import COMMAND, SOAK, context

HANDSHAKE = "2025-11-25"
MODERN = "2026-07-28"

RESOLVE, LIST_CACHES, INSPECT_CACHE = "context.resolve", "context.list_caches", "context.inspect_cache"
ASK, GET = "context.ask", "context.get"
INVALID_PARAMS, METHOD_NOT_FOUND = -32602, -32601
# Our keys in `_meta` have this prefix.
OURS = "contextfold/"

_CACHE = {"type": "string", "description": "Path or identifier of a built context cache"}
SCHEMAS = {
    RESOLVE: {
        "type": "object",
        "properties": {
            "cache": _CACHE,
            "query": {"type": "string", "description": "Natural-language query"},
            "budget": {"type": "integer", "minimum": 0, "description": "Maximum token budget"},
        },
        "required": ["cache", "query", "budget"],
        "additionalProperties": False,
    },
    LIST_CACHES: {"type": "object", "properties": {}, "additionalProperties": False},
    INSPECT_CACHE: {
        "type": "object",
        "properties": {"cache": _CACHE},
        "required": ["cache"],
        "additionalProperties": False,
    },
}
# The names that each of the newer tools takes, and those that it must be given.
RELEVANCE_INPUTS = {
    ASK: (["query", "cache", "budget", "unit"], ["query"]),
    GET: (["cache", "id", "section", "lines", "around", "budget"], ["cache", "id"]),
}
MESSAGES = {
    "cache_missing": "Cache does not exist",
    "cache_invalid": "Cache exists but is invalid",
    "invalid_query": "Query is invalid",
    "invalid_budget": "Budget is invalid",
    "io_error": "I/O error occurred",
    "internal_error": "Internal error",
}

GUIDE = {"cache": "docs", "query": "guide", "budget": 4000}
QUESTIONS = (
    GUIDE | {"query": 'Größe "naïve" \\ \u2028 \t\n 文書 🗺️'},
    GUIDE | {"cache": "big", "query": "page", "budget": 10_000_000},
)
MORE_QUESTIONS = (
    GUIDE,
    GUIDE | {"query": "--budget"},
    GUIDE | {"query": ""},
    GUIDE | {"budget": 0},
    # This is the largest integer that a JavaScript client represents exactly.
    GUIDE | {"budget": 2**53 - 1},
)
DEPLOYMENT = {"cache": "docs", "id": "deployment.md"}

Case = TypeVar("Case")
# The items are the error's code, the tool and its arguments.
Wrong = tuple[str, str, Mapping[str, object]]
WRONG: tuple[Wrong, ...] = (
    ("cache_missing", RESOLVE, GUIDE | {"cache": "nowhere"}),
    ("cache_missing", INSPECT_CACHE, {"cache": "nowhere"}),
    ("cache_invalid", RESOLVE, GUIDE | {"cache": "broken"}),
    ("invalid_query", RESOLVE, GUIDE | {"query": 7}),
    ("invalid_budget", RESOLVE, GUIDE | {"budget": -1}),
)
MORE_WRONG: tuple[Wrong, ...] = (
    ("cache_missing", RESOLVE, {}),
    ("cache_missing", RESOLVE, GUIDE | {"cache": "../shelf/docs"}),
    ("cache_missing", RESOLVE, GUIDE | {"cache": 7}),
    ("cache_missing", INSPECT_CACHE, {}),
    ("invalid_query", RESOLVE, {"cache": "docs", "budget": 1}),
    ("invalid_budget", RESOLVE, {"cache": "docs", "query": "guide"}),
    ("invalid_budget", RESOLVE, GUIDE | {"budget": 1.5}),
    ("invalid_budget", RESOLVE, GUIDE | {"budget": "10"}),
    ("invalid_budget", RESOLVE, GUIDE | {"budget": True}),
    ("invalid_budget", RESOLVE, GUIDE | {"budget": 2**63}),
    ("cache_missing", ASK, GUIDE | {"cache": "../shelf/docs"}),
    ("invalid_query", ASK, GUIDE | {"query": 7}),
    ("invalid_query", ASK, GUIDE | {"unit": "page"}),
    ("invalid_budget", ASK, GUIDE | {"budget": True}),
    ("cache_missing", GET, {}),
    ("invalid_query", GET, DEPLOYMENT | {"id": 7}),
    ("invalid_query", GET, DEPLOYMENT | {"lines": "9-1"}),
    ("invalid_query", GET, DEPLOYMENT | {"around": 1.5}),
    ("invalid_budget", GET, DEPLOYMENT | {"budget": -1}),
)


class Call(NamedTuple):
    tool: str
    arguments: Mapping[str, object]
    # None means the client's own default.
    timeout_ms: int | None = None


class ListTools(NamedTuple):
    pass


class About(NamedTuple):
    pass


class Request(NamedTuple):
    """Any method, without parameters."""

    method: str


Operation = Call | ListTools | About | Request


class Answered(NamedTuple):
    text: str
    is_error: bool
    # Our keys of the result's `_meta`.
    meta: Mapping[str, Any] = {}


class Refused(NamedTuple):
    """A protocol error, or a failure to connect, as the client reports it."""

    code: int | str
    message: str
    data: Any = None


class Told(NamedTuple):
    """Any other result, as JSON."""

    value: Any


Outcome = Answered | Refused | Told


class Client(Protocol):
    @property
    def version(self) -> str:
        """The protocol version that this client must negotiate."""

    @property
    def calls_per_connection(self) -> int:
        """How many calls the client can make on one connection."""

    @property
    def tells_numbers(self) -> bool:
        """Whether the client shows the code and data of a protocol error, or only the message."""

    @property
    def unauthorized(self) -> int | str:
        """The code that the client reports if it is not authorised."""

    def __call__(self, server: Server, *operations: Operation, together: bool = False) -> list[Outcome]: ...


def outcome(result: Any) -> Outcome:
    """The outcome from what a client printed as JSON."""
    match result:
        case {"refused": {"code": code, "message": message, **more}}:
            return Refused(code, message, more.get("data"))
        case {"content": [{"type": "text", "text": text}], "isError": is_error, **more}:
            meta: Any = more.get("_meta", {})
            return Answered(text, is_error, {key: meta[key] for key in meta if key.startswith(OURS)})
    return Told(result)


def typed(code: str) -> Answered:
    """An answer with one of our errors: a code, a message, nothing else, and a newline."""
    return Answered(f'{{"error":{{"code":"{code}","message":"{MESSAGES[code]}"}}}}\n', is_error=True)


def as_the_command_says(shelf: Path, question: Mapping[str, object]) -> Answered:
    """The output of `context resolve`, byte for byte."""
    ran = context("resolve", *(f"--{name}={value}" for name, value in question.items()), cwd=shelf)
    assert ran.code == 0
    return Answered(ran.out.decode(), is_error=False)


def as_the_command_answers(shelf: Path, tool: str, arguments: Mapping[str, object]) -> Answered:
    """The output of `context ask --json` or `context get --json`, byte for byte."""
    command, positional = {ASK: ("ask", "query"), GET: ("get", "id")}[tool]
    options = (f"--{name}={value}" for name, value in arguments.items() if name != positional)
    ran = context(command, str(arguments[positional]), *options, "--json", cwd=shelf)
    assert ran.code == 0
    return Answered(ran.out.decode(), is_error=False)


def assert_relevance_inputs(schemas: Mapping[str, Any]) -> None:
    for name, (names, required) in RELEVANCE_INPUTS.items():
        assert (list(schemas[name]["properties"]), schemas[name]["required"]) == (names, required)
        assert schemas[name]["additionalProperties"] is False


def sample(client: Client, cases: Sequence[Case]) -> Sequence[Case]:
    """All cases, but only two in `make test` for a client that starts a program for each call."""
    return cases[:2] if client.calls_per_connection == 1 and not SOAK else cases


def assert_typed(client: Client, server: Server, wrong: Sequence[Wrong]) -> None:
    outcomes = client(server, *(Call(tool, arguments) for _, tool, arguments in wrong))
    assert outcomes == [typed(code) for code, _, _ in wrong]


def assert_refused(refused: Outcome, code: int, message: str) -> None:
    """Checks a refusal. A client may put words of its own before the server's message."""
    assert isinstance(refused, Refused)
    assert refused.code == code
    assert refused.message.endswith(message)


class EveryClient:
    @covers("seed-000#transport", "seed-002#methods", "stdio.md#eras", "stdio.md#clients")
    def test_it_agrees_on_a_version_and_reads_what_the_server_is_for(self, client: Client, server: Server) -> None:
        [told] = client(server, About())
        assert isinstance(told, Told)
        assert told.value["version"] == client.version
        assert told.value["serverInfo"] == {"name": "contextfold", "version": __version__}
        assert all(name in told.value["instructions"] for name in (*SCHEMAS, *RELEVANCE_INPUTS))

    @covers(
        "product.md#toolsets",
        "seed-000#purpose",
        "seed-000#output-schema",
        "seed-000#determinism-contract",
        "seed-000#transport",
        "seed-000#v0-policy",
        "seed-000#invariants",
        "seed-000#what-this-spec-forbids",
        "seed-001#core-tools",
        "seed-002#resolve-tool",
        "stdio.md#tool-text",
        "stdio.md#clients",
    )
    def test_resolve_gives_the_bytes_of_the_command(self, client: Client, server: Server, shelf: Path) -> None:
        questions = sample(client, QUESTIONS)
        answers = client(server, *(Call(RESOLVE, question) for question in questions))
        assert answers == [as_the_command_says(shelf, question) for question in questions]

    @covers("relevance.md#answer", "stdio.md#tool-text", "stdio.md#clients")
    def test_ask_and_get_give_the_bytes_of_their_commands(self, client: Client, server: Server, shelf: Path) -> None:
        calls = sample(
            client,
            (
                Call(ASK, GUIDE | {"query": 'Größe "naïve" \\ \u2028 \t\n 文書 🗺️'}),
                Call(GET, {"cache": "docs", "id": "größe.md"}),
                Call(ASK, {"cache": "big", "query": "page", "unit": "document", "budget": 10_000_000}),
                Call(GET, DEPLOYMENT | {"lines": "1-1", "around": 1, "budget": 100}),
                Call(GET, {"cache": "docs", "id": "notes/empty.md"}),
            ),
        )
        assert client(server, *calls) == [as_the_command_answers(shelf, call.tool, call.arguments) for call in calls]

    @covers(
        "product.md#toolsets",
        "seed-000#transport",
        "seed-001#core-tools",
        "seed-001#list-caches-purpose",
        "seed-001#list-caches-output-schema",
        "seed-001#list-caches-behavior",
        "stdio.md#tool-text",
        "stdio.md#cache-names",
        "stdio.md#clients",
    )
    def test_list_caches_names_every_folder(self, client: Client, server: Server) -> None:
        [answer] = client(server, Call(LIST_CACHES, {}))
        listed = [("big", True), ("broken", True), ("docs", True), ("empty", False)]
        caches = [{"path": path, "has_manifest": has_manifest} for path, has_manifest in listed]
        assert answer == Answered(json.dumps({"caches": caches}, separators=(",", ":")), is_error=False)

    @covers(
        "product.md#toolsets",
        "resolve.md#inspect-verify",
        "seed-000#transport",
        "seed-001#core-tools",
        "seed-001#inspect-cache-purpose",
        "seed-001#inspect-cache-output-schema",
        "stdio.md#tool-text",
        "stdio.md#clients",
    )
    def test_inspect_cache_tells_what_a_cache_is(self, client: Client, server: Server) -> None:
        names = sample(client, ("docs", "broken", "empty"))
        answers = client(server, *(Call(INSPECT_CACHE, {"cache": name}) for name in names))
        for name, answer in zip(names, answers, strict=True):
            assert isinstance(answer, Answered)
            assert not answer.is_error
            known = json.loads(answer.text)
            assert answer.text == json.dumps(known, separators=(",", ":"))
            assert list(known) == ["cache_version", "document_count", "total_bytes", "valid"]
            assert known["valid"] is (name == "docs")
            assert known["document_count"] == (0 if name == "empty" else 3)

    @covers(
        "product.md#toolsets",
        "seed-000#input-rules",
        "seed-000#mcp-error-object-schema",
        "seed-000#determinism-in-errors",
        "seed-000#forbidden-patterns",
        "seed-000#transport",
        "seed-001#protocol-requirements",
        "seed-002#errors",
        "seed-003#mcp-error-object-json-schema",
        "seed-003#overview",
        "seed-003#json-schema",
        "seed-003#extra-fields",
        "seed-003#determinism-contract",
        "stdio.md#tool-calls",
        "stdio.md#tool-text",
        "stdio.md#clients",
    )
    def test_a_call_that_cannot_be_answered_is_an_error_with_its_code(self, client: Client, server: Server) -> None:
        assert_typed(client, server, sample(client, WRONG))


class EveryLastingClient(EveryClient):
    """Clients that keep a connection, send what they are given, and show JSON-RPC errors with their codes."""

    @covers(
        "seed-000#determinism-contract",
        "seed-000#transport",
        "seed-000#invariants",
        "seed-000#what-this-spec-forbids",
        "stdio.md#clients",
    )
    def test_resolve_gives_the_bytes_of_the_command_for_odd_questions(
        self, client: Client, server: Server, shelf: Path
    ) -> None:
        answers = client(server, *(Call(RESOLVE, question) for question in MORE_QUESTIONS))
        assert answers == [as_the_command_says(shelf, question) for question in MORE_QUESTIONS]

    @covers("seed-000#input-rules", "seed-000#transport", "stdio.md#tool-calls", "stdio.md#clients")
    def test_every_bad_argument_is_an_error_with_its_code(self, client: Client, server: Server) -> None:
        assert_typed(client, server, MORE_WRONG)

    @covers("stdio.md#tool-calls")
    def test_an_unknown_tool_is_refused(self, client: Client, server: Server, shelf: Path) -> None:
        refused, answer = client(server, Call("context.nothing", {}), Call(RESOLVE, GUIDE))
        assert_refused(refused, INVALID_PARAMS, "Unknown tool: context.nothing")
        assert answer == as_the_command_says(shelf, GUIDE)

    @covers("stdio.md#tool-calls")
    def test_an_argument_the_schema_does_not_name_is_refused(self, client: Client, server: Server) -> None:
        calls = (
            Call(RESOLVE, GUIDE | {"limit": 1}),
            Call(LIST_CACHES, {"cache": "docs"}),
            Call(INSPECT_CACHE, {"cache": "docs", "query": "guide"}),
            Call(ASK, GUIDE | {"counter": "o200k"}),
            Call(GET, DEPLOYMENT | {"query": "guide"}),
        )
        for refused in client(server, *calls):
            assert_refused(refused, INVALID_PARAMS, "Invalid params")

    @covers("stdio.md#methods")
    def test_an_unknown_method_is_refused(self, client: Client, server: Server) -> None:
        [refused] = client(server, Request("context/unknown"))
        assert_refused(refused, METHOD_NOT_FOUND, "Method not found: context/unknown")

    @covers("stdio.md#streams", "stdio.md#clients")
    def test_calls_sent_at_once_each_get_their_own_answer(self, client: Client, server: Server) -> None:
        calls = [Call(RESOLVE, GUIDE | {"query": f"guide {number}", "budget": number}) for number in range(40)]
        answers = client(server, *calls, together=True)
        assert len(answers) == len(calls)
        for number, answer in enumerate(answers):
            assert isinstance(answer, Answered)
            selection = json.loads(answer.text)["selection"]
            assert (selection["query"], selection["budget"]) == (f"guide {number}", number)

    @covers("seed-002#methods", "stdio.md#ping-and-list")
    def test_ping_belongs_to_the_handshake(self, client: Client, server: Server) -> None:
        [answer] = client(server, Request("ping"))
        assert isinstance(answer, Told if client.version == HANDSHAKE else Refused)


class OverStdio:
    """A server that the client starts, and what depends on how it was started."""

    @pytest.fixture
    def server(self, shelf: Path) -> Server:
        return serving(shelf)

    @covers(
        "product.md#serve",
        "product.md#toolsets",
        "seed-000#mcp-tool-name",
        "seed-000#tool-description",
        "seed-000#mcp-tool-arguments",
        "seed-001#inspect-cache-inputs",
        "seed-002#methods",
        "stdio.md#ping-and-list",
        "stdio.md#clients",
    )
    def test_it_lists_the_resolve_tools_in_order(self, client: Client, server: Server) -> None:
        [told] = client(server, ListTools())
        assert isinstance(told, Told)
        tools = told.value["tools"]
        schemas = {tool["name"]: tool["inputSchema"] for tool in tools}
        assert list(schemas) == [*SCHEMAS, *RELEVANCE_INPUTS]
        assert schemas == schemas | SCHEMAS
        assert_relevance_inputs(schemas)
        assert all(tool["description"] and tool["annotations"]["readOnlyHint"] for tool in tools)

    @covers("seed-001#list-caches-errors", "stdio.md#cache-names", "stdio.md#clients")
    def test_without_a_root_listing_is_an_io_error(self, client: Client, tmp_path: Path) -> None:
        assert client(serving(tmp_path / "nowhere"), Call(LIST_CACHES, {})) == [typed("io_error")]

    @covers("product.md#program-names", "seed-002#timeout", "stdio.md#timeout", "stdio.md#clients")
    def test_a_call_that_takes_too_long_is_an_internal_error(self, client: Client, shelf: Path) -> None:
        """The next call on the same connection is answered."""
        late, *answers = client(with_a_frozen_worker(shelf), *[Call(RESOLVE, GUIDE)] * client.calls_per_connection)
        assert late == typed("internal_error")
        assert answers == [as_the_command_says(shelf, GUIDE)] * (client.calls_per_connection - 1)

    @covers("product.md#program-names")
    def test_the_server_may_be_set_up_by_its_environment_alone(self, client: Client, shelf: Path) -> None:
        server = Command((str(COMMAND.with_name("mcp-context-server")),), {"CONTEXT_CACHE_ROOT": str(shelf)})
        assert client(server, Call(RESOLVE, GUIDE)) == [as_the_command_says(shelf, GUIDE)]
