"""What a person or a program gets to see: bytes on stdout, two lines on stderr, a line of progress on a terminal.

Everything is written as UTF-8 bytes, so that no locale changes an answer. Knows streams, not commands.
"""

from __future__ import annotations

import sys
import time

from contextfold.common.descriptors import write_all
from contextfold.errors import StorageFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

PROGRESS_EVERY_S = 0.1
YES = ("y", "yes")
ANSWER_LENGTH = 100
CLEAR_LINE = "\r\x1b[K"
# Characters that are no C0 or C1 control and yet turn the direction of what follows, or end a line.
TURNING = "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def print_answer(text: str) -> None:
    """Write an answer to stdout, whole, or fail."""
    if sys.stdout is None:  # closed by whoever started us
        raise StorageFailed("cannot write the answer: stdout is closed; send it to a file or a pipe")
    try:
        _write_all(sys.stdout, text)
    except OSError as problem:
        raise StorageFailed(
            f"cannot write the answer to stdout: {problem.strerror}; what was written of it is not whole"
        ) from problem


def print_error(error: str, *reasons: str) -> None:
    """Tell on stderr what went wrong, and for each reason where, and what to do."""
    _to_stderr(f"error: {plain(error)}\n" + "".join(f"reason: {plain(reason)}\n" for reason in reasons))


def print_error_line(text: str) -> None:
    """Tell on stderr in one line, as a program that starts us expects it."""
    _to_stderr(f"error: {plain(text)}\n")


def plain(text: str) -> str:
    """One line without control characters: a file's name must not draw on the terminal or forge a line of ours."""
    if text.isascii() and text.isprintable():
        return text
    controls = (f"\\x{ord(c):02x}" if c < " " or "\x7f" <= c < "\xa0" else c for c in text)
    return "".join(f"\\u{ord(c):04x}" if c in TURNING else c for c in controls)


def plain_lines(text: str) -> str:
    """A text of several lines whose control characters other than line breaks and tabs are escaped."""
    return "\n".join("\t".join(map(plain, line.split("\t"))) for line in text.split("\n"))


def print_on_terminal(text: str) -> None:
    """Tell a person who is watching; a pipe stays silent."""
    if _watched():
        _to_stderr(plain(text) + "\n")


def print_on_stderr(text: str) -> None:
    """Write on stderr what was made for a terminal, as it is."""
    _to_stderr(text)


def print_note(text: str) -> None:
    """Tell something on stderr that is no failure."""
    _to_stderr(f"note: {text}\n")


def can_ask() -> bool:
    """Whether somebody can read a question and answer it."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def ask_yes_no(question: str) -> bool:
    """Ask; anything but yes is no."""
    print_on_stderr(f"{question} [y/N] ")
    return sys.stdin.readline(ANSWER_LENGTH).strip().lower() in YES


def _watched() -> bool:
    """Whether a person sees stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


def _to_stderr(text: str) -> None:
    if sys.stderr is None:
        return
    try:
        _write_all(sys.stderr, text)
    except OSError:
        # Nobody reads stderr.
        pass


def _write_all(stream: TextIO, text: str) -> None:
    """Past every buffer, so that nothing is tried again when the interpreter ends."""
    raw = text.encode("utf-8", "surrogateescape")
    try:
        descriptor = stream.fileno()
    except OSError:  # a stream in memory, which takes all at once
        stream.buffer.write(raw)
    else:
        write_all(descriptor, raw)


class ProgressLine:
    """One line on a terminal that counts along; silence anywhere else."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._wanted = _watched()
        self._next_at_s = time.monotonic() + PROGRESS_EVERY_S
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        if done == total:
            self.clear()
        else:
            self.tell(f"{done:,} of {total:,} documents ({100 * done // total}%)")

    def tell(self, how_far: str) -> None:
        if self._wanted and time.monotonic() >= self._next_at_s:
            self._next_at_s = time.monotonic() + PROGRESS_EVERY_S
            self._shown = True
            _to_stderr(f"{CLEAR_LINE}{self._doing} {how_far}")

    def clear(self) -> None:
        if self._shown:
            self._shown = False
            _to_stderr(CLEAR_LINE)
