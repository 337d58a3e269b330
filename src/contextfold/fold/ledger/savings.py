"""What a conversation has cost, compared with what it would have cost if nothing had ever been folded. Pure.

What was sent is known: the provider's own usage, at the model's prices. What would have been sent is a model of a run
without our tools. It leaves out their definitions, their calls and results in later requests, the output of the calls,
and the requests whose response was only a call of ours:

    its size     grows by what the provider counted from one request to the next, less our part of it. Where something
                 new was left out in between, and at the beginning, it is the estimate of the request as the agent
                 made it, scaled by as much as estimates were off so far
    its cache    a run without us only ever appends, so it reads what it sent the time before, if the cache was warm;
                 whether it was is seen in the usage of the real request, or else follows from the time since the last
    the rest     what is not read costs what it cost in that very request: written for five minutes, for one hour, or
                 plain, in the same proportion

Requests are taken in order and each is judged by what was known then, so the ledger of a longer log only adds to that
of a shorter one. Where a provider gave no usage, the estimate is used, and the cache is taken to have held what was
sent before, if this model was ever seen to use one.

Costs are integers in two units: nanodollars, where the model's prices are known, and always hundredths of an input
token of the same model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from contextfold.common.canonical import Encodable, Hundredths
from contextfold.common.dataclass import dataclass, field, replace
from contextfold.fold.events import BranchCreated, Event, RequestSent, WorkFolded
from contextfold.fold.ledger.prices import LedgerPrices
from contextfold.fold.ledger.provider_counts import ESTIMATE_OFF_MAX
from contextfold.fold.ledger.sent_request import CACHEABLE_TOKENS
from contextfold.fold.model_catalog import TokenPrices
from contextfold.fold.service.session_views import POINTS_MAX, thinned

# More points than are shown, so that thinning them repeatedly loses no peak.
POINTS_CACHED = 4 * POINTS_MAX
# Folds that are listed, the latest ones.
FOLDS_LISTED_MAX = 200
# Conversations and models of a session that are told apart.
CHAINS_MAX = 256
# How many blocks Anthropic looks back from a breakpoint for a cached prefix.
LOOKBACK_BLOCKS = 20
# A prompt of which this much is read has been found in the cache.
NEARLY_PERCENT = 99
# Two estimates may differ by so much because each was rounded.
ROUNDED_TOKENS = 2
# So much growth says how far estimates are off.
GROWN_ENOUGH_TOKENS = 1_000
# A history that is this much shorter than the one before was rewritten by the host.
REWRITTEN_PERCENT = 98
# How long a cached prefix lives after its last use: Anthropic, written for an hour, and the others' upper end.
CACHE_LIFE_S = 5 * 60
CACHE_LIFE_1H_S = 60 * 60
# Less than this part of the cost is no difference worth a sign: one in so many.
DIFFERENCE_SHARE = 2_000
WORTH = 100
NANODOLLARS_PER_MICRO = 1_000
NANODOLLARS_PER_DOLLAR = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LedgerPoint:
    """A request: the tokens that were sent, and those that would have been sent."""

    n: int
    at: str
    sent: int
    without: int


@dataclass(slots=True)
class FoldSavings:
    """A fold that was left out of requests, and what that has saved, in hundredths of an input token."""

    branch_id: str
    description: str
    # Estimated tokens that were dropped, and that are sent before the cut.
    tokens: int
    kept_tokens: int
    requests: int = 0
    saved: int = 0


@dataclass(frozen=True, slots=True)
class LedgerSums:
    """Of all requests, or of those of one day. Costs in hundredths of an input token, money in nanodollars."""

    requests: int = 0
    estimated_requests: int = 0
    # Requests that were made only because of our tools.
    extra_requests: int = 0
    # Requests after a pause whose prompt was still cached, although its cache was taken to have lapsed.
    warm_requests: int = 0
    # Requests of models whose prices are known.
    priced_requests: int = 0
    tokens_sent: int = 0
    tokens_without: int = 0
    output_tokens: int = 0
    output_tokens_without: int = 0
    cost_sent: int = 0
    cost_without: int = 0
    money_sent: int = 0
    money_without: int = 0

    @property
    def cost_saved(self) -> int:
        return self.cost_without - self.cost_sent

    @property
    def is_priced(self) -> bool:
        return bool(self.requests) and self.priced_requests == self.requests

    def plus(self, other: LedgerSums) -> LedgerSums:
        return LedgerSums(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def as_members(self) -> dict[str, Encodable]:
        """The sums as they are stored with an ended session; `sums_from` reads them."""
        return {name: getattr(self, name) for name in self.__slots__}


def sums_from(members: object) -> LedgerSums:
    """Stored sums. A member that is absent or not a whole number counts as 0: another version may have written it."""
    given = members if isinstance(members, dict) else {}
    values = (given.get(name, 0) for name in LedgerSums.__slots__)
    return LedgerSums(*(value if type(value) is int else 0 for value in values))


@dataclass(frozen=True, slots=True)
class SavingsLedger:
    sums: LedgerSums
    days: Mapping[str, LedgerSums]
    model_sums: Mapping[str, LedgerSums]
    models: Mapping[str, tuple[TokenPrices, bool]]
    not_folded: Mapping[str, int]
    results_dropped: int
    folds: Sequence[FoldSavings]
    points: Sequence[LedgerPoint]

    @property
    def costly(self) -> list[FoldSavings]:
        """The folds that cost more than they saved."""
        return [fold for fold in self.folds if fold.saved < 0]


def ledger_of(events: Iterable[Event], prices: LedgerPrices | None = None) -> SavingsLedger:
    book = LedgerBook(prices or LedgerPrices())
    for event in events:
        book.take(event)
    return book.ledger()


@dataclass(frozen=True, slots=True)
class _Prompt:
    """The tokens of one prompt by what they cost."""

    plain: int = 0
    read: int = 0
    written_5m: int = 0
    written_1h: int = 0

    @property
    def tokens(self) -> int:
        return self.plain + self.read + self.written_5m + self.written_1h

    def cost(self, prices: TokenPrices) -> int:
        return (
            self.plain * prices.input
            + self.read * prices.cache_read
            + self.written_5m * prices.cache_write_5m
            + self.written_1h * prices.cache_write_1h
        )

    def resized(self, tokens: int, read: int) -> _Prompt:
        """A prompt of so many tokens, so many of them read, the others paid for in the same proportion."""
        read = max(0, min(read, tokens))
        unread, mine = tokens - read, self.tokens - self.read
        if not mine:
            return _Prompt(unread, read)
        written_5m, written_1h = unread * self.written_5m // mine, unread * self.written_1h // mine
        return _Prompt(unread - written_5m - written_1h, read, written_5m, written_1h)


@dataclass(slots=True)
class _Chain:
    """The requests of one conversation to one model so far."""

    last: RequestSent | None = None
    last_s: int | None = None
    last_sent: int = 0
    # Of the last request that a run without us makes, and of the last one in any case.
    last_without: int = 0
    level: int = 0
    # By how much the requests have grown, as the provider counts and as we estimate, where nothing new was left out.
    grown: int = 0
    grown_estimate: int = 0
    has_cache: bool = False
    # The longest pause after which the prompt was still cached, where that was not expected.
    life_s: int = 0
    # The least that was ever read: what does not depend on the last prompt, such as the system prompt.
    least_read: int = 0
    new_blocks: int = 0
    writes_1h: bool = False
    # The unread tokens of earlier prompts, whose proportions stand in where a prompt has none.
    unread: _Prompt = field(default_factory=_Prompt)
    # What a run without us would have read at the first of the requests that it would not have made: it makes one
    # request instead of them all, at that time.
    skipped_read: int | None = None
    # Differences in cost that no fold accounts for yet: they are put down to the next ones.
    pending: int = 0
    folds: list[FoldSavings] = field(default_factory=list)


@dataclass(slots=True)
class LedgerBook:
    """A ledger in the making: events are taken in order, each once."""

    prices: LedgerPrices
    _descriptions: dict[str, str] = field(default_factory=dict)
    _chains: dict[tuple[str, str, str], _Chain] = field(default_factory=dict)
    _folds: dict[str, FoldSavings] = field(default_factory=dict)
    _days: dict[str, LedgerSums] = field(default_factory=dict)
    _model_sums: dict[str, LedgerSums] = field(default_factory=dict)
    _models: dict[str, tuple[TokenPrices, bool]] = field(default_factory=dict)
    _reasons: Counter[str] = field(default_factory=Counter)
    _results_dropped: int = 0
    _points: list[LedgerPoint] = field(default_factory=list)

    def take(self, event: Event) -> None:
        if isinstance(event, BranchCreated | WorkFolded):
            self._descriptions[event.branch_id] = event.description
        elif isinstance(event, RequestSent):
            self._take_request(event)

    def ledger(self) -> SavingsLedger:
        sums = LedgerSums()
        for day in self._days.values():
            sums = sums.plus(day)
        return SavingsLedger(
            sums,
            dict(self._days),
            dict(self._model_sums),
            dict(self._models),
            dict(self._reasons),
            self._results_dropped,
            [replace(fold) for fold in self._folds.values()],
            thinned(self._points, height=_height),
        )

    def _take_request(self, event: RequestSent) -> None:
        chain = self._chain(event)
        prices, is_money = self._models.setdefault(event.model, self.prices.of(event.model))
        new = self._new_folds(chain, event)
        cut = min((fold.kept_tokens for fold in new), default=None)
        if event.kept_tokens is not None:
            cut = event.kept_tokens if cut is None else min(cut, event.kept_tokens)
        seconds = _seconds(event.at)
        chain.life_s = max(chain.life_s, event.warm_after_s)
        prompt, was_warm = _sent_prompt(event, chain, cut, seconds)
        chain.new_blocks += event.new_blocks
        if prompt.read and _has_usage(event):
            chain.least_read = min(chain.least_read or prompt.read, prompt.read)
        without = _without(event, chain, prompt, is_warm=was_warm, has_new_cut=cut is not None)
        output = event.output_tokens or 0
        output_without = 0 if event.only_ours else max(0, output - event.our_output_tokens)
        if event.only_ours:
            counterfactual = _Prompt()
            if chain.skipped_read is None:
                chain.skipped_read = without.read
        else:
            counterfactual = without
            chain.skipped_read = None
            chain.new_blocks = 0
            chain.last_without = without.tokens
        cost_sent = prompt.cost(prices) + output * prices.output
        cost_without = counterfactual.cost(prices) + output_without * prices.output
        self._put_down(chain, new, event, WORTH * (cost_without - cost_sent) // prices.input)
        chain.last, chain.last_sent, chain.last_s, chain.level = event, prompt.tokens, seconds, without.tokens
        if _has_usage(event):
            chain.has_cache = chain.has_cache or bool(event.cache_read_tokens or event.cache_write_tokens)
            chain.writes_1h = bool(event.cache_write_1h_tokens) or (chain.writes_1h and not prompt.written_5m)
            unread = chain.unread
            chain.unread = _Prompt(
                unread.plain + prompt.plain,
                0,
                unread.written_5m + prompt.written_5m,
                unread.written_1h + prompt.written_1h,
            )
        sums = LedgerSums(
            1,
            not _has_usage(event),
            event.only_ours,
            event.warm_after_s > 0,
            is_money,
            prompt.tokens,
            counterfactual.tokens,
            output,
            output_without,
            WORTH * cost_sent // prices.input,
            WORTH * cost_without // prices.input,
            cost_sent if is_money else 0,
            cost_without if is_money else 0,
        )
        day = event.at[:10]
        self._days[day] = self._days.get(day, LedgerSums()).plus(sums)
        self._model_sums[event.model] = self._model_sums.get(event.model, LedgerSums()).plus(sums)
        self._results_dropped = max(self._results_dropped, event.results_dropped)
        if event.reason:
            self._reasons[event.reason] += 1
        self._points.append(LedgerPoint(event.n, event.at, prompt.tokens, without.tokens))
        if len(self._points) > POINTS_CACHED:
            self._points = thinned(self._points, POINTS_CACHED // 2, height=_height)

    def _chain(self, event: RequestSent) -> _Chain:
        key = (event.conversation, event.api, event.model)
        if key not in self._chains and len(self._chains) >= CHAINS_MAX:
            key = next(reversed(self._chains))
        return self._chains.setdefault(key, _Chain())

    def _new_folds(self, chain: _Chain, event: RequestSent) -> list[FoldSavings]:
        """The folds that this request is the first to leave out. Folds inside one of them are no longer counted."""
        new: list[FoldSavings] = []
        for seen in sorted(event.folds, key=lambda seen: seen.kept_tokens):
            description = self._descriptions.get(seen.branch_id, "")
            fold = FoldSavings(seen.branch_id, description, seen.tokens, seen.kept_tokens)
            chain.folds = [*(one for one in chain.folds if one.kept_tokens < fold.kept_tokens), fold]
            self._folds[fold.branch_id] = fold
            new.append(fold)
        return new

    def _put_down(self, chain: _Chain, new: Sequence[FoldSavings], event: RequestSent, saved: int) -> None:
        """Divide what a request saved among the folds in effect, by their tokens."""
        chain.pending += saved
        in_effect = chain.folds[-FOLDS_LISTED_MAX:] if event.tokens_after < event.tokens_before else []
        if not in_effect:
            return
        # What the calls for a fold cost before it took effect is the new folds' own.
        overhead = chain.pending - saved if new else 0
        for fold, part in _divided(overhead, new):
            fold.saved += part
        for fold, part in _divided(chain.pending - overhead, in_effect):
            fold.saved += part
            fold.requests += 1
        chain.pending = 0


def _has_usage(event: RequestSent) -> bool:
    return bool(event.input_tokens or event.cache_read_tokens or event.cache_write_tokens)


def _sent_prompt(event: RequestSent, chain: _Chain, cut: int | None, seconds: int) -> tuple[_Prompt, bool]:
    """What was sent, by the provider's usage or else by the estimate; and whether the cache was warm."""
    usual_s = CACHE_LIFE_S if event.api == "anthropic" and not chain.writes_1h else CACHE_LIFE_1H_S
    life_s = max(usual_s, chain.life_s)
    is_in_time = chain.last_s is not None and seconds - chain.last_s <= life_s
    expected = chain.last_sent if cut is None else min(chain.last_sent, _scaled(event, cut))
    if not _has_usage(event):
        is_warm = is_in_time and chain.has_cache
        tokens = event.tokens_after
        return chain.unread.resized(tokens, min(expected, tokens) if is_warm else 0), is_warm
    written_1h = min(event.cache_write_1h_tokens, event.cache_write_tokens or 0)
    written_5m = (event.cache_write_tokens or 0) - written_1h
    prompt = _Prompt(event.input_tokens or 0, event.cache_read_tokens or 0, written_5m, written_1h)
    # A new cut may make the provider miss a prefix that is still there, so then the time decides too.
    if is_in_time and chain.has_cache and (cut is not None or expected < CACHEABLE_TOKENS):
        return prompt, True
    return prompt, expected >= CACHEABLE_TOKENS and 2 * prompt.read >= min(expected, prompt.tokens)


