"""Counts the words of documents in child processes, while their parent writes the other files of a cache.

The parent sends numbers, paths and places of documents through a pipe; a child reads their texts from the file of
contents. A child writes its terms as runs and its rows to a file of its own, so that the parent never waits for a child
that waits for the parent. The index does not depend on which child counts which document.

`marshal` is safe here: only processes of one build read what they have written.

The processes are forks of a process that ends with its result and has no threads, such as a command. A server that
kills slow workers could not find these children.
"""

from __future__ import annotations

import errno
import marshal
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import BinaryIO

from contextfold.errors import StorageFailed
from contextfold.resolve.relevance.document_terms import TermCollector
from contextfold.resolve.relevance.index_entries import DocumentRow, SectionRow
from contextfold.resolve.relevance.index_merge import new_file, write_run

SUCCEEDED = 0
# The status of a child that raised an exception, was killed, or whose status nobody knows.
FAILED = 255

# The number of a document, its path, and where its text is in the file of contents.
Task = tuple[int, str, int, int]

# This much text is sent at once. A message is short, because it has no text.
BATCH_BYTES = 1 << 18
ROWS_FILE = "relevance-rows-%d"
# A system may allow more descriptors than can be closed one by one in reasonable time.
DESCRIPTORS_MAX = 1 << 20
# An empty message. A pipe that ends without it belongs to a parent that was killed.
END: list[Task] = []


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
            status = FAILED
            try:
                status = run()
            finally:
                os._exit(status)
        self._children.append(child)

    def wait(self) -> list[int]:
        """The exit statuses of all children, once they have ended."""
        statuses = []
        while self._children:
            statuses.append(_wait_for(self._children[-1]))
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
            _wait_for(child)


def _wait_for(child: int) -> int:
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


class CountingProcesses:
    """Child processes that count. `add` gives them documents, `rows` returns the rows; `close` must be called."""

    def __init__(self, contents: bytes, folder: int, count: int, run_entries: int, flush: Callable[[], None]) -> None:
        """`flush` makes what was written to the file of contents visible to the children."""
        self._folder = folder
        self._flush = flush
        self._run_entries = run_entries
        self._children = ChildProcesses()
        self._pipes: list[BinaryIO] = []
        self._assigned: list[int] = []
        self._batch: list[Task] = []
        self._batch_bytes = 0
        self._contents = os.open(contents, os.O_RDONLY)
        try:
            for number in range(count):
                tasks, sender = os.pipe()
                self._pipes.append(open(sender, "wb"))  # noqa: SIM115
                try:
                    self._children.start(lambda tasks=tasks, number=number: self._count(tasks, number))  # type: ignore[misc]
                finally:
                    os.close(tasks)
        except OSError:
            started = len(self._pipes)
            self.close()
            for number in range(started):
                with suppress(FileNotFoundError):
                    os.unlink(ROWS_FILE % number, dir_fd=folder)
            raise

    def add(self, number: int, source: str, start: int, length: int) -> None:
        self._batch.append((number, source, start, length))
        self._batch_bytes += length
        if self._batch_bytes >= BATCH_BYTES:
            self._send()

    def _send(self) -> None:
        self._flush()
        # In turns: documents of neighbouring paths are often alike, so batches are of the same difficulty.
        child = len(self._assigned) % len(self._pipes)
        self._assigned.append(child)
        self._write(child, self._batch)
        self._batch, self._batch_bytes = [], 0

    def _write(self, child: int, tasks: list[Task]) -> None:
        # If the child has ended, `rows` finds out why.
        with suppress(BrokenPipeError):
            marshal.dump(tasks, self._pipes[child])
            self._pipes[child].flush()

    def rows(self) -> Iterator[DocumentRow]:
        """The rows of all documents, in the order in which they were added."""
        if self._batch:
            self._send()
        for child in range(len(self._pipes)):
            self._write(child, END)
        for status in self._children.wait():
            if status == FAILED:
                raise StorageFailed(
                    "a process that counts words failed or was killed; free some memory and run the build again, "
                    "or use fewer processors: `taskset -c 0 context build`"
                )
            if status != SUCCEEDED:
                raise OSError(status, os.strerror(status))
        files = [
            open(os.open(ROWS_FILE % child, os.O_RDONLY, dir_fd=self._folder), "rb")  # noqa: SIM115
            for child in range(len(self._pipes))
        ]
        try:
            for child in self._assigned:
                for title, words, sections in marshal.load(files[child]):  # noqa: S302
                    yield DocumentRow(title, words, [SectionRow._make(section) for section in sections])
        finally:
            for number, file in enumerate(files):
                file.close()
                os.unlink(ROWS_FILE % number, dir_fd=self._folder)

    def close(self) -> None:
        self._children.close()
        for pipe in self._pipes:
            # The child may have been killed before it had read everything.
            with suppress(BrokenPipeError):
                pipe.close()
        self._pipes = []
        if self._contents >= 0:
            os.close(self._contents)
            self._contents = -1

    def _count(self, tasks: int, number: int) -> int:
        """What a child does. Its result is its exit status: a number of `errno`, SUCCEEDED or FAILED."""
        # The lock of the build ends with the parent, and the pipes of other children with their users.
        _close_descriptors_except(tasks, self._contents, self._folder)
        collector, runs = TermCollector(), 0
        try:
            with (
                open(tasks, "rb") as received,
                open(new_file(self._folder, ROWS_FILE % number), "wb") as rows_file,
            ):
                while batch := marshal.load(received):  # noqa: S302
                    rows = []
                    for document, source, start, length in batch:
                        row = collector.add(document, source, self._read(start, length))
                        rows.append((row.title, row.words, list(map(tuple, row.sections))))
                    marshal.dump(rows, rows_file)
                    if collector.entry_count >= self._run_entries:
                        write_run(self._folder, f"{number}-{runs}", collector.take())
                        runs += 1
                write_run(self._folder, f"{number}-{runs}", collector.take())
        except EOFError:
            return FAILED
        except OSError as problem:
            return problem.errno or errno.EIO
        return SUCCEEDED

    def _read(self, start: int, length: int) -> bytes:
        content = os.pread(self._contents, length, start)
        if len(content) != length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return content


def _close_descriptors_except(*used: int) -> None:
    start = 0
    for descriptor in sorted(used):
        os.closerange(start, descriptor)
        start = descriptor + 1
    most = os.sysconf("SC_OPEN_MAX")
    os.closerange(start, most if 0 < most < DESCRIPTORS_MAX else DESCRIPTORS_MAX)
