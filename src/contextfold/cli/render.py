"""What a person or a program gets to see: bytes on stdout, two lines on stderr, a line of progress on a terminal.

Everything is written as UTF-8 bytes, so that no locale changes an answer. Knows streams, not commands.
"""

from __future__ import annotations

import os
import sys
import time

from contextfold.errors import StorageFailed

PROGRESS_EVERY_S = 0.1
CLEAR_LINE = "\r\x1b[K"


def say(text: str) -> None:
    """Write an answer to stdout, whole, or fail."""
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        sys.stdout.buffer.flush()
    except OSError as problem:
        # Whatever stays in the buffer must not be tried again, and complained about, when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise StorageFailed(f"cannot write the answer to stdout: {problem.strerror}") from problem


def report(error: str, *reasons: str) -> None:
    """Tell on stderr what went wrong, and for each reason where, and what to do."""
    _to_stderr(f"error: {error}\n" + "".join(f"reason: {reason}\n" for reason in reasons))


def tell_on_terminal(text: str) -> None:
    """Tell a person who is watching; a pipe stays silent."""
    if sys.stderr.isatty():
        _to_stderr(text + "\n")


def note(text: str) -> None:
    """Tell something on stderr that is no failure."""
    _to_stderr(f"note: {text}\n")


def _to_stderr(text: str) -> None:
    try:
        sys.stderr.buffer.write(text.encode("utf-8", "surrogateescape"))
        sys.stderr.buffer.flush()
    except OSError:
        pass  # nobody can be told


class ProgressLine:
    """One line on a terminal that counts along; silence anywhere else."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._wanted = sys.stderr.isatty()
        self._next_at_s = time.monotonic() + PROGRESS_EVERY_S
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        if not self._wanted:
            return
        if done == total:
            self.clear()
        elif time.monotonic() >= self._next_at_s:
            self._next_at_s = time.monotonic() + PROGRESS_EVERY_S
            self._shown = True
            _to_stderr(f"{CLEAR_LINE}{self._doing} {done:,} of {total:,} documents ({100 * done // total}%)")

    def clear(self) -> None:
        if self._shown:
            self._shown = False
            _to_stderr(CLEAR_LINE)
