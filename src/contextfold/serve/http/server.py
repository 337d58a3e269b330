"""One process that listens: sockets, connections, signals, and an end that finishes what was taken. Knows uvicorn.

The end, at SIGTERM or SIGINT; a second signal ends the process at once, as if there were no handler:

    no connection is accepted any more, idle ones are closed
    event streams are told that nobody listens, and get a proper last chunk      (STREAM_GRACE_S, then cancelled)
    every other request that was taken is answered                               (GRACE_S, then 503 if not begun)
    what was written reaches the clients                                         (FLUSH_S, then cut)
    the application's lifespan ends: what hosts reported is written, the store
    is closed                                                                    (LIFESPAN_GRACE_S)

h11 reads the requests, also where a quicker parser is installed: it refuses what is ambiguous (two Host headers, odd
lengths), and behaves the same on every machine.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import signal
import socket
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from contextfold.errors import InternalError
from contextfold.serve.http.guard import Guard, Receive, Scope, Send
from contextfold.serve.http.limits import is_loopback
from contextfold.serve.http.refusals import error_told
from contextfold.serve.http.write_buffer import Outgoing
from contextfold.serve.ops.logs import log
from contextfold.settings import SettingsError

PORT_MAX = 65535
BACKLOG = 1024
FREE_PORT_TRIES = 10  # for one that is free on both loopback addresses
CONNECTIONS_MAX = 2048
DESCRIPTORS_WANTED = 4096  # connections, and room for the store's and the caches' files
HEAD_MAX_BYTES = 16 << 10
HEAD_TIMEOUT_S = 10.0  # for a request's head to be whole, from when it could begin
KEEP_ALIVE_S = 30
STALLED_S = 30.0  # that a client may leave an answer unread
GRACE_S = 10.0
CANCEL_GRACE_S = 1.0
FLUSH_S = 1.0
LIFESPAN_GRACE_S = 15.0
POLL_S = 0.02
ACCEPTED_TURNS = 5  # of the loop, until what the system accepted is a connection: asyncio takes two
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def check_may_listen(host: str, has_tokens: bool) -> None:
    """Beyond this machine only those with a token are served."""
    if not has_tokens and not is_loopback(host):
        raise SettingsError(
            f"{host} is open to other machines, and anybody could read your sessions there: give --token-file FILE "
            "(`context token` makes one), or listen on 127.0.0.1"
        )


def run(app_factory: Callable[[], Guard], *, host: str, port: int, on_listening: Callable[[str], None]) -> None:
    """Serve until a signal. `on_listening` gets the address as a URL, once requests are answered there.

    The address is taken before the application is made, so that a second daemon ends before it opens the store. What
    the application raises while it starts or ends is raised here.
    """
    sockets = listen(host, port)
    try:
        _want_descriptors()
        server = _Server(app_factory(), _url(host, sockets[0]), on_listening)
        with suppress(SystemExit):  # uvicorn's way to say that the application did not start; `failure` has the reason
            server.run(sockets)
    finally:
        for bound in sockets:
            bound.close()
    if server.failure:
        raise server.failure
    if not server.started:
        raise InternalError("the application did not start, and did not say why")
    log("daemon.stopped")


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to an address; `localhost` is both of its addresses, on one port."""
    if not 0 <= port <= PORT_MAX:
        raise SettingsError(f"--port is a number from 0 to {PORT_MAX}, not {port}")
    for tries_left in reversed(range(FREE_PORT_TRIES)):
        sockets: list[socket.socket] = []
        try:
            for family, address in _addresses(host):
                bound = _bound(family, (address, sockets[0].getsockname()[1] if sockets else port, *_scope(family)))
                sockets += [bound] if bound else []
        except OSError as problem:
            for bound in sockets:
                bound.close()
            if port == 0 and problem.errno == errno.EADDRINUSE and tries_left:
                continue
            raise _cannot_listen(host, port, problem) from problem
        if sockets:
            return sockets
    raise SettingsError(f"this machine has no address {host}; give --host one that it has, such as 127.0.0.1")


