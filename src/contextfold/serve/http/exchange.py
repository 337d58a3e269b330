"""One HTTP request and its response.

    own paths       the whole body is read before the application is called; every response gets the daemon's headers
    proxied paths   the body is forwarded as it arrives, with limits on its size and time; a response that the
                    application marks AS_IT_CAME is not changed, and the connection is cut if it is incomplete

`HttpExchange.send` is the only wrapper around the server's `send`. It sets all headers of the daemon, for example
X-Context-State. Knows ASGI, nothing of admission (`serve.http.guard`) or of the application.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from email.utils import formatdate
from typing import Any

from contextfold.serve.http.bearer_tokens import Tokens
from contextfold.serve.http.capacity import OwnerCount, RequestCapacity
from contextfold.serve.ops.tracing import NO_SPAN, TraceSpan
from contextfold.serve.request_error import INTERNAL_ERROR_STATUS, RequestError, busy

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

# Keys of the scope: the caller's owner, the name of the run or an empty text, and the exchange itself.
OWNER = "contextfold.owner"
RUN = "contextfold.run"
EXCHANGE = "contextfold.exchange"
# This key in the start of a response marks an upstream's response, which is not changed.
AS_IT_CAME = "contextfold.as_it_came"

MCP_PATH = "/mcp"
PROXY_PATH = "/proxy/"
STATE_HEADER = b"x-context-state"
# The header with the daemon's token in a proxied request, whose `Authorization` is for the provider.
TOKEN_HEADER = b"x-context-token"

# The owner of a request to a path that needs no token.
NOBODY = ""
# Paths for monitoring.
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
# The dashboard's files need no token: they contain no data, and the page asks for a token.
PAGE_PATH, WEB_PATH = "/", "/web/"

_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
# A response without a policy of its own gets this one: no page may show it in a frame.
_NO_FRAMES = (b"content-security-policy", b"frame-ancestors 'none'")
_OWN_HEADERS = frozenset(name for name, _ in _SECURITY_HEADERS) | {b"server", b"date"}
# `context run` gives each program addresses with this prefix.
RUN_NAME = "run_[0-9a-f]{16}"
_RUN_PREFIX = re.compile(f"/run/({RUN_NAME})(?=/)")
_BEARER_WORDS = 2
_LENGTH_DIGITS = 20


class ClientGone(Exception):
    """The client has disconnected."""


class HttpExchange:
    """One request and its response. `state` is the value of X-Context-State; empty for a path without it."""

    def __init__(
        self,
        capacity: RequestCapacity,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        state: str = "",
        tokens: Tokens | None = None,
    ) -> None:
        self._capacity, self._receive, self._server_send, self._tokens = capacity, receive, send, tokens
        _strip_run(scope)
        self.scope = scope
        path: str = scope["path"]
        self.is_proxied = path.startswith(PROXY_PATH)
        self.is_public = path in OPEN_PATHS or path == PAGE_PATH or path.startswith(WEB_PATH)
        self.is_mcp_post = path == MCP_PATH and scope["method"] == "POST"
        self.state = state if path == MCP_PATH or path.startswith(f"{MCP_PATH}/") else ""
        # Set when the application should treat the client as disconnected.
        self.ended = asyncio.Event()
        self.is_event_stream = False
        self.owner = NOBODY
        # Where this counts, for its owner.
        self._count = capacity.proxied if self.is_proxied else capacity.requests
        self._count.add(self.owner)
        self.span: TraceSpan = NO_SPAN
        self.status = 0
        # The kind of the error with which the request was refused, or empty.
        self.refusal = ""
        self.as_it_came = False
        self._buffered_bytes = 0
        self._header_values = _group_by_name(scope["headers"])
        self._body: bytes | None = b""
        # The time, on the loop's clock, by which a proxied body must have arrived; None when it has.
        self._body_deadline_s: float | None = None
        self._received_bytes = 0
        # Whether the response has begun, and whether it is complete; and whether the rest of the application's response
        # is dropped, because another was sent instead.
        self._is_started = self._is_complete = self._is_muted = False

    def is_beyond_capacity(self) -> bool:
        """Whether there are too many requests of this kind, of everybody."""
        return self._count.is_exceeded()

    def count_for(self, owner: str) -> None:
        """Count this for its owner from now on. Raises RequestError if that is more than the owner's share."""
        self._recount(self._count, owner)
        if not self.is_public and self._count.is_exceeded_for(owner):
            kind = "proxied requests" if self.is_proxied else "requests"
            raise busy(f"Too many {kind} of yours are being answered; try again in a second.")

    def _recount(self, count: OwnerCount, owner: str) -> None:
        self._count.add(self.owner, -1)
        self._count, self.owner = count, owner
        self._count.add(owner)

    def free_capacity(self) -> None:
        self._count.add(self.owner, -1)
        self._capacity.buffered_bytes.add(self.owner, -self._buffered_bytes)

    @property
    def is_long(self) -> bool:
        """Whether the response may take minutes or hours."""
        return self.is_proxied or self.is_event_stream

    def header_values(self, name: bytes) -> list[str]:
        """The values of a header of the request."""
        return self._header_values.get(name, [])

    def token(self) -> str:
        """The bearer token of the request; empty, which is never valid, if there is none."""
        if self.is_proxied:
            sent = self.header_values(TOKEN_HEADER)
            return sent[0] if len(sent) == 1 else ""
        sent = self.header_values(b"authorization")
        words = sent[0].split() if len(sent) == 1 else []
        return words[1] if len(words) == _BEARER_WORDS and words[0].lower() == "bearer" else ""

    def admitted_scope(self) -> Scope:
        """The scope for the application: with the owner, and without the daemon's token."""
        secret = TOKEN_HEADER if self.is_proxied else b"authorization"
        headers = [(name, value) for name, value in self.scope["headers"] if name != secret]
        self.scope = {**self.scope, "headers": headers, OWNER: self.owner, EXCHANGE: self}
        return self.scope

    def _is_token_valid(self) -> bool:
        """Whether the token still belongs to the owner. It may be removed during a stream."""
        return self._tokens is None or self._tokens.owner_of(self.token()) == self.owner

    async def read_body(self) -> None:
        """Read the whole body. First its declared length is checked, then its real length."""
        limits = self._capacity.limits
        self._check_claimed_length(limits.body_bytes)
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(limits.body_timeout_s):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    chunks.append(message.get("body", b""))
                    self._buffer(len(chunks[-1]))
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise _body_timeout(limits.body_timeout_s) from None
        self._body = chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _buffer(self, size: int) -> None:
        """Count a part of a body."""
        self._buffered_bytes += size
        buffered = self._capacity.buffered_bytes
        buffered.add(self.owner, size)
        if self._buffered_bytes > self._capacity.limits.body_bytes:
            raise _body_too_large(self._capacity.limits.body_bytes)
        if buffered.is_exceeded_for(self.owner):
            raise busy("Too much is being received at once; try again in a second.")

    def pass_body(self) -> None:
        """Let the application read the body part by part."""
        limits = self._capacity.limits
        self._check_claimed_length(limits.proxied_body_bytes)
        self._body = None
        self._body_deadline_s = asyncio.get_running_loop().time() + limits.proxied_body_timeout_s

    def _check_claimed_length(self, most: int) -> None:
        claimed = self.header_values(b"content-length")
        if claimed and claimed[0].isdecimal() and int(claimed[0][:_LENGTH_DIGITS]) > most:
            raise _body_too_large(most)

    def take_body(self) -> bytes:
        """The body that `read_body` has read, for an application that does not call `receive`."""
        body, self._body = self._body, None
        return body or b""

    async def receive(self) -> Message:
        """Return the body once; then wait until the client disconnects, or the daemon stops and this is a stream."""
        if self._body_deadline_s is not None:
            return await self._next_part(self._body_deadline_s)
        if self._body is not None:
            return {"type": "http.request", "body": self.take_body(), "more_body": False}
        waits: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._wait_for_disconnect()),
            asyncio.ensure_future(self.ended.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self.ended.set()
        return {"type": "http.disconnect"}

    async def _next_part(self, until_s: float) -> Message:
        """The next part of a proxied body, with limits on its size and time."""
        limits = self._capacity.limits
        try:
            async with asyncio.timeout_at(min(asyncio.get_running_loop().time() + limits.body_timeout_s, until_s)):
                message = await self._receive()
        except TimeoutError:
            raise _body_timeout(limits.body_timeout_s) from None
        self._received_bytes += len(message.get("body", b""))
        if self._received_bytes > limits.proxied_body_bytes:
            # The rest would be read and dropped for as long as it arrives.
            raise _body_too_large(limits.proxied_body_bytes, [(b"connection", b"close")])
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._body_deadline_s = None
        return message

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _send(self, message: Message) -> None:
        """Hand a message to the server, which waits until the client has read most of the messages before."""
        try:
            async with asyncio.timeout(self._capacity.limits.response_timeout_s):
                await self._server_send(message)
        except TimeoutError:
            raise ClientGone from None

    async def send(self, message: Message) -> None:
        if self._is_muted:
            return
        if message["type"] == "http.response.start":
            if not await self._accept_start(message):
                return
            self.as_it_came = bool(message.get(AS_IT_CAME))
            headers = list(message.get("headers", ()))
            self._is_started, self.status = True, message["status"]
            message = {**message, "headers": headers if self.as_it_came else self._own_headers(headers)}
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self._is_complete = True
        elif self.is_long and not self._is_token_valid():
            self._is_muted = True
            self.ended.set()
            await self._end_stream()
            return
        await self._send(message)

    async def respond(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send a whole JSON response, or one without a body."""
        self._is_started, self._is_complete, self.status = True, True, status
        sent = [(b"content-type", b"application/json")] if body else []
        sent += [(b"content-length", str(len(body)).encode()), *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": self._own_headers(sent)})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    def _own_headers(self, headers: Headers) -> Headers:
        """Add the headers that every response of the daemon has."""
        extended = [header for header in headers if header[0].lower() not in _OWN_HEADERS]
        # The server does not set a date, because a proxied response has its own.
        extended += [*_SECURITY_HEADERS, (b"date", formatdate(usegmt=True).encode("ascii"))]
        if not any(header[0] == _NO_FRAMES[0] for header in headers):
            extended.append(_NO_FRAMES)
        if self.state:
            # The state has only ids and numbers, so it is ASCII and one line.
            extended.append((STATE_HEADER, self.state.encode("ascii")))
        return extended

    async def _accept_start(self, message: Message) -> bool:
        """Check the start of the application's response. False if an error was sent instead."""
        content_type = "".join(_group_by_name(message.get("headers", ())).get(b"content-type", ()))
        if (
            message["status"] == INTERNAL_ERROR_STATUS
            and content_type.startswith("text/plain")
            and not message.get(AS_IT_CAME)
        ):
            # A framework sends a text of its own before it raises the exception.
            self._is_muted = True
            await self.refuse(unexpected_error())
            return False
        if content_type.startswith("text/event-stream"):
            if not self.is_proxied:
                self._recount(self._capacity.streams, self.owner)
                if self._count.is_exceeded_for(self.owner):
                    self._is_muted = True
                    self.ended.set()
                    await self.refuse(busy("Too many event streams are open; close one, or try again later."))
                    return False
            self.is_event_stream = True
            if self._capacity.is_stopping:
                self.ended.set()
        return True

    async def refuse(self, error: RequestError) -> None:
        """Respond with an error. A response that has begun stays incomplete, and the server cuts the connection."""
        if self._is_started:
            return
        self.refusal = error.kind if error.status != INTERNAL_ERROR_STATUS else ""
        body: dict[str, object] = {"error": error.http_error()}
        if self.is_mcp_post:
            # MCP clients show only errors in the format of JSON-RPC.
            body = {"jsonrpc": "2.0", "id": None, **body}
        headers = list(error.headers)
        if self.header_values(b"expect"):
            # It is unknown whether the client still sends the body.
            headers.append((b"connection", b"close"))
        await self.respond(error.status, json.dumps(body).encode() + b"\n", headers)

    async def finish(self) -> None:
        """Complete the response after the application has returned."""
        if self._is_muted or self._is_complete:
            return
        if self.is_event_stream and self.ended.is_set():
            await self._end_stream()
        elif not self._is_started:
            raise ClientGone if self.ended.is_set() else RuntimeError("no response")

    async def give_up(self) -> None:
        """End the response, because the daemon stops."""
        if self.is_event_stream and not self._is_complete:
            await self._end_stream()
        else:
            await self.refuse(busy("The daemon is stopping; try again when it is back.", "stopping"))

    async def _end_stream(self) -> None:
        """End an event stream properly, so that the client reconnects later. An upstream's stream is not changed."""
        if self.as_it_came:
            return
        self._is_complete = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def unexpected_error() -> RequestError:
    """The error for the caller after a bug."""
    return RequestError(INTERNAL_ERROR_STATUS, "internal_error", "Internal error; the daemon's log says where.")


def _body_timeout(timeout_s: float) -> RequestError:
    message = f"The body did not arrive within {timeout_s:g} s; send it again, whole."
    return RequestError(408, "body_timeout", message, [(b"connection", b"close")])


def _strip_run(scope: Scope) -> None:
    """Take the name of a run from the beginning of a path, so that every path exists for every run."""
    match = _RUN_PREFIX.match(scope["path"])
    scope[RUN] = match[1] if match else ""
    if match:
        scope["path"] = scope["path"][match.end() :]
        scope["raw_path"] = scope["raw_path"][match.end() :]


def _body_too_large(most: int, headers: Iterable[tuple[bytes, bytes]] = ()) -> RequestError:
    return RequestError(413, "body_too_large", f"The body has more than {most} bytes; send less at once.", headers)


def _group_by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, list[str]]:
    values: dict[bytes, list[str]] = {}
    for name, value in headers:
        # Only HTTP's white space is removed: in Latin-1 the last byte of a UTF-8 character may be white space.
        values.setdefault(name.lower(), []).append(value.decode("latin-1").strip(" \t"))
    return values
