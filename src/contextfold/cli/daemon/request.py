"""Sends one HTTP request to the daemon. Importing the standard library's client takes longer than most commands."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket

    from contextfold.common.network_address import Address

READ_BYTES = 1 << 16
_HEADER_UNSAFE = frozenset(map(chr, [*range(0x20), *range(0x7F, 0x100)]))


class BadResponse(Exception):
    """The response is not HTTP, or is too long."""


def request(
    address: Address, path: str, token: str, *, content: bytes | None = None, timeout_s: float, bytes_max: int
) -> tuple[int, bytes]:
    """Send a POST with JSON if there is content, otherwise a GET; return the status and body of the response."""
    # Such a token is invalid, and its characters are not allowed in a header.
    if not _HEADER_UNSAFE.isdisjoint(token) or not token.isascii():
        token = ""
    posted = ["Content-Type: application/json", f"Content-Length: {len(content)}"] if content is not None else []
    lines = [
        # With HTTP/1.0 a response is not chunked, and the server closes the connection after it.
        f"{'GET' if content is None else 'POST'} {address.path}{path} HTTP/1.0",
        f"Host: {address.authority}",
        *posted,
        *([f"Authorization: Bearer {token}"] if token else []),
    ]
    connection = _connected(address, timeout_s)
    try:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("ascii") + (content or b""))
        received = bytearray()
        while chunk := connection.recv(READ_BYTES):
            received += chunk
            if len(received) > bytes_max:
                raise BadResponse("the response is too long")
    finally:
        connection.close()
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if not head.startswith(b"HTTP/1.") or not status or not status[0].isdigit():
        raise BadResponse("no HTTP response")
    return int(status[0]), body


def _connected(address: Address, timeout_s: float) -> socket:
    from socket import create_connection

    # A name in bytes avoids loading the tables for internationalised names; the type stubs allow only text.
    name: str = address.name.encode("ascii")  # type: ignore[assignment]
    connection = create_connection((name, address.port), timeout=timeout_s)
    if not address.is_secure:
        return connection
    from ssl import create_default_context

    return create_default_context().wrap_socket(connection, server_hostname=address.name)
