"""The HTTP client for commands that use a running daemon. Knows sockets and JSON, no session."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from socket import create_connection, socket
from typing import Any

from contextfold.cli.parser import CommandParser, UsageError
from contextfold.common.canonical import parse_json
from contextfold.common.network_address import DAEMON_URL, Address, BadAddress, parse_daemon_url

TIMEOUT_S = 2.0
RESPONSE_BYTES_MAX = 8 << 20
HTTP_OK, HTTP_UNAUTHORIZED = 200, 401
URL_VARIABLE = "CONTEXT_URL"
READ_BYTES = 1 << 16


def add_daemon_options(parser: CommandParser) -> None:
    parser.add_argument("--url", metavar="URL", help=f"the daemon's address (default: {DAEMON_URL})")
    parser.add_argument(
        "--token-variable", metavar="NAME", help="the environment variable with the token, if the daemon requires one"
    )


class BadResponse(Exception):
    """The response is not HTTP, or is too long."""


def daemon_address(url: str) -> Address:
    try:
        return parse_daemon_url(url)
    except BadAddress as problem:
        raise UsageError(f"--url cannot be used: {problem}") from problem


def request(
    address: Address, path: str, token: str, *, content: bytes | None = None, timeout_s: float, bytes_max: int
) -> tuple[int, bytes]:
    """Send a POST with JSON if there is content, otherwise a GET; return the status and body of the response.

    A hook uses this after every tool call, and `http.client` would take longer to import than the hook may take.
    """
    posted = ["Content-Type: application/json", f"Content-Length: {len(content)}"] if content is not None else []
    lines = [
        # With HTTP/1.0 a response is not chunked, and the server closes the connection after it.
        f"{'GET' if content is None else 'POST'} {address.path}{path} HTTP/1.0",
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
        return connection
    from ssl import create_default_context

    return create_default_context().wrap_socket(connection, server_hostname=address.name)


class DaemonSilent(Exception):
    """No contextfold daemon answers at the address; the message says why."""


class DaemonClient:
    def __init__(self, address: Address, token: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address
        self._token = token
        self._timeout_s = timeout_s

    def get(self, path: str) -> Any:  # noqa: ANN401 - whatever JSON is there
        """Get the JSON at a path. Raises DaemonSilent if that fails."""
        status, body = self._request(path)
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

    def _request(self, path: str) -> tuple[int, bytes]:
        try:
            return request(self.address, path, self._token, timeout_s=self._timeout_s, bytes_max=RESPONSE_BYTES_MAX)
        except (OSError, BadResponse) as problem:
            detail = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
            raise DaemonSilent(f"nothing answers at {self.address.url} ({detail})") from None


def client_from(args: argparse.Namespace, *, timeout_s: float = TIMEOUT_S) -> DaemonClient:
    """A client of the daemon at --url, else at CONTEXT_URL, else at the default address."""
    address = daemon_address(args.url or os.environ.get(URL_VARIABLE) or DAEMON_URL)
    return DaemonClient(address, os.environ.get(args.token_variable or "", ""), timeout_s=timeout_s)
