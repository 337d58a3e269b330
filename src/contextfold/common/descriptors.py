"""Waiting for a stream that others may have made non-blocking. Knows descriptors, and any number of them."""

from __future__ import annotations

import os
import select

READABLE, WRITABLE = select.POLLIN, select.POLLOUT


def wait(descriptor: int, event: int, timeout_s: float | None = None) -> bool:
    """Wait until a stream can be read or written, or has ended; False if the time ran out first."""
    poll = select.poll()  # unlike select(), it takes descriptors beyond 1023
    poll.register(descriptor, event)
    return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000))


def write_all(descriptor: int, content: bytes) -> None:
    """Write to the last byte: a system call may take a part, and a non-blocking stream none for a while."""
    rest = memoryview(content)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            wait(descriptor, WRITABLE)
