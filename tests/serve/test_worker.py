"""The worker process: what it costs when the system has nothing left to give."""

from __future__ import annotations

import os

import pytest

from contextfold.serve.worker import Worker, WorkerFailed


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_worker_that_cannot_be_started_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    worker = Worker(lambda request: request)
    before = open_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", no_process)
        for _ in range(20):
            with pytest.raises(WorkerFailed):
                worker.ask(b"x", 5)
    assert open_descriptors() == before
    assert worker.ask(b"back", 5) == b"back"
    worker.stop()


def test_no_descriptor_is_left_open_by_many_workers() -> None:
    worker = Worker(lambda request: request[::-1])
    before = open_descriptors()
    for _ in range(20):
        assert worker.ask(b"ab" * 100_000, 5) == b"ba" * 100_000
        worker.stop()
    assert open_descriptors() == before