def _without(event: RequestSent, chain: _Chain, prompt: _Prompt, *, is_warm: bool, has_new_cut: bool) -> _Prompt:
    """The prompt of a run without us at this point."""
    tokens = _tokens_without(event, chain, prompt)
    is_rewritten = 100 * tokens < REWRITTEN_PERCENT * chain.last_without
    if chain.skipped_read is not None:
        read = chain.skipped_read
    elif not chain.last_without or is_rewritten:
        read = prompt.read
    elif is_warm and _is_out_of_reach(event, chain, prompt, has_new_cut=has_new_cut):
        read = chain.least_read
    elif is_warm:
        # Caches are read in steps, so a little less than the whole of the last prompt may be read.
        missed = 0 if has_new_cut else max(0, chain.last_sent - prompt.read)
        read = chain.last_without - missed
    else:
        read = prompt.read
    base = prompt if prompt.tokens > prompt.read else chain.unread
    return base.resized(tokens, read)


def _tokens_without(event: RequestSent, chain: _Chain, prompt: _Prompt) -> int:
    estimate, last = event.tokens_before - event.our_tokens, chain.last
    if prompt.tokens > ESTIMATE_OFF_MAX * event.tokens_after:
        # Something was sent that the estimate does not see.
        return max(0, prompt.tokens + estimate - event.tokens_after)
    grown = estimate - (last.tokens_before - last.our_tokens) if last else -1
    if last is None or grown < 0:
        return max(0, _scaled(event, estimate))
    grown_sent = event.tokens_after - last.tokens_after
    is_counted = _has_usage(event) == _has_usage(last)
    if is_counted and abs(event.tokens_before - last.tokens_before - grown_sent) <= ROUNDED_TOKENS:
        counted = prompt.tokens - chain.last_sent
        chain.grown += max(0, counted)
        chain.grown_estimate += grown_sent
        return max(0, chain.level + counted - _scaled(event, event.our_tokens - last.our_tokens))
    # What is new has another density than the whole: there is more JSON around short texts.
    if chain.grown_estimate < GROWN_ENOUGH_TOKENS:
        return chain.level + _scaled(event, grown)
    return chain.level + grown * chain.grown // chain.grown_estimate


