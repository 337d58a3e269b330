"""The outer edge of the HTTP daemon: who may come in, with how much, how often. Knows HTTP, nothing of what is served.

A request passes these in order, and each refusal is JSON that says what was wrong and what to do:

    room        too many at once                                            503
    host        a name that is not ours: how a web page rebinds DNS to us   421
    origin      a web page from elsewhere, or one that hides where from     403
    token       where tokens are configured; gives the owner                401
    rate        except POST /mcp, which answers it in JSON-RPC              429
    body        too large, or too slow to arrive                            413, 408

What a caller sent (path, query, headers, body, an exception's text) is never logged. Answers pass as they come.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from contextfold.places import place_of
from contextfold.record import Record
from contextfold.serve.limits import Buckets, HostRule
from contextfold.serve.logs import log
from contextfold.serve.metrics import METHODS, OTHER, Metrics
from contextfold.serve.refusals import (
    INTERNAL_ERROR,
    Refusal,
    busy,
    error_told,
    internal_error,
    too_large,
    too_often,
)
from contextfold.serve.tokens import LOCAL_OWNER, TokenFile
from contextfold.serve.tracing import NO_SPAN, Span, Tracer, request_span

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

READING = ("GET", "HEAD")
UNASKED = frozenset({"", "text/plain", "multipart/form-data", "application/x-www-form-urlencoded"})  # as Fetch has it
NOBODY = ""  # who calls without a token, where that may be
OWNER = "contextfold.owner"  # where the inner application finds the caller
OPEN_PATHS = frozenset({"/healthz", "/readyz"})  # for whoever watches the daemon
MCP_PATH = "/mcp"
HOOKS_PATH = "/hooks/"
PAGE_PATH, WEB_PATH = "/", "/web/"  # the dashboard's own files: they hold nobody's data, and the page asks for a token

OK = 200
STREAM_GRACE_S = 1.0  # for an event stream to end by itself once it is told that nobody listens
CLIENT_CLOSED = 499  # in logs and metrics only: there was nobody left to answer
POLICY_VIOLATION = 1008  # of WebSockets

_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
_OURS = frozenset(name for name, _ in _SECURITY_HEADERS) | {b"server"}
_BEARER_WORDS = 2


class Limits(Record):
    """How much at once. A stream counts as a request only until it has begun: clients keep one open for hours."""

    in_flight: int = 256
    streams: int = 1024
    streams_of_owner: int = 256
    body_bytes: int = 4 << 20
    buffered_bytes: int = 64 << 20  # of all bodies together
    body_timeout_s: float = 30.0


class ClientGone(Exception):
    """Nobody is left to answer."""


class Guard:
    """An ASGI application around another."""

    def __init__(
        self,
        app: App,
        *,
        hosts: HostRule,
        metrics: Metrics,
        buckets: Buckets,
        tokens: TokenFile | None = None,
        limits: Limits | None = None,
        tracer: Tracer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app, self.metrics, self.buckets = app, metrics, buckets
        self.limits = limits or Limits()
        self._hosts, self._tokens, self._tracer, self._clock = hosts, tokens, tracer, clock
        self._open: set[_Exchange] = set()
        self.in_flight = 0
        self.streams = 0
        self.streams_of: Counter[str] = Counter()
        self.buffered_bytes = 0
        self.stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            exchange = _Exchange(self, scope, receive, send)
            with request_span(self._tracer, scope["headers"]) as exchange.span:
                await self._answer(exchange)
        else:
            self.metrics.refusal("websocket")
            await receive()
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})

    async def end_streams(self) -> None:
        """Tell every event stream that nobody listens any more, so that a shutdown need not wait for it.

        One that has not ended after STREAM_GRACE_S is cancelled. Streams that begin later are ended as they begin.
        """
        self.stopping = True
        streams = [exchange for exchange in self._open if exchange.is_stream]
        for exchange in streams:
            exchange.ended.set()
        if streams:
            _, stubborn = await asyncio.wait([exchange.task for exchange in streams], timeout=STREAM_GRACE_S)
            for task in stubborn:
                task.cancel()

    async def _answer(self, exchange: _Exchange) -> None:
        started_s = self._clock()
        self._open.add(exchange)
        self.in_flight += 1
        self.metrics.in_flight.inc()
        try:
            await self._admit_and_pass(exchange)
        except Refusal as refusal:
            await exchange.refuse(refusal)
        except ClientGone:
            exchange.status = CLIENT_CLOSED
        except asyncio.CancelledError:  # at shutdown, when the time is over
            await exchange.give_up()
        except Exception as problem:  # a bug costs one answer; its text may quote the request
            log("http.failed", "error", exception=type(problem).__name__, raised_at=place_of(problem))
            await exchange.refuse(internal_error())
        finally:
            self._open.discard(exchange)
            self._release(exchange)
            self._account(exchange, self._clock() - started_s)

    async def _admit_and_pass(self, exchange: _Exchange) -> None:
        token, owner = exchange.token(), self._admit(exchange)
        if not _is_anybodys(exchange.scope["path"]):
            await exchange.read_body()
        exchange.is_admitted = lambda: self._is_admitted(token, owner)
        headers = [(name, value) for name, value in exchange.scope["headers"] if name != b"authorization"]
        exchange.scope = {**exchange.scope, "headers": headers, OWNER: owner}
        await self.app(exchange.scope, exchange.receive, exchange.send)
        await exchange.finish()

    def _admit(self, exchange: _Exchange) -> str:
        """The owner of a request that may come in, by its head alone."""
        scope = exchange.scope
        if self.in_flight > self.limits.in_flight and scope["path"] not in OPEN_PATHS:
            raise busy("Too many requests are being answered; try again in a second.")
        self._check_host_and_origin(exchange)
        if exchange.sent(b"content-length") and exchange.sent(b"transfer-encoding"):
            raise Refusal(400, "bad_request", "Send a length or chunks, not both.", [(b"connection", b"close")])
        if _is_anybodys(scope["path"]) and scope["method"] not in READING:  # for a body nobody waits without a token
            raise Refusal(
                405, "method_not_allowed", "Use GET here.", [(b"allow", b"GET, HEAD"), (b"connection", b"close")]
            )
        owner = self._owner(exchange)
        by_mcp = scope["path"] == MCP_PATH and scope["method"] == "POST"
        if not by_mcp and scope["path"] not in OPEN_PATHS:
            wait_s = self.buckets.take(owner, self._clock())
            if wait_s:
                raise too_often(self.buckets, wait_s)
        return owner

    def _check_host_and_origin(self, exchange: _Exchange) -> None:
        hosts = exchange.sent(b"host")
        host = self._hosts.host_of(hosts[0]) if len(hosts) == 1 else None
        if host is None:
            raise Refusal(
                421,
                "host_not_allowed",
                "This daemon does not answer to that Host; use localhost, or start it with --allow-host NAME.",
            )
        origins = exchange.sent(b"origin")
        if origins and not (
            len(origins) == 1
            and self._hosts.is_origin(origins[0], host)
            and (origins[0].partition("://")[2] == hosts[0] or _is_asked_for_first(exchange))
        ):
            raise Refusal(
                403,
                "origin_not_allowed",
                "Pages of that Origin may not call this daemon; open them from localhost, or start it with "
                "--allow-host NAME.",
            )

    def _owner(self, exchange: _Exchange) -> str:
        if self._tokens is None:
            return LOCAL_OWNER
        if _is_anybodys(exchange.scope["path"]):
            return NOBODY
        owner = self._tokens.owner_of(exchange.token())
        if owner is None:
            raise Refusal(
                401,
                "unauthorized",
                "A valid token is needed: send `Authorization: Bearer TOKEN`; `context token` makes one.",
                [(b"www-authenticate", b"Bearer")],
            )
        return owner

    def _is_admitted(self, token: str, owner: str) -> bool:
        """Whether whoever was let in would still be: a stream outlives the token it began with."""
        return self._tokens is None or self._tokens.owner_of(token) == owner

    def has_room_for_stream(self, owner: str) -> bool:
        return self.streams < self.limits.streams and self.streams_of[owner] < self.limits.streams_of_owner

    def _release(self, exchange: _Exchange) -> None:
        self.buffered_bytes -= exchange.buffered_bytes
        if exchange.is_stream:
            self.streams -= 1
            self.streams_of[exchange.scope[OWNER]] -= 1
            self.metrics.streams.dec()
        else:
            self.in_flight -= 1
            self.metrics.in_flight.dec()

    def _account(self, exchange: _Exchange, seconds: float) -> None:
        """The template, never the path: that may hold anything a caller cares to put there."""
        route = getattr(exchange.scope.get("route"), "path", OTHER)
        sent = exchange.scope["method"]
        method = sent if sent in METHODS else OTHER
        self.metrics.request(route, method, exchange.status)
        exchange.span.answered(method, route, exchange.status, exchange.refused)
        if exchange.refused:
            self.metrics.refusal(exchange.refused)
        if not exchange.is_stream:
            self.metrics.request_took(route, seconds)
        if exchange.status == OK and exchange.scope["path"].startswith(HOOKS_PATH):
            return  # one for each thing an agent does: counted, not told
        level = "error" if exchange.status == INTERNAL_ERROR else "info"
        more = {"refused": exchange.refused} if exchange.refused else {}
        ms = round(seconds * 1e3, 2)
        log("http.request", level, method=method, route=route, status=exchange.status, ms=ms, **more)


class _Exchange:
    """One request and its answer, as both sides of the guard see them."""

    def __init__(self, guard: Guard, scope: Scope, receive: Receive, send: Send) -> None:
        self._guard, self._receive, self._send = guard, receive, send
        self.scope = scope
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.ended = asyncio.Event()  # set when the inner application should think that nobody listens
        self.is_stream = False
        self.is_admitted: Callable[[], bool] = lambda: True
        self.span: Span = NO_SPAN
        self.status = 0
        self.refused = ""
        self.buffered_bytes = 0
        self._sent = _by_name(scope["headers"])
        self._body: bytes | None = b""
        self._started = self._complete = self._muted = False

    def sent(self, name: bytes) -> list[str]:
        """The values of a header of the request."""
        return self._sent.get(name, [])

    def token(self) -> str:
        """What was sent as a token; empty, which nobody's is, if none was."""
        given = self.sent(b"authorization")
        words = given[0].split() if len(given) == 1 else []
        return words[1] if len(words) == _BEARER_WORDS and words[0].lower() == "bearer" else ""

    async def read_body(self) -> None:
        """Have the whole body here, or refuse: by the length it claims, then by the length it has."""
        most = self._guard.limits.body_bytes
        claimed = self.sent(b"content-length")
        if claimed and claimed[0].isdecimal() and int(claimed[0][:20]) > most:
            raise too_large(most)
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(self._guard.limits.body_timeout_s):
                while await self._read_chunk(chunks, most):
                    pass
        except TimeoutError:
            raise Refusal(
                408,
                "body_timeout",
                f"The body did not arrive within {self._guard.limits.body_timeout_s:g} s; send it again, whole.",
                [(b"connection", b"close")],
            ) from None
        self._body = chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _read_chunk(self, chunks: list[bytes], most: int) -> bool:
        """Whether there is more to come."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        self.buffered_bytes += len(chunk)
        self._guard.buffered_bytes += len(chunk)
        if self.buffered_bytes > most:
            raise too_large(most)
        if self._guard.buffered_bytes > self._guard.limits.buffered_bytes:
            raise busy("Too much is being received at once; try again in a second.")
        chunks.append(chunk)
        return bool(message.get("more_body", False))

    async def receive(self) -> Message:
        """The body, once; then nothing until the client is gone, or the daemon stops and this is a stream."""
        if self._body is not None:  # empty where nobody is asked for a body, and none is waited for
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        waits = [asyncio.ensure_future(self._client_gone()), asyncio.ensure_future(self.ended.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self.ended.set()
        return {"type": "http.disconnect"}

    async def _client_gone(self) -> bool:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        return True

    async def send(self, message: Message) -> None:
        if self._muted:
            return
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            content_type = "".join(_by_name(headers).get(b"content-type", ()))
            if message["status"] == INTERNAL_ERROR and content_type.startswith("text/plain"):
                self._muted = True  # a framework's own words, before it raises what happened
                await self.refuse(internal_error())
                return
            if content_type.startswith("text/event-stream"):
                if not self._guard.has_room_for_stream(self.scope[OWNER]):
                    await self._refuse_stream()
                    return
                self._become_stream()
            self._started, self.status = True, message["status"]
            message = {**message, "headers": _secured(headers)}
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self._complete = True
        elif self.is_stream and not self.is_admitted():
            self._muted = True
            self.ended.set()
            await self._end_stream()
            return
        await self._send(message)

    async def _refuse_stream(self) -> None:
        self._muted = True
        self.ended.set()
        await self.refuse(busy("Too many event streams are open; close one, or try again later."))

    def _become_stream(self) -> None:
        self.is_stream = True
        self._guard.in_flight -= 1
        self._guard.metrics.in_flight.dec()
        self._guard.streams += 1
        self._guard.streams_of[self.scope[OWNER]] += 1
        self._guard.metrics.streams.inc()
        if self._guard.stopping:
            self.ended.set()

    async def refuse(self, refusal: Refusal) -> None:
        """Answer with a refusal. An answer that has begun is left incomplete, and the server cuts the connection."""
        if self._started:
            return
        self._started, self._complete, self.status = True, True, refusal.status
        self.refused = refusal.code if refusal.status != INTERNAL_ERROR else ""
        body = json.dumps(self._told(refusal)).encode() + b"\n"
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += refusal.headers
        if self.sent(b"expect"):  # whether the body still comes is now anybody's guess
            headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": refusal.status, "headers": _secured(headers)})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    def _told(self, refusal: Refusal) -> dict[str, object]:
        """The error object that every answer of ours has; all of JSON-RPC where an MCP client would show no other."""
        by_mcp = self.scope["path"] == MCP_PATH and self.scope["method"] == "POST"
        error = error_told(refusal.status, refusal.code, refusal.message, refusal.data)
        return {"jsonrpc": "2.0", "id": None, **error} if by_mcp else error

    async def finish(self) -> None:
        """What is due after the inner application has returned."""
        if self._muted or self._complete:
            return
        if self.is_stream and self.ended.is_set():
            await self._end_stream()
        elif not self._started:
            raise ClientGone if self.ended.is_set() else RuntimeError("no answer")

    async def give_up(self) -> None:
        if self.is_stream and not self._complete:
            await self._end_stream()
        else:
            await self.refuse(busy("The daemon is stopping; try again when it is back.", "stopping"))

    async def _end_stream(self) -> None:
        """A proper end, so that a client takes it for one and comes back later."""
        self._complete = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _is_asked_for_first(exchange: _Exchange) -> bool:
    """Whether a browser asks before it sends this for a page of another port, and is then told no."""
    kinds = [value.partition(";")[0].strip().lower() for value in exchange.sent(b"content-type")]
    return exchange.scope["method"] in READING or (bool(kinds) and not UNASKED.intersection(kinds))


def _is_anybodys(path: str) -> bool:
    return path in OPEN_PATHS or path == PAGE_PATH or path.startswith(WEB_PATH)


def _by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, list[str]]:
    found: dict[bytes, list[str]] = {}
    for name, value in headers:
        found.setdefault(name.lower(), []).append(value.decode("latin-1").strip())
    return found


def _secured(headers: Headers) -> Headers:
    return [header for header in headers if header[0].lower() not in _OURS] + list(_SECURITY_HEADERS)
