"""Detects changes of the documents below a folder, and the removal of the cache, by polling. Builds nothing.

A change is reported when two successive polls have the same result, so a program that writes many files causes one
build. The pause between two polls grows with the time that a poll takes, so watching a large folder uses a bounded
share of one processor.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from contextfold.errors import ContextError
from contextfold.resolve.build import BuildRequest
from contextfold.resolve.cache_format import MANIFEST_FILE
from contextfold.resolve.rebuild.previous import previous_cache
from contextfold.resolve.sources import Source, survey

PAUSE_MIN_S = 0.5
PAUSE_MAX_S = 30.0
# A pause is this many times as long as the poll before it.
PAUSE_PER_LOOK = 10
# If the folder keeps changing, a change is reported after this many polls.
RESTLESS_LOOKS_MAX = 20

Pause = Callable[[float], None]
pause: Pause = time.sleep


class Watch:
    """Compares the documents with those at the last reported change, or at the beginning."""

    def __init__(self, request: BuildRequest) -> None:
        self._request = request
        self._seen = self._look()

    def changes(self, wait: Pause) -> Iterator[None]:
        """Yield once for each change since the cache was built, without end. `wait` pauses for a number of seconds."""
        restless = 0
        before = self._seen
        # It may have been removed since.
        was_there, is_removed = True, False
        while True:
            wait(self._pause_s)
            now = self._look()
            is_settled = now == before
            before = now
            # A cache that could not be built is no change: the next attempt would fail, too.
            is_there = os.path.lexists(os.path.join(self._request.target, MANIFEST_FILE.encode()))
            is_removed = not is_there and (is_removed or was_there)
            was_there = is_there
            if now == self._seen and not is_removed:
                restless = 0
                continue
            restless += 1
            if is_settled or restless >= RESTLESS_LOOKS_MAX:
                restless, is_removed = 0, False
                self._seen = now
                yield

    def _look(self) -> list[Source] | str:
        """The documents, or the reason why they cannot be listed. Both are compared with the next poll."""
        request = self._request
        began = time.monotonic()
        try:
            rules = request.choose_rules(previous_cache(request.target) if request.remembers else None)
            return survey(request.folder, rules, cache=request.target).sources
        except ContextError as problem:
            return problem.reason
        finally:
            spent_s = time.monotonic() - began
            self._pause_s = min(PAUSE_MAX_S, max(PAUSE_MIN_S, PAUSE_PER_LOOK * spent_s))