def _is_out_of_reach(event: RequestSent, chain: _Chain, prompt: _Prompt, *, has_new_cut: bool) -> bool:
    """Whether so much came at once that the provider does not look back as far as the last prompt's end."""
    has_missed = has_new_cut or 100 * prompt.read < NEARLY_PERCENT * chain.last_sent
    return event.api == "anthropic" and chain.new_blocks > LOOKBACK_BLOCKS and has_missed


def _seconds(at: str) -> int:
    """A timestamp like `2025-01-17T10:30:00Z` in seconds. Years begin in March, so that a leap day ends one."""
    year, month, day = int(at[:4]), int(at[5:7]), int(at[8:10])
    year, month = (year, month - 3) if month > 2 else (year - 1, month + 9)  # noqa: PLR2004 - February
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day
    return 86_400 * days + 3_600 * int(at[11:13]) + 60 * int(at[14:16]) + int(at[17:19])


def _scaled(event: RequestSent, estimate: int) -> int:
    """An estimate of a part of the request in the provider's tokens."""
    counted = (event.input_tokens or 0) + (event.cache_read_tokens or 0) + (event.cache_write_tokens or 0)
    return estimate * counted // event.tokens_after if counted and event.tokens_after else estimate


def _divided(amount: int, folds: Sequence[FoldSavings]) -> list[tuple[FoldSavings, int]]:
    """An amount among folds by their tokens, without a remainder."""
    whole = sum(fold.tokens for fold in folds) or 1
    parts: list[tuple[FoldSavings, int]] = []
    before = given = 0
    for fold in folds:
        before += fold.tokens
        until = amount * before // whole
        parts.append((fold, until - given))
        given = until
    return parts


