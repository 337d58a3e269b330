"""A cache of what is known about sessions, bounded by its weight. Knows nothing of what is cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from contextfold.fold.ports.store import SessionKey

Value = TypeVar("Value")


class SessionCache(Generic[Value]):
    """Drops what was put in the longest time ago when the sum of all weights is too large."""

    def __init__(self, weight_of: Callable[[Value], int], weight_most: int) -> None:
        self._weight_of = weight_of
        self._weight_most = weight_most
        # A value may grow after it was put in, so its weight in the sum is stored with it.
        self._values: OrderedDict[SessionKey, tuple[Value, int]] = OrderedDict()
        self._weight = 0

    def get(self, key: SessionKey) -> Value | None:
        value, _ = self._values.get(key, (None, 0))
        return value

    def put(self, key: SessionKey, value: Value) -> None:
        self.forget(key)
        weight = self._weight_of(value)
        self._values[key] = value, weight
        self._weight += weight
        while self._weight > self._weight_most and len(self._values) > 1:
            self.forget(next(iter(self._values)))

    def forget(self, key: SessionKey) -> None:
        _, weight = self._values.pop(key, (None, 0))
        self._weight -= weight
