"""The daemon's log: JSON on stderr, one object per line.

    {"at":"2026-07-28T12:00:00.000Z","level":"info","event":"http.request","method":"POST","route":"/mcp",…}

Records of other packages have the same format without their messages, which may quote a request: the logger, the level,
the exception's type and the line are logged. If stderr is not read, lines are lost; the next line that can be written
has their number. Knows descriptors, nothing of HTTP.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from types import TracebackType

from contextfold.common.posix import STDERR, fill_standard_descriptors, is_writable
from contextfold.errors import place_in, place_of, shorten_path

Field = str | int | float | bool | None

# A pipe accepts up to this many bytes atomically.
LINE_MAX_BYTES = getattr(select, "PIPE_BUF", 512)
VALUE_MAX_CHARS = 200
# Records below this level repeat lines of this log or contents of requests.
LIBRARY_LEVEL = logging.WARNING
# uvicorn's record of a response that the daemon has cut on purpose and logs itself.
CUT_RECORD = "ASGI callable returned without completing response."

_RESERVED = ("at", "level", "event")
# The output is ASCII, so that no value can end or forge a line.
_json = json.JSONEncoder(separators=(",", ":"))


class LogStream:
    """Writes lines to stderr unless it would block, and counts the lines that are lost."""

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
            return is_writable(STDERR, 0) and os.write(STDERR, line) == len(line)
        except OSError:
            return False


_stderr = LogStream()


def log(event: str, level: str = "info", **fields: Field) -> None:
    """Write one line. Its fields are fixed names and numbers, never a caller's input."""
    _stderr.write(_line(event, level, fields))


def _line(event: str, level: str, fields: Mapping[str, Field]) -> bytes:
    now_s, ms = divmod(time.time_ns() // 1_000_000, 1000)
    head: dict[str, Field] = {
        "at": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now_s))}.{ms:03}Z",
        "level": level,
        "event": event[:VALUE_MAX_CHARS],
    }
    line = _encode(head | {name: _limit_value(value) for name, value in fields.items() if name not in head})
    return line if len(line) <= LINE_MAX_BYTES else _encode(head | {"cut": True})


def _encode(members: Mapping[str, Field]) -> bytes:
    if _is_terminal():
        return format_for_terminal(members)
    return _json.encode(members).encode("ascii") + b"\n"


def format_for_terminal(members: Mapping[str, Field]) -> bytes:
    """A line for a person at a terminal: the time of day, the level unless it is info, the event and its fields."""
    clock = str(members["at"])[11:19]
    level = "" if members["level"] == "info" else f"{members['level']} "
    # Values are encoded as JSON, so that no control character reaches the terminal.
    fields = " ".join(f"{name}={_json.encode(value)}" for name, value in members.items() if name not in _RESERVED)
    return f"{clock} {level}{members['event']} {fields}".rstrip().encode("ascii", "replace") + b"\n"


@cache
def _is_terminal() -> bool:
    return os.isatty(STDERR)


def _limit_value(value: Field) -> Field:
    if isinstance(value, str):
        return value if len(value) <= VALUE_MAX_CHARS else value[: VALUE_MAX_CHARS - 1] + "…"
    return value if isinstance(value, int | float | None) else type(value).__name__


class LibraryLogHandler(logging.Handler):
    """Logs the records of other packages without their messages."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == CUT_RECORD:
            return
        fields: dict[str, Field] = {
            "logger": record.name,
            "logged_at": f"{shorten_path(record.pathname)}:{record.lineno}",
        }
        problem = record.exc_info[1] if record.exc_info else None
        if problem is not None:
            fields |= {"exception": type(problem).__name__, "raised_at": place_of(problem)}
        log("library", record.levelname.lower(), **fields)


def take_over() -> None:
    """Make all output to stderr lines of this log. It must be called once, before any file is opened."""
    fill_standard_descriptors()
    root = logging.getLogger()
    root.handlers[:] = [LibraryLogHandler()]
    root.setLevel(LIBRARY_LEVEL)
    logging.raiseExceptions = False
    logging.captureWarnings(True)
    threading.excepthook = lambda args: _uncaught("thread", args.exc_type, args.exc_traceback)
    sys.unraisablehook = lambda args: _uncaught("cleanup", args.exc_type, args.exc_traceback)


def _uncaught(where: str, kind: type[BaseException], trace: TracebackType | None) -> None:
    log("uncaught", "error", where=where, exception=kind.__name__, raised_at=place_in(trace))
