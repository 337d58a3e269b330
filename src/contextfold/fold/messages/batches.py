"""Decides when old results are left out although a cache holds them: many at once, if that is likely to pay. Pure.

It costs writing again what is sent behind the first change, which would have been read from the cache. It saves reading
what is left out in this request and in all later ones. A conversation is expected to go on for as many requests as it
has had; the batch must pay in a part of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

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
    sent_weights, turns = projection.details.sent_weights, len(projection.details.walk.turns)
    write = _price_of_writing(prices, life_s)
    within = min(turns, EXPECTED_REQUESTS_MAX) / MARGIN
    best_gain = 0.0
    best: list[ColdResult] = []
    chosen: list[ColdResult] = []
    # The later the first change, the less must be written again.
    latest_first = sorted(found, key=attrgetter("place"), reverse=True)
    for place, results in groupby(latest_first, key=attrgetter("place")):
        chosen += results
        dropped = sum(each.gain_tokens for each in chosen)
        rewritten = max(0, tokens_of(sum(sent_weights[place:])) - dropped)
        cost = (write - prices.cache_read) * rewritten - prices.cache_read * dropped
        gain = prices.cache_read * dropped * within - cost
        if dropped >= BATCH_MIN_TOKENS and gain > best_gain:
            best, best_gain = list(chosen), gain
    return best


def pays_if_undone(
    projection: Projection,
    chosen: Sequence[ColdResult],
    prices: TokenPrices,
    others: Iterable[TokenPrices],
    *,
    life_s: float,
) -> bool:
    """Whether it pays to leave results out of a lost prefix even if the next request goes to another model again.

    The caches of `others` hold the whole results, so all behind the first of them would be written there again.
    """
    first = min((each.place for each in chosen), default=0)
    dropped = sum(each.gain_tokens for each in chosen)
    behind = max(0, tokens_of(sum(projection.details.sent_weights[first:])) - dropped)
    saved = _price_of_writing(prices, life_s) * dropped
    costs = (_price_of_writing(each, life_s) * behind - each.cache_read * (behind + dropped) for each in others)
    return all(cost <= saved for cost in costs)


def _price_of_writing(prices: TokenPrices, life_s: float) -> int:
    return prices.cache_write_1h if life_s >= HOUR_S else prices.cache_write_5m
