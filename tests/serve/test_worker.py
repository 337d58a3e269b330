"""The worker process when the system has no more resources."""

from __future__ import annotations

import os

from contextfold.serve.worker import Worker

# This only bounds a hang.
WAIT_S = 60


def open_pipes() -> set[str]:
    """The pipes of this process. Sockets are left out, because those of other tests may be closed at any time."""
    return {name for file in os.listdir("/proc/self/fd") if (name := _target(file)).startswith("pipe:")}


def _target(file: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{file}")
    except FileNotFoundError:
        return ""


def test_no_descriptor_is_left_open_by_many_workers() -> None:
    worker = Worker(lambda request: request[::-1])
    before = open_pipes()
    for _ in range(20):
        assert worker.call(b"ab" * 100_000, WAIT_S) == b"ba" * 100_000
        worker.stop()
    assert open_pipes() <= before
