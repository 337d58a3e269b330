"""What a daemon says of itself, asked with an end to the waiting."""

from __future__ import annotations

from tests.support.daemon import Daemon, Http

SOON_S = 20.0  # an answer that takes longer is taken for a hang


def status(daemon: Daemon, path: str) -> tuple[int, str]:
    http = Http(daemon.port).within(SOON_S)
    reply = http.ask("GET", path)
    http.close()
    return reply.status, reply.body.decode()


def is_ready(daemon: Daemon) -> bool:
    return status(daemon, "/readyz")[0] == 200
