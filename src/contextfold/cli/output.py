"""Writes results to stdout, messages to stderr, and progress to a terminal.

All output is UTF-8, independently of the locale. Knows streams, not commands.
"""

from __future__ import annotations

import select
import sys
import time
from typing import Self, TextIO

from contextfold.common.posix import write_all
from contextfold.errors import StorageFailed

PROGRESS_EVERY_S = 0.1
YES = ("y", "yes")
NO = ("n", "no")
ANSWER_LENGTH = 100
SIGNAL_POLL_S = 0.1
# A program that writes an answer into a pipe may come this much later.
ANSWER_WAIT_S = 1.0
CLEAR_LINE = "\r\x1b[K"
# Characters other than C0 and C1 controls that change the direction of text or end a line.
TURNING = "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal. The parent process may have closed it."""
    return stream is not None and stream.isatty()


def print_answer(text: str) -> None:
    """Write a complete result to stdout. Raises StorageFailed if that is not possible."""
    print_bytes(_encode(text))


def print_bytes(raw: bytes) -> None:
    """Write a complete result, or a part of it, to stdout. Raises StorageFailed if that is not possible."""
    if sys.stdout is None:
        raise StorageFailed("cannot write the answer: stdout is closed; send it to a file or a pipe")
    try:
        _write_all(sys.stdout, raw)
    except OSError as problem:
        raise StorageFailed(
            f"cannot write the answer to stdout: {problem.strerror}; what was written of it is not whole"
        ) from problem


def print_error(error: str, *reasons: str) -> None:
    """Write an error to stderr, and a line for each reason, which says what to do.

    For programs that start this one, an error is one line, without reasons.
    """
    print_on_stderr(f"error: {escape(error)}\n" + "".join(f"reason: {escape(reason)}\n" for reason in reasons))


def escape(text: str) -> str:
    """Escape control characters and line breaks, so that a file's name cannot control the terminal or add a line."""
    # A character that is escaped is not printable.
    if text.isprintable():
        return text
    controls = (f"\\x{ord(c):02x}" if c < " " or "\x7f" <= c < "\xa0" else c for c in text)
    return "".join(f"\\u{ord(c):04x}" if c in TURNING else c for c in controls)


def escape_lines(text: str) -> str:
    """Escape the control characters of a text, except line breaks and tabs. A CRLF becomes a line break."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(map(escape, line.split("\t"))) for line in lines)


def print_on_terminal(text: str) -> None:
    if is_terminal(sys.stderr):
        print_on_stderr(escape(text) + "\n")


def print_note(text: str) -> None:
    print_on_stderr(f"note: {text}\n")


def refuses_on_stdin(question: str) -> bool:
    """Whether the user says no: at the question on a terminal, or by an n that stands on stdin already."""
    if can_ask():
        return not ask_yes_no(question)
    try:
        if sys.stdin is None or is_terminal(sys.stdin) or not select.select([sys.stdin], [], [], ANSWER_WAIT_S)[0]:
            return False
        return sys.stdin.readline(ANSWER_LENGTH).strip().lower() in NO
    except OSError:
        return False


def can_ask() -> bool:
    """Whether stdin and stderr are terminals, so that a user can answer a question."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def ask_yes_no(question: str) -> bool:
    """Ask a question. Any answer except yes means no."""
    print_on_stderr(f"{question} [y/N] ")
    # A signal that comes just before a read would be noticed only when the read has ended; a wait with a timeout ends.
    while not select.select([sys.stdin], [], [], SIGNAL_POLL_S)[0]:
        pass
    return sys.stdin.readline(ANSWER_LENGTH).strip().lower() in YES


def print_on_stderr(text: str) -> None:
    """Write a text to stderr without escaping it."""
    if sys.stderr is None:
        return
    try:
        _write_all(sys.stderr, _encode(text))
    except OSError:
        # The reader of stderr has closed it.
        pass


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _write_all(stream: TextIO, raw: bytes) -> None:
    """Write without buffers, so that the interpreter does not write a rest again when it ends."""
    try:
        descriptor = stream.fileno()
    except OSError:
        # A stream in memory has no descriptor and accepts all bytes.
        stream.buffer.write(raw)
    else:
        write_all(descriptor, raw)


class ProgressLine:
    """A line on a terminal that shows the progress of a `with` block. Without a terminal, it shows nothing."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._wanted = is_terminal(sys.stderr)
        self._next_at_s = time.monotonic() + PROGRESS_EVERY_S
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __call__(self, done: int, total: int) -> None:
        if done == total:
            self.clear()
        else:
            self.show(f"{done:,} of {total:,} documents ({100 * done // total}%)")

    def show(self, how_far: str) -> None:
        if self._wanted and time.monotonic() >= self._next_at_s:
            self._next_at_s = time.monotonic() + PROGRESS_EVERY_S
            self._shown = True
            print_on_stderr(f"{CLEAR_LINE}{self._doing} {how_far}")

    def clear(self) -> None:
        if self._shown:
            self._shown = False
            print_on_stderr(CLEAR_LINE)
