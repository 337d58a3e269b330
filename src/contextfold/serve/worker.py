"""A process that runs one call at a time, and is killed when a call takes too long.

A thread cannot be killed. The worker lives as long as it answers in time, so its caches stay warm. After a timeout it
is killed, and the next call gets a new worker. It uses only pipes, so it runs where sockets are forbidden.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from threading import Timer
from typing import Any, Literal

# A new worker must have imported what it needs within this time.
START_S = 30.0
RESULT_MAX_BYTES = 1 << 28
# No new worker is started while this many killed workers have not ended yet: the system may not be able to end a
# process that waits for a dead disk.
UNENDED_MAX = 8
END_S = 1.0
# The worker ends itself this long after the timeout, in case its parent is gone.
OWN_GRACE_S = 1.0


class WorkerFailed(Exception):
    """There is no result: the call took too long, or the worker died."""


class Worker:
    """Runs calls of `run` in a process of its own. One thread at a time may use it.

    `start` is "fork" for a program without threads, which is quick, or "spawn". `close_in_worker` are descriptors that
    a forked worker must not hold open.
    """

    def __init__(
        self, run: Callable[..., Any], start: Literal["fork", "spawn"], close_in_worker: tuple[int, ...] = ()
    ) -> None:
        self._run, self._start_method, self._close_in_worker = run, start, close_in_worker
        self._process: BaseProcess | None = None
        self._calls: Connection
        self._results: Connection
        self._killed: list[BaseProcess] = []

    def call(self, *arguments: object, timeout_s: float) -> Any:  # noqa: ANN401 - what `run` returns
        """Call `run` and return its result. Raises WorkerFailed if there is none in time."""
        try:
            try:
                return self._exchange(arguments, timeout_s)
            except BrokenPipeError:
                # The worker has died since the last call, so this call is not the cause.
                self._discard()
                return self._exchange(arguments, timeout_s)
        except (OSError, EOFError) as problem:
            self._discard()
            raise WorkerFailed(f"the call took too long, or the worker died ({type(problem).__name__})") from problem

    def close(self) -> None:
        """Kill the worker and wait until it has ended, unless it hangs in the system. A call that runs fails."""
        if self._process is not None:
            self._process.kill()
            self._process.join(END_S)

    def _discard(self) -> None:
        """Kill the worker; the next call starts another."""
        if self._process is not None:
            self._process.kill()
            self._killed.append(self._process)
            self._process = None
            self._calls.close()
            self._results.close()

    def _exchange(self, arguments: tuple[object, ...], timeout_s: float) -> Any:  # noqa: ANN401
        process = self._process or self._start(timeout_s)
        # Killing the worker ends every wait for it, also that of a long request for a full pipe.
        timer = Timer(timeout_s, process.kill)
        timer.start()
        try:
            self._calls.send(arguments)
            return pickle.loads(self._results.recv_bytes(RESULT_MAX_BYTES))  # noqa: S301 - from our own worker
        except BrokenPipeError:
            if not timer.is_alive():
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()
            # No thread may run while a worker is forked.
            timer.join()

    def _start(self, timeout_s: float) -> BaseProcess:
        self._killed = [process for process in self._killed if process.exitcode is None]
        if len(self._killed) >= UNENDED_MAX:
            raise WorkerFailed("too many workers hang in the system")
        calls, self._calls = Pipe(duplex=False)
        self._results, results = Pipe(duplex=False)
        is_fork = self._start_method == "fork"
        context: ForkContext | SpawnContext = get_context("fork") if is_fork else get_context("spawn")
        inherited = (self._calls.fileno(), self._results.fileno(), *self._close_in_worker) if is_fork else ()
        process = context.Process(target=_work, args=(self._run, calls, results, timeout_s, inherited), daemon=True)
        with calls, results:
            process.start()
        self._process = process
        if not self._results.poll(START_S):
            raise TimeoutError
        self._results.recv_bytes()
        return process


def _work(
    run: Callable[..., object], calls: Connection, results: Connection, timeout_s: float, inherited: tuple[int, ...]
) -> None:
    """Answer calls until the parent closes the pipe."""
    for descriptor in inherited:
        os.close(descriptor)
    # The parent handles Ctrl-C on the terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        results.send_bytes(b"ready")
        while True:
            arguments = calls.recv()
            signal.setitimer(signal.ITIMER_REAL, timeout_s + OWN_GRACE_S)
            result = run(*arguments)
            signal.setitimer(signal.ITIMER_REAL, 0)
            results.send(result)
    except Exception:
        # The parent has closed the pipe, or there is a bug, which it reports. A traceback may quote the call.
        sys.exit()
