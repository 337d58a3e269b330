"""The way out of a connection: what is written in one turn leaves together, the head of an answer with its body.

A server that writes a head and then a body wakes its client twice and asks the system twice; most answers are small
enough for once. Knows bytes and a transport, no HTTP.
"""

from __future__ import annotations

import asyncio

GATHERED_MAX_BYTES = 65_536  # beyond, it leaves at once: so much is never copied, and the transport must know of it


class Outgoing:
    """A transport in every respect but when it writes: at `flush`, or else at the next turn of the loop."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._size_bytes = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not data:
            return
        if self._size_bytes + len(data) > GATHERED_MAX_BYTES:
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
