"""The adapter of httpx2: the only module that reads its private attributes. A test fails when one has moved."""

from __future__ import annotations

import httpx2

# The attributes that lead from a response's stream to the state of its HTTP/1.1 connection.
PATH_TO_STATE = ("_httpcore_stream", "_stream", "_connection", "_h11_state")


def unread_bytes(stream: httpx2.AsyncByteStream) -> bytes:
    """The bytes received on a connection after its response. The public interface does not have them."""
    inner: object = stream
    for name in PATH_TO_STATE:
        inner = getattr(inner, name, None)
    trailing: tuple[bytes, bool] = getattr(inner, "trailing_data", (b"", False))
    return trailing[0]
