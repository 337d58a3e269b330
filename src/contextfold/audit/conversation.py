"""A conversation as a host recorded it: each request to the model with its history and the provider's usage. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from contextfold.fold.messages import Format
from contextfold.fold.model_catalog import TokenPrices

Message = dict[str, Any]


class RecordedUsage(NamedTuple):
    """The provider's counts of a request. No token is in two of them."""

    input: int
    cache_read: int
    cache_write_5m: int
    cache_write_1h: int
    output: int

    @property
    def prompt(self) -> int:
        """All tokens of the prompt."""
        return self.input + self.cache_read + self.cache_write_5m + self.cache_write_1h

    def cost(self, prices: TokenPrices) -> int:
        return sum(count * price for count, price in zip(self, _in_order_of_usage(prices), strict=True))


def _in_order_of_usage(prices: TokenPrices) -> tuple[int, ...]:
    return prices.input, prices.cache_read, prices.cache_write_5m, prices.cache_write_1h, prices.output


class RecordedRequest(NamedTuple):
    """A request. Of the history the first `unchanged` messages are those of the conversation's request before."""

    # When it was sent and when its response ended, in seconds since 1970.
    at: float
    ended: float
    model: str
    usage: RecordedUsage
    history: Sequence[Message]
    unchanged: int
    is_after_compaction: bool = False
    # The version of the host that sent it.
    version: str = ""
    # Whether another transcript has recorded the same request: a host copies a history when it is resumed or forked.
    is_copy: bool = False


class Conversation(NamedTuple):
    host: str
    format: Format
    # Identifies the conversation; a subagent has its own.
    id: str
    # The folder that the agent worked in.
    project: str
    is_subagent: bool = False
