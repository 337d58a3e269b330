"""The file and line of an exception. Its message is not used, because it may quote a caller's input."""

from __future__ import annotations

from types import TracebackType


def place_of(problem: BaseException) -> str:
    return place_in(problem.__traceback__)


def place_in(trace: TracebackType | None) -> str:
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"{short(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else "unknown"


def short(path: str) -> str:
    """A file's path reduced to package/module, without the folders of the machine."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])
