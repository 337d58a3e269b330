"""Decides when old results are left out although a cache holds them: many at once, if that is likely to pay. Pure.

It costs writing again what would have been read from the cache. It saves reading what is left out in this request and
in all later ones. A conversation is expected to go on for as many requests as it has had; the batch must pay in a part
of them.

All messages count as written again. The cache holds those in front of the first change, but a provider may not find
them: clients set their marks at the end, and a search goes back only a few blocks from each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from contextfold.common.tokens import tokens_of
from contextfold.fold.messages.cache_life import HOUR_S
from contextfold.fold.messages.cold_results import ColdResult, ColdSettings
from contextfold.fold.messages.projection import Projection
from contextfold.fold.model_catalog import TokenPrices

# A batch leaves out at least this many tokens.
BATCH_MIN_TOKENS = 20_000
# It must pay in this part of the requests that are expected.
MARGIN = 8
# More requests than these are never expected.
EXPECTED_REQUESTS_MAX = 100


def choose_batch(
    projection: Projection, prices: TokenPrices, settings: ColdSettings, *, salt: str, life_s: float
) -> list[ColdResult]:
    """The results to leave out of a request whose prefix is cached; none if that is not likely to pay."""
    found = projection.cold_results(salt=salt, settings=settings, when="")
    dropped = sum(each.gain_tokens for each in found)
    within = min(len(projection.details.walk.turns), EXPECTED_REQUESTS_MAX) / MARGIN
    gain = prices.cache_read * dropped * within - _cost_of_writing_again(projection, dropped, prices, life_s)
    return found if dropped >= BATCH_MIN_TOKENS and gain > 0 else []


def pays_if_undone(
    projection: Projection,
    chosen: Sequence[ColdResult],
    prices: TokenPrices,
    others: Iterable[TokenPrices],
    *,
    life_s: float,
) -> bool:
    """Whether it pays to leave results out of a lost prefix even if the next request goes to another model again.

    The caches of `others` hold the whole results, so the messages would be written there again.
    """
    dropped = sum(each.gain_tokens for each in chosen)
    saved = _price_of_writing(prices, life_s) * dropped
    return all(_cost_of_writing_again(projection, dropped, each, life_s) <= saved for each in others)


def _cost_of_writing_again(projection: Projection, dropped: int, prices: TokenPrices, life_s: float) -> int:
    """What it costs more to write the messages without what is left out than to read them with it."""
    whole = tokens_of(sum(projection.details.sent_weights))
    return _price_of_writing(prices, life_s) * max(0, whole - dropped) - prices.cache_read * whole


def _price_of_writing(prices: TokenPrices, life_s: float) -> int:
    return prices.cache_write_1h if life_s >= HOUR_S else prices.cache_write_5m
