"""Composes the daemon from its settings, binds its sockets, and runs it until a signal.

The shutdown after SIGTERM or SIGINT has these steps; a second signal ends the process at once:

    no connection is accepted any more, idle ones are closed, event streams end
    every other request that was accepted is answered                            (GRACE_S, then 503 if not begun)
    the application's lifespan ends: hook reports are written, the store closed  (routes.CLOSE_TIMEOUT_S)
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import cast

import uvicorn

from contextfold.app import make_policy, make_scrubber, open_store
from contextfold.common.canonical import encode
from contextfold.common.daemon_proof import kept_secret
from contextfold.common.socket_owner import can_tell_owners
from contextfold.errors import InternalError, SettingsError
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.session import EMPTY
from contextfold.fold.store import Store
from contextfold.fold.store_clock import StoreClock
from contextfold.serve.http.bearer_tokens import RunToken, TokenFile, Tokens
from contextfold.serve.http.capacity import RequestLimits
from contextfold.serve.http.guard import Buckets, Guard, HostRule, PeerUsers, is_loopback
from contextfold.serve.http.mcp_endpoint import DaemonServices
from contextfold.serve.http.routes import DaemonApplication
from contextfold.serve.mcp.protocol import INTEGER_DIGITS, tools_of
from contextfold.serve.ops.logs import log, take_over
from contextfold.serve.ops.metrics import ActivityRecorder, Metrics, StoreConnectionLog
from contextfold.serve.ops.tracing import TracedStore, Tracer
from contextfold.serve.resolvers import Resolvers
from contextfold.settings import DaemonSettings, offers_folding, proof_folder

IPV4_LOOPBACK = "127.0.0.1"
# The number of attempts to find a port that is free on both loopback addresses.
FREE_PORT_TRIES = 10
# The number of descriptors for connections and for the files of the store and the caches. Connections are not limited
# otherwise: silent ones must not keep others out.
DESCRIPTORS_WANTED = 65_536
BACKLOG = 1024
HEAD_MAX_BYTES = 16 << 10
KEEP_ALIVE_S = 30
GRACE_S = 10
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve_daemon(settings: DaemonSettings, on_listening: Callable[[str], None], *, run_token: str = "") -> None:
    """Run the daemon until a signal arrives. With `run_token` it accepts that token alone."""
    check_may_listen(settings.host, bool(settings.token_file or run_token))
    # A daemon must not start if its tokens cannot be read.
    path = settings.token_file
    tokens: Tokens | None = None
    if run_token:
        tokens = RunToken(run_token)
    elif path:
        tokens = TokenFile(path, lambda text: log("tokens", "warning", text=text))
    take_over()
    if "resolve" in settings.server.tools:
        root = settings.server.cache_root
        if settings.makes_cache_root:
            with suppress(OSError):
                os.makedirs(root, mode=0o700, exist_ok=True)
        if not os.path.isdir(root):
            log("cache_root.missing", "warning", path=root)
    tracer = _make_tracer(settings)
    try:
        run(
            lambda: _make_guard(settings, tokens, tracer),
            host=settings.host,
            port=settings.port,
            on_listening=on_listening,
        )
    finally:
        if tracer is not None:
            tracer.close()


def _make_tracer(settings: DaemonSettings) -> Tracer | None:
    if not settings.otlp_endpoint:
        return None
    try:
        from contextfold.serve.ops.otel import OtelTracer
    except ImportError:
        reason = "traces need the package's `otel` extra: pip install 'contextfold[otel]', or leave the endpoint out"
        if settings.otlp_is_asked_for:
            raise SettingsError(reason) from None
        log("traces.off", "warning", reason=reason)
        return None
    return OtelTracer(settings.otlp_endpoint)


def _make_users(settings: DaemonSettings, tokens: Tokens | None) -> PeerUsers | None:
    """What decides whose connections are accepted; None if a token does, or everybody's are."""
    if tokens is not None or settings.allow_other_users:
        return None
    if can_tell_owners():
        return PeerUsers()
    log("users.not_told", "warning", reason="this system does not tell which user a connection comes from")
    return None


def _make_guard(settings: DaemonSettings, tokens: Tokens | None, tracer: Tracer | None) -> Guard:
    tools = tools_of(settings.server.tools)
    metrics = Metrics(tool.name for tool in tools)
    scrubber = make_scrubber(settings.fold)
    if offers_folding(settings.server.tools):
        store: Store = open_store(settings.fold, on_change=StoreConnectionLog())
    else:
        store = cast("Store", NoStore())
    store = store if tracer is None else cast("Store", TracedStore(store, tracer))
    fold = FoldService(store, scrubber, make_policy(settings.fold), note=ActivityRecorder(metrics, tracer))
    proxy = settings.proxy
    if any(upstream.goes_direct for upstream in (proxy.anthropic, proxy.openai, proxy.gemini)):
        log("proxy.variable_ignored", "warning", variable="HTTPS_PROXY")
    buckets = Buckets(settings.rate_per_second, settings.rate_burst)
    services = DaemonServices(
        fold, Resolvers(settings.server), buckets, metrics, lambda text: scrubber.scrub(text).text, tracer
    )
    return Guard(
        DaemonApplication(tools, services, proxy),
        hosts=HostRule(settings.host, settings.allow_host),
        metrics=metrics,
        buckets=buckets,
        tokens=tokens,
        users=_make_users(settings, tokens),
        tracer=tracer,
        state=encode(fold.describe_state(EMPTY)),
        limits=RequestLimits(
            requests=settings.requests_max,
            body_bytes=settings.body_max_bytes,
            proxied_body_bytes=proxy.body_max_bytes,
        ),
    )


