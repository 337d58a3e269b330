"""Default signals for the processes that tests start, however the tests themselves were started.

A shell without job control starts a background job with SIGINT and SIGQUIT ignored, nohup ignores SIGHUP, and a signal
mask is inherited too. An ignored signal stays ignored in every child; a signal with a handler gets its default there.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

INHERITED = (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing, because the process that started the tests ignored the signal on purpose."""


def give_children_default_signals() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in INHERITED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignore)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def lead_process_group() -> None:
    """Puts this worker of a test run, and what it starts, into a process group of their own.

    Tests pause processes. If the shell that started the run ended at that moment, the system would send SIGHUP to the
    whole group of a paused process.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.setpgid(0, 0)
