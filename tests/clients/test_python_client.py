"""The client of the Python SDK: the handshake, its own choice, and pinned to the modern version."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx2
import pytest

from tests.clients.conftest import DOCUMENTS
from tests.clients.contract import (
    HANDSHAKE,
    MODERN,
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
    outcome,
)
from tests.clients.folding import LastingOverHttp
from tests.clients.servers import Command, Server
from tests.support.machine import SOAK

# Every worker of pytest imports this module, and the SDK takes a second.
if TYPE_CHECKING:
    import mcp

SERVER_INFO = "io.modelcontextprotocol/serverInfo"
PATIENCE_S = 60


class Python(NamedTuple):
    mode: str
    version: str
    calls_per_connection: int = 3
    tells_numbers: bool = True
    unauthorized: int = 401

    def __call__(self, server: Server, *operations: Operation, together: bool = False) -> list[Outcome]:
        return asyncio.run(asyncio.wait_for(self._converse(server, operations, together), PATIENCE_S))

    async def _converse(self, server: Server, operations: tuple[Operation, ...], together: bool) -> list[Outcome]:
        import mcp

        statuses: list[int] = []
        try:
            async with _connected(server, self.mode, statuses) as client:
                if together:
                    outcomes = list(await asyncio.gather(*(_perform(client, operation) for operation in operations)))
                else:
                    outcomes = [await _perform(client, operation) for operation in operations]
        except* mcp.MCPError as refused:
            outcomes = [_refused(_first(refused))]
        if self.unauthorized in statuses:
            outcomes = [told._replace(code=self.unauthorized) for told in outcomes if isinstance(told, Refused)]
        return outcomes


@asynccontextmanager
async def _connected(server: Server, mode: str, statuses: list[int]) -> AsyncIterator[mcp.Client]:
    """A client that has agreed on a version, or will. `statuses` gets what HTTP says; the client keeps it to itself."""
    import mcp
    from mcp.client.streamable_http import streamable_http_client

    if isinstance(server, Command):
        command, *args = server.argv
        async with mcp.Client(
            mcp.StdioServerParameters(command=command, args=args, env=dict(server.env)), mode=mode
        ) as client:
            yield client
        return

    async def note(response: httpx2.Response) -> None:
        statuses.append(response.status_code)

    async with (
        httpx2.AsyncClient(headers=dict(server.headers), timeout=PATIENCE_S, event_hooks={"response": [note]}) as http,
        mcp.Client(streamable_http_client(server.url, http_client=http), mode=mode) as client,
    ):
        yield client


def _refused(error: mcp.MCPError) -> Refused:
    return Refused(error.code, error.message, error.data)


def _first(group: BaseExceptionGroup[mcp.MCPError]) -> mcp.MCPError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _perform(client: mcp.Client, operation: Operation) -> Outcome:
    import mcp

    try:
        match operation:
            case About():
                return outcome(await _about(client))
            case ListTools():
                result: Any = await client.list_tools()
            case Request(method):
                request = mcp.types.Request[dict[str, Any] | None, str](method=method, params=None)
                result = await client.session.send_request(request, mcp.types.EmptyResult)
            case Call(tool, arguments, timeout_ms):
                timeout_s = None if timeout_ms is None else timeout_ms / 1000
                result = await client.call_tool(tool, dict(arguments), read_timeout_seconds=timeout_s)
    except mcp.MCPError as error:
        return _refused(error)
    return outcome(result.model_dump(mode="json", by_alias=True, exclude_none=True))


async def _about(client: mcp.Client) -> dict[str, Any]:
    """A pinned client asks nothing when it connects, and so knows nothing until it does."""
    if client.server_info is None:
        told = await client.session.send_discover(client.protocol_version)
        server_info, instructions = told["_meta"][SERVER_INFO], told["instructions"]
    else:
        server_info, instructions = client.server_info.model_dump(mode="json", exclude_none=True), client.instructions
    return {"version": client.protocol_version, "serverInfo": server_info, "instructions": instructions}


MODES = {"legacy": HANDSHAKE, "auto": MODERN, MODERN: MODERN}
# Each mode and, over each transport, each era.
SAMPLE = {"stdio": ["legacy", "auto"], "http": ["legacy", MODERN]}


class Seen(NamedTuple):
    """What a client sees of the resources: the addresses it is told of, and what lies at some."""

    listed: list[str]
    templates: list[str]
    contents: dict[str, str]
    refused: int


async def _resources(server: Server, mode: str, *addresses: str) -> Seen:
    import mcp

    async with _connected(server, mode, []) as client:
        listed = [str(found.uri) for found in (await client.list_resources()).resources]
        templates = [found.uri_template for found in (await client.list_resource_templates()).resource_templates]
        contents = {}
        for address in addresses:
            (found,) = (await client.read_resource(address)).contents
            contents[address] = getattr(found, "text", "")
        with pytest.raises(mcp.MCPError) as refused:
            await client.read_resource("context://caches/docs/nowhere.md")
        return Seen(listed, templates, contents, refused.value.code)


@pytest.mark.parametrize("mode", ["legacy", MODERN])
def test_caches_are_resources_and_documents_a_template(mode: str, server: Server) -> None:
    cache, document = "context://caches/docs", "context://caches/docs/gr%C3%B6%C3%9Fe.md"
    seen = asyncio.run(asyncio.wait_for(_resources(server, mode, cache, document), PATIENCE_S))
    assert cache in seen.listed
    assert "context://caches/empty" not in seen.listed
    assert seen.templates == ["context://caches/{cache}/{+id}"]
    assert seen.contents[document] == DOCUMENTS["größe.md"]
    assert [found["id"] for found in json.loads(seen.contents[cache])["documents"]] == sorted(DOCUMENTS)
    assert seen.refused == (-32602 if mode == MODERN else -32002)


class TestPythonClient(OverStdio, EveryLastingClient):
    @pytest.fixture(params=MODES if SOAK else SAMPLE["stdio"])
    def client(self, request: pytest.FixtureRequest) -> Client:
        return Python(request.param, MODES[request.param])


class TestPythonClientOverHttp(LastingOverHttp, EveryLastingClient):
    @pytest.fixture(params=MODES if SOAK else SAMPLE["http"])
    def client(self, request: pytest.FixtureRequest) -> Client:
        return Python(request.param, MODES[request.param])
