"""What folding saved or cost at the provider: each request as it was sent, held against the same without folding. Pure.

Prices are in an input token's worth and come from outside; nothing of them is in the log. Everything is counted in
hundredths of a token, in integers. Requests are taken in order and each is judged by what was known then, so the ledger
of a longer log only adds to that of a shorter one.

What was sent is known: the provider's own figures, at the prices. What would have been sent is a model:

    its size    the estimate before folding, corrected by as much as the estimate of what was sent was off; not where
                that is off by so much that something was sent which no estimate sees
    its cache   what folding took out would have been read from the cache too, if the cache reached that far; if it did
                not by far, it would not have been read either
    a new fold  the request before it had sent all but what is new, so all of that would have been read; what the
                provider did not read of the part before the cut is therefore the fold's doing
    the rest    what is not read costs what it cost in that very request: written, plain, or some of each

So a session without folds costs the same either way, whatever the cache did. Where a provider told nothing, the
estimate stands for its figures, and the cache is taken to hold all that was sent before, if it was ever seen to hold
anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from contextfold.common.canonical import Encodable, Hundredths
from contextfold.fold.events import BranchCreated, Event, RequestSent
from contextfold.fold.ledger.provider_counts import OFF_MOST
from contextfold.fold.service.session_views import POINTS_MOST, thinned

PLAIN = 100  # hundredths that an input token costs
POINTS_KEPT = 4 * POINTS_MOST  # more than are told, so that thinning them again and again loses no height
FOLDS_TOLD = 200  # the latest ones
NEARLY_PERCENT = 90  # of what comes before a cut: caches read in steps, and estimates are not exact
MODELS_MOST = 64  # of a session that are told apart
NOISE = 8  # tokens by which the sum of parts may differ from an estimate of the whole, for each part


@dataclass(frozen=True, slots=True)
class Prices:
    """Of tokens from and to a cache, in hundredths of an input token's."""

    cache_read_percent: int = 10
    cache_write_percent: int = 125


@dataclass(frozen=True, slots=True)
class Point:
    """A request: the tokens that were sent, and those that would have been."""

    n: int
    at: str
    sent: int
    without: int


@dataclass(slots=True)
class Folded:
    """A branch that was left out of requests, and what that has come to."""

    branch_id: str
    description: str
    tokens: int  # dropped, estimated
    kept_tokens: int  # sent before the cut, estimated
    requests: int = 0  # without it
    saved: int = 0  # in hundredths; negative if it cost more


@dataclass(frozen=True, slots=True)
class Ledger:
    """Costs are in hundredths of an input token."""

    prices: Prices
    requests: int
    estimated_requests: int
    tokens_sent: int
    tokens_without: int
    cost_sent: int
    cost_without: int
    output_tokens: int
    failed_open: Mapping[str, int]
    folds: Sequence[Folded]
    points: Sequence[Point]

    @property
    def cost_saved(self) -> int:
        return self.cost_without - self.cost_sent

    @property
    def costly(self) -> list[Folded]:
        """The folds that cost more than they saved."""
        return [fold for fold in self.folds if fold.saved < 0]


def ledger_of(events: Iterable[Event], prices: Prices) -> Ledger:
    book = Book(prices)
    for event in events:
        book.take(event)
    return book.ledger()


# ---- one request


def is_told(event: RequestSent) -> bool:
    """Whether the provider said how much it read."""
    return bool(event.input_tokens or event.cache_read_tokens or event.cache_write_tokens)


@dataclass(slots=True)
class _Model:
    """What a provider has shown with one model: whether it caches, and its price for what it does not read there."""

    has_cache: bool = False
    unread: int = 0
    unread_cost: int = 0
    last_sent: int = 0  # 0 before the first request

    def learn(self, event: RequestSent, bill: _Bill) -> None:
        if is_told(event):
            self.has_cache = self.has_cache or bool(event.cache_read_tokens or event.cache_write_tokens)
            self.unread += bill.unread
            self.unread_cost += bill.unread_cost

    def unread_cost_of(self, tokens: int) -> int:
        return tokens * self.unread_cost // self.unread if self.unread else tokens * PLAIN


@dataclass(frozen=True, slots=True)
class _Bill:
    """What a request came to, in real tokens as far as they are known."""

    sent: int
    read: int  # from the cache
    unread_cost: int
    estimate: int  # of what was sent; by this, estimates are brought to real tokens

    @property
    def unread(self) -> int:
        return self.sent - self.read

    def real(self, estimated: int) -> int:
        return estimated * self.sent // self.estimate if self.estimate else estimated

    def reaches(self, kept_tokens: int) -> bool:
        """Whether the cache was read as far as a cut. Where that is near, it was: then less is put down as saved."""
        return 100 * self.read > NEARLY_PERCENT * min(kept_tokens, self.real(kept_tokens))

    def dropped(self, event: RequestSent) -> int:
        """What folding took out of it."""
        if self.sent > OFF_MOST * self.estimate:
            return max(0, event.tokens_before - event.tokens_after)
        return max(0, self.real(event.tokens_before) - self.sent)


