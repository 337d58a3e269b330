"""Default signals for the processes that tests start, however the tests themselves were started.

A shell without job control starts a background job with SIGINT and SIGQUIT ignored, nohup ignores SIGHUP, and a signal
mask is inherited too. What is ignored stays ignored in every child; what has a handler gets its default there.
"""

from __future__ import annotations

import signal
from types import FrameType

INHERITED = (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing in this process: whoever started it ignored the signal on purpose."""


def give_children_default_signals() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in INHERITED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignore)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
