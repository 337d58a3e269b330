"""The adapter of uvicorn: the only module that uses more than its documented interface.

The shutdown after SIGTERM or SIGINT has these steps; a second signal ends the process at once:

    no connection is accepted any more, idle ones are closed
    event streams end, with a proper last chunk                                  (STREAM_GRACE_S, then cancelled)
    every other request that was accepted is answered                            (GRACE_S, then 503 if not begun)
    what was written reaches the clients                                         (FLUSH_S, then cut)
    the application's lifespan ends: hook reports are written, the store closed  (LIFESPAN_GRACE_S)

h11 parses the requests, even if a faster parser is installed: it refuses ambiguous requests (two Host headers, invalid
lengths), and behaves the same on every machine.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from contextfold.serve.http.exchange import PROXY_PATH
from contextfold.serve.http.guard import Guard
from contextfold.serve.ops.logs import log
from contextfold.serve.request_error import RequestError, busy

BACKLOG = 1024
CONNECTIONS_MAX = 2048
# One address gets at most one part in this many of the connections that have not sent a request.
ADDRESS_SHARES = 2
HEAD_MAX_BYTES = 16 << 10
# The time in which the head of a request must arrive, from the opening of the connection or the last response on.
HEAD_TIMEOUT_S = 10.0
KEEP_ALIVE_S = 30
# A client that does not read a response for this time is disconnected.
STALLED_S = 30.0
GRACE_S = 10.0
CANCEL_GRACE_S = 1.0
FLUSH_S = 1.0
LIFESPAN_GRACE_S = 15.0
POLL_S = 0.02
# The number of turns of the event loop in which an accepted socket becomes a connection; asyncio needs two.
ACCEPT_TURNS = 5
# Larger writes go directly to the transport: they are not copied, and count for its flow control.
BUFFER_MAX_BYTES = 65_536
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class DaemonServer(uvicorn.Server):
    """uvicorn's server with the shutdown described above."""

    def __init__(self, guard: Guard, url: str, on_listening: Callable[[str], None]) -> None:
        self._guard, self._url, self._on_listening = guard, url, on_listening
        super().__init__(
            uvicorn.Config(
                guard,
                http=HttpConnection,
                loop="asyncio",
                ws="none",
                interface="asgi3",
                lifespan="on",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                # The edge sets the date, because a proxied response has its own.
                date_header=False,
                # The token identifies the caller.
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                h11_max_incomplete_event_size=HEAD_MAX_BYTES,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # The objects that exist now live until the end, so the garbage collector need not check them again.
        gc.collect()
        gc.freeze()
        log("daemon.listening", url=self._url)
        self._on_listening(self._url)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = True
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        capacity = self._guard.capacity
        log("daemon.stopping", in_flight=capacity.in_flight.total, streams=capacity.streams.total)
        for server in self.servers:
            server.close()
        # A connection that was just accepted would stay open and delay the shutdown.
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        for connection in list(self.server_state.connections):
            connection.shutdown()
        streams = asyncio.create_task(self._guard.end_streams())
        await self._finish_requests()
        await streams
        await self._flush()
        try:
            async with asyncio.timeout(LIFESPAN_GRACE_S):
                await self.lifespan.shutdown()
        except TimeoutError:
            log("daemon.lifespan_cut", "error", after_s=LIFESPAN_GRACE_S)

    async def _finish_requests(self) -> None:
        if self.server_state.tasks:
            _, left = await asyncio.wait(self.server_state.tasks, timeout=GRACE_S)
            for task in left:
                task.cancel()
            if left:
                log("daemon.requests_cut", "warning", requests=len(left), after_s=GRACE_S)
                await asyncio.wait(left, timeout=CANCEL_GRACE_S)

    async def _flush(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while self.server_state.connections:
                    await asyncio.sleep(POLL_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class BufferedTransport:
    """A transport that writes at `flush`, or at the next turn of the loop.

    A server that writes a head and then a body wakes its client twice and needs two system calls. Most responses are
    small enough for one write.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._size_bytes = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not data:
            return
        if self._size_bytes + len(data) > BUFFER_MAX_BYTES:
            self.flush()
            self._transport.write(data)
            return
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size_bytes += len(data)

    def flush(self) -> None:
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            self._size_bytes = 0
            self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()


class HttpConnection(H11Protocol):
    """uvicorn's connection with timeouts for idle clients. A small response is written in one piece."""

    _buffered: BufferedTransport
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _is_half_closed = False
    # When the last response was complete; None while there is a request, or none has been answered.
    _idle_since_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._buffered = BufferedTransport(transport, self.loop)
        super().connection_made(cast("asyncio.Transport", self._buffered))
        has_room = len(self.connections) <= CONNECTIONS_MAX or self._closes_an_idle_one()
        if not has_room or self._is_beyond_share():
            transport.write(_raw_response(busy("Too many connections are open; try again later.")))
            transport.close()
        else:
            self._expect_head()

    def _is_beyond_share(self) -> bool:
        """Whether this address has too many connections without a request. Before a request there is no token."""
        share = max(1, CONNECTIONS_MAX // ADDRESS_SHARES)
        if len(self.connections) <= share or self.client is None:
            return False
        others = cast("set[HttpConnection]", self.connections)
        address, silent = self.client[0], [other.client for other in others if other.cycle is None]
        return sum(bool(client and client[0] == address) for client in silent) > share

    def _closes_an_idle_one(self) -> bool:
        """Close the connection that has waited longest for its next request. Its client can open another."""
        others = cast("set[HttpConnection]", self.connections)
        idle = [other for other in others if other._idle_since_s is not None]
        if not idle:
            return False
        longest = min(idle, key=lambda other: other._idle_since_s or 0.0)
        longest._idle_since_s = None
        longest.transport.close()
        return True

    def data_received(self, data: bytes) -> None:
        self._idle_since_s = None
        super().data_received(data)
        if self._is_answering():
            self._stop_head_timer()
        elif self._head_timer is None:
            self._expect_head()

    def on_response_complete(self) -> None:
        self._buffered.flush()
        super().on_response_complete()
        if not self._is_answering():
            self._idle_since_s = self.loop.time()
        if self._is_half_closed and not self._is_answering():
            self.transport.close()
            self._expect_reading()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer a client that closes its sending side after a complete request.

        A client that has disconnected looks the same. So a response that has begun and a proxied request are ended.
        """
        self._is_half_closed = (
            self._is_answering()
            and self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
            and not self.cycle.response_started
            and not self.cycle.scope["path"].startswith(PROXY_PATH)
        )
        return self._is_half_closed

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_stall_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        # Closing waits until the client has read the last byte, so it needs a timeout.
        self._expect_reading()

    def send_400_response(self, msg: str) -> None:
        """Send the only error that is sent before the guard is called."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            error = RequestError(400, "bad_request", "This is not valid HTTP; check the client.")
            self.transport.write(_raw_response(error))
        self.transport.close()

    def _expect_head(self) -> None:
        """Start the timeout for the next head, or for the rest of a body that is no longer needed."""
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self._is_answering():
            self.transport.abort()

    def _expect_reading(self) -> None:
        self._stop_stall_timer()
        self._stall_timer = self.loop.call_later(STALLED_S, self.transport.abort)

    def _stop_head_timer(self) -> None:
        if self._head_timer:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_stall_timer(self) -> None:
        if self._stall_timer:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


def _raw_response(error: RequestError) -> bytes:
    body = json.dumps({"error": error.http_error()}).encode() + b"\n"
    headers = b"".join(name + b": " + value + b"\r\n" for name, value in error.headers)
    head = (
        f"HTTP/1.1 {error.status} \r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\nX-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n"
        "Referrer-Policy: no-referrer\r\n"
    )
    return head.encode("ascii") + headers + b"\r\n" + body