def _bill(event: RequestSent, prices: Prices, model: _Model, cut: int | None) -> _Bill:
    """By the provider's figures, or by the estimate: then everything is in the cache that was sent before `cut`."""
    if is_told(event):
        plain, read, written = event.input_tokens or 0, event.cache_read_tokens or 0, event.cache_write_tokens or 0
        unread_cost = plain * PLAIN + written * prices.cache_write_percent
        return _Bill(plain + read + written, read, unread_cost, event.tokens_after)
    sent = event.tokens_after
    read = min(sent, model.last_sent if cut is None else cut) if model.has_cache else 0
    return _Bill(sent, read, model.unread_cost_of(sent - read), sent)


@dataclass(slots=True)
class Book:
    """A ledger that is being kept: events are taken in order, each once."""

    prices: Prices
    _names: dict[str, str] = field(default_factory=dict)  # of branches
    _models: dict[tuple[str, str], _Model] = field(default_factory=dict)
    _folds: dict[str, Folded] = field(default_factory=dict)  # all, in the order in which they came
    _outermost: list[Folded] = field(default_factory=list)  # those that no later one holds
    _sums: Counter[str] = field(default_factory=Counter)
    _reasons: Counter[str] = field(default_factory=Counter)
    _points: list[Point] = field(default_factory=list)

    def take(self, event: Event) -> None:
        if isinstance(event, BranchCreated):
            self._names[event.branch_id] = event.description
        elif isinstance(event, RequestSent):
            self._take_request(event)

    def ledger(self) -> Ledger:
        sums = self._sums
        return Ledger(
            self.prices,
            sums["requests"],
            sums["estimated"],
            sums["sent"],
            sums["without"],
            sums["cost"],
            sums["cost"] + sums["saved"],
            sums["output"],
            dict(self._reasons),
            [replace(fold) for fold in self._folds.values()],
            thinned(self._points, height=_height),
        )

    def _take_request(self, event: RequestSent) -> None:
        new = self._new_folds(event)
        model = self._model(event)
        is_first = not model.last_sent  # nothing of it can have been in a cache, as far as we know
        cut = min((fold.kept_tokens for fold in new), default=None) if not is_first else None
        bill = _bill(event, self.prices, model, cut)
        model.learn(event, bill)
        without = bill.sent + bill.dropped(event)
        saved = self._saved(event, bill, model, new if not is_first else [])
        model.last_sent = bill.sent
        read_cost = bill.read * self.prices.cache_read_percent
        self._sums.update(
            requests=1,
            estimated=not is_told(event),
            sent=bill.sent,
            without=without,
            cost=bill.unread_cost + read_cost,
            saved=saved,
            output=event.output_tokens or 0,
        )
        if event.reason:
            self._reasons[event.reason] += 1
        self._points.append(Point(event.n, event.at, bill.sent, without))
        if len(self._points) > POINTS_KEPT:
            self._points = thinned(self._points, POINTS_KEPT // 2, height=_height)

    def _new_folds(self, event: RequestSent) -> list[Folded]:
        """Those that this request brings. What was folded within one of them is its own no longer."""
        new: list[Folded] = []
        for seen in sorted(event.folds, key=lambda seen: seen.kept_tokens):
            name = self._names.get(seen.branch_id, "")
            fold = Folded(seen.branch_id, name, seen.tokens, seen.kept_tokens)
            outside = [one for one in self._outermost if one.kept_tokens < fold.kept_tokens]
            self._outermost = [*outside, fold]
            self._folds[fold.branch_id] = fold
            new.append(fold)
        return new

    def _model(self, event: RequestSent) -> _Model:
        key = (event.api, event.model)
        if key not in self._models and len(self._models) >= MODELS_MOST:
            key = next(reversed(self._models))
        return self._models.setdefault(key, _Model())

    def _saved(self, event: RequestSent, bill: _Bill, model: _Model, new: Sequence[Folded]) -> int:
        """What this request would have cost more without its folds; also put down to each of them."""
        shares = _shares(bill.dropped(event), self._in_effect(event))
        rebuilt = _rebuilt(bill, model, self.prices, new)
        total = 0
        for fold, tokens in shares:
            would_be_read = model.has_cache and (bool(new) or bill.reaches(fold.kept_tokens))
            saved = tokens * self.prices.cache_read_percent if would_be_read else _unread_cost(tokens, bill, model)
            total += saved
            fold.saved += saved
            fold.requests += 1
        for fold, cost in _shares(rebuilt, new):
            fold.saved -= cost
            total -= cost
        return total

    def _in_effect(self, event: RequestSent) -> list[Folded]:
        """The latest folds, as many as make up what this request was made shorter by: another conversation has none."""
        left = event.tokens_before - event.tokens_after
        found: list[Folded] = []
        for fold in reversed(self._outermost):
            if left <= 0:
                break
            if len(found) == FOLDS_TOLD:
                found.append(
                    Folded("", "", left, fold.kept_tokens)
                )  # the earlier ones, which nobody is told of, as one
                break
            if fold.tokens <= left + NOISE:
                found.append(fold)
                left -= fold.tokens
        if not found and event.tokens_before > event.tokens_after:
            return [Folded("", "", event.tokens_before - event.tokens_after, 0)]  # by a fold that no event tells of
        return found


def _rebuilt(bill: _Bill, model: _Model, prices: Prices, new: Sequence[Folded]) -> int:
    """What it cost that the part before the cut was not read from the cache, though it had been sent before."""
    if not new or not model.has_cache:
        return 0
    missed = max(0, bill.real(max(fold.kept_tokens for fold in new)) - bill.read)
    return _unread_cost(missed, bill, model) - missed * prices.cache_read_percent


def _unread_cost(tokens: int, bill: _Bill, model: _Model) -> int:
    """Of so many tokens that are not read from a cache: as in this request, or as in the others of the model."""
    return tokens * bill.unread_cost // bill.unread if bill.unread else model.unread_cost_of(tokens)


def _shares(amount: int, folds: Sequence[Folded]) -> list[tuple[Folded, int]]:
    """An amount among folds by their tokens, nothing of it lost."""
    whole = sum(fold.tokens for fold in folds) or 1
    shares: list[tuple[Folded, int]] = []
    before = given = 0
    for fold in folds:
        before += fold.tokens
        until = amount * before // whole
        shares.append((fold, until - given))
        given = until
    return shares


def _height(point: Point) -> int:
    return point.without


# ---- what people read


def told(ledger: Ledger) -> dict[str, Encodable]:
    """The ledger as `/v1` and the command give it to programs; costs in input tokens' worth."""
    prices = ledger.prices
    return {
        "prices": {
            "input": 1,
            "cache_read": _worth(prices.cache_read_percent),
            "cache_write": _worth(prices.cache_write_percent),
        },
        "requests": ledger.requests,
        "estimated_requests": ledger.estimated_requests,
        "tokens_sent": ledger.tokens_sent,
        "tokens_without": ledger.tokens_without,
        "tokens_saved": ledger.tokens_without - ledger.tokens_sent,
        "cost_sent": _worth(ledger.cost_sent),
        "cost_without": _worth(ledger.cost_without),
        "cost_saved": _worth(ledger.cost_saved),
        "output_tokens": ledger.output_tokens,
        "failed_open": dict(ledger.failed_open),
        "folds": [
            {
                "branch_id": fold.branch_id,
                "description": fold.description,
                "tokens_dropped": fold.tokens,
                "requests": fold.requests,
                "cost_saved": _worth(fold.saved),
            }
            for fold in ledger.folds[-FOLDS_TOLD:]
        ],
        "costly_folds": [fold.branch_id for fold in ledger.costly[-FOLDS_TOLD:]],
        "points": [
            {"n": point.n, "at": point.at, "sent": point.sent, "without": point.without} for point in ledger.points
        ],
        "verdict": verdict(ledger),
    }


def verdict(ledger: Ledger) -> str:
    """One sentence: whether folding paid."""
    if not ledger.requests:
        return "No request of this session has gone through the proxy, so there is nothing to compare."
    requests = f"{ledger.requests:,} request{'' if ledger.requests == 1 else 's'}"
    if ledger.tokens_sent == ledger.tokens_without:
        return f"Nothing was left out of {requests}: folding has saved nothing, and cost nothing."
    saved, without = ledger.cost_saved, ledger.cost_without
    percent = (2 * 100 * abs(saved) + without) // (2 * without) if without else 0
    amount = f"{percent} %, {abs(saved) / PLAIN:,.0f} input tokens' worth"
    if saved > 0:
        sentence = f"Folding made the input of {requests} cheaper by {amount}"
    elif saved < 0:
        sentence = f"Folding cost more than it saved: the input of {requests} became dearer by {amount}"
    else:
        sentence = f"Folding made no difference to what the input of {requests} cost"
    if ledger.costly:
        sentence += f"; {len(ledger.costly):,} of {len(ledger.folds):,} folds cost more than they saved"
    if ledger.estimated_requests:
        sentence += f"; {ledger.estimated_requests:,} of the requests by estimate alone"
    return sentence + "."


def _worth(hundredths: int) -> Hundredths:
    return Hundredths(hundredths / PLAIN)
