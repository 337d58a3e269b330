"""The TypeScript clients: v1, of the handshake era, and v2, of both."""

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
    EveryLastingClient,
    ListTools,
    Operation,
    Outcome,
    OverStdio,
    Refused,
    Request,
    assert_refused,
    outcome,
    typed,
)
from tests.clients.folding import LastingOverHttp
from tests.clients.node import Script, Scripts
from tests.clients.servers import Command, Endpoint, Server
from tests.support.clauses import covers
from tests.support.machine import SOAK

UNSUPPORTED_VERSION = -32022
NOT_FOUND = 404


class TypeScript(NamedTuple):
    script: Script
    mode: str
    version: str
    calls_per_connection: int = 3
    tells_numbers: bool = True
    unauthorized: int = 401

    def __call__(self, server: Server, *operations: Operation, together: bool = False) -> list[Outcome]:
        plan = {
            "mode": self.mode,
            "server": _named(server),
            "together": together,
            "operations": [_written(operation) for operation in operations],
        }
        return [outcome(result) for result in json.loads(self.script.ask(json.dumps(plan)))]


def _named(server: Server) -> dict[str, object]:
    match server:
        case Command(argv, env):
            return {"command": argv[0], "args": argv[1:], "env": dict(env)}
        case Endpoint(url, headers):
            return {"url": url, "headers": dict(headers)}


def _written(operation: Operation) -> dict[str, object]:
    match operation:
        case About():
            return {"do": "about"}
        case ListTools():
            return {"do": "list"}
        case Request(method):
            return {"do": "request", "method": method}
        case Call(tool, arguments, timeout_ms):
            waiting = {} if timeout_ms is None else {"timeout": timeout_ms}
            return {"do": "call", "tool": tool, "arguments": arguments, **waiting}


CLIENTS = {
    "v1": ("typescript_v1.mjs", "legacy", HANDSHAKE),
    "v2 legacy": ("typescript_v2.mjs", "legacy", HANDSHAKE),
    "v2 auto": ("typescript_v2.mjs", "auto", MODERN),
    "v2 pinned": ("typescript_v2.mjs", MODERN, MODERN),
}


# Each client and, over each transport, each package and each era.
SAMPLE = {"stdio": ["v1", "v2 legacy", "v2 auto"], "http": ["v1", "v2 pinned"]}


def named(name: str, scripts: Scripts) -> Client:
    script, mode, version = CLIENTS[name]
    return TypeScript(scripts(script), mode, version)


class TestTypeScriptClients(OverStdio, EveryLastingClient):
    @pytest.fixture(params=CLIENTS if SOAK else SAMPLE["stdio"])
    def client(self, request: pytest.FixtureRequest, scripts: Scripts) -> Client:
        return named(request.param, scripts)

    @covers("stdio.md#tool-calls", "stdio.md#clients")
    def test_half_a_surrogate_pair_is_an_invalid_query(self, client: Client, server: Server) -> None:
        assert client(server, Call(RESOLVE, GUIDE | {"query": "\ud800"})) == [typed("invalid_query")]


class TestTypeScriptClientsOverHttp(LastingOverHttp, EveryLastingClient):
    @pytest.fixture(params=CLIENTS if SOAK else SAMPLE["http"])
    def client(self, request: pytest.FixtureRequest, scripts: Scripts) -> Client:
        return named(request.param, scripts)

    def test_an_unknown_method_is_refused(self, client: Client, server: Server) -> None:
        """The modern era wants a 404 with it, which v2 takes for HTTP's own and shows as it came."""
        [refused] = client(server, Request("context/unknown"))
        if client.version == MODERN:
            assert isinstance(refused, Refused)
            assert refused.code == NOT_FOUND
            refused = outcome({"refused": json.loads(refused.data["text"])["error"]})
        assert_refused(refused, METHOD_NOT_FOUND, "Method not found: context/unknown")


@covers("stdio.md#eras", "stdio.md#clients")
def test_a_client_pinned_to_a_version_to_come_learns_that_it_is_not_spoken(server: Server, scripts: Scripts) -> None:
    [refused] = TypeScript(scripts("typescript_v2.mjs"), "2027-01-01", "")(server, ListTools())
    assert_refused(refused, UNSUPPORTED_VERSION, "Unsupported protocol version")
