"""The outer edge of the HTTP daemon: who may come in, with how much, how often. Knows HTTP, nothing of what is served.

A request passes these in order, and each refusal is JSON that says what was wrong and what to do:

    room        too many at once                                            503
    host        a name that is not ours: how a web page rebinds DNS to us   421
    origin      a web page from elsewhere, or one that hides where from     403
                a browser that would show a proxied answer as our own page  403
    token       where tokens are configured; gives the owner                401
    rate        except POST /mcp, which answers it in JSON-RPC              429
    body        too large, or too slow to arrive                            413, 408

Below PROXY_PATH the token comes as `X-Context-Token` and stays here, `Authorization` goes on to the application, and
the body is not waited for. What a caller sent (path, query, headers, body, an exception's text) is never logged.
Answers pass as they come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from contextfold.common.exception_location import place_of
from contextfold.serve.http.bearer_tokens import LOCAL_OWNER, TokenFile
from contextfold.serve.http.exchange import (
    MCP_PATH,
    OWNER,
    PROXY_PATH,
    TOKEN_HEADER,
    ClientGone,
    Exchange,
    Limits,
    Message,
    Receive,
    Room,
    Scope,
    Send,
)
from contextfold.serve.http.limits import Buckets, HostRule
from contextfold.serve.http.refusals import INTERNAL_ERROR, Refusal, busy, internal_error, too_often
from contextfold.serve.ops.logs import log
from contextfold.serve.ops.metrics import METHODS, OTHER, Metrics
from contextfold.serve.ops.tracing import Tracer, request_span

App = Callable[[Scope, Receive, Send], Awaitable[None]]

READING = ("GET", "HEAD")
UNASKED = frozenset({"", "text/plain", "multipart/form-data", "application/x-www-form-urlencoded"})  # as Fetch has it
TAKEN_BY_SCRIPTS = frozenset({"empty"})  # what browsers say an answer is for, where it is not shown or run itself
NOBODY = ""  # who calls without a token, where that may be
OPEN_PATHS = frozenset({"/healthz", "/readyz"})  # for whoever watches the daemon
HOOKS_PATH = "/hooks/"
PAGE_PATH, WEB_PATH = "/", "/web/"  # the dashboard's own files: they hold nobody's data, and the page asks for a token

OK = 200
STREAM_GRACE_S = 1.0  # for an event stream to end by itself once it is told that nobody listens
CLIENT_CLOSED = 499  # in logs and metrics only: there was nobody left to answer
POLICY_VIOLATION = 1008  # of WebSockets


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
        self.room = Room(limits or Limits(), metrics)
        self._hosts, self._tokens, self._tracer, self._clock = hosts, tokens, tracer, clock
        self._open: set[Exchange] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            exchange = Exchange(self.room, scope, receive, send)
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
        self.room.stopping = True
        streams = [exchange for exchange in self._open if exchange.is_event_stream]
        for exchange in streams:
            exchange.ended.set()
        if streams:
            _, stubborn = await asyncio.wait([exchange.task for exchange in streams], timeout=STREAM_GRACE_S)
            for task in stubborn:
                task.cancel()

    async def _answer(self, exchange: Exchange) -> None:
        started_s = self._clock()
        self._open.add(exchange)
        self.room.begin()
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
            self.room.buffered_bytes -= exchange.buffered_bytes
            self.room.end(exchange.stream_of)
            self._account(exchange, self._clock() - started_s)

    async def _admit_and_pass(self, exchange: Exchange) -> None:
        token, owner = exchange.token(), self._admit(exchange)
        exchange.is_admitted = lambda: self._is_admitted(token, owner)
        if exchange.is_proxied:
            self._make_long(exchange, owner)
            exchange.pass_body()
        elif not _is_anybodys(exchange.scope["path"]):
            await exchange.read_body()
        secret = TOKEN_HEADER if exchange.is_proxied else b"authorization"
        headers = [(name, value) for name, value in exchange.scope["headers"] if name != secret]
        exchange.scope = {**exchange.scope, "headers": headers, OWNER: owner}
        await self.app(exchange.scope, exchange.receive, exchange.send)
        await exchange.finish()

    def _make_long(self, exchange: Exchange, owner: str) -> None:
        """A model may take minutes: what waits for one must not keep short requests out."""
        if not self.room.has_room_for_stream(owner):
            raise busy("Too many proxied requests and event streams are open; try again in a second.")
        exchange.become_stream(owner)

    def _admit(self, exchange: Exchange) -> str:
        """The owner of a request that may come in, by its head alone."""
        scope = exchange.scope
        if self.room.in_flight > self.room.limits.in_flight and scope["path"] not in OPEN_PATHS:
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

    def _check_host_and_origin(self, exchange: Exchange) -> None:
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
        if exchange.is_proxied and not TAKEN_BY_SCRIPTS.issuperset(exchange.sent(b"sec-fetch-dest")):
            raise Refusal(
                403, "origin_not_allowed", "A browser may not show this: it would be taken for a page of ours."
            )

    def _owner(self, exchange: Exchange) -> str:
        if self._tokens is None:
            return LOCAL_OWNER
        if _is_anybodys(exchange.scope["path"]):
            return NOBODY
        owner = self._tokens.owner_of(exchange.token())
        if owner is None:
            if exchange.is_proxied:
                raise Refusal(
                    401,
                    "unauthorized",
                    "A valid token of this daemon is needed: send `X-Context-Token: TOKEN` beside the provider's key; "
                    "`context token` makes one.",
                )
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

    def _account(self, exchange: Exchange, seconds: float) -> None:
        """The template, never the path: that may hold anything a caller cares to put there."""
        route = getattr(exchange.scope.get("route"), "path", OTHER)
        sent = exchange.scope["method"]
        method = sent if sent in METHODS else OTHER
        self.metrics.request(route, method, exchange.status)
        exchange.span.answered(method, route, exchange.status, exchange.refused)
        if exchange.refused:
            self.metrics.refusal(exchange.refused)
        if exchange.stream_of is None:
            self.metrics.request_took(route, seconds)
        if exchange.status == OK and exchange.scope["path"].startswith(HOOKS_PATH):
            return  # one for each thing an agent does: counted, not told
        level = "error" if exchange.status == INTERNAL_ERROR and not exchange.as_it_came else "info"
        more = {"refused": exchange.refused} if exchange.refused else {}
        ms = round(seconds * 1e3, 2)
        log("http.request", level, method=method, route=route, status=exchange.status, ms=ms, **more)


def _is_asked_for_first(exchange: Exchange) -> bool:
    """Whether a browser asks before it sends this for a page of another port, and is then told no."""
    kinds = [value.partition(";")[0].strip().lower() for value in exchange.sent(b"content-type")]
    return exchange.scope["method"] in READING or (bool(kinds) and not UNASKED.intersection(kinds))


def _is_anybodys(path: str) -> bool:
    return path in OPEN_PATHS or path == PAGE_PATH or path.startswith(WEB_PATH)


__all__ = [
    "HOOKS_PATH",
    "MCP_PATH",
    "OPEN_PATHS",
    "OWNER",
    "PAGE_PATH",
    "PROXY_PATH",
    "WEB_PATH",
    "App",
    "ClientGone",
    "Guard",
    "Limits",
    "Message",
    "Receive",
    "Scope",
    "Send",
]