def _height(point: LedgerPoint) -> int:
    return point.without


# ---- for `/v1`, the terminal and the page


def ledger_result(ledger: SavingsLedger) -> dict[str, Encodable]:
    """The ledger as JSON; costs in input tokens' worth, money in millionths of a dollar."""
    return {
        "prices": [_prices_result(model, *known) for model, known in ledger.models.items()],
        **sums_result(ledger.sums),
        "results_dropped": ledger.results_dropped,
        "failed_open": dict(ledger.not_folded),
        "folds": [
            {
                "branch_id": fold.branch_id,
                "description": fold.description,
                "tokens_dropped": fold.tokens,
                "requests": fold.requests,
                "cost_saved": _worth(fold.saved),
            }
            for fold in ledger.folds[-FOLDS_LISTED_MAX:]
        ],
        "costly_folds": [fold.branch_id for fold in ledger.costly[-FOLDS_LISTED_MAX:]],
        "days": [{"day": day, **sums_result(sums)} for day, sums in sorted(ledger.days.items())],
        "points": [
            {"n": point.n, "at": point.at, "sent": point.sent, "without": point.without} for point in ledger.points
        ],
        "verdict": verdict(ledger.sums, folds=len(ledger.folds), costly=len(ledger.costly)),
    }


def sums_result(sums: LedgerSums) -> dict[str, Encodable]:
    money: Encodable = None
    if sums.is_priced:
        sent, without = sums.money_sent // NANODOLLARS_PER_MICRO, sums.money_without // NANODOLLARS_PER_MICRO
        money = {"currency": "USD", "sent_micros": sent, "without_micros": without, "saved_micros": without - sent}
    return {
        "requests": sums.requests,
        "estimated_requests": sums.estimated_requests,
        "extra_requests": sums.extra_requests,
        "warm_requests": sums.warm_requests,
        "tokens_sent": sums.tokens_sent,
        "tokens_without": sums.tokens_without,
        "tokens_saved": sums.tokens_without - sums.tokens_sent,
        "output_tokens": sums.output_tokens,
        "output_tokens_without": sums.output_tokens_without,
        "cost_sent": _worth(sums.cost_sent),
        "cost_without": _worth(sums.cost_without),
        "cost_saved": _worth(sums.cost_saved),
        "money": money,
    }


