"""`context serve` as it is, but for the times it waits: what takes minutes there takes seconds here."""

from __future__ import annotations

import functools
import sys

from contextfold.cli.main import run
from contextfold.serve import daemon, guard, proxy, upstream

upstream.READ_S = upstream.WRITE_S = 1.5
proxy.EXCHANGE_S = 3.0
daemon.STALLED_S = daemon.HEAD_TIMEOUT_S = 1.5
vars(guard)["Limits"] = functools.partial(guard.Limits, body_timeout_s=1.5, proxied_body_timeout_s=2.5)

if __name__ == "__main__":
    sys.exit(run())
