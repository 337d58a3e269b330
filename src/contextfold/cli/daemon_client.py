"""The HTTP client for commands that use a running daemon. Knows sockets and JSON, no session.

On loopback it sends nothing before it knows that the daemon is this user's: on a shared machine any user can listen on
a port that is free. Linux tells whose socket it is. On other systems only `context run`, which sends prompts and keys
there, demands a proof; the other commands send in any case.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping
from socket import create_connection, socket
from typing import Any

from contextfold.cli.parser import CommandParser, UsageError
from contextfold.common.canonical import parse_json
from contextfold.common.network_address import DAEMON_URL, Address, BadAddress, parse_daemon_url
from contextfold.common.socket_owner import connection_owner, is_trusted, listener_owner

TIMEOUT_S = 2.0
RESPONSE_BYTES_MAX = 8 << 20
HTTP_OK, HTTP_UNAUTHORIZED = 200, 401
# `context run` sets these for its program, so that commands inside find the daemon of the run.
URL_VARIABLE, TOKEN_VARIABLE = "CONTEXT_URL", "CONTEXT_TOKEN"
# The daemon whose page `context open` opens inside a run, if it is another one: its address stays.
PAGE_VARIABLE = "CONTEXT_PAGE_URL"
# The token of a daemon that belongs to one run.
RUN_TOKEN_VARIABLE = "CONTEXT_RUN_TOKEN"  # noqa: S105 - the name of a variable
# The variable of the daemon's setting allow-other-users.
OTHER_USERS_VARIABLE = "CONTEXT_ALLOW_OTHER_USERS"
LOOPBACK = ("127.", "::1")
READ_BYTES = 1 << 16
_PROXY_PATH = re.compile(r"(?:/run/[^/]+)?/proxy/(?:anthropic|openai|gemini)(?:/.*)?")


def add_daemon_options(parser: CommandParser) -> None:
    parser.add_argument("--url", metavar="URL", help=f"the daemon's address (default: {DAEMON_URL})")
    parser.add_argument(
        "--token-variable", metavar="NAME", help="the environment variable with the token, if the daemon requires one"
    )


class BadResponse(Exception):
    """The response is not HTTP, or is too long."""


class DaemonSilent(Exception):
    """No contextfold daemon answers at the address; the message says why."""


class DaemonSlow(DaemonSilent):
    """Something listens at the address and has not answered in time."""


class StrangersDaemon(DaemonSilent):
    """Another user of this machine listens at the address, or may do so."""

    def __init__(self, address: Address, whose: str) -> None:
        super().__init__(
            f"what listens at {address.url} is not yours: it belongs to {whose} of this machine, and nothing was sent "
            f"to it; start your daemon on another --port, or set {OTHER_USERS_VARIABLE}=on if you trust that one"
        )


def daemon_address(url: str) -> Address:
    try:
        return parse_daemon_url(url)
    except BadAddress as problem:
        raise UsageError(f"--url cannot be used: {problem}") from problem


def is_local_name(name: str) -> bool:
    """Whether the host of an address is this machine."""
    return name == "localhost" or name.startswith(LOOPBACK)


def is_proxy_url(url: str, daemon_url: str) -> bool:
    """Whether a provider's base URL is that of a proxy of ours: of the daemon, or of any daemon on this machine."""
    if url.startswith((f"{daemon_url}/proxy/", f"{daemon_url}/run/")):
        return True
    try:
        address = parse_daemon_url(url)
    except BadAddress:
        return False
    return is_local_name(address.name) and bool(_PROXY_PATH.fullmatch(address.path))


def request(
    address: Address,
    path: str,
    token: str,
    *,
    content: bytes | None = None,
    method: str = "",
    timeout_s: float,
    bytes_max: int,
) -> tuple[int, bytes]:
    """Send a POST with JSON if there is content, otherwise a GET; return the status and body of the response.

    Raises StrangersDaemon, and sends nothing, if another user listens there.
    A hook uses this after every tool call, and `http.client` would take longer to import than the hook may take.
    """
    posted = ["Content-Type: application/json", f"Content-Length: {len(content)}"] if content is not None else []
    lines = [
        # With HTTP/1.0 a response is not chunked, and the server closes the connection after it.
        f"{method or ('GET' if content is None else 'POST')} {address.path}{path} HTTP/1.0",
        f"Host: {address.authority}",
        *posted,
        # Other characters are not allowed in a header, and no token has them.
        *([f"Authorization: Bearer {token}"] if token.isascii() and token.isprintable() and token else []),
    ]
    with _connect(address, timeout_s) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("ascii") + (content or b""))
        received = bytearray()
        while chunk := connection.recv(READ_BYTES):
            received += chunk
            if len(received) > bytes_max:
                raise BadResponse("the response is too long")
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if not head.startswith(b"HTTP/1.") or not status or not status[0].isdigit():
        raise BadResponse("no HTTP response")
    return int(status[0]), body


