"""The time that a store has seen pass. Expiry counts this time, so that a clock that is wrong deletes nothing. Pure.

Every sweep shows the store the time of its machine. A small step forward is time that has passed: a night, a weekend, a
restart. A step of more than FAR_AHEAD is either a clock that is wrong or a store that nobody used for long, and nobody
can tell them apart. Such a step is a gap: time that the store has not seen. Spans of time are counted without the gaps
in them. What was stored before a gap is kept that much longer, and what is stored after it expires as always.

A clock that shows a time before the end of a gap says that the gap was a mistake; it is then forgotten. A clock that is
behind in any other way changes nothing: the store waits until that clock has caught up.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

from contextfold.common.canonical import Malformed, decode, encode
from contextfold.errors import StoreInvalid
from contextfold.fold.events import timestamp

FAR_AHEAD: Final = timedelta(days=7)
# No clock is right that shows a time before this program was written. A new store has seen nothing since then, so the
# clock that it begins with can turn out to be wrong like any other.
BEGINNING: Final = "2026-01-01T00:00:00Z"
# A store is told the time again after this long; more often would only cost commits.
NOTED_EVERY: Final = timedelta(hours=1)
GAPS_MAX: Final = 32


class StoreClock(NamedTuple):
    """The latest time that a store has seen, and the gaps before it as (last time seen, next time seen)."""

    seen: str = BEGINNING
    gaps: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def of_content(newest: str) -> StoreClock:
        """What a store without a record has seen: the latest time in it, or nothing."""
        try:
            return StoreClock(timestamp(_parse(newest)))
        except ValueError:
            return StoreClock()

    def observe(self, now: datetime) -> StoreClock:
        """What the store has seen after a machine showed it this time."""
        at, seen, gaps = timestamp(now), self.seen, list(self.gaps)
        if at < BEGINNING:
            return self
        while gaps and at < gaps[-1][1]:
            seen, _ = gaps.pop()
        if now - _parse(seen) > FAR_AHEAD:
            gaps.append((seen, at))
        return StoreClock(max(seen, at), tuple(gaps[-GAPS_MAX:]))

    def is_worth_noting(self, before: StoreClock) -> bool:
        return self.gaps != before.gaps or _parse(self.seen) - _parse(before.seen) >= NOTED_EVERY

    def ago(self, now: datetime, span: timedelta) -> str:
        """The time since which the store has seen so much time pass."""
        for start, end in reversed(self.gaps):
            passed = max(now - _parse(end), timedelta())
            if span <= passed:
                break
            span -= passed
            now = _parse(start)
        return timestamp(now - span)

    def last_gap(self, since: str) -> tuple[str, str] | None:
        """The last gap that ended after a time, without the one before the store's beginning."""
        start, end = self.gaps[-1] if self.gaps else ("", "")
        return (start, end) if start > BEGINNING and end > since else None

    def to_json(self) -> str:
        return encode({"seen": self.seen, "gaps": [list(gap) for gap in self.gaps]})

    @staticmethod
    def from_json(text: str | bytes) -> StoreClock:
        try:
            document: Any = decode(text if isinstance(text, bytes) else text.encode())
            clock = StoreClock(document["seen"], tuple((start, end) for start, end in document["gaps"]))
            for time in (clock.seen, *(time for gap in clock.gaps for time in gap)):
                _parse(time)
        except (Malformed, KeyError, TypeError, ValueError) as problem:
            raise StoreInvalid(f"the store has a record of its clock that cannot be read: {problem}") from problem
        return clock


# Every call of a tool asks how long its session was idle, and so for the times of the same gaps.
@lru_cache(2 * GAPS_MAX)
def _parse(time: str) -> datetime:
    return datetime.strptime(time, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
