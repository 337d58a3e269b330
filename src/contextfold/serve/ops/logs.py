"""What the daemon tells its operator: JSON on stderr, an object a line.

    {"at":"2026-07-28T12:00:00.000Z","level":"info","event":"http.request","method":"POST","route":"/mcp",…}

What other packages log comes out in the same shape, but never in their words: their messages and exceptions may quote
a request. Of those the logger, the level, the type and the place are told, which is enough to find the line. A stderr
that nobody reads loses lines, and the next line that gets through says how many. Knows descriptors, nothing of HTTP.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import threading
import time
from types import TracebackType

from contextfold.common.descriptors import WRITABLE, wait
from contextfold.common.exception_location import place_in, place_of, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    Field = str | int | float | bool | None

STDERR = 2
LINE_MAX_BYTES = getattr(select, "PIPE_BUF", 512)  # what a pipe that can be written takes at once, whole
VALUE_MAX_CHARS = 200
FIELDS_MAX = 16
LIBRARY_LEVEL = logging.WARNING  # below it other packages tell what we tell ourselves, or what was asked of us
CUT = "ASGI callable returned without completing response."  # by us, on purpose, and told in a line of our own

_RESERVED = ("at", "level", "event")
_json = json.JSONEncoder(separators=(",", ":"))  # ASCII, so that nothing in a value can end or forge a line


class _Stderr:
    """Takes lines as long as somebody reads them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost = 0

    def write(self, line: bytes) -> None:
        with self._lock:
            if self._lost and self._put(_line("log.lost", "warning", {"lines": self._lost})):
                self._lost = 0
            if self._lost or not self._put(line):
                self._lost += 1

    @staticmethod
    def _put(line: bytes) -> bool:
        try:
            return wait(STDERR, WRITABLE, 0) and os.write(STDERR, line) == len(line)
        except OSError:
            return False


_stderr = _Stderr()


def log(event: str, level: str = "info", **fields: Field) -> None:
    """One line for the operator. Give it names and figures of ours, never what a caller sent."""
    _stderr.write(_line(event, level, fields))


def _line(event: str, level: str, fields: Mapping[str, Field]) -> bytes:
    now_s, ms = divmod(time.time_ns() // 1_000_000, 1000)
    head: dict[str, Field] = {
        "at": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now_s))}.{ms:03}Z",
        "level": level,
        "event": event[:VALUE_MAX_CHARS],
    }
    kept = [(name, _bounded(value)) for name, value in fields.items() if name not in _RESERVED][:FIELDS_MAX]
    line = _encoded(head | dict(kept))
    return line if len(line) <= LINE_MAX_BYTES else _encoded(head | {"cut": True})


def _encoded(members: Mapping[str, Field]) -> bytes:
    return _json.encode(members).encode("ascii") + b"\n"


def _bounded(value: Field) -> Field:
    if isinstance(value, str):
        return value if len(value) <= VALUE_MAX_CHARS else value[: VALUE_MAX_CHARS - 1] + "…"
    return value if isinstance(value, int | float | None) else type(value).__name__


class _Library(logging.Handler):
    """Other packages' records, without their words."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == CUT:
            return
        fields: dict[str, Field] = {
            "logger": record.name,
            "logged_at": f"{short(record.pathname)}:{record.lineno}",
        }
        problem = record.exc_info[1] if record.exc_info else None
        if problem is not None:
            fields |= {"exception": type(problem).__name__, "raised_at": place_of(problem)}
        log("library", record.levelname.lower(), **fields)


def take_over() -> None:
    """From now on all that goes to stderr goes as these lines. Call it once, before anything is opened."""
    _fill_standard_descriptors()
    root = logging.getLogger()
    root.handlers[:] = [_Library()]
    root.setLevel(LIBRARY_LEVEL)
    logging.raiseExceptions = False
    logging.captureWarnings(True)
    threading.excepthook = lambda args: _uncaught("thread", args.exc_type, args.exc_traceback)
    sys.unraisablehook = lambda args: _uncaught("cleanup", args.exc_type, args.exc_traceback)


def _uncaught(where: str, kind: type[BaseException], trace: TracebackType | None) -> None:
    log("uncaught", "error", where=where, exception=kind.__name__, raised_at=place_in(trace))


def _fill_standard_descriptors() -> None:
    """Where one of the first three is closed, the next thing opened gets its number: log lines would go to a client."""
    for _ in range(STDERR + 1):
        opened = os.open(os.devnull, os.O_RDWR)
        if opened > STDERR:
            os.close(opened)
            return
