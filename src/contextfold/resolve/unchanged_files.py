"""Finds out whether many files are as a build recorded them. Uses all processors, because nothing is cheaper per file.

Asking the system for the status of each file takes most of the time of a resolve over many documents. Threads would
wait for each other, so child processes do it, while the caller counts terms. They are for a process that ends with its
answer and has no threads, such as a command. A server that kills slow workers could not find these children.
"""

from __future__ import annotations

import os

from contextfold.resolve.files import INODE_MASK, fingerprints
from contextfold.resolve.layout import FINGERPRINT_FIELDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

# Starting a process takes about as long as looking at 2,000 files.
FILES_PER_PROCESS = 10_000
PROCESSES_MAX = 8
# SIGKILL. Importing `signal` takes as long as looking at 1,000 files.
KILL = 9
_UNCHANGED, _CHANGED = 0, 1


class UnchangedFiles:
    """A check that begins when it is made. `result` waits for it; `close` ends it, finished or not."""

    def __init__(self, folder: bytes, files: Sequence[bytes], recorded: array[int], *, uses_processes: bool) -> None:
        """`recorded` has the fingerprints of the files, whose names are relative to the folder."""
        self._folder = folder
        self._files = files
        self._recorded = recorded
        self._children: list[int] = []
        processors = _processors()
        # One more than processors: the caller is busy, too, and smaller shares are distributed more evenly.
        count = min(len(files) // FILES_PER_PROCESS, processors + 1, PROCESSES_MAX)
        if not uses_processes or count <= 1 or processors <= 1 or not hasattr(os, "fork"):
            return
        try:
            for number in range(count):
                share = range(len(files) * number // count, len(files) * (number + 1) // count)
                child = os.fork()
                if not child:
                    self._check_and_exit(share)
                self._children.append(child)
        except OSError:
            # The system has no room for another process.
            self.close()

    def result(self) -> bool:
        """Whether the fingerprint of every file is the recorded one."""
        if not self._children:
            return fingerprints(os.path.join(self._folder, b""), self._files) == self._recorded
        statuses = []
        while self._children:
            statuses.append(_wait_for(self._children[-1]))
            # It is forgotten as soon as it has ended: its number may belong to another process then.
            self._children.pop()
        return set(statuses) == {_UNCHANGED}

    def close(self) -> None:
        while self._children:
            child = self._children.pop()
            try:
                os.kill(child, KILL)
            except ProcessLookupError:
                # It has ended, and this process ignores the end of its children.
                continue
            _wait_for(child)

    def _check_and_exit(self, share: range) -> None:
        status = _CHANGED
        try:
            # Who reads the output of a parent that was killed must not wait for its children.
            os.closerange(0, 3)
            # The working directory is the child's own. Short names take the system less time.
            os.chdir(self._folder)
            if _are_as_recorded(self._files[share.start : share.stop], self._recorded, share.start):
                status = _UNCHANGED
        finally:
            # Whatever went wrong, the parent finds the reason when it reads the files.
            os._exit(status)


def _wait_for(child: int) -> int:
    try:
        return os.waitpid(child, 0)[1]
    except ChildProcessError:
        # This process ignores the end of its children, so the system keeps no status.
        return _CHANGED


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


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
