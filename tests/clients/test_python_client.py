"""The client of the Python SDK: the handshake, its own choice, and pinned to the modern version."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest
from mcp import Client as SdkClient
from mcp import MCPError, StdioServerParameters
from mcp.types import EmptyResult
from mcp.types import Request as SdkRequest

from clients.contract import (
    HANDSHAKE,
    MODERN,
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
)

SERVER_INFO = "io.modelcontextprotocol/serverInfo"
PATIENCE_S = 60


class Python(NamedTuple):
    mode: str
    version: str
    calls_per_connection: int = 3

    def __call__(self, server: Server, *operations: Operation, together: bool = False) -> list[Outcome]:
        return asyncio.run(asyncio.wait_for(self._converse(server, operations, together), PATIENCE_S))

    async def _converse(self, server: Server, operations: tuple[Operation, ...], together: bool) -> list[Outcome]:
        command, *args = server.argv
        parameters = StdioServerParameters(command=command, args=args, env=dict(server.env))
        async with SdkClient(parameters, mode=self.mode) as client:
            if together:
                return list(await asyncio.gather(*(_perform(client, operation) for operation in operations)))
            return [await _perform(client, operation) for operation in operations]


async def _perform(client: SdkClient, operation: Operation) -> Outcome:
    try:
        match operation:
            case About():
                return outcome(await _about(client))
            case ListTools():
                result: Any = await client.list_tools()
            case Request(method):
                request = SdkRequest[dict[str, Any] | None, str](method=method, params=None)
                result = await client.session.send_request(request, EmptyResult)
            case Call(tool, arguments):
                result = await client.call_tool(tool, dict(arguments))
    except MCPError as error:
        return Refused(error.code, error.message)
    return outcome(result.model_dump(mode="json", by_alias=True, exclude_none=True))


async def _about(client: SdkClient) -> dict[str, Any]:
    """A pinned client asks nothing when it connects, and so knows nothing until it does."""
    if client.server_info is None:
        told = await client.session.send_discover(client.protocol_version)
        server_info, instructions = told["_meta"][SERVER_INFO], told["instructions"]
    else:
        server_info, instructions = client.server_info.model_dump(mode="json", exclude_none=True), client.instructions
    return {"version": client.protocol_version, "serverInfo": server_info, "instructions": instructions}


MODES = {"legacy": HANDSHAKE, "auto": MODERN, MODERN: MODERN}


@pytest.fixture(params=MODES)
def client(request: pytest.FixtureRequest) -> Client:
    return Python(request.param, MODES[request.param])


class TestPythonClient(EveryLastingClient):
    pass
