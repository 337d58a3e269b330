"""Noticing that the documents below a folder have changed, by looking again and again. Builds nothing.

A change is reported once the folder has been the same for two looks in a row, so that a program that writes many files
causes one build. The pause between two looks grows with the time that a look takes: watching a large folder costs a
bounded share of one processor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from contextfold.errors import ContextError
from contextfold.resolve.build import BuildRequest
from contextfold.resolve.rebuild.previous import previous_cache
from contextfold.resolve.sources import Source, survey

PAUSE_MIN_S = 0.5
PAUSE_MAX_S = 30.0
PAUSE_PER_LOOK = 10  # how many times as long as a look a pause is
RESTLESS_LOOKS_MAX = 20  # after so many looks that all differ, a build is tried nevertheless

Pause = Callable[[float], None]
pause: Pause = time.sleep


class Watch:
    """What the documents looked like when the watch began, or when a change was last reported."""

    def __init__(self, request: BuildRequest) -> None:
        self._request = request
        self._seen = self._look()

    def changes(self, wait: Pause) -> Iterator[None]:
        """One item for each change, for ever. `wait` pauses for a number of seconds."""
        restless = 0
        before = self._seen
        while True:
            wait(self._pause_s)
            now = self._look()
            is_settled = now == before
            before = now
            if now == self._seen:
                restless = 0
                continue
            restless += 1
            if is_settled or restless >= RESTLESS_LOOKS_MAX:
                restless = 0
                self._seen = now
                yield

    def _look(self) -> list[Source] | str:
        """The documents, or why they cannot be listed, which is a state like any other."""
        request = self._request
        began = time.monotonic()
        try:
            rules = request.chosen_rules(previous_cache(request.cache) if request.rules is None else None)
            return survey(request.sources, rules, cache=request.cache).sources
        except ContextError as problem:
            return problem.reason
        finally:
            spent_s = time.monotonic() - began
            self._pause_s = min(PAUSE_MAX_S, max(PAUSE_MIN_S, PAUSE_PER_LOOK * spent_s))
