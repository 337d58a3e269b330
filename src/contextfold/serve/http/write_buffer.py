"""A buffer for a connection's transport. All bytes written in one turn of the event loop are sent together.

A server that writes a head and then a body wakes its client twice and needs two system calls. Most responses are small
enough for one write. Knows bytes and a transport, no HTTP.
"""

from __future__ import annotations

import asyncio

# Larger writes go directly to the transport: they are not copied, and count for its flow control.
BUFFER_MAX_BYTES = 65_536


class BufferedTransport:
    """A transport that writes at `flush`, or at the next turn of the loop."""

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
