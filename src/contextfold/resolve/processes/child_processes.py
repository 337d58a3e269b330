"""Child processes that run a function of this process.

They are for a process that ends with its result and has no threads, such as a command. A server that kills slow workers
could not find these children.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SUCCEEDED = 0
# The status of a child that raised an exception, was killed, or whose status nobody knows.
FAILED = 255
# SIGKILL. Importing `signal` takes as long as looking at 1,000 files.
KILL = 9


class ChildProcesses:
    """Forks of this process. `wait` returns when all have ended; `close` ends them, finished or not."""

    def __init__(self) -> None:
        self._children: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._children)

    def start(self, run: Callable[[], int]) -> None:
        """Start a child that runs a function, whose result is its exit status. The system may refuse: OSError."""
        child = os.fork()
        if not child:
            _run_and_exit(run)
        self._children.append(child)

    def wait(self) -> list[int]:
        """The exit statuses of all children, once they have ended."""
        statuses = []
        while self._children:
            statuses.append(wait_for(self._children[-1]))
            # It is forgotten as soon as it has ended: its number may belong to another process then.
            self._children.pop()
        return statuses

    def close(self) -> None:
        while self._children:
            child = self._children.pop()
            try:
                os.kill(child, KILL)
            except ProcessLookupError:
                # It has ended, and this process ignores the end of its children.
                continue
            wait_for(child)


def _run_and_exit(run: Callable[[], int]) -> None:
    status = FAILED
    try:
        status = run()
    finally:
        os._exit(status)


def wait_for(child: int) -> int:
    try:
        _, status = os.waitpid(child, 0)
    except ChildProcessError:
        # This process ignores the end of its children, so the system keeps no status.
        return FAILED
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else FAILED


def keeps_exit_statuses() -> bool:
    """Whether the system keeps the status of a child. Whoever started this process may have ignored SIGCHLD."""
    import signal

    return signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN


def processors() -> int:
    """How many processors this process may use; 1 if it cannot start children."""
    if not hasattr(os, "fork"):
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
