"""Asks a daemon for its health and readiness, with a timeout."""

from __future__ import annotations

from tests.support.daemon import Daemon, Http

# An answer that takes longer than this counts as a hang.
SOON_S = 20.0


def status(daemon: Daemon, path: str) -> tuple[int, str]:
    http = Http(daemon.port).within(SOON_S)
    reply = http.ask("GET", path)
    http.close()
    return reply.status, reply.body.decode()


def is_ready(daemon: Daemon) -> bool:
    return status(daemon, "/readyz")[0] == 200
