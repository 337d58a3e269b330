"""File descriptors.

Another program may have made a descriptor non-blocking, so whoever writes to it may have to wait.
"""

from __future__ import annotations

import os
import select

STDERR = 2


def is_writable(descriptor: int, timeout_s: float | None = None) -> bool:
    """Wait until a stream accepts bytes or has ended; False after the timeout."""
    # Unlike select(), poll() accepts descriptors above 1023.
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000))


def write_all(descriptor: int, content: bytes) -> None:
    """Write all bytes; wait while a non-blocking stream accepts none."""
    rest = memoryview(content)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            is_writable(descriptor)


def fill_standard_descriptors() -> None:
    """Open those of the first three descriptors that are closed; otherwise another file could get stderr's number."""
    for _ in range(STDERR + 1):
        opened = os.open(os.devnull, os.O_RDWR)
        if opened > STDERR:
            os.close(opened)
            return
