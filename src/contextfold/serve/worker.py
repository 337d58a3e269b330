"""A worker process that handles one request at a time, and is killed when a request takes too long.

A thread cannot be killed. The worker lives as long as it answers in time, so its caches stay warm. After a timeout it
is killed, and the next request gets a new worker. Knows bytes, not their meaning. It uses only pipes, so it runs where
sockets are forbidden.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from contextfold.common.posix import READABLE, WRITABLE, wait, write_all

LENGTH_BYTES = 8
CHUNK_BYTES = 1 << 20
# No new worker is started while more than this many killed workers have not ended yet.
UNREAPED_MAX = 8
# The longest time to wait for the end of killed workers, and how often to look.
END_S = 1.0
END_POLL_S = 0.005
# The worker ends itself this long after the timeout, in case its parent is gone.
OWN_GRACE_S = 1.0


class WorkerFailed(Exception):
    """There is no response: the request took too long, or the worker died."""


class Worker:
    def __init__(self, respond: Callable[[bytes], bytes], *, close_in_worker: tuple[int, ...] = ()) -> None:
        self._respond = respond
        self._close_in_worker = close_in_worker
        self._process: int | None = None
        self._to_worker = self._from_worker = -1
        self._killed: list[int] = []

    def call(self, request: bytes, timeout_s: float) -> bytes:
        """Send a request and return the response. Raises WorkerFailed if there is none in time."""
        self._reap()
        deadline = time.monotonic() + timeout_s
        frame = len(request).to_bytes(LENGTH_BYTES, "little") + request
        try:
            try:
                self._send(frame, deadline, timeout_s)
            except BrokenPipeError:
                # The worker has died since the last request, so this request is not the cause.
                self.stop()
                self._send(frame, deadline, timeout_s)
            length = int.from_bytes(self._receive(LENGTH_BYTES, deadline), "little")
            return self._receive(length, deadline)
        except (OSError, WorkerFailed) as problem:
            self.stop()
            raise WorkerFailed(str(problem)) from problem

    def stop(self) -> None:
        """Kill the worker."""
        process, self._process = self._process, None
        if process is not None:
            os.close(self._to_worker)
            os.close(self._from_worker)
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                # The worker has ended, and the system has reaped it.
                return
            self._killed.append(process)
        self._reap()

    def close(self) -> None:
        """Kill the worker and wait until it has ended, unless it hangs in the system."""
        self.stop()
        deadline = time.monotonic() + END_S
        while self._killed and time.monotonic() < deadline:
            time.sleep(END_POLL_S)
            self._reap()

    def _reap(self) -> None:
        self._killed = [process for process in self._killed if not _is_reaped(process)]

    def _start(self, timeout_s: float) -> None:
        if len(self._killed) >= UNREAPED_MAX:
            raise WorkerFailed("too many workers hang in the system")
        pipes: list[int] = []
        try:
            pipes += os.pipe()
            pipes += os.pipe()
            process = os.fork()
        except OSError:
            for descriptor in pipes:
                os.close(descriptor)
            raise
        requests, to_worker, from_worker, answers = pipes
        if process == 0:
            try:
                for descriptor in (to_worker, from_worker, *self._close_in_worker):
                    os.close(descriptor)
                _work(requests, answers, self._respond, timeout_s)
            finally:
                os._exit(0)
        os.close(requests)
        os.close(answers)
        os.set_blocking(to_worker, False)
        os.set_blocking(from_worker, False)
        self._process, self._to_worker, self._from_worker = process, to_worker, from_worker

    def _send(self, frame: bytes, deadline: float, timeout_s: float) -> None:
        if self._process is None:
            self._start(timeout_s)
        rest = memoryview(frame)
        while rest:
            _wait(self._to_worker, WRITABLE, deadline)
            rest = rest[os.write(self._to_worker, rest) :]

    def _receive(self, length: int, deadline: float) -> bytes:
        chunks: list[bytes] = []
        left = length
        while left:
            _wait(self._from_worker, READABLE, deadline)
            chunk = os.read(self._from_worker, min(left, CHUNK_BYTES))
            if not chunk:
                raise WorkerFailed("the worker died")
            chunks.append(chunk)
            left -= len(chunk)
        return b"".join(chunks)


def _is_reaped(process: int) -> bool:
    try:
        return os.waitpid(process, os.WNOHANG)[0] != 0
    except ChildProcessError:
        # If SIGCHLD is ignored, the system reaps children.
        return True


def _wait(descriptor: int, event: int, deadline: float) -> None:
    if not wait(descriptor, event, deadline - time.monotonic()):
        raise WorkerFailed("timed out")


def _work(requests: int, answers: int, respond: Callable[[bytes], bytes], timeout_s: float) -> None:
    """Answer requests until the parent closes the pipe."""
    # The parent handles Ctrl-C on the terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while len(head := _read(requests, LENGTH_BYTES)) == LENGTH_BYTES:
        request = _read(requests, int.from_bytes(head, "little"))
        signal.setitimer(signal.ITIMER_REAL, timeout_s + OWN_GRACE_S)
        answer = respond(request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_all(answers, len(answer).to_bytes(LENGTH_BYTES, "little") + answer)


def _read(descriptor: int, length: int) -> bytes:
    chunks: list[bytes] = []
    while length and (chunk := os.read(descriptor, min(length, CHUNK_BYTES))):
        chunks.append(chunk)
        length -= len(chunk)
    return b"".join(chunks)
