"""How many requests and bytes the daemon handles at a time, in total and for each owner. Pure.

There is room for three kinds of requests, each apart from the others, so that none can take the room of another:

    requests    what the daemon answers itself, usually within milliseconds
    proxied     requests to models, which may wait for a provider for minutes
    streams     event streams, which may last for hours; they count as requests until they have begun

If there are several owners, none of them gets more than its share of any.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

# One of several owners gets at most one part in this many.
OWNER_SHARES = 2


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The limits of the daemon."""

    requests: int = 256
    proxied: int = 1024
    streams: int = 512
    body_bytes: int = 4 << 20
    # The bytes of all bodies together.
    buffered_bytes: int = 64 << 20
    # The time for a whole body, or for the next part of a proxied body.
    body_timeout_s: float = 30.0
    proxied_body_bytes: int = 512 << 20
    # The time for a whole proxied body.
    proxied_body_timeout_s: float = 600.0
    # The time in which a client must read enough of a response that the next part can be sent.
    response_timeout_s: float = 30.0


class OwnerCount:
    """A count in total and for each owner, with limits. An owner with nothing to count is not in it.

    Who asks whether it is exceeded counts itself first.
    """

    def __init__(self, limit: int, limit_of_owner: int) -> None:
        self._limit, self._limit_of_owner = limit, limit_of_owner
        self.total = 0
        self.by_owner: Counter[str] = Counter()

    def add(self, owner: str, number: int = 1) -> None:
        self.total += number
        self.by_owner[owner] += number
        if not self.by_owner[owner]:
            del self.by_owner[owner]

    def is_exceeded(self) -> bool:
        """Whether more is counted than the limit allows."""
        return self.total > self._limit

    def is_exceeded_for(self, owner: str) -> bool:
        """Whether more is counted than the limit allows, in total or for this owner."""
        return self.is_exceeded() or self.by_owner[owner] > self._limit_of_owner


class RequestCapacity:
    """The used part of the limits."""

    def __init__(self, limits: RequestLimits, *, has_owners: bool = False) -> None:
        self.limits = limits
        shares = OWNER_SHARES if has_owners else 1

        def make_count(limit: int, least: int = 1) -> OwnerCount:
            return OwnerCount(limit, max(least, limit // shares))

        self.requests, self.proxied = make_count(limits.requests), make_count(limits.proxied)
        self.streams = make_count(limits.streams)
        # An owner can send at least one body of the largest size.
        self.buffered_bytes = make_count(limits.buffered_bytes, limits.body_bytes)
        self.is_stopping = False