def _addresses(host: str) -> list[tuple[socket.AddressFamily, str]]:
    if host.lower() == "localhost":
        return [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    try:
        found = socket.getaddrinfo(host.strip("[]") or None, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as problem:
        raise SettingsError(
            f"no address is known for {host}; give --host a name or address of this machine"
        ) from problem
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def _scope(family: socket.AddressFamily) -> tuple[int, ...]:
    return (0, 0) if family == socket.AF_INET6 else ()


def _bound(family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket | None:
    """A socket bound to an address; None where the machine does not have that address."""
    try:
        # With the protocol named, asyncio sets TCP_NODELAY on what it accepts; without, each answer takes 44 ms.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as problem:
        if problem.errno == errno.EAFNOSUPPORT:
            return None
        raise
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
        bound.listen(BACKLOG)  # so that an address in use is known now
    except OSError as problem:
        bound.close()
        if problem.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return bound


def _cannot_listen(host: str, port: int, problem: OSError) -> SettingsError:
    where = f"{host}:{port}"
    if problem.errno == errno.EADDRINUSE:
        return SettingsError(f"{where} is in use, perhaps by another daemon: stop that one, or give another --port")
    if problem.errno in (errno.EACCES, errno.EPERM):
        return SettingsError(f"may not listen on {where}: {problem.strerror}; give a --port from 1024 on")
    return SettingsError(f"cannot listen on {where}: {problem.strerror}; give another --host or --port")


def _url(host: str, bound: socket.socket) -> str:
    shown = f"[{host.strip('[]')}]" if ":" in host else host
    return f"http://{shown}:{bound.getsockname()[1]}"


def _want_descriptors() -> None:
    """Many systems give a process 1024 files unless it asks for what it may have."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Server(uvicorn.Server):
    """uvicorn's server with the end described above."""

    def __init__(self, guard: Guard, url: str, on_listening: Callable[[str], None]) -> None:
        self._guard, self._url, self._on_listening = guard, url, on_listening
        self.failure: Exception | None = None
        super().__init__(
            uvicorn.Config(
                self._app,
                http=_Connection,
                loop="asyncio",
                ws="none",
                interface="asgi3",
                lifespan="on",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                date_header=False,  # the guard's to say: what passes as it came has its own
                proxy_headers=False,  # who is calling is the token's to say
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                h11_max_incomplete_event_size=HEAD_MAX_BYTES,
            )
        )

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._guard(scope, receive, send)
            return
        try:
            await self._guard(scope, receive, _without_text(send))
        except Exception as problem:
            self.failure = problem
            raise

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What is there now stays until the end: to look through it for garbage, again and again, only costs pauses.
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
        log("daemon.stopping", in_flight=self._guard.room.in_flight, streams=self._guard.room.streams)
        for server in self.servers:
            server.close()
        for _ in range(ACCEPTED_TURNS):  # or who was accepted just now would stay open, and be waited for
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


def _without_text(send: Send) -> Send:
    """Frameworks report a failed start with its whole trace; what matters of it is raised by `run`."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        await send({name: value for name, value in message.items() if name != "message"})

    return sending


class _Connection(H11Protocol):
    """uvicorn's connection, which no client can hold open for ever by doing nothing. An answer leaves in one piece."""

    _outgoing: Outgoing
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._outgoing = Outgoing(transport, self.loop)
        super().connection_made(cast("asyncio.Transport", self._outgoing))
        if len(self.connections) > CONNECTIONS_MAX:
            transport.write(_raw_refusal(503, "busy", "Too many connections are open; try again later."))
            transport.close()
        else:
            self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering():
            self._stop_head_timer()
        elif self._head_timer is None:
            self._expect_head()

    def on_response_complete(self) -> None:
        self._outgoing.flush()
        super().on_response_complete()

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
        self._expect_reading()  # closing waits for the last byte to be taken, and would wait for ever

    def send_400_response(self, msg: str) -> None:
        """The one refusal that comes before the guard."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(
                _raw_refusal(400, "bad_request", "This is not HTTP as it should be; check the client.")
            )
        self.transport.close()

    def _expect_head(self) -> None:
        """From now on it is the client's turn: for a head, or the rest of a body that nobody wants any more."""
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


def _raw_refusal(status: int, code: str, message: str) -> bytes:
    body = json.dumps(error_told(status, code, message)).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status} \r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n\r\n"
    )
    return head.encode("ascii") + body
