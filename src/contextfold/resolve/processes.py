"""Child processes of a command, and the check of many files that they speed up.

They are for a process that ends with its result and has no threads, such as a command. A server that kills slow workers
could not find these children.
"""

from __future__ import annotations

import os
import signal
from array import array
from collections.abc import Callable, Sequence

from contextfold.resolve.cache_format import FINGERPRINT_FIELDS
from contextfold.resolve.files import INODE_MASK, fingerprints

SUCCEEDED = 0
_CHANGED = 1
# The status of a child that raised an exception, was killed, or whose status nobody knows.
FAILED = 255
# Starting a process takes about as long as looking at 2,000 files.
FILES_PER_PROCESS = 10_000
PROCESSES_MAX = 8


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
                os.kill(child, signal.SIGKILL)
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
    return signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN


def processors() -> int:
    """How many processors this process may use; 1 if it cannot start children."""
    if not hasattr(os, "fork"):
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class UnchangedFiles:
    """Finds out whether many files are as a build recorded them. `result` waits for it; `close` ends it.

    Asking the system for the status of each file takes most of the time of a resolve over many documents. Threads would
    wait for each other, so child processes do it, while the caller counts terms.
    """

    def __init__(self, folder: bytes, files: Sequence[bytes], recorded: array[int], *, uses_processes: bool) -> None:
        """`recorded` has the fingerprints of the files, whose names are relative to the folder."""
        self._folder = folder
        self._files = files
        self._recorded = recorded
        self._children = ChildProcesses()
        available = processors()
        # One more than processors: the caller is busy, too, and smaller shares are distributed more evenly.
        count = min(len(files) // FILES_PER_PROCESS, available + 1, PROCESSES_MAX)
        if not uses_processes or count <= 1 or available <= 1:
            return
        try:
            for number in range(count):
                share = slice(len(files) * number // count, len(files) * (number + 1) // count)
                self._children.start(lambda share=share: self._check(share))  # type: ignore[misc]
        except OSError:
            # The system has no room for another process.
            self._children.close()

    def result(self) -> bool:
        """Whether the fingerprint of every file is the recorded one."""
        if not self._children:
            return fingerprints(os.path.join(self._folder, b""), self._files) == self._recorded
        return set(self._children.wait()) == {SUCCEEDED}

    def close(self) -> None:
        self._children.close()

    def _check(self, share: slice) -> int:
        """Check the files of a child. Whatever goes wrong, the parent finds the reason when it reads the files."""
        # Who reads the output of a parent that was killed must not wait for its children.
        os.closerange(0, 3)
        # The working directory is the child's own. Short names take the system less time.
        os.chdir(self._folder)
        return SUCCEEDED if _are_as_recorded(self._files[share], self._recorded, share.start) else _CHANGED


def _are_as_recorded(files: Sequence[bytes], recorded: array[int], first: int) -> bool:
    rows = recorded[first * FINGERPRINT_FIELDS : (first + len(files)) * FINGERPRINT_FIELDS]
    sizes, mtimes, ctimes, inodes = (rows[field::FINGERPRINT_FIELDS] for field in range(FINGERPRINT_FIELDS))
    for status, size, mtime_ns, ctime_ns, inode in zip(
        map(os.lstat, files), sizes, mtimes, ctimes, inodes, strict=True
    ):
        if (
            status.st_mtime_ns != mtime_ns
            or status.st_ctime_ns != ctime_ns
            or status.st_size != size
            or status.st_ino & INODE_MASK != inode
        ):
            return False
    return True
