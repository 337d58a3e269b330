"""The TypeScript clients: v1, of the handshake era, and v2, of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from clients.contract import (
    GUIDE,
    HANDSHAKE,
    MODERN,
    RESOLVE,
    About,
    Call,
    Client,
    EveryLastingClient,
    ListTools,
    Operation,
    Outcome,
    Refused,
    Request,
    Server,
    outcome,
    serving,
    typed,
)
from clients.node import run_node

UNSUPPORTED_VERSION = -32022


class TypeScript(NamedTuple):
    script: str
    mode: str
    version: str
    home: Path
    calls_per_connection: int = 3

    def __call__(self, server: Server, *operations: Operation, together: bool = False) -> list[Outcome]:
        plan = {
            "env": dict(server.env),
            "together": together,
            "operations": [_written(operation) for operation in operations],
        }
        done = run_node(self.home, self.script, self.mode, *server.argv, given=json.dumps(plan))
        assert done.returncode == 0, done.stderr
        return [outcome(result) for result in json.loads(done.stdout)]


def _written(operation: Operation) -> dict[str, object]:
    match operation:
        case About():
            return {"do": "about"}
        case ListTools():
            return {"do": "list"}
        case Request(method):
            return {"do": "request", "method": method}
        case Call(tool, arguments):
            return {"do": "call", "tool": tool, "arguments": arguments}


CLIENTS = {
    "v1": ("typescript_v1.mjs", "legacy", HANDSHAKE),
    "v2 legacy": ("typescript_v2.mjs", "legacy", HANDSHAKE),
    "v2 auto": ("typescript_v2.mjs", "auto", MODERN),
    "v2 pinned": ("typescript_v2.mjs", MODERN, MODERN),
}


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Client:
    script, mode, version = CLIENTS[request.param]
    return TypeScript(script, mode, version, tmp_path)


class TestTypeScriptClients(EveryLastingClient):
    def test_half_a_surrogate_pair_is_an_invalid_query(self, client: Client, shelf: Path) -> None:
        assert client(serving(shelf), Call(RESOLVE, GUIDE | {"query": "\ud800"})) == [typed("invalid_query")]


def test_a_client_pinned_to_a_version_to_come_learns_that_it_is_not_spoken(shelf: Path, tmp_path: Path) -> None:
    [refused] = TypeScript("typescript_v2.mjs", "2027-01-01", "", tmp_path)(serving(shelf), ListTools())
    assert refused == Refused(UNSUPPORTED_VERSION, "Unsupported protocol version")
