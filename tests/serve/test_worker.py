"""The worker process when the system has no more resources."""

from __future__ import annotations

import gc
import os
import signal

import pytest

from contextfold.serve.worker import Worker, WorkerFailed

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


def reverse(content: bytes) -> bytes:
    return content[::-1]


def process_and_length(content: bytes) -> tuple[int, int]:
    return os.getpid(), len(content)


def test_no_descriptor_is_left_open_by_many_workers() -> None:
    worker = Worker(reverse, "fork")
    before = open_pipes()
    for _ in range(20):
        assert worker.call(b"ab" * 100_000, timeout_s=WAIT_S) == b"ba" * 100_000
        worker.close()
    del worker
    gc.collect()
    assert open_pipes() <= before


def test_a_stopped_worker_ends_a_long_call_by_its_timeout() -> None:
    """The call does not even fit into the pipe."""
    worker = Worker(process_and_length, "fork")
    process, _ = worker.call(b"ab", timeout_s=WAIT_S)
    os.kill(process, signal.SIGSTOP)
    with pytest.raises(WorkerFailed):
        worker.call(b"ab" * 1_000_000, timeout_s=0.2)
    assert worker.call(b"ab", timeout_s=WAIT_S)[0] != process
    worker.close()
