"""Tests that every MCP client must pass, over both transports.

A client is a function: it takes a server and operations, and returns one outcome for each operation. The test files
provide the clients; `OverStdio` here and `OverHttp` in `http_contract.py` provide the server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import pytest

from contextfold import __version__
from tests.clients.servers import Command, Server, stdio_server, with_a_frozen_worker
from tests.support.machine import COMMAND, SOAK, run_command

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
# For each tool, these are its arguments, then the required ones.
RELEVANCE_INPUTS = {
    ASK: (["query", "cache", "budget", "unit", "counter", "format"], ["query"]),
    GET: (["id", "cache", "section", "lines", "around", "budget", "counter", "format"], ["id"]),
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
BadCall = tuple[str, str, Mapping[str, object]]
BAD_CALLS: tuple[BadCall, ...] = (
    ("cache_missing", RESOLVE, GUIDE | {"cache": "nowhere"}),
    ("cache_missing", INSPECT_CACHE, {"cache": "nowhere"}),
    ("cache_invalid", RESOLVE, GUIDE | {"cache": "broken"}),
    ("invalid_query", RESOLVE, GUIDE | {"query": 7}),
    ("invalid_budget", RESOLVE, GUIDE | {"budget": -1}),
)
MORE_BAD_CALLS: tuple[BadCall, ...] = (
    ("cache_missing", RESOLVE, {}),
    ("cache_missing", RESOLVE, GUIDE | {"cache": "../caches/docs"}),
    ("cache_missing", RESOLVE, GUIDE | {"cache": 7}),
    ("cache_missing", INSPECT_CACHE, {}),
    ("invalid_query", RESOLVE, {"cache": "docs", "budget": 1}),
    ("invalid_budget", RESOLVE, {"cache": "docs", "query": "guide"}),
    ("invalid_budget", RESOLVE, GUIDE | {"budget": 1.5}),
    ("invalid_budget", RESOLVE, GUIDE | {"budget": "10"}),
    ("invalid_budget", RESOLVE, GUIDE | {"budget": True}),
    ("invalid_budget", RESOLVE, GUIDE | {"budget": 2**63}),
    ("cache_missing", ASK, GUIDE | {"cache": "../caches/docs"}),
    ("invalid_query", ASK, GUIDE | {"query": 7}),
    ("invalid_query", ASK, GUIDE | {"unit": "page"}),
    ("invalid_budget", ASK, GUIDE | {"budget": True}),
    ("invalid_query", GET, {}),
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


class ToolAnswer(NamedTuple):
    text: str
    is_error: bool
    # These are the entries of the result's `_meta` that have our prefix.
    meta: Mapping[str, Any] = {}


class Refusal(NamedTuple):
    """A protocol error, or a failure to connect, as the client reports it."""

    code: int | str
    message: str
    data: Any = None


class OtherResult(NamedTuple):
    """Any other result, as JSON."""

    value: Any


Outcome = ToolAnswer | Refusal | OtherResult


class Client(Protocol):
    @property
    def version(self) -> str:
        """The protocol version that this client must negotiate."""

    @property
    def calls_per_connection(self) -> int:
        """How many calls the client can make on one connection."""

    @property
    def shows_error_codes(self) -> bool:
        """Whether the client shows the code and data of a protocol error, or only the message."""

    @property
    def unauthorized(self) -> int | str:
        """The code that the client reports if it is not authorised."""

    def __call__(self, server: Server, *operations: Operation, together: bool = False) -> list[Outcome]: ...


def outcome(result: Any) -> Outcome:
    """The outcome from what a client printed as JSON."""
    match result:
        case {"refused": {"code": code, "message": message, **rest}}:
            return Refusal(code, message, rest.get("data"))
        case {"content": [{"type": "text", "text": text}], "isError": is_error, **rest}:
            meta: Any = rest.get("_meta", {})
            return ToolAnswer(text, is_error, {key: meta[key] for key in meta if key.startswith(OURS)})
    return OtherResult(result)


def tool_error(code: str) -> ToolAnswer:
    """The answer of a tool that failed with this code, in its frozen form."""
    return ToolAnswer(f'{{"error":{{"code":"{code}","message":"{MESSAGES[code]}"}}}}\n', is_error=True)


def resolve_output(cache_root: Path, question: Mapping[str, object]) -> ToolAnswer:
    """The output of `context resolve`, byte for byte."""
    result = run_command("resolve", *(f"--{name}={value}" for name, value in question.items()), cwd=cache_root)
    assert result.code == 0
    return ToolAnswer(result.out.decode(), is_error=False)


def command_output(cache_root: Path, tool: str, arguments: Mapping[str, object]) -> ToolAnswer:
    """The output of `context ask` or `context get`, byte for byte."""
    command, positional = {ASK: ("ask", "query"), GET: ("get", "id")}[tool]
    options = [f"--{name}={value}" for name, value in arguments.items() if name not in (positional, "format")]
    if "format" in arguments:
        options.append("--json")
    result = run_command(command, str(arguments[positional]), *options, cwd=cache_root)
    assert result.code == 0
    return ToolAnswer(result.out.decode(), is_error=False)


def assert_relevance_inputs(schemas: Mapping[str, Any]) -> None:
    for name, (names, required) in RELEVANCE_INPUTS.items():
        assert (list(schemas[name]["properties"]), schemas[name]["required"]) == (names, required)
        assert schemas[name]["additionalProperties"] is False


def sample(client: Client, cases: Sequence[Case]) -> Sequence[Case]:
    """All cases, but only two in `make test` for a client that starts a program for each call."""
    return cases[:2] if client.calls_per_connection == 1 and not SOAK else cases


def assert_tool_errors(client: Client, server: Server, bad_calls: Sequence[BadCall]) -> None:
    """Checks tool errors: the text of the seeds' tools, the code and the members of the others."""
    outcomes = client(server, *(Call(tool, arguments) for _, tool, arguments in bad_calls))
    for outcome, (code, tool, _) in zip(outcomes, bad_calls, strict=True):
        if tool not in RELEVANCE_INPUTS:
            assert outcome == tool_error(code)
            continue
        assert isinstance(outcome, ToolAnswer)
        assert outcome.is_error
        error = json.loads(outcome.text)
        assert (error.keys(), error["error"].keys()) == ({"error"}, {"code", "message"})
        assert error["error"]["code"] == code


