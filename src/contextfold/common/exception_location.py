"""Where an exception came from: file and line, and nothing of what it says, which may quote what a caller sent."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


def place_of(problem: BaseException) -> str:
    return place_in(problem.__traceback__)


def place_in(trace: TracebackType | None) -> str:
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"{short(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else "unknown"


def short(path: str) -> str:
    """A file as package/module: the folders above it are the machine's business."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])
