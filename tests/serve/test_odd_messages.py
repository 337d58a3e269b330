"""Odd messages get the same response on stdio and on HTTP: the same code, message, data and id."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.serve.stdio_client import INITIALIZE, MODERN_META, Server, request
from tests.support.daemon import RPC, Daemon, Http
from tests.support.jsonrpc_rules import faults_in

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
UNSUPPORTED_VERSION = -32022
VERSION, CAPABILITIES = MODERN_META


class ExpectedResult(NamedTuple):
    id: str | int


class ExpectedError(NamedTuple):
    code: int
    # None if the text is not frozen.
    message: str | None
    id: str | int | None = 1


PARSE = ExpectedError(PARSE_ERROR, "Parse error", None)
INVALID = ExpectedError(INVALID_REQUEST, "Invalid Request")
INVALID_NO_ID = ExpectedError(INVALID_REQUEST, "Invalid Request", None)
PARAMS = ExpectedError(INVALID_PARAMS, "Invalid params")
NO_RESPONSE = None


def message(**members: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", **members}).encode()


def call(**params: object) -> bytes:
    return message(method="tools/call", params=params)


def stateless(method: str, meta: object = MODERN_META, **params: object) -> bytes:
    return message(method=method, params={**params, "_meta": meta})


def unknown_tool(name: str) -> ExpectedError:
    return ExpectedError(INVALID_PARAMS, f"Unknown tool: {name}")


def unknown_method(name: str) -> ExpectedError:
    return ExpectedError(METHOD_NOT_FOUND, f"Method not found: {name}")


STATUS = "context_branch_status"
UNKNOWN_VERSION = ExpectedError(UNSUPPORTED_VERSION, "Unsupported protocol version")

TABLE: list[tuple[bytes, ExpectedResult | ExpectedError | None]] = [
    # Invalid JSON.
    (b"{", PARSE),
    (b"nonsense", PARSE),
    (b"\xff\xfe", PARSE),
    (message().decode().encode("utf-16"), PARSE),
    (b'{"jsonrpc":"2.0","id":1,"method":"pi\x01ng"}', PARSE),
    (b" ", PARSE),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping"} x', PARSE),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping",}', PARSE),
    (b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}', PARSE),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":Infinity}}', PARSE),
    (b"\xef\xbb\xbf" + message(), PARSE),
    (b"[" * 200 + b"]" * 200, PARSE),
    (b"[" * 100_000, PARSE),
    (message(params={"x": 1}).replace(b"1}", b"[" * 130 + b"]" * 130 + b"}"), PARSE),
    # JSON that is not a request.
    (b"[]", INVALID_NO_ID),
    (b"[" + message() + b"]", INVALID_NO_ID),
    (b"null", INVALID_NO_ID),
    (b"5", INVALID_NO_ID),
    (b'"ping"', INVALID_NO_ID),
    (b"{}", INVALID_NO_ID),
    (b'{"id":1}', INVALID),
    (b'{"jsonrpc":"2.0"}', INVALID_NO_ID),
    (b'{"jsonrpc":"2.0","id":1}', INVALID),
    (b'{"jsonrpc":"2.0","id":1,"result":{}}', INVALID),
    (b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}', INVALID),
    (message(jsonrpc="1.0"), INVALID),
    (message(jsonrpc=2.0), INVALID),
    (message(jsonrpc=None), INVALID),
    (b'{"id":1,"method":"ping"}', INVALID),
    (b'{"jsonrpc":"1.0","method":"notifications/initialized"}', INVALID_NO_ID),
    (message(method=5), INVALID),
    (message(method=None), INVALID),
    (message(method=["ping"]), INVALID),
    (message(method={"a": 1}), INVALID),
    (message(method=True, id="text"), INVALID._replace(id="text")),
    # Ids.
    (message(id=1.5), INVALID_NO_ID),
    (message(id=1.0), INVALID_NO_ID),
    (message(id=None), INVALID_NO_ID),
    (message(id=True), INVALID_NO_ID),
    (message(id=False), INVALID_NO_ID),
    (message(id={}), INVALID_NO_ID),
    (message(id=[1]), INVALID_NO_ID),
    (message(id=1e300), INVALID_NO_ID),
    (message(id=0), ExpectedResult(0)),
    (message(id=-7), ExpectedResult(-7)),
    (message(id=10**30), ExpectedResult(10**30)),
    (message(id=-(10**4299)), ExpectedResult(-(10**4299))),
    (b'{"jsonrpc":"2.0","id":' + b"1" * 5000 + b',"method":"ping"}', INVALID_NO_ID),
    (message(id=""), ExpectedResult("")),
    (message(id="\ud800"), ExpectedResult("\ud800")),
    (message(id="é\u2028\x00"), ExpectedResult("é\u2028\x00")),
    (message(id="x" * 10_000), ExpectedResult("x" * 10_000)),
    # Repeated keys: the last one counts.
    (b'{"jsonrpc":"2.0","id":2,"id":1,"method":"ping"}', ExpectedResult(1)),
    (b'{"jsonrpc":"2.0","id":1,"id":null,"method":"ping"}', INVALID_NO_ID),
    (b'{"jsonrpc":"1.0","jsonrpc":"2.0","id":1,"method":"nope","method":"ping"}', ExpectedResult(1)),
    # Methods.
    (message(method=""), unknown_method("")),
    (message(method="PING"), unknown_method("PING")),
    (message(method="tools/call "), unknown_method("tools/call ")),
    (message(method="prompts/list"), unknown_method("prompts/list")),
    (message(method="resources/list", params=[]), PARAMS),
    (message(method="resources/list", params={"cursor": "x"}), PARAMS),
    (message(method="resources/read", params={}), PARAMS),
    (message(method="resources/read", params={"uri": 5}), PARAMS),
    (message(method="server/discover"), unknown_method("server/discover")),
    (message(method="nope", params=[1]), unknown_method("nope")),
    (message(method="\ud800"), unknown_method("\ud800")),
    (message(method="é"), unknown_method("é")),
    # Parameters.
    (message(params=None), ExpectedResult(1)),
    (message(params={}), ExpectedResult(1)),
    (message(params=[]), PARAMS),
    (message(params="x"), PARAMS),
    (message(params=5), PARAMS),
    (message(params=False), PARAMS),
    (message(params={"_meta": 5}), ExpectedResult(1)),
    (message(method="tools/list", params=[]), PARAMS),
    (message(method="tools/list", params={"cursor": 5}), ExpectedResult(1)),
    (message(method="initialize", params=[]), PARAMS),
    (message(method="initialize", params={"protocolVersion": "1999-01-01"}), ExpectedResult(1)),
    (message(method="initialize", params={"protocolVersion": ["2025-11-25"]}), ExpectedResult(1)),
    # Tool calls.
    (message(method="tools/call"), PARAMS),
    (call(), PARAMS),
    (call(name=5), PARAMS),
    (call(name=None, arguments={}), PARAMS),
    (call(name=["context.resolve"]), PARAMS),
    (call(name=""), unknown_tool("")),
    (call(name="nope"), unknown_tool("nope")),
    (call(name="nope", arguments={"x": 1}), unknown_tool("nope")),
    (call(name="context.resolve "), unknown_tool("context.resolve ")),
    (call(name="\ud800"), unknown_tool("\ud800")),
    (call(name=STATUS, arguments=None), PARAMS),
    (call(name=STATUS, arguments=[]), PARAMS),
    (call(name=STATUS, arguments="x"), PARAMS),
    (call(name="context.list_caches", arguments={"x": 1}), PARAMS),
    (call(name="context.list_caches", arguments=None), PARAMS),
    (call(name=STATUS), ExpectedError(INVALID_PARAMS, None)),
    (call(name=STATUS, arguments={"project_path": 5}), ExpectedError(INVALID_PARAMS, None)),
    (call(name=STATUS, arguments={"project_path": "\ud800"}), ExpectedError(INVALID_PARAMS, None)),
    (call(name="context.resolve", arguments={"cache": "c", "query": "\ud800", "budget": 1}), ExpectedResult(1)),
    (call(name="context.resolve", arguments={"cache": "c", "query": "q", "budget": 10**4000}), ExpectedResult(1)),
    (call(name="context.inspect_cache", arguments={"cache": {}}), ExpectedResult(1)),
    (call(name="context.inspect_cache", arguments={"cache": "\ud800"}), ExpectedResult(1)),
    (call(name="context.resolve", arguments={"cache": "c", "query": "q", "budget": 1, "extra": 1}), PARAMS),
    # Notifications.
    (b'{"jsonrpc":"2.0","method":"initialize"}', NO_RESPONSE),
    (b'{"jsonrpc":"2.0","method":"notifications/initialized"}', NO_RESPONSE),
    (b'{"jsonrpc":"2.0","method":"nope","params":5}', NO_RESPONSE),
    (b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"context.list_caches"}}', NO_RESPONSE),
    # The stateless era.
    (stateless("server/discover"), ExpectedResult(1)),
    (stateless("ping"), unknown_method("ping")),
    (stateless("initialize"), unknown_method("initialize")),
    (stateless("nope"), unknown_method("nope")),
    (stateless("tools/call"), PARAMS),
    (stateless("tools/call", name=5), PARAMS),
    (stateless("tools/call", name="nope"), unknown_tool("nope")),
    (stateless("tools/call", name="é"), unknown_tool("é")),
    (stateless("tools/call", name=STATUS, arguments=None), PARAMS),
    (
        stateless("tools/list", {VERSION: "2026-07-28"}),
        ExpectedError(INVALID_PARAMS, f"params._meta lacks {CAPABILITIES}"),
    ),
    (stateless("tools/list", {**MODERN_META, VERSION: 5}), ExpectedError(INVALID_PARAMS, f"{VERSION} is not a string")),
    (
        stateless("tools/list", {**MODERN_META, VERSION: None}),
        ExpectedError(INVALID_PARAMS, f"{VERSION} is not a string"),
    ),
    (stateless("tools/list", {**MODERN_META, VERSION: "2099-01-01"}), UNKNOWN_VERSION),
    (stateless("tools/list", {**MODERN_META, VERSION: "2025-11-25"}), UNKNOWN_VERSION),
    (stateless("tools/list", {**MODERN_META, VERSION: "x"}), UNKNOWN_VERSION),
]


class OverStdio:
    def __init__(self, folder: Path) -> None:
        self.server = Server(folder, CONTEXT_TOOLS="resolve,fold", CONTEXT_STORE=str(folder / "stdio.db"))
        self.server.ask(INITIALIZE)

    def responses(self, body: bytes) -> list[Any]:
        self.server.input.write(body + b"\n" + request("ping", request_id="after"))
        responses = []
        while (response := self.server.answer()).get("id") != "after":
            responses.append(response)
        return responses


class OverHttp:
    def __init__(self, daemon: Daemon) -> None:
        self.http = Http(daemon.port)

    def responses(self, body: bytes) -> list[Any]:
        reply = self.http.ask("POST", "/mcp", body, {**RPC, **routing_headers(body)})
        if reply.status == 202:
            assert reply.body == b""
            return []
        assert reply.headers["content-type"] == "application/json"
        return [reply.json]


def routing_headers(body: bytes) -> dict[str, str]:
    """The headers that a client of the stateless era sends with a message."""
    try:
        sent = json.loads(body)
        version = sent["params"]["_meta"][VERSION]
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    headers = {"mcp-protocol-version": str(version), "mcp-method": sent["method"]}
    name = sent["params"].get("name")
    if isinstance(name, str):
        headers["mcp-name"] = name if name.isascii() else f"=?base64?{base64.b64encode(name.encode()).decode()}?="
    return headers


Transports = tuple[OverStdio, OverHttp]


@pytest.fixture(scope="module")
def transports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transports]:
    folder = tmp_path_factory.mktemp("odd")
    caches = folder / "caches"
    caches.mkdir()
    with Daemon(folder, "--cache-root", str(caches)) as daemon:
        stdio = OverStdio(caches)
        over_http = OverHttp(daemon)
        with stdio.server:
            yield stdio, over_http
        over_http.http.close()


@pytest.mark.parametrize(("body", "expected"), TABLE, ids=[repr(body[:60]) for body, _ in TABLE])
def test_both_transports_give_the_same_response(
    body: bytes, expected: ExpectedResult | ExpectedError | None, transports: Transports
) -> None:
    over_stdio_responses, over_http_responses = (transport.responses(body) for transport in transports)
    assert over_stdio_responses == over_http_responses
    if expected is None:
        assert over_http_responses == []
        return
    (response,) = over_http_responses
    assert faults_in(response) == []
    assert response["id"] == expected.id
    if isinstance(expected, ExpectedResult):
        assert "result" in response
    else:
        assert response["error"]["code"] == expected.code
        assert expected.message in (None, response["error"]["message"])


HTTP_ONLY: list[tuple[dict[str, str], bytes, int, int]] = [
    ({"mcp-protocol-version": "1999-01-01"}, message(), 400, UNSUPPORTED_VERSION),
    ({"mcp-protocol-version": "2026-07-28"}, message(), 400, INVALID_PARAMS),
    ({"mcp-protocol-version": "2025-11-25"}, stateless("tools/list"), 400, -32020),
    ({}, stateless("tools/list"), 400, -32020),
    ({"mcp-protocol-version": "2026-07-28"}, stateless("tools/list"), 400, -32020),
    ({"mcp-protocol-version": "2026-07-28", "mcp-method": "ping"}, stateless("tools/list"), 400, -32020),
    (
        {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"},
        stateless("tools/call", name=STATUS),
        400,
        -32020,
    ),
    (
        {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "=?base64?***?="},
        stateless("tools/call", name=STATUS),
        400,
        -32020,
    ),
    ({}, message(method="nope"), 200, METHOD_NOT_FOUND),
    ({"mcp-protocol-version": "2026-07-28", "mcp-method": "nope"}, stateless("nope"), 404, METHOD_NOT_FOUND),
    ({"mcp-protocol-version": "1999-01-01"}, b'{"jsonrpc":"2.0","method":"n"}', 400, UNSUPPORTED_VERSION),
    ({"accept": "text/html"}, message(), 406, INVALID_REQUEST),
    ({"content-type": "text/plain"}, message(), 400, INVALID_REQUEST),
]


@pytest.mark.parametrize(("headers", "body", "status", "code"), HTTP_ONLY)
def test_headers_that_contradict_the_message_are_refused(
    headers: dict[str, str], body: bytes, status: int, code: int, transports: Transports
) -> None:
    reply = transports[1].http.ask("POST", "/mcp", body, {**RPC, **headers})
    assert (reply.status, reply.json["error"]["code"]) == (status, code)
    assert faults_in(reply.json) == []
