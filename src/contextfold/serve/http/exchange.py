"""One request and its answer, as both sides of the daemon's edge see them, and how many there may be at once.

    own paths      the whole body is here before the application is asked; every answer gets our headers
    proxied ones   the body comes as it arrives, with a bound on its size and on how slow it may be; an answer that the
                   application marks AS_IT_CAME passes untouched, and is cut where it does not end by itself

Knows ASGI, nothing of who may come in (`serve.http.guard`) nor of what is served.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from email.utils import formatdate
from typing import Any

from contextfold.common.record import Record
from contextfold.serve.http.refusals import INTERNAL_ERROR, Refusal, busy, error_told, internal_error, too_large
from contextfold.serve.ops.metrics import Metrics
from contextfold.serve.ops.tracing import NO_SPAN, Span

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

OWNER = "contextfold.owner"  # where the inner application finds the caller
AS_IT_CAME = "contextfold.as_it_came"  # in the start of an answer that is somebody else's: nothing of it is changed
MCP_PATH = "/mcp"
PROXY_PATH = "/proxy/"
TOKEN_HEADER = b"x-context-token"  # where a proxied request has ours: its `Authorization` is the provider's

_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
_OURS = frozenset(name for name, _ in _SECURITY_HEADERS) | {b"server", b"date"}
_BEARER_WORDS = 2
_LENGTH_DIGITS = 20


class Limits(Record):
    """How much at once. A stream counts as a request only until it has begun: clients keep one open for hours."""

    in_flight: int = 256
    streams: int = 1024  # event streams and proxied requests: a model may take minutes to answer
    streams_of_owner: int = 256
    body_bytes: int = 4 << 20
    buffered_bytes: int = 64 << 20  # of all bodies together
    body_timeout_s: float = 30.0  # for all of a body; for the next part of a proxied one
    proxied_body_bytes: int = 512 << 20
    proxied_body_timeout_s: float = 600.0  # for all of it


class ClientGone(Exception):
    """Nobody is left to answer."""


class Room:
    """How much of it is taken."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits, self._metrics = limits, metrics
        self.in_flight = 0
        self.streams = 0
        self.streams_of: Counter[str] = Counter()
        self.buffered_bytes = 0
        self.stopping = False

    def begin(self) -> None:
        self.in_flight += 1
        self._metrics.in_flight.inc()

    def end(self, stream_of: str | None) -> None:
        if stream_of is None:
            self.in_flight -= 1
            self._metrics.in_flight.dec()
        else:
            self.streams -= 1
            self.streams_of[stream_of] -= 1
            if not self.streams_of[stream_of]:
                del self.streams_of[stream_of]
            self._metrics.streams.dec()

    def has_room_for_stream(self, owner: str) -> bool:
        return self.streams < self.limits.streams and self.streams_of[owner] < self.limits.streams_of_owner

    def become_stream(self, owner: str) -> None:
        self.end(None)
        self.streams += 1
        self.streams_of[owner] += 1
        self._metrics.streams.inc()


