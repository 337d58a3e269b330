"""Waiting for what a daemon or a server does by itself and tells nobody. Every wait has an end."""

from __future__ import annotations

import time
from collections.abc import Callable

from daemon import Daemon, Http

SOON_S = 20.0  # an answer that takes longer is taken for a hang
BACK_S = 60.0
ASKED_EVERY_S = 0.05


def until(holds: Callable[[], bool]) -> None:
    """Wait for something that nobody tells; the time is a bound on a hang."""
    give_up_s = time.monotonic() + BACK_S
    while not holds():
        assert time.monotonic() < give_up_s, "it never came"
        time.sleep(ASKED_EVERY_S)


def status(daemon: Daemon, path: str) -> tuple[int, str]:
    http = Http(daemon.port).within(SOON_S)
    reply = http.ask("GET", path)
    http.close()
    return reply.status, reply.body.decode()


def is_ready(daemon: Daemon) -> bool:
    return status(daemon, "/readyz")[0] == 200