def assert_refusal(refusal: Outcome, code: int, message: str) -> None:
    """Checks a protocol error. A client may put text of its own before the server's message."""
    assert isinstance(refusal, Refusal)
    assert refusal.code == code
    assert refusal.message.endswith(message)


class EveryClient:
    def test_the_client_negotiates_a_version_and_reads_the_instructions(self, client: Client, server: Server) -> None:
        [result] = client(server, About())
        assert isinstance(result, OtherResult)
        assert result.value["version"] == client.version
        assert result.value["serverInfo"] == {"name": "contextfold", "version": __version__}
        assert all(name in result.value["instructions"] for name in (*SCHEMAS, *RELEVANCE_INPUTS))

    def test_resolve_returns_the_output_of_the_command(self, client: Client, server: Server, cache_root: Path) -> None:
        questions = sample(client, QUESTIONS)
        answers = client(server, *(Call(RESOLVE, question) for question in questions))
        assert answers == [resolve_output(cache_root, question) for question in questions]

    def test_ask_and_get_return_the_output_of_their_commands(
        self, client: Client, server: Server, cache_root: Path
    ) -> None:
        calls = sample(
            client,
            (
                Call(ASK, GUIDE | {"query": 'Größe "naïve" \\ \u2028 \t\n 文書 🗺️'}),
                Call(GET, {"cache": "docs", "id": "größe.md"}),
                Call(ASK, GUIDE | {"query": 'Größe "naïve" \\ \u2028 \t\n 文書 🗺️', "format": "json"}),
                Call(GET, {"cache": "docs", "id": "größe.md", "format": "json"}),
                Call(ASK, {"cache": "big", "query": "page", "unit": "document", "budget": 10_000_000}),
                Call(GET, DEPLOYMENT | {"lines": "1-1", "around": 1, "budget": 100}),
                Call(GET, {"cache": "docs", "id": "notes/empty.md"}),
            ),
        )
        assert client(server, *calls) == [command_output(cache_root, call.tool, call.arguments) for call in calls]

    def test_list_caches_returns_every_folder(self, client: Client, server: Server) -> None:
        [answer] = client(server, Call(LIST_CACHES, {}))
        listed = [("big", True), ("broken", True), ("docs", True), ("empty", False)]
        caches = [{"path": path, "has_manifest": has_manifest} for path, has_manifest in listed]
        assert answer == ToolAnswer(json.dumps({"caches": caches}, separators=(",", ":")), is_error=False)

    def test_inspect_cache_returns_version_size_and_validity(self, client: Client, server: Server) -> None:
        names = sample(client, ("docs", "broken", "empty"))
        answers = client(server, *(Call(INSPECT_CACHE, {"cache": name}) for name in names))
        for name, answer in zip(names, answers, strict=True):
            assert isinstance(answer, ToolAnswer)
            assert not answer.is_error
            info = json.loads(answer.text)
            assert answer.text == json.dumps(info, separators=(",", ":"))
            assert list(info) == ["cache_version", "document_count", "total_bytes", "valid"]
            assert info["valid"] is (name == "docs")
            assert info["document_count"] == (0 if name == "empty" else 3)

    def test_a_bad_call_is_an_error_with_its_code(self, client: Client, server: Server) -> None:
        assert_tool_errors(client, server, sample(client, BAD_CALLS))


