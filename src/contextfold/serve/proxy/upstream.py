"""The HTTP client of the proxy: requests to one provider, raw bytes in both directions.

It uses the transport of httpx2 and not its client, because the client stores cookies, decodes bodies, adds headers and
follows redirects. A request is sent only to the configured origin. It is sent once; there are no retries.

Each owner has connections of its own. They are used again, because a handshake takes as long as several messages, and a
person waits for it. A connection whose response was not read to its end is closed. One on which bytes follow a whole
response, because the provider or something on the way is broken, may give them to the next request; the client cannot
tell, but that request is of the same owner.

    headers to the provider     all except hop-by-hop headers, `X-Context-…`, `Host` and `Expect`
    headers to the client       all except hop-by-hop headers
    accept-encoding             if the proxy reads the response: only gzip, deflate and identity

An upstream whose path contains `/proxy/` may be this proxy itself. Requests to such an upstream carry this process's
name in `Via`, and a request that arrives with that name is refused.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import AsyncIterator, Iterable

import httpx2

from contextfold.serve.http.exchange import PROXY_PATH, Headers
from contextfold.settings import Upstream

# Timeouts: connecting, sending the next part of a request, receiving the next part of a response (a model may think
# for minutes), and waiting for a free connection of the pool.
CONNECT_S = 10.0
WRITE_S = 30.0
READ_S = 600.0
POOL_S = 10.0
# The server accepts at most this many requests at once, so the pool never needs more connections.
CONNECTIONS_MAX = 1024
# The idle connections of an owner, and how long each stays open: between the requests of a tool loop pass seconds.
IDLE_CONNECTIONS_MAX = 16
IDLE_S = 60.0
STATUS_MIN, STATUS_MAX = 200, 599

# The kinds of failures.
UNREACHABLE, TIMEOUT, BROKEN, BUSY = "unreachable", "timeout", "broken", "busy"

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
# `Host` is set to the upstream's name; the server has already answered `Expect: 100-continue`.
_NOT_FORWARDED = frozenset({b"host", b"expect"})
_OWN_PREFIX = b"x-context-"
_READABLE = frozenset({b"gzip", b"x-gzip", b"deflate", b"identity"})


class UpstreamFailed(Exception):
    """The response is missing or incomplete. `exception` is the name of httpx2's exception."""

    def __init__(self, kind: str, exception: str) -> None:
        super().__init__(kind)
        self.kind, self.exception = kind, exception


class UpstreamResponse:
    """An upstream's response whose headers have arrived. The caller must close it."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers = _select_response_headers(response.headers.raw)

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body as they arrive, without decoding them."""
        assert isinstance(self._response.stream, httpx2.AsyncByteStream)
        try:
            async for part in self._response.stream:
                yield part
        except httpx2.TransportError as problem:
            raise _describe_failure(problem) from None

    async def close(self) -> None:
        """Close the connection, unless the response was read to its end."""
        assert isinstance(self._response.stream, httpx2.AsyncByteStream)
        await self._response.stream.aclose()


