"""The stdio server where its first worker gets no time: stopped at birth, as the system can stop any process.

Nothing of the server is replaced. The second worker lives, so whoever asks again is answered.
"""

from __future__ import annotations

import os
import signal

from contextfold.cli.main import run_stdio_server

FROZEN = 1
births = 0


def _count() -> None:
    global births  # noqa: PLW0603 - the hooks of a fork share nothing else
    births += 1


def _freeze() -> None:
    if births <= FROZEN:
        os.kill(os.getpid(), signal.SIGSTOP)


os.register_at_fork(before=_count, after_in_child=_freeze)
run_stdio_server()
