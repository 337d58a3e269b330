"""The only place that reads private attributes of httpx2. A test fails when one of them has moved."""

from __future__ import annotations

import httpx2

# From a response's stream to the state of its HTTP/1.1 connection.
PATH_TO_STATE = ("_httpcore_stream", "_stream", "_connection", "_h11_state")


def unread_bytes(stream: httpx2.AsyncByteStream) -> bytes:
    """What was received on a connection behind its response. The public interface does not give it."""
    inner: object = stream
    for name in PATH_TO_STATE:
        inner = getattr(inner, name, None)
    trailing: tuple[bytes, bool] = getattr(inner, "trailing_data", (b"", False))
    return trailing[0]
