"""A provider of models, as proxied requests reach it: connections that are kept, raw bytes both ways. Knows HTTP.

It is asked by the transport of httpx2, below its client: that one would keep cookies, decode bodies, add headers, and
follow where it is sent. A request goes to the configured origin and nowhere else, once; it is never sent again.

    headers to the provider     all but those of one connection, `X-Context-…`, `Host` and `Expect`
    headers to the client       all but those of one connection
    accept-encoding             where we read along, what we can read: gzip, deflate, identity

A request for an upstream that lies below another `/proxy/`, and so may lead back here, names us in `Via`; one that
comes with that name is refused.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Iterable

import httpx2

from contextfold.serve.http.exchange import PROXY_PATH, Headers
from contextfold.serve.proxy.httpx2_internals import unread_bytes
from contextfold.settings import Upstream

CONNECT_S = 10.0
WRITE_S = 30.0  # for the next part of a request to be taken
READ_S = 600.0  # for the next part of an answer: a model may think for minutes
ROOM_S = 10.0  # for a connection, where all are in use
CONNECTIONS_MAX = 1024  # as many as the edge lets in at once
KEPT_MAX = 64
KEPT_S = 60.0  # that a connection may be idle
STATUS_LEAST, STATUS_MOST = 200, 599

UNREACHABLE, TIMEOUT, BROKEN, BUSY = "unreachable", "timeout", "broken", "busy"
FAILURES = (UNREACHABLE, TIMEOUT, BROKEN, BUSY)

_OF_CONNECTION = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_SENT_ON = frozenset({b"host", b"expect"})  # ours to say; answered by the server already
_OURS = b"x-context-"
_READABLE = frozenset({b"gzip", b"x-gzip", b"deflate", b"identity"})


class UpstreamFailed(Exception):
    """No answer, or not all of it. `kind` is one of FAILURES, `exception` the name of what happened below."""

    def __init__(self, kind: str, exception: str) -> None:
        super().__init__(kind)
        self.kind, self.exception = kind, exception


class UpstreamResponse:
    """A response of an upstream whose headers have arrived. The caller closes it."""

    def __init__(self, response: httpx2.Response, on_closed: Callable[[], None]) -> None:
        self._response, self._on_closed = response, on_closed
        self.status = response.status_code
        self.headers = _of_answer(response.headers.raw)

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it arrives, each part at once, in the encoding it has."""
        assert isinstance(self._response.stream, httpx2.AsyncByteStream)
        try:
            async for part in self._response.stream:
                yield part
        except httpx2.TransportError as problem:
            raise _failed(problem) from None

    async def close(self) -> None:
        """The connection is kept if the answer was read to its end and nothing came behind it, and cut if not."""
        assert isinstance(self._response.stream, httpx2.AsyncByteStream)
        try:
            if unread_bytes(self._response.stream):
                # They would be read as the response to the next request.
                await self._response.extensions["network_stream"].aclose()
            await self._response.stream.aclose()
        finally:
            self._on_closed()


