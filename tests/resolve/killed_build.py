"""Kills the process in which it is called with SIGKILL at a step that touches a file."""

from __future__ import annotations

import os
import signal
import sys

from contextfold.resolve import replace

STEPS = {
    "open",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.listdir",
    "os.scandir",
    "os.utime",
    "os.truncate",
    "ctypes.dlsym",
}


def kill_at_step(step: int, *, has_exchange: bool = True) -> None:
    """Without `has_exchange`, the file system does not have the call that exchanges two folders."""
    if not has_exchange:
        replace._EXCHANGE = replace._NO_REPLACE = 1 << 30
    remaining_steps = step

    def count_down(event: str, _arguments: object) -> None:
        nonlocal remaining_steps
        if event in STEPS:
            remaining_steps -= 1
            if remaining_steps == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count_down)
