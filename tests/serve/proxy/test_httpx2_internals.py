"""The private attributes of httpx2 that the proxy reads are where it expects them."""

from __future__ import annotations

import asyncio
from contextlib import closing

import httpx2

from contextfold.serve.proxy.upstream import PATH_TO_STATE, unread_bytes
from tests.serve.proxy.raw_upstream import RawUpstream


def test_every_attribute_up_to_the_connections_state_is_there() -> None:
    async def scenario(url: str) -> None:
        transport = httpx2.AsyncHTTPTransport()
        response = await transport.handle_async_request(httpx2.Request("GET", url))
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        inner: object = response.stream
        for name in (*PATH_TO_STATE, "trailing_data"):
            assert hasattr(inner, name), f"httpx2 {httpx2.__version__}: {type(inner).__name__} has no {name} any more"
            inner = getattr(inner, name)
        unread = unread_bytes(response.stream)
        await response.stream.aclose()
        await transport.aclose()
        # How much of the body has arrived behind the head is not known.
        assert isinstance(unread, bytes)

    with closing(RawUpstream()) as upstream:
        asyncio.run(scenario(upstream.url))