def verdict(sums: LedgerSums, *, folds: int = 0, costly: int = 0) -> str:
    """One sentence: whether folding paid."""
    if not sums.requests:
        return "No request of this session has gone through the proxy, so there is nothing to compare."
    requests = f"{sums.requests:,} request{'' if sums.requests == 1 else 's'}"
    saved, without = sums.cost_saved, sums.cost_without
    amount = f"{abs(saved) / WORTH:,.0f} input tokens' worth"
    if sums.is_priced:
        saved, without = sums.money_without - sums.money_sent, sums.money_without
        amount = f"${abs(saved) / NANODOLLARS_PER_DOLLAR:,.4f}"
    percent = (2 * 100 * abs(saved) + without) // (2 * without) if without else 0
    if DIFFERENCE_SHARE * abs(saved) <= without:
        sentence = f"Folding has made no difference to the cost of {requests}"
    elif saved > 0:
        sentence = f"With folding, {requests} cost {percent} % less than without it: {amount} were saved"
    else:
        sentence = f"With folding, {requests} cost {percent} % more than without it: {amount} were lost"
    if costly:
        sentence += f"; {costly:,} of {folds:,} folds cost more than they saved"
    if sums.warm_requests:
        many = sums.warm_requests > 1
        sentence += f"; {sums.warm_requests:,} {'prompts were' if many else 'prompt was'} still cached after a pause"
    if sums.estimated_requests:
        sentence += f"; {sums.estimated_requests:,} of the requests are estimates"
    return sentence + "."


def _prices_result(model: str, prices: TokenPrices, is_money: bool) -> dict[str, Encodable]:
    """Dollars for a million tokens, or input tokens where the model's prices are not known."""
    unit = 1_000 if is_money else WORTH
    figures = {name: f"{getattr(prices, name) / unit:.10g}" for name in prices.__slots__}
    return {"model": model, "currency": "USD" if is_money else None, **figures}


def _worth(hundredths: int) -> Hundredths:
    return Hundredths(hundredths / WORTH)
