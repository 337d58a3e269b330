"""The TypeScript clients: v1 of the handshake era, and v2 of both eras."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from tests.clients.contract import (
    GUIDE,
    HANDSHAKE,
    METHOD_NOT_FOUND,
    MODERN,
    RESOLVE,
    About,
    Call,
    Client,
    EveryPersistentClient,
    ListTools,
    Operation,
    Outcome,
    OverStdio,
    Refusal,
    Request,
    assert_refusal,
    outcome,
    tool_error,
)
from tests.clients.http_contract import PersistentOverHttp
from tests.clients.node import Script, Scripts
from tests.clients.servers import Command, Endpoint, Server
from tests.support.machine import SOAK

UNSUPPORTED_VERSION = -32022
NOT_FOUND = 404


class TypeScriptClient(NamedTuple):
    script: Script
    mode: str
    version: str
    calls_per_connection: int = 3
    shows_error_codes: bool = True
    unauthorized: int = 401

    def __call__(self, server: Server, *operations: Operation, together: bool = False) -> list[Outcome]:
        plan = {
            "mode": self.mode,
            "server": _server_json(server),
            "together": together,
            "operations": [_operation_json(operation) for operation in operations],
        }
        return [outcome(result) for result in json.loads(self.script.ask(json.dumps(plan)))]


def _server_json(server: Server) -> dict[str, object]:
    match server:
        case Command(argv, env):
            return {"command": argv[0], "args": argv[1:], "env": dict(env)}
        case Endpoint(url, headers):
            return {"url": url, "headers": dict(headers)}


def _operation_json(operation: Operation) -> dict[str, object]:
    match operation:
        case About():
            return {"do": "about"}
        case ListTools():
            return {"do": "list"}
        case Request(method):
            return {"do": "request", "method": method}
        case Call(tool, arguments, timeout_ms):
            options = {} if timeout_ms is None else {"timeout": timeout_ms}
            return {"do": "call", "tool": tool, "arguments": arguments, **options}


CLIENTS = {
    "v1": ("typescript_v1.mjs", "legacy", HANDSHAKE),
    "v2 legacy": ("typescript_v2.mjs", "legacy", HANDSHAKE),
    "v2 auto": ("typescript_v2.mjs", "auto", MODERN),
    "v2 pinned": ("typescript_v2.mjs", MODERN, MODERN),
}


# Each client and, over each transport, each package and each era.
SAMPLE = {"stdio": ["v1", "v2 legacy", "v2 auto"], "http": ["v1", "v2 pinned"]}


def client_named(name: str, scripts: Scripts) -> Client:
    script, mode, version = CLIENTS[name]
    return TypeScriptClient(scripts(script), mode, version)


class TestTypeScriptClients(OverStdio, EveryPersistentClient):
    @pytest.fixture(params=CLIENTS if SOAK else SAMPLE["stdio"])
    def client(self, request: pytest.FixtureRequest, scripts: Scripts) -> Client:
        return client_named(request.param, scripts)

    def test_half_a_surrogate_pair_is_an_invalid_query(self, client: Client, server: Server) -> None:
        assert client(server, Call(RESOLVE, GUIDE | {"query": "\ud800"})) == [tool_error("invalid_query")]


class TestTypeScriptClientsOverHttp(PersistentOverHttp, EveryPersistentClient):
    @pytest.fixture(params=CLIENTS if SOAK else SAMPLE["http"])
    def client(self, request: pytest.FixtureRequest, scripts: Scripts) -> Client:
        return client_named(request.param, scripts)

    def test_an_unknown_method_is_refused(self, client: Client, server: Server) -> None:
        """In the stateless era the error has the status 404, which v2 reports as an HTTP error with its body."""
        [refusal] = client(server, Request("context/unknown"))
        if client.version == MODERN:
            assert isinstance(refusal, Refusal)
            assert refusal.code == NOT_FOUND
            refusal = outcome({"refused": json.loads(refusal.data["text"])["error"]})
        assert_refusal(refusal, METHOD_NOT_FOUND, "Method not found: context/unknown")


def test_a_client_pinned_to_an_unknown_version_gets_an_error(server: Server, scripts: Scripts) -> None:
    [refusal] = TypeScriptClient(scripts("typescript_v2.mjs"), "2027-01-01", "")(server, ListTools())
    assert_refusal(refusal, UNSUPPORTED_VERSION, "Unsupported protocol version")
