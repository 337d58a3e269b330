"""A cache in memory that is limited in size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedCache(Generic[Key, Value]):
    """Drops what was put in the longest time ago when the sum of all weights is too large.

    Without `weigh` each value weighs 1.
    """

    def __init__(self, weight_max: int, weigh: Callable[[Value], int] = lambda _: 1) -> None:
        self._weight_max, self._weigh = weight_max, weigh
        # A value may grow after it was put in, so its weight in the sum is stored with it.
        self._values: dict[Key, tuple[Value, int]] = {}
        self._weight = 0

    def get(self, key: Key) -> Value | None:
        value, _ = self._values.get(key, (None, 0))
        return value

    def put(self, key: Key, value: Value) -> None:
        self.forget(key)
        weight = self._weigh(value)
        self._values[key] = value, weight
        self._weight += weight
        while self._weight > self._weight_max and len(self._values) > 1:
            self.forget(next(iter(self._values)))

    def forget(self, key: Key) -> None:
        _, weight = self._values.pop(key, (None, 0))
        self._weight -= weight