class NoStore:
    """The store of a daemon without the folding tools: it is always empty.

    Such a daemon asks whether its store is ready and sweeps it. Nothing calls the other methods of the port.
    """

    async def expire(self, idle_since: str, at: str) -> int:
        return 0

    async def retain(self, archive_since: str, summaries_since: str) -> None:
        pass

    async def read_clock(self) -> StoreClock:
        return StoreClock()

    async def write_clock(self, clock: StoreClock) -> None:
        pass

    async def unindexed(self, owner: str | None, limit: int) -> tuple[()]:
        return ()

    async def count(self, owner: str | None = None) -> int:
        return 0

    async def reach(self) -> None:
        pass

    async def check(self) -> None:
        pass

    async def close(self) -> None:
        pass


def check_may_listen(host: str, has_tokens: bool) -> None:
    """Raise an error if the daemon would listen beyond this machine without tokens."""
    if not has_tokens and not is_loopback(host):
        raise SettingsError(
            f"{host} is open to other machines, and anybody could read your sessions there: give --token-file FILE "
            "(`context token` makes one), or listen on 127.0.0.1"
        )


class DaemonServer(uvicorn.Server):
    """uvicorn's server, which says when it listens, and ends event streams first when it stops.

    h11 parses the requests, even if a faster parser is installed: it refuses ambiguous requests (two Host headers,
    invalid lengths), and behaves the same on every machine.
    """

    def __init__(self, guard: Guard, url: str, on_listening: Callable[[str], None]) -> None:
        self._guard, self._url, self._on_listening = guard, url, on_listening
        super().__init__(
            uvicorn.Config(
                guard,
                http="h11",
                loop="asyncio",
                ws="none",
                interface="asgi3",
                lifespan="on",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                # The guard sets the date, because a proxied response has its own.
                date_header=False,
                # The token identifies the caller.
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
                h11_max_incomplete_event_size=HEAD_MAX_BYTES,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # The objects that exist now live until the end, so the garbage collector need not check them again.
        gc.collect()
        gc.freeze()
        # On a terminal the address of the page is the first line.
        self._on_listening(self._url)
        log("daemon.listening", url=self._url)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = True
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        capacity = self._guard.capacity
        log(
            "daemon.stopping",
            in_flight=capacity.requests.total,
            streams=capacity.streams.total + capacity.proxied.total,
        )
        self._guard.end_streams()
        await super().shutdown(sockets)


def run(app_factory: Callable[[], Guard], *, host: str, port: int, on_listening: Callable[[str], None]) -> None:
    """Serve until a signal. `on_listening` is called with the URL when requests are answered there.

    The address is bound before the application is made, so a second daemon ends before it opens the store. Exceptions
    of the application's start and end are raised here.
    """
    # The environment may have changed the limit, and ids are echoed up to this length on every transport.
    sys.set_int_max_str_digits(INTEGER_DIGITS)
    sockets = listen(host, port)
    try:
        _raise_descriptor_limit()
        guard = app_factory()
        server = DaemonServer(guard, _url(host, sockets[0]), on_listening)
        # uvicorn exits when the application did not start; the guard has the reason.
        with _provable(sockets[0].getsockname()[1]), suppress(SystemExit):
            server.run(sockets)
    finally:
        for bound in sockets:
            bound.close()
    if guard.failure:
        raise guard.failure
    if not server.started:
        raise InternalError("the application did not start, and did not say why")
    log("daemon.stopped")


@contextmanager
def _provable(port: int) -> Iterator[None]:
    """Let clients verify that this daemon is their user's, where the system does not tell them."""
    with ExitStack() as stack:
        if not can_tell_owners():
            try:
                stack.enter_context(kept_secret(proof_folder(os.environ), port))
            except OSError as problem:
                log("proof.not_kept", "warning", reason=problem.strerror or "")
        yield


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to an address. For `localhost` they are bound to both of its addresses, with one port."""
    for tries_left in reversed(range(FREE_PORT_TRIES)):
        sockets: list[socket.socket] = []
        try:
            for family, address in _addresses(host):
                bound = _bind(family, address, sockets[0].getsockname()[1] if sockets else port)
                sockets += [bound] if bound else []
            if host == IPV4_LOOPBACK:
                sockets += _ipv6_loopback(sockets[0].getsockname()[1])
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
        return [(socket.AF_INET, IPV4_LOOPBACK), (socket.AF_INET6, "::1")]
    try:
        addresses = socket.getaddrinfo(host.strip("[]") or None, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as problem:
        raise SettingsError(
            f"no address is known for {host}; give --host a name or address of this machine"
        ) from problem
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in addresses))


def _ipv6_loopback(port: int) -> list[socket.socket]:
    """A socket for clients that resolve `localhost` to IPv6, if the machine has IPv6 and the port is free."""
    try:
        bound = _bind(socket.AF_INET6, "::1", port)
    except OSError:
        return []
    return [bound] if bound else []


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket | None:
    """A socket bound to an address; None if the machine does not have the address."""
    try:
        # asyncio sets TCP_NODELAY only on a socket whose protocol is named. Without it the kernel holds small
        # responses back.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as problem:
        if problem.errno == errno.EAFNOSUPPORT:
            return None
        raise
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((address, port))
        # An address in use is reported now, before the application is made.
        bound.listen(BACKLOG)
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


def _raise_descriptor_limit() -> None:
    """Raise the limit on open files, which many systems set to 1024 by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