def _connect(address: Address, timeout_s: float) -> socket:
    connection = create_connection((address.name, address.port), timeout_s)
    if not address.is_secure:
        try:
            refuse_a_strangers_daemon(connection, address)
        except StrangersDaemon:
            connection.close()
            raise
        return connection
    from ssl import create_default_context

    return create_default_context().wrap_socket(connection, server_hostname=address.name)


def refuse_a_strangers_daemon(connection: socket, address: Address) -> None:
    """Raise StrangersDaemon if another user listens at the other end of a connection on loopback.

    It is checked after connecting: whoever listens there now is, or was, who accepts this connection.
    """
    here, there = connection.getsockname(), connection.getpeername()
    if not there[0].startswith(LOOPBACK) or os.environ.get(OTHER_USERS_VARIABLE) == "on":
        return
    if connection_owner(here, there) != os.geteuid():
        # The system does not even tell that our end is ours, so it would not tell about the other end either.
        return
    user = listener_owner(there)
    if not is_trusted(user):
        raise StrangersDaemon(address, "another user" if user is None else f"the user with the id {user}")


class DaemonClient:
    def __init__(self, address: Address, token: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address
        self.token = token
        self._timeout_s = timeout_s

    def get(self, path: str, *, timeout_s: float | None = None) -> Any:  # noqa: ANN401 - whatever JSON is there
        """Get the JSON at a path. Raises DaemonSilent if that fails."""
        return self._read_json(*self._request(path, timeout_s=timeout_s))

    def get_text(self, path: str) -> str:
        """Get the text at a path, whatever the status. Raises DaemonSilent if nothing answers."""
        return self._request(path)[1].decode("utf-8", "replace")

    def put(self, path: str, value: object) -> Any:  # noqa: ANN401 - whatever JSON is there
        """Put a JSON value at a path, and return the answer. Raises DaemonSilent if that fails."""
        return self._read_json(*self._request(path, json.dumps(value).encode(), "PUT"))

    def post(self, path: str, value: object) -> tuple[int, bytes]:
        """Post a JSON value to a path; return the status and the body, which is JSON. Raises DaemonSilent if not."""
        status, body = self._request(path, json.dumps(value).encode())
        try:
            parse_json(body)
        except (ValueError, RecursionError):
            self._read_json(status, b"")
        return status, body

    def _read_json(self, status: int, body: bytes) -> Any:  # noqa: ANN401 - whatever JSON is there
        if status == HTTP_UNAUTHORIZED:
            raise DaemonSilent(f"the daemon at {self.address.url} asks for a token: add --token-variable NAME")
        try:
            value = parse_json(body)
        except (ValueError, RecursionError):
            value = None
        if status != HTTP_OK or value is None:
            raise DaemonSilent(f"what answers at {self.address.url} is not this version's daemon (HTTP {status})")
        return value

    def status(self) -> Mapping[str, Any]:
        """Version, start and recent activity of the daemon."""
        value = self.get("/v1/daemon")
        if not isinstance(value, dict) or "version" not in value:
            raise DaemonSilent(f"what answers at {self.address.url} is not a contextfold daemon")
        return value

    def is_ready(self) -> bool:
        """Whether the daemon's store accepts commits."""
        return self._request("/readyz")[0] == HTTP_OK

    def _request(
        self, path: str, content: bytes | None = None, method: str = "", *, timeout_s: float | None = None
    ) -> tuple[int, bytes]:
        try:
            return request(
                self.address,
                path,
                self.token,
                content=content,
                method=method,
                timeout_s=timeout_s or self._timeout_s,
                bytes_max=RESPONSE_BYTES_MAX,
            )
        except (OSError, BadResponse) as problem:
            detail = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
            kind = DaemonSlow if isinstance(problem, TimeoutError) else DaemonSilent
            raise kind(f"nothing answers at {self.address.url} ({detail})") from None


def client_from(args: argparse.Namespace, *, timeout_s: float = TIMEOUT_S) -> DaemonClient:
    """A client of the daemon at --url, else at CONTEXT_URL, else at the default address."""
    address = daemon_address(args.url or os.environ.get(URL_VARIABLE) or DAEMON_URL)
    return DaemonClient(address, os.environ.get(args.token_variable or TOKEN_VARIABLE, ""), timeout_s=timeout_s)