class EveryPersistentClient(EveryClient):
    """Tests for clients that keep a connection open and show the codes of JSON-RPC errors."""

    def test_resolve_returns_the_output_of_the_command_for_unusual_queries(
        self, client: Client, server: Server, cache_root: Path
    ) -> None:
        answers = client(server, *(Call(RESOLVE, question) for question in MORE_QUESTIONS))
        assert answers == [resolve_output(cache_root, question) for question in MORE_QUESTIONS]

    def test_every_bad_argument_is_an_error_with_its_code(self, client: Client, server: Server) -> None:
        assert_tool_errors(client, server, MORE_BAD_CALLS)

    def test_an_unknown_tool_is_refused(self, client: Client, server: Server, cache_root: Path) -> None:
        refusal, answer = client(server, Call("context.nothing", {}), Call(RESOLVE, GUIDE))
        assert_refusal(refusal, INVALID_PARAMS, "Unknown tool: context.nothing")
        assert answer == resolve_output(cache_root, GUIDE)

    def test_an_argument_that_is_not_in_the_schema_is_refused(self, client: Client, server: Server) -> None:
        calls = (
            Call(RESOLVE, GUIDE | {"limit": 1}),
            Call(LIST_CACHES, {"cache": "docs"}),
            Call(INSPECT_CACHE, {"cache": "docs", "query": "guide"}),
        )
        for refusal in client(server, *calls):
            assert_refusal(refusal, INVALID_PARAMS, "Invalid params")

    def test_an_unknown_method_is_refused(self, client: Client, server: Server) -> None:
        [refusal] = client(server, Request("context/unknown"))
        assert_refusal(refusal, METHOD_NOT_FOUND, "Method not found: context/unknown")

    def test_concurrent_calls_get_their_own_answers(self, client: Client, server: Server) -> None:
        calls = [Call(RESOLVE, GUIDE | {"query": f"guide {number}", "budget": number}) for number in range(40)]
        answers = client(server, *calls, together=True)
        assert len(answers) == len(calls)
        for number, answer in enumerate(answers):
            assert isinstance(answer, ToolAnswer)
            selection = json.loads(answer.text)["selection"]
            assert (selection["query"], selection["budget"]) == (f"guide {number}", number)

    def test_ping_exists_only_in_the_handshake_era(self, client: Client, server: Server) -> None:
        [answer] = client(server, Request("ping"))
        assert isinstance(answer, OtherResult if client.version == HANDSHAKE else Refusal)


class OverStdio:
    """Tests of a server that the client starts."""

    @pytest.fixture
    def server(self, cache_root: Path) -> Server:
        return stdio_server(cache_root)

    def test_the_client_lists_the_resolve_tools_in_order(self, client: Client, server: Server) -> None:
        [result] = client(server, ListTools())
        assert isinstance(result, OtherResult)
        tools = result.value["tools"]
        schemas = {tool["name"]: tool["inputSchema"] for tool in tools}
        assert list(schemas) == [*SCHEMAS, *RELEVANCE_INPUTS]
        assert schemas == schemas | SCHEMAS
        assert_relevance_inputs(schemas)
        assert all(tool["description"] and tool["annotations"]["readOnlyHint"] for tool in tools)

    def test_listing_caches_of_a_missing_root_is_an_io_error(self, client: Client, tmp_path: Path) -> None:
        assert client(stdio_server(tmp_path / "nowhere"), Call(LIST_CACHES, {})) == [tool_error("io_error")]

    def test_a_call_that_times_out_is_an_internal_error(self, client: Client, cache_root: Path) -> None:
        """The next call on the same connection is answered."""
        timed_out, *answers = client(
            with_a_frozen_worker(cache_root), *[Call(RESOLVE, GUIDE)] * client.calls_per_connection
        )
        assert timed_out == tool_error("internal_error")
        assert answers == [resolve_output(cache_root, GUIDE)] * (client.calls_per_connection - 1)

    def test_the_server_can_be_configured_by_its_environment_only(self, client: Client, cache_root: Path) -> None:
        server = Command((str(COMMAND.with_name("mcp-context-server")),), {"CONTEXT_CACHE_ROOT": str(cache_root)})
        assert client(server, Call(RESOLVE, GUIDE)) == [resolve_output(cache_root, GUIDE)]
