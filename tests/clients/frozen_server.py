"""The stdio server, except that its first worker process is stopped when it starts.

Nothing of the server is replaced. The second worker runs, so the next call is answered.
"""

from __future__ import annotations

import os
import signal

from contextfold.cli.main import run_stdio_server

FROZEN_WORKERS = 1
forks = 0


def _count() -> None:
    global forks  # noqa: PLW0603 - the hooks of a fork share nothing else
    forks += 1


def _freeze() -> None:
    if forks <= FROZEN_WORKERS:
        os.kill(os.getpid(), signal.SIGSTOP)


os.register_at_fork(before=_count, after_in_child=_freeze)
run_stdio_server()
