"""Decides which HTTP requests are admitted. Knows HTTP, nothing of the application.

A request passes these checks in order. Each error is JSON that says what was wrong and what to do:

    capacity    too many requests at once, of everybody                           503
    user        without tokens: another user of this machine, except for health   403
    host        a name that is not ours: a web page can rebind its DNS name to us 421
    origin      a web page of another site, or one that hides its origin          403
                any request that a browser makes for a page of another site       403
                a browser that would show a proxied response as a page of ours    403
    upgrade     a WebSocket to a provider: the client goes on with plain HTTP     426
    framing     both a length and chunks                                          400
    method      other than GET and HEAD on a public path                          405
    token       where tokens are configured; gives the owner                      401
    rate        except POST /mcp, which answers it in JSON-RPC                    429
    share       too many requests of one owner, or too many streams               503
    body        too large, or too slow to arrive                                  413, 408

Below PROXY_PATH the token is in `X-Context-Token`, which is removed; `Authorization` is passed to the application, and
the body is passed on as it arrives. Path, query, headers and body are never logged, nor is the message of an exception.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections.abc import Awaitable, Callable, Iterable

from contextfold.common.bounded_cache import BoundedCache
from contextfold.common.network_address import parse_authority
from contextfold.common.socket_owner import connection_owner, is_trusted
from contextfold.errors import LimitReached, SettingsError, place_of
from contextfold.fold.store import LOCAL_OWNER
from contextfold.serve.http.bearer_tokens import TokenFile, Tokens
from contextfold.serve.http.capacity import RequestCapacity, RequestLimits
from contextfold.serve.http.exchange import (
    NOBODY,
    OPEN_PATHS,
    ClientGone,
    HttpExchange,
    Message,
    Receive,
    Scope,
    Send,
    unexpected_error,
)
from contextfold.serve.ops.logs import log
from contextfold.serve.ops.metrics import METHODS, OTHER, Metrics
from contextfold.serve.ops.tracing import Tracer, request_span
from contextfold.serve.request_error import INTERNAL_ERROR_STATUS, RequestError, busy

# At most this many owners are remembered. The one that has not called for the longest time is dropped first.
OWNERS_MAX = 10_000
# At most this many connections are remembered with what was found out about their user.
CONNECTIONS_REMEMBERED = 4096
# The length of the longest DNS name with a port.
AUTHORITY_MAX_CHARS = 260
ORIGIN_SCHEMES = ("http", "https")
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
READ_METHODS = ("GET", "HEAD")
# Content types that a browser sends to another origin without a preflight request, as the Fetch standard lists them.
UNPREFLIGHTED_TYPES = frozenset({"", "text/plain", "multipart/form-data", "application/x-www-form-urlencoded"})
# The `Sec-Fetch-Dest` of a response that a script reads, and that is neither shown nor run.
SCRIPT_DESTINATIONS = frozenset({"empty"})
HOOKS_PATH = "/hooks/"
# The `Sec-Fetch-Site` of a request that a page of another site makes.
CROSS_SITE = "cross-site"
CALLS_PER_SECOND = "calls_per_second"
OK = 200
# The status in logs and metrics if the client has disconnected. It is never sent.
CLIENT_CLOSED = 499


class Buckets:
    """A token bucket for each owner: the remaining calls, and the time of the last update.

    `burst` is the number of calls that are accepted at once after a pause.
    """

    def __init__(self, per_second: float, burst: int, *, owners_max: int = OWNERS_MAX) -> None:
        if per_second <= 0 or burst < 1 or owners_max < 1:
            raise ValueError("a limit lets something through")
        self.per_second, self.burst = per_second, burst
        self._levels = BoundedCache[str, tuple[float, float]](owners_max)

    def take(self, owner: str, now_s: float) -> float:
        """Count one call: 0 if it is accepted, else the number of seconds to wait. A refused call is not counted."""
        left, then_s = self._levels.get(owner) or (float(self.burst), now_s)
        left = min(float(self.burst), left + max(0.0, now_s - then_s) * self.per_second)
        wait_s = 0.0 if left >= 1 else (1 - left) / self.per_second
        self._levels.put(owner, (left if wait_s else left - 1, max(now_s, then_s)))
        return wait_s


class HostRule:
    """Decides which Host and Origin headers are accepted.

    A web page that rebinds its own DNS name to the daemon's address still sends that name. So names must be known. An
    address in Host cannot be rebound, so any address is accepted if the daemon listens beyond this machine.
    """

    def __init__(self, listening_on: str, more: Iterable[str] = ()) -> None:
        self._known = set(LOOPBACK_NAMES)
        self._any_address = not is_loopback(listening_on)
        for name in (listening_on, *more):
            host = _parse_host(name.lower()) or _parse_host(f"[{name.lower()}]")
            if host is None:
                raise SettingsError(f"{name[:64]!r} is no host's name or address; give one such as ctx.example.org")
            self._known.add(host)

    def host_of(self, value: str) -> str | None:
        """The name in a Host header; None if it is not accepted. Any port is, because proxies and tunnels change it."""
        host = _parse_host(value.lower())
        if host is None or host in self._known or (self._any_address and _parse_address(host)):
            return host
        return None

    def is_origin(self, value: str, host: str) -> bool:
        """Whether a page of this origin may call the daemon at `host`. A page at an unknown address may not."""
        scheme, _, authority = value.lower().partition("://")
        origin = _parse_host(authority) if scheme in ORIGIN_SCHEMES else None
        return origin is not None and (origin in self._known or origin == host)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. Names other than localhost may lead anywhere."""
    address = _parse_address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def _parse_host(authority: str) -> str | None:
    """The name in `name` or `name:port`. IPv6 addresses are normalised."""
    machine = parse_authority(authority) if len(authority) <= AUTHORITY_MAX_CHARS else None
    if machine is None or machine.host[-1] in ".-":
        return None
    return f"[{_parse_address(machine.host)}]" if ":" in machine.host else machine.host


