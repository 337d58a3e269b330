"""The client of the Python SDK: with a handshake, with automatic choice, and pinned to the stateless version."""

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
    EveryPersistentClient,
    ListTools,
    Operation,
    Outcome,
    OverStdio,
    Refusal,
    Request,
    outcome,
)
from tests.clients.http_contract import PersistentOverHttp
from tests.clients.servers import Command, Server
from tests.support.machine import SOAK

# Every worker of pytest imports this module, and the SDK takes a second.
if TYPE_CHECKING:
    import mcp

SERVER_INFO = "io.modelcontextprotocol/serverInfo"
TIMEOUT_S = 60


class PythonClient(NamedTuple):
    mode: str
    version: str
    calls_per_connection: int = 3
    shows_error_codes: bool = True
    unauthorized: int = 401

    def __call__(self, server: Server, *operations: Operation, together: bool = False) -> list[Outcome]:
        return asyncio.run(asyncio.wait_for(self._perform_all(server, operations, together), TIMEOUT_S))

    async def _perform_all(self, server: Server, operations: tuple[Operation, ...], together: bool) -> list[Outcome]:
        import mcp

        statuses: list[int] = []
        try:
            async with _connected(server, self.mode, statuses) as client:
                if together:
                    outcomes = list(await asyncio.gather(*(_perform(client, operation) for operation in operations)))
                else:
                    outcomes = [await _perform(client, operation) for operation in operations]
        except* mcp.MCPError as errors:
            outcomes = [_refusal(_first_error(errors))]
        if self.unauthorized in statuses:
            outcomes = [
                refusal._replace(code=self.unauthorized) for refusal in outcomes if isinstance(refusal, Refusal)
            ]
        return outcomes


@asynccontextmanager
async def _connected(server: Server, mode: str, statuses: list[int]) -> AsyncIterator[mcp.Client]:
    """A connected client. `statuses` collects the HTTP statuses, which the client does not show."""
    import mcp
    from mcp.client.streamable_http import streamable_http_client

    if isinstance(server, Command):
        command, *args = server.argv
        async with mcp.Client(
            mcp.StdioServerParameters(command=command, args=args, env=dict(server.env)), mode=mode
        ) as client:
            yield client
        return

    async def record_status(response: httpx2.Response) -> None:
        statuses.append(response.status_code)

    async with (
        httpx2.AsyncClient(
            headers=dict(server.headers), timeout=TIMEOUT_S, event_hooks={"response": [record_status]}
        ) as http,
        mcp.Client(streamable_http_client(server.url, http_client=http), mode=mode) as client,
    ):
        yield client


def _refusal(error: mcp.MCPError) -> Refusal:
    return Refusal(error.code, error.message, error.data)


def _first_error(group: BaseExceptionGroup[mcp.MCPError]) -> mcp.MCPError:
    first = group.exceptions[0]
    return _first_error(first) if isinstance(first, BaseExceptionGroup) else first


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
        return _refusal(error)
    return outcome(result.model_dump(mode="json", by_alias=True, exclude_none=True))


async def _about(client: mcp.Client) -> dict[str, Any]:
    """A pinned client sends nothing when it connects, so it must first ask for the server's description."""
    if client.server_info is None:
        discovered = await client.session.send_discover(client.protocol_version)
        server_info, instructions = discovered["_meta"][SERVER_INFO], discovered["instructions"]
    else:
        server_info, instructions = client.server_info.model_dump(mode="json", exclude_none=True), client.instructions
    return {"version": client.protocol_version, "serverInfo": server_info, "instructions": instructions}


MODES = {"legacy": HANDSHAKE, "auto": MODERN, MODERN: MODERN}
# Each mode and, over each transport, each era.
SAMPLE = {"stdio": ["legacy", "auto"], "http": ["legacy", MODERN]}


class Resources(NamedTuple):
    """The URIs that a client lists, the contents of some, and the error code of an unknown one."""

    listed: list[str]
    templates: list[str]
    contents: dict[str, str]
    error_code: int


async def _read_resources(server: Server, mode: str, *uris: str) -> Resources:
    import mcp

    async with _connected(server, mode, []) as client:
        listed = [str(resource.uri) for resource in (await client.list_resources()).resources]
        templates = [resource.uri_template for resource in (await client.list_resource_templates()).resource_templates]
        contents = {}
        for uri in uris:
            (resource,) = (await client.read_resource(uri)).contents
            contents[uri] = getattr(resource, "text", "")
        with pytest.raises(mcp.MCPError) as raised:
            await client.read_resource("context://caches/docs/nowhere.md")
        return Resources(listed, templates, contents, raised.value.code)


@pytest.mark.parametrize("mode", ["legacy", MODERN])
def test_caches_are_resources_and_documents_have_a_template(mode: str, server: Server) -> None:
    cache, document = "context://caches/docs", "context://caches/docs/gr%C3%B6%C3%9Fe.md"
    resources = asyncio.run(asyncio.wait_for(_read_resources(server, mode, cache, document), TIMEOUT_S))
    assert cache in resources.listed
    assert "context://caches/empty" not in resources.listed
    assert resources.templates == ["context://caches/{cache}/{+id}"]
    assert resources.contents[document] == DOCUMENTS["größe.md"]
    assert [resource["id"] for resource in json.loads(resources.contents[cache])["documents"]] == sorted(DOCUMENTS)
    assert resources.error_code == (-32602 if mode == MODERN else -32002)


class TestPythonClient(OverStdio, EveryPersistentClient):
    @pytest.fixture(params=MODES if SOAK else SAMPLE["stdio"])
    def client(self, request: pytest.FixtureRequest) -> Client:
        return PythonClient(request.param, MODES[request.param])


class TestPythonClientOverHttp(PersistentOverHttp, EveryPersistentClient):
    @pytest.fixture(params=MODES if SOAK else SAMPLE["http"])
    def client(self, request: pytest.FixtureRequest) -> Client:
        return PythonClient(request.param, MODES[request.param])
