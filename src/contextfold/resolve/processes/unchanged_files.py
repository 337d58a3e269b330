"""Finds out whether many files are as a build recorded them. Uses all processors, because nothing is cheaper per file.

Asking the system for the status of each file takes most of the time of a resolve over many documents. Threads would
wait for each other, so child processes do it, while the caller counts terms.
"""

from __future__ import annotations

import os

from contextfold.resolve.files import INODE_MASK, fingerprints
from contextfold.resolve.layout import FINGERPRINT_FIELDS
from contextfold.resolve.processes.child_processes import SUCCEEDED, ChildProcesses, processors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

# Starting a process takes about as long as looking at 2,000 files.
FILES_PER_PROCESS = 10_000
PROCESSES_MAX = 8
_CHANGED = 1


class UnchangedFiles:
    """A check that begins when it is made. `result` waits for it; `close` ends it, finished or not."""

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
