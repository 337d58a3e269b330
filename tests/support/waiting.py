"""Polls for a condition that sends no notification. The timeout is only a bound on a hang."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.05


def until(condition: Callable[[], bool], *, every_s: float = POLL_INTERVAL_S) -> None:
    deadline_s = time.monotonic() + WAIT_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition was never true"
        time.sleep(every_s)