class Exchange:
    """One request and its answer."""

    def __init__(self, room: Room, scope: Scope, receive: Receive, send: Send) -> None:
        self._room, self._receive, self._send = room, receive, send
        self.scope = scope
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.is_proxied: bool = scope["path"].startswith(PROXY_PATH)
        self.ended = asyncio.Event()  # set when the inner application should think that nobody listens
        self.is_event_stream = False
        self.stream_of: str | None = None  # whose stream it counts as, once it does
        self.is_admitted: Callable[[], bool] = lambda: True
        self.span: Span = NO_SPAN
        self.status = 0
        self.refused = ""
        self.as_it_came = False
        self.buffered_bytes = 0
        self._sent = _by_name(scope["headers"])
        self._body: bytes | None = b""
        self._parts: _Parts | None = None
        self._started = self._complete = self._muted = False

    def sent(self, name: bytes) -> list[str]:
        """The values of a header of the request."""
        return self._sent.get(name, [])

    def token(self) -> str:
        """What was sent as a token; empty, which nobody's is, if none was."""
        if self.is_proxied:
            ours = self.sent(TOKEN_HEADER)
            return ours[0] if len(ours) == 1 else ""
        given = self.sent(b"authorization")
        words = given[0].split() if len(given) == 1 else []
        return words[1] if len(words) == _BEARER_WORDS and words[0].lower() == "bearer" else ""

    async def read_body(self) -> None:
        """Have the whole body here, or refuse: by the length it claims, then by the length it has."""
        most, timeout_s = self._room.limits.body_bytes, self._room.limits.body_timeout_s
        self._check_claimed(most)
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(timeout_s):
                while await self._read_chunk(chunks, most):
                    pass
        except TimeoutError:
            raise _body_is_late(timeout_s) from None
        self._body = chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def pass_body(self) -> None:
        """Leave the body to the inner application, part by part."""
        limits = self._room.limits
        self._check_claimed(limits.proxied_body_bytes)
        self._parts = _Parts(self._receive, limits)

    def _check_claimed(self, most: int) -> None:
        claimed = self.sent(b"content-length")
        if claimed and claimed[0].isdecimal() and int(claimed[0][:_LENGTH_DIGITS]) > most:
            raise too_large(most)

    async def _read_chunk(self, chunks: list[bytes], most: int) -> bool:
        """Whether there is more to come."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        self.buffered_bytes += len(chunk)
        self._room.buffered_bytes += len(chunk)
        if self.buffered_bytes > most:
            raise too_large(most)
        if self._room.buffered_bytes > self._room.limits.buffered_bytes:
            raise busy("Too much is being received at once; try again in a second.")
        chunks.append(chunk)
        return bool(message.get("more_body", False))

    async def receive(self) -> Message:
        """The body, once; then nothing until the client is gone, or the daemon stops and this is a stream."""
        if self._parts is not None and not self._parts.are_over:
            return await self._parts.next()
        if self._body is not None and self._parts is None:  # empty where nobody is asked for one, and none waited for
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
            if not await self._may_start(message):
                return
            self.as_it_came = bool(message.get(AS_IT_CAME))
            headers = list(message.get("headers", ()))
            self._started, self.status = True, message["status"]
            message = {**message, "headers": headers if self.as_it_came else _secured(headers)}
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self._complete = True
        elif self.stream_of is not None and not self.is_admitted():
            self._muted = True
            self.ended.set()
            await self._end_stream()
            return
        await self._send(message)

    async def _may_start(self, message: Message) -> bool:
        """Whether an answer may begin as the inner application has it; if not, another one is given."""
        content_type = "".join(_by_name(message.get("headers", ())).get(b"content-type", ()))
        if (
            message["status"] == INTERNAL_ERROR
            and content_type.startswith("text/plain")
            and not message.get(AS_IT_CAME)
        ):
            self._muted = True  # a framework's own words, before it raises what happened
            await self.refuse(internal_error())
            return False
        if content_type.startswith("text/event-stream"):
            owner: str = self.scope[OWNER]
            if self.stream_of is None and not self._room.has_room_for_stream(owner):
                self._muted = True
                self.ended.set()
                await self.refuse(busy("Too many event streams are open; close one, or try again later."))
                return False
            self.become_stream(owner)
            self.is_event_stream = True
            if self._room.stopping:
                self.ended.set()
        return True

    def become_stream(self, owner: str) -> None:
        """Count as a stream from now on. Whether there is room is asked before."""
        if self.stream_of is None:
            self.stream_of = owner
            self._room.become_stream(owner)

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
        if self.is_event_stream and self.ended.is_set():
            await self._end_stream()
        elif not self._started:
            raise ClientGone if self.ended.is_set() else RuntimeError("no answer")

    async def give_up(self) -> None:
        if self.is_event_stream and not self._complete:
            await self._end_stream()
        else:
            await self.refuse(busy("The daemon is stopping; try again when it is back.", "stopping"))

    async def _end_stream(self) -> None:
        """A proper end, so that a client takes it for one and comes back later; of a stream of ours only."""
        if self.as_it_came:
            return
        self._complete = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class _Parts:
    """A body as it arrives: not too much of it, not too slowly."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive, self._limits = receive, limits
        self._taken_bytes = 0
        self._over_at_s = asyncio.get_running_loop().time() + limits.proxied_body_timeout_s
        self.are_over = False

    async def next(self) -> Message:
        idle_s = self._limits.body_timeout_s
        try:
            async with asyncio.timeout_at(min(asyncio.get_running_loop().time() + idle_s, self._over_at_s)):
                message = await self._receive()
        except TimeoutError:
            raise _body_is_late(idle_s) from None
        self._taken_bytes += len(message.get("body", b""))
        if self._taken_bytes > self._limits.proxied_body_bytes:
            raise too_large(self._limits.proxied_body_bytes)
        self.are_over = message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message


def _body_is_late(timeout_s: float) -> Refusal:
    return Refusal(
        408,
        "body_timeout",
        f"The body did not arrive within {timeout_s:g} s; send it again, whole.",
        [(b"connection", b"close")],
    )


def _by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, list[str]]:
    found: dict[bytes, list[str]] = {}
    for name, value in headers:
        found.setdefault(name.lower(), []).append(value.decode("latin-1").strip())
    return found


def _secured(headers: Headers) -> Headers:
    return [header for header in headers if header[0].lower() not in _OURS] + [*_SECURITY_HEADERS, _dated()]


def _dated() -> tuple[bytes, bytes]:
    """The Date header, which the server leaves to us: an answer that passes as it came has its own."""
    global _date_s, _date  # one text a second, for every answer
    now_s = int(time.time())
    if now_s != _date_s:
        _date_s, _date = now_s, formatdate(now_s, usegmt=True).encode("ascii")
    return b"date", _date


_date_s, _date = 0, b""