class Provider:
    """One upstream. Nothing is opened before the first request, and no address looked up."""

    def __init__(self, upstream: Upstream) -> None:
        self._url = httpx2.URL(upstream.url)
        self._through = upstream.through
        self._path = self._url.raw_path.rstrip(b"/")
        self._transport: httpx2.AsyncHTTPTransport | None = None
        self._in_use = 0
        self._resting: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._name = b"contextfold-" + secrets.token_hex(4).encode()
        self._names_us = PROXY_PATH.encode() in self._path + b"/"

    async def ask(self, method: str, target: bytes, headers: Headers, body: httpx2.AsyncByteStream) -> UpstreamResponse:
        """The head of the answer to a request for what is at `target` below the upstream's URL."""
        host = [(b"host", self._url.netloc)]
        via = [(b"via", b"1.1 " + self._name)] if self._names_us else []
        request = httpx2.Request(
            method,
            self._url,
            headers=[*host, *headers, *via],
            stream=body,
            extensions={
                "target": self._path + b"/" + target,  # as it was written: a URL would spell it anew
                "timeout": {"connect": CONNECT_S, "write": WRITE_S, "read": READ_S, "pool": ROOM_S},
            },
        )
        self._in_use += 1
        try:
            response = await self._opened().handle_async_request(request)
        except BaseException as problem:
            self._used()
            if isinstance(problem, httpx2.TransportError):
                raise _failed(problem) from None
            raise
        answer = UpstreamResponse(response, self._used)
        if not STATUS_LEAST <= response.status_code <= STATUS_MOST:
            await answer.close()
            raise UpstreamFailed(BROKEN, "Status")
        return answer

    def leads_back(self, headers: Headers) -> bool:
        """Whether a request has been here before."""
        return any(name == b"via" and self._name in value for name, value in headers)

    async def close(self) -> None:
        self._rest()
        await asyncio.gather(*self._closing)

    def _used(self) -> None:
        """A request is over. The library looks for connections that are idle for too long only when it is asked."""
        self._in_use -= 1
        if self._resting is not None:
            self._resting.cancel()
        self._resting = asyncio.get_running_loop().call_later(KEPT_S, self._rest_if_idle)

    def _rest_if_idle(self) -> None:
        if not self._in_use:
            self._rest()

    def _rest(self) -> None:
        """Let all connections go; the next request opens new ones."""
        if self._resting is not None:
            self._resting.cancel()
        transport, self._transport = self._transport, None
        if transport is not None:
            closing = asyncio.get_running_loop().create_task(transport.aclose())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _opened(self) -> httpx2.AsyncHTTPTransport:
        if self._transport is None:
            limits = httpx2.Limits(
                max_connections=CONNECTIONS_MAX, max_keepalive_connections=KEPT_MAX, keepalive_expiry=KEPT_S
            )
            # To read the machine's certificates takes a while, and where there is no TLS nobody asks for them.
            verify = True if self._url.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._transport = httpx2.AsyncHTTPTransport(
                verify=verify, trust_env=True, limits=limits, proxy=self._through or None
            )
        return self._transport


def sent_on(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """A request's headers for the provider: in their order, without those that end here."""
    headers = list(headers)
    kept = [
        (name, value)
        for name, value in passed_on(headers)
        if name.lower() not in _NOT_SENT_ON and not name.lower().startswith(_OURS)
    ]
    is_chunked = any(name.lower() == b"transfer-encoding" for name, _ in headers)  # the server takes no other
    return [*kept, (b"transfer-encoding", b"chunked")] if is_chunked else kept


def with_body(headers: Headers, length: int) -> Headers:
    """The headers for a body that is here, whole."""
    kept = [header for header in headers if header[0].lower() not in (b"content-length", b"transfer-encoding")]
    return [*kept, (b"content-length", str(length).encode())]


def with_readable_encoding(headers: Headers) -> Headers:
    """What is accepted, less what nobody here can read."""
    return [(name, _readable(value) if name.lower() == b"accept-encoding" else value) for name, value in headers]


def passed_on(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Without the headers that are about one connection, and those that `Connection` says are."""
    headers = list(headers)
    words = (word for name, value in headers if name.lower() == b"connection" for word in value.split(b","))
    named = {word.strip().lower() for word in words} - {b"content-length"}  # which says where a body ends, to everybody
    return [header for header in headers if header[0].lower() not in _OF_CONNECTION | named]


def _of_answer(headers: Headers) -> Headers:
    """An answer's headers for the client. Where it comes in chunks, a length beside them is not its own."""
    is_chunked = any(name.lower() == b"transfer-encoding" for name, _ in headers)
    kept = passed_on(headers)
    return [header for header in kept if header[0].lower() != b"content-length"] if is_chunked else kept


def _readable(accepted: bytes) -> bytes:
    codings = [word.strip() for word in accepted.split(b",")]
    kept = [coding for coding in codings if coding.partition(b";")[0].strip().lower() in _READABLE]
    return b", ".join(kept) or b"identity"


def _failed(problem: httpx2.TransportError) -> UpstreamFailed:
    name = type(problem).__name__
    if isinstance(problem, httpx2.PoolTimeout):
        return UpstreamFailed(BUSY, name)
    if isinstance(problem, httpx2.ConnectTimeout | httpx2.ReadTimeout | httpx2.WriteTimeout):
        return UpstreamFailed(TIMEOUT, name)
    if isinstance(problem, httpx2.ConnectError | httpx2.ProxyError):
        return UpstreamFailed(UNREACHABLE, name)
    return UpstreamFailed(BROKEN, name)
