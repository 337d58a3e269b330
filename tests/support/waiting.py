"""Waiting for what happens by itself and tells nobody. Every wait has an end: a bound on a hang, no more."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 60.0
ASKED_EVERY_S = 0.05


def until(holds: Callable[[], bool], *, every_s: float = ASKED_EVERY_S) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_s, "it never came"
        time.sleep(every_s)