class Provider:
    """One upstream."""

    def __init__(self, upstream: Upstream) -> None:
        self._url = httpx2.URL(upstream.url)
        self._through = upstream.through
        self._path = self._url.raw_path.rstrip(b"/")
        # By owner: the daemon's tokens name them, so there are few.
        self._transports: dict[str, httpx2.AsyncHTTPTransport] = {}
        self._certificates: ssl.SSLContext | None = None
        self._name = b"contextfold-" + secrets.token_hex(4).encode()
        self._sends_via = PROXY_PATH.encode() in self._path + b"/"

    async def send(
        self, owner: str, method: str, target: bytes, headers: Headers, body: httpx2.AsyncByteStream
    ) -> UpstreamResponse:
        """Send a request for `target` below the upstream's URL; return the response when its headers have arrived."""
        host = [(b"host", self._url.netloc)]
        via = [(b"via", b"1.1 " + self._name)] if self._sends_via else []
        request = httpx2.Request(
            method,
            self._url,
            headers=[*host, *headers, *via],
            stream=body,
            extensions={
                # The client's own bytes: httpx2.URL would normalise them.
                "target": self._path + b"/" + target,
                "timeout": {"connect": CONNECT_S, "write": WRITE_S, "read": READ_S, "pool": POOL_S},
            },
        )
        try:
            response = await self._transport_of(owner).handle_async_request(request)
        except httpx2.TransportError as problem:
            raise _describe_failure(problem) from None
        upstream_response = UpstreamResponse(response)
        if not STATUS_MIN <= response.status_code <= STATUS_MAX:
            await upstream_response.close()
            raise UpstreamFailed(BROKEN, "Status")
        return upstream_response

    def leads_back(self, headers: Headers) -> bool:
        """Whether this process has forwarded the request before."""
        return any(name == b"via" and self._name in value for name, value in headers)

    async def close(self) -> None:
        for transport in self._transports.values():
            await transport.aclose()

    def _transport_of(self, owner: str) -> httpx2.AsyncHTTPTransport:
        if owner not in self._transports:
            if self._certificates is None:
                # Loading the system's certificates is slow, and a plain HTTP upstream does not need them.
                is_plain = self._url.scheme != "https"
                self._certificates = (
                    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_plain else httpx2.create_ssl_context()
                )
            self._transports[owner] = httpx2.AsyncHTTPTransport(
                verify=self._certificates,
                limits=httpx2.Limits(
                    max_connections=CONNECTIONS_MAX,
                    max_keepalive_connections=IDLE_CONNECTIONS_MAX,
                    keepalive_expiry=IDLE_S,
                ),
                proxy=self._through or None,
            )
        return self._transports[owner]


def select_request_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers of a client's request that are forwarded to the provider, in their order."""
    headers = list(headers)
    forwarded = [
        (name, value)
        for name, value in drop_hop_by_hop(headers)
        if name.lower() not in _NOT_FORWARDED and not name.lower().startswith(_OWN_PREFIX)
    ]
    # The server accepts no transfer encoding but chunked.
    is_chunked = any(name.lower() == b"transfer-encoding" for name, _ in headers)
    return [*forwarded, (b"transfer-encoding", b"chunked")] if is_chunked else forwarded


def set_length(headers: Headers, length: int) -> Headers:
    """The headers for a body of a known length."""
    others = [header for header in headers if header[0].lower() not in (b"content-length", b"transfer-encoding")]
    return [*others, (b"content-length", str(length).encode())]


def limit_encodings(headers: Headers) -> Headers:
    """Remove the encodings that the proxy cannot decode from `Accept-Encoding`."""
    return [(name, _select_readable(value) if name.lower() == b"accept-encoding" else value) for name, value in headers]


def drop_hop_by_hop(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Remove the hop-by-hop headers and those that `Connection` names."""
    headers = list(headers)
    words = (word for name, value in headers if name.lower() == b"connection" for word in value.split(b","))
    # Every hop needs `Content-Length` to know where the body ends.
    dropped = _HOP_BY_HOP | ({word.strip().lower() for word in words} - {b"content-length"})
    return [header for header in headers if header[0].lower() not in dropped]


def _select_response_headers(headers: Headers) -> Headers:
    """A response's headers for the client. `Content-Length` is invalid in a chunked response and removed."""
    is_chunked = any(name.lower() == b"transfer-encoding" for name, _ in headers)
    forwarded = drop_hop_by_hop(headers)
    return [header for header in forwarded if header[0].lower() != b"content-length"] if is_chunked else forwarded


def _select_readable(accepted: bytes) -> bytes:
    codings = [word.strip() for word in accepted.split(b",")]
    readable = [coding for coding in codings if coding.partition(b";")[0].strip().lower() in _READABLE]
    return b", ".join(readable) or b"identity"


def _describe_failure(problem: httpx2.TransportError) -> UpstreamFailed:
    name = type(problem).__name__
    if isinstance(problem, httpx2.PoolTimeout):
        return UpstreamFailed(BUSY, name)
    if isinstance(problem, httpx2.ConnectTimeout | httpx2.ReadTimeout | httpx2.WriteTimeout):
        return UpstreamFailed(TIMEOUT, name)
    if isinstance(problem, httpx2.ConnectError | httpx2.ProxyError):
        return UpstreamFailed(UNREACHABLE, name)
    return UpstreamFailed(BROKEN, name)
