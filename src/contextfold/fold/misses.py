"""Lists the requests before which a provider's cache had lost a part of the prompt: why, whose doing, the price. Pure.

The proxy compares each request with the one before (`messages.prefix_miss`); the event has the cause and the tokens.
What it cost is the price at which those tokens were written, less that of reading them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from contextfold.common.canonical import Encodable, Hundredths, JsonObject
from contextfold.fold.events import Event, MissCause, PrefixMiss, RequestSent
from contextfold.fold.ledger import WORTH
from contextfold.fold.model_catalog import LedgerPrices, TokenPrices

# Only the latest are listed; the sums have all.
MISSES_LISTED_MAX = 200
NANODOLLARS_PER_MICRO = 1_000

_WHY: Mapping[str, str] = {
    MissCause.MODEL: "another model, which has a cache of its own",
    MissCause.TOOLS: "the tools changed",
    MissCause.TOOL_ORDER: "the tools came in another order",
    MissCause.SYSTEM: "the system prompt changed",
    MissCause.MESSAGE: "message {} was changed or removed",
    MissCause.REMINDER: "a reminder of the host moved or changed in message {}",
    MissCause.BACK: "the conversation went back to message {}",
    MissCause.COMPACTED: "the history was compacted",
    MissCause.FORK: "the conversation was forked",
    MissCause.PAUSE: "a pause longer than the life of the cache",
    MissCause.FOLD: "work was folded from message {} on",
    MissCause.LEFT_OUT: "results were left out, but their part of the prompt was still cached",
    MissCause.OURS: "the proxy changed message {}, which was sent before; this is a bug",
    MissCause.PROVIDER: "nothing had changed, but the provider's cache did not have it",
}
HOST, OURS_WORD, NOBODY = "host", "contextfold", "nobody"


class Miss(NamedTuple):
    event: RequestSent
    miss: PrefixMiss
    # In hundredths of an input token, and in nanodollars; None if the model's prices are not known.
    cost: int
    money: int | None


class MissSums:
    def __init__(self) -> None:
        self.misses = 0
        self.tokens = 0
        self.cost = 0
        # None if a price is not known.
        self.money: int | None = 0

    def add(self, each: Miss) -> None:
        self.misses += 1
        self.tokens += each.miss.tokens
        self.cost += each.cost
        self.money = None if self.money is None or each.money is None else self.money + each.money


class MissLog:
    """The misses of a session. Its events must be taken in order and once."""

    def __init__(self, prices: LedgerPrices) -> None:
        self._prices = prices
        self.requests = 0
        self.sums = MissSums()
        self.causes: dict[str, MissSums] = {}
        self.latest: list[Miss] = []

    def take(self, event: Event) -> None:
        if not isinstance(event, RequestSent):
            return
        self.requests += 1
        for miss in event.misses:
            prices, is_money = self._prices.of(event.model)
            units = miss.tokens * _extra_price(event, prices)
            each = Miss(event, miss, round(WORTH * units / prices.input), round(units) if is_money else None)
            self.sums.add(each)
            self.causes.setdefault(miss.cause, MissSums()).add(each)
            self.latest = [*self.latest[-MISSES_LISTED_MAX + 1 :], each]

    def result(self) -> JsonObject:
        """The misses as JSON, the latest last."""
        causes = sorted(self.causes.items(), key=lambda item: -item[1].cost)
        return {
            "requests": self.requests,
            "total": _sums_members(self.sums),
            "causes": [{"cause": cause, **_sums_members(sums)} for cause, sums in causes],
            "misses": [_members(each) for each in self.latest],
        }


def misses_of(events: Iterable[Event], prices: LedgerPrices) -> MissLog:
    misses = MissLog(prices)
    for event in events:
        misses.take(event)
    return misses


def explain_miss(miss: PrefixMiss) -> str:
    """A few words that say why a part of the prompt was not cached."""
    text = _WHY.get(miss.cause, miss.cause).format("?" if miss.place is None else miss.place + 1)
    return f"{text}: {miss.detail}" if miss.detail else text


def _extra_price(event: RequestSent, prices: TokenPrices) -> float:
    """The mean price of the tokens that the request did not read from the cache, less that of reading them."""
    written = event.cache_write_tokens or 0
    written_1h = min(written, event.cache_write_1h_tokens)
    plain, written_5m = event.input_tokens or 0, written - written_1h
    if not plain + written:
        return 0.0
    paid = plain * prices.input + written_5m * prices.cache_write_5m + written_1h * prices.cache_write_1h
    return max(0.0, paid / (plain + written) - prices.cache_read)


def _members(each: Miss) -> dict[str, Encodable]:
    event, miss = each.event, each.miss
    whose = OURS_WORD if miss.is_ours else NOBODY if miss.cause in (MissCause.PAUSE, MissCause.PROVIDER) else HOST
    read, rest = event.cache_read_tokens or 0, (event.input_tokens or 0) + (event.cache_write_tokens or 0)
    return {
        "n": event.n,
        "at": event.at,
        "model": event.model,
        "cause": miss.cause,
        "whose": whose,
        "is_bug": miss.cause == MissCause.OURS,
        "why": explain_miss(miss),
        "message": miss.place,
        "tokens_sent": read + rest,
        "tokens_read": read,
        "tokens_lost": miss.tokens,
        "cost": Hundredths(each.cost / WORTH),
        "micros": None if each.money is None else each.money // NANODOLLARS_PER_MICRO,
    }


def _sums_members(sums: MissSums) -> dict[str, Encodable]:
    return {
        "misses": sums.misses,
        "tokens_lost": sums.tokens,
        "cost": Hundredths(sums.cost / WORTH),
        "micros": None if sums.money is None else sums.money // NANODOLLARS_PER_MICRO,
    }
