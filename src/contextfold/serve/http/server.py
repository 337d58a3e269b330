"""Binds the daemon's sockets and runs the server until a signal.

`serve.http.uvicorn_adapter` handles connections and the shutdown.
"""

from __future__ import annotations

import errno
import resource
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

from contextfold.errors import InternalError, SettingsError
from contextfold.serve.http.guard import Guard, is_loopback
from contextfold.serve.http.uvicorn_adapter import BACKLOG, DaemonServer
from contextfold.serve.mcp.jsonrpc import INTEGER_DIGITS
from contextfold.serve.ops.logs import log

IPV4_LOOPBACK = "127.0.0.1"
# The number of attempts to find a port that is free on both loopback addresses.
FREE_PORT_TRIES = 10
# The number of descriptors for connections and for the files of the store and the caches.
DESCRIPTORS_WANTED = 4096


def check_may_listen(host: str, has_tokens: bool) -> None:
    """Raise an error if the daemon would listen beyond this machine without tokens."""
    if not has_tokens and not is_loopback(host):
        raise SettingsError(
            f"{host} is open to other machines, and anybody could read your sessions there: give --token-file FILE "
            "(`context token` makes one), or listen on 127.0.0.1"
        )


def run(app_factory: Callable[[], Guard], *, host: str, port: int, on_listening: Callable[[str], None]) -> None:
    """Serve until a signal. `on_listening` is called with the URL when requests are answered there.

    The address is bound before the application is made, so a second daemon ends before it opens the store. Exceptions
    of the application's start and end are raised here.
    """
    # The environment may have changed the limit, and ids are echoed up to this length on every transport.
    sys.set_int_max_str_digits(INTEGER_DIGITS)
    sockets = listen(host, port)
    try:
        _want_descriptors()
        guard = app_factory()
        server = DaemonServer(guard, _url(host, sockets[0]), on_listening)
        # uvicorn exits when the application did not start; the guard has the reason.
        with suppress(SystemExit):
            server.run(sockets)
    finally:
        for bound in sockets:
            bound.close()
    if guard.failure:
        raise guard.failure
    if not server.started:
        raise InternalError("the application did not start, and did not say why")
    log("daemon.stopped")


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
        # asyncio sets TCP_NODELAY only if the protocol is named; without it each response takes 44 ms.
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


def _want_descriptors() -> None:
    """Raise the limit on open files, which many systems set to 1024 by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