def _parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


class PeerUsers:
    """Decides which connections come from the user who runs the daemon, or from root, who can read everything anyway.

    A connection is looked up once, at its first request. The server has one `client` object for each connection, so the
    verdict is valid for that very object: an equal one is another connection, perhaps of another user.
    """

    def __init__(self) -> None:
        self._known = BoundedCache[tuple[str, int], tuple[object, bool]](CONNECTIONS_REMEMBERED)

    def is_trusted(self, scope: Scope) -> bool:
        client, server = scope["client"], scope["server"]
        connection, verdict = self._known.get(client) or (None, False)
        if connection is not client:
            verdict = is_trusted(connection_owner(client, server))
            self._known.put(client, (client, verdict))
        return verdict


class Guard:
    """An ASGI application around another."""

    def __init__(
        self,
        app: AsgiApp,
        *,
        hosts: HostRule,
        metrics: Metrics,
        buckets: Buckets,
        tokens: Tokens | None = None,
        users: PeerUsers | None = None,
        limits: RequestLimits | None = None,
        tracer: Tracer | None = None,
        state: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`users` is None if every user of the machine may call. `state` is the X-Context-State of an MCP response
        without a session."""
        self.app, self.metrics, self.buckets = app, metrics, buckets
        self.capacity = RequestCapacity(limits or RequestLimits(), has_owners=isinstance(tokens, TokenFile))
        metrics.in_flight.set_function(lambda: self.capacity.requests.total)
        metrics.streams.set_function(lambda: self.capacity.streams.total + self.capacity.proxied.total)
        self._hosts, self._tokens, self._users = hosts, tokens, users
        self._tracer, self._state, self._clock = tracer, state, clock
        self._open: set[HttpExchange] = set()
        # Why the application could not start or end.
        self.failure: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(scope, receive, send)
            return
        exchange = HttpExchange(self.capacity, scope, receive, send, state=self._state, tokens=self._tokens)
        with request_span(self._tracer, scope["headers"]) as exchange.span:
            started_s = self._clock()
            self._open.add(exchange)
            try:
                exchange.count_for(self._admit(exchange))
                if exchange.is_proxied:
                    exchange.pass_body()
                elif not exchange.is_public:
                    await exchange.read_body()
                await self.app(exchange.admitted_scope(), exchange.receive, exchange.send)
                await exchange.finish()
            except RequestError as error:
                await exchange.refuse(error)
            except ClientGone:
                exchange.status = CLIENT_CLOSED
            except asyncio.CancelledError:
                # The server cancels the remaining requests at the end of a shutdown.
                await exchange.give_up()
            except Exception as problem:
                # The message of the exception may quote the request, so it is not logged.
                log("http.failed", "error", exception=type(problem).__name__, raised_at=place_of(problem))
                await exchange.refuse(unexpected_error())
            finally:
                self._open.discard(exchange)
                exchange.free_capacity()
                self._account(exchange, self._clock() - started_s)

    async def _run_lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Start and end the application."""

        async def send_without_text(message: Message) -> None:
            """Leave the traceback out of the report of a failed start; `daemon.run` raises the exception."""
            await send({name: value for name, value in message.items() if name != "message"})

        try:
            await self.app(scope, receive, send_without_text)
        except Exception as problem:
            self.failure = problem
            raise

    def end_streams(self) -> None:
        """End every event stream, so that a shutdown need not wait for it. Streams that begin later end at once."""
        self.capacity.is_stopping = True
        for exchange in self._open:
            if exchange.is_event_stream:
                exchange.ended.set()

    def _admit(self, exchange: HttpExchange) -> str:
        """Check the head of a request; return the owner. Raises RequestError if the request is not admitted."""
        scope = exchange.scope
        if exchange.is_beyond_capacity() and scope["path"] not in OPEN_PATHS:
            raise busy("Too many requests are being answered; try again in a second.")
        if self._users is not None and scope["path"] not in OPEN_PATHS and not self._users.is_trusted(scope):
            message = (
                "This daemon belongs to another user of this machine. Start your own with `context serve --port N`, or "
                "let that user give you a token (--token-file) or start it with --allow-other-users."
            )
            raise RequestError(403, "other_user", message)
        self._check_host_and_origin(exchange)
        if exchange.is_proxied and "websocket" in map(str.lower, exchange.header_values(b"upgrade")):
            # With any other status, Codex tries again for seconds before it falls back to HTTP.
            message = "No WebSocket is forwarded; send the request by plain HTTP."
            raise RequestError(426, "upgrade_refused", message, [(b"upgrade", b"HTTP/1.1"), (b"connection", b"close")])
        if exchange.header_values(b"content-length") and exchange.header_values(b"transfer-encoding"):
            raise RequestError(400, "bad_request", "Send a length or chunks, not both.", [(b"connection", b"close")])
        if exchange.is_public and scope["method"] not in READ_METHODS:
            # A caller without a valid token cannot make the daemon wait for a body.
            raise RequestError(
                405, "method_not_allowed", "Use GET here.", [(b"allow", b"GET, HEAD"), (b"connection", b"close")]
            )
        owner = self._owner(exchange)
        if not exchange.is_mcp_post and scope["path"] not in OPEN_PATHS:
            wait_s = self.buckets.take(owner, self._clock())
            if wait_s:
                raise _rate_limit_error(self.buckets, wait_s)
        return owner

    def _check_host_and_origin(self, exchange: HttpExchange) -> None:
        hosts = exchange.header_values(b"host")
        host = self._hosts.host_of(hosts[0]) if len(hosts) == 1 else None
        if host is None:
            message = "This daemon does not answer to that Host; use localhost, or start it with --allow-host NAME."
            raise RequestError(421, "host_not_allowed", message)
        if CROSS_SITE in exchange.header_values(b"sec-fetch-site"):
            raise RequestError(403, "origin_not_allowed", "Pages of other sites may not call this daemon.")
        origins = exchange.header_values(b"origin")
        if origins and not (
            len(origins) == 1
            and self._hosts.is_origin(origins[0], host)
            and (origins[0].partition("://")[2] == hosts[0] or _is_harmless_from_another_port(exchange))
        ):
            remedy = "open them from localhost, or start it with --allow-host NAME."
            raise RequestError(403, "origin_not_allowed", f"Pages of that Origin may not call this daemon; {remedy}")
        if exchange.is_proxied and not SCRIPT_DESTINATIONS.issuperset(exchange.header_values(b"sec-fetch-dest")):
            message = "A browser may not show this: it would be taken for a page of ours."
            raise RequestError(403, "origin_not_allowed", message)

    def _owner(self, exchange: HttpExchange) -> str:
        if self._tokens is None:
            return LOCAL_OWNER
        if exchange.is_public:
            return NOBODY
        owner = self._tokens.owner_of(exchange.token())
        if owner is not None:
            return owner
        if exchange.is_proxied:
            needed = "A valid token of this daemon is needed: send `X-Context-Token: TOKEN` beside the provider's key"
            raise RequestError(401, "unauthorized", f"{needed}; `context token` makes one.")
        message = "A valid token is needed: send `Authorization: Bearer TOKEN`; `context token` makes one."
        raise RequestError(401, "unauthorized", message, [(b"www-authenticate", b"Bearer")])

    def _account(self, exchange: HttpExchange, seconds: float) -> None:
        """Count and log a request by the template of its route, because a path may contain anything."""
        route = getattr(exchange.scope.get("route"), "path", OTHER)
        sent = exchange.scope["method"]
        method = sent if sent in METHODS else OTHER
        self.metrics.requests(route, method, str(exchange.status)).inc()
        exchange.span.record_response(method, route, exchange.status, exchange.refusal)
        if exchange.refusal:
            self.metrics.refusals(exchange.refusal).inc()
        if not exchange.is_long:
            self.metrics.durations(route).observe(seconds)
        if exchange.status == OK and exchange.scope["path"].startswith(HOOKS_PATH):
            # Each operation of an agent causes such a request, so they are counted and not logged.
            return
        level = "error" if exchange.status == INTERNAL_ERROR_STATUS and not exchange.as_it_came else "info"
        more = {"refused": exchange.refusal} if exchange.refusal else {}
        ms = round(seconds * 1e3, 2)
        log("http.request", level, method=method, route=route, status=exchange.status, ms=ms, **more)


def _rate_limit_error(buckets: Buckets, wait_s: float) -> RequestError:
    seconds = math.ceil(wait_s)
    return RequestError(
        429,
        LimitReached.code,
        f"More than {buckets.per_second:g} calls a second after a burst of {buckets.burst}; try again in {seconds} s.",
        [(b"retry-after", str(seconds).encode())],
        {"limit": CALLS_PER_SECOND, "value": int(buckets.per_second)},
    )


def _is_harmless_from_another_port(exchange: HttpExchange) -> bool:
    """Whether a page of another port on this machine can do nothing with this request.

    A GET changes nothing, and the page cannot read its response. Before any other request a browser asks by a preflight
    request, unless its media type is one that forms have.
    """
    kinds = [value.partition(";")[0].strip().lower() for value in exchange.header_values(b"content-type")]
    return exchange.scope["method"] in READ_METHODS or (bool(kinds) and not UNPREFLIGHTED_TYPES.intersection(kinds))
