"""Reduces the points of a timeline to as many as a screen can show. Knows nothing of what they measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

AnyPoint = TypeVar("AnyPoint")

# A timeline has at most this many points; a screen cannot show many more.
POINTS_MAX = 240


def thinned(points: Sequence[AnyPoint], most: int = POINTS_MAX, *, height: Callable[[AnyPoint], int]) -> list[AnyPoint]:
    """Reduce the number of points: take the peak and the end of each interval, so that no peak is lost."""
    if len(points) <= most:
        return list(points)
    stretches = most // 2
    chosen: list[AnyPoint] = []
    for stretch in range(stretches):
        part = points[len(points) * stretch // stretches : len(points) * (stretch + 1) // stretches]
        peak = max(part, key=height)
        chosen += [peak] if peak is part[-1] else [peak, part[-1]]
    return chosen
