"""Compares the cost of a conversation with its cost if nothing had been folded. Pure.

The real cost is known: the provider's usage, at the model's prices. The cost without folding is computed for a model of
a run without our tools. That run does not have their definitions, their calls and results in later requests, the output
of the calls, and the requests whose response was only a call of our tools:

    its size     grows by the increase of the provider's count from one request to the next, without our tools' part.
                 At the beginning, and when something new was left out, it is the estimate of the agent's request,
                 corrected by the error of the estimates so far
    its cache    the run only appends messages, so it reads its last prompt from the cache if the cache was warm; that
                 follows from the usage of the real request, or else from the time since the last request
    the rest     tokens that are not read have the same proportions as in the real request: written for five minutes,
                 written for one hour, or plain

Requests are processed in order, each with the knowledge at its time, so the ledger of a longer log only adds to that of
a shorter one. Without usage from the provider, the estimate is used, and the cache is assumed to have the last prompt
if this model has ever used a cache.

Costs are integers in two units: nanodollars, if the model's prices are known, and always hundredths of an input token
of the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

from contextfold.fold.events import BranchCreated, BranchFolded, Event, RequestSent, WorkFolded
from contextfold.fold.model_catalog import LedgerPrices, TokenPrices

AnyPoint = TypeVar("AnyPoint")

# Providers cache no shorter prefix, so reading fewer tokens from the cache is not significant.
CACHEABLE_TOKENS = 1_024
# If the provider's count is more than this many times the estimate, the estimate did not see a part of the request.
ESTIMATE_OFF_MAX = 2
# A timeline has at most this many points; a screen cannot show many more.
POINTS_MAX = 240
# More points than are shown are stored, so that repeated thinning loses no peak.
POINTS_CACHED = 4 * POINTS_MAX
# The savings are divided among at most this many folds, the latest.
FOLDS_SHARING_MAX = 200
# At most this many pairs of conversation and model are distinguished in a session.
CHAINS_MAX = 256
# Anthropic searches this many blocks before a breakpoint for a cached prefix.
LOOKBACK_BLOCKS = 20
# A prompt counts as cached if at least this percentage of it was read.
NEARLY_PERCENT = 99
# Two estimates may differ by this much because of rounding.
ROUNDED_TOKENS = 2
# After this much growth, the error of the estimates is known well enough.
GROWN_ENOUGH_TOKENS = 1_000
# The host has rewritten a history that has less than this percentage of the one before.
REWRITTEN_PERCENT = 98
# What is left out has this percentage of the tokens that the whole prompt's bytes per token suggest: it is mostly
# results of tools. Measured on 158 recorded sessions: 3.0 bytes a token for results, 3.4 for the whole.
LEFT_OUT_PERCENT = 115
# The lifetimes of a cached prefix after its last use: Anthropic's, Anthropic's for an hour, and the others' longest.
CACHE_LIFE_S = 5 * 60
CACHE_LIFE_1H_S = 60 * 60
WORTH = 100


class LedgerPoint(NamedTuple):
    """A request: the tokens that were sent, and the tokens without folding."""

    n: int
    at: str
    sent: int
    without: int


class FoldSavings:
    """A fold that was left out of requests, and its savings, in hundredths of an input token.

    `tokens` is the estimate of what was dropped, `kept_tokens` of what is sent before the cut.
    """

    def __init__(self, branch_id: str, description: str, tokens: int, kept_tokens: int) -> None:
        self.branch_id = branch_id
        self.description = description
        self.tokens = tokens
        self.kept_tokens = kept_tokens
        self.requests = 0
        self.saved = 0


class LedgerSums(NamedTuple):
    """The sums over all requests or those of one day. Costs are hundredths of an input token, money is nanodollars."""

    requests: int = 0
    estimated_requests: int = 0
    # The number of requests that were made only because of our tools.
    extra_requests: int = 0
    # The number of requests after a pause whose prompt was still cached, although it was assumed to have expired.
    warm_requests: int = 0
    # The number of requests to models with known prices.
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

    @property
    def saved(self) -> tuple[int, int]:
        """What was saved, and the cost without folding: in money if it is known, else in costs."""
        if self.is_priced:
            return self.money_without - self.money_sent, self.money_without
        return self.cost_saved, self.cost_without

    def plus(self, other: LedgerSums) -> LedgerSums:
        return LedgerSums(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def sums_from(members: object) -> LedgerSums:
    """Decode the sums that an earlier version stored. A member that is missing or not an integer counts as 0."""
    given = members if isinstance(members, dict) else {}
    values = (given.get(name, 0) for name in LedgerSums._fields)
    return LedgerSums(*(value if type(value) is int else 0 for value in values))


def total_of(parts: Iterable[LedgerSums]) -> LedgerSums:
    total = LedgerSums()
    for part in parts:
        total = total.plus(part)
    return total


class _Prompt(NamedTuple):
    """The tokens of one prompt by their price."""

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

    def resize(self, tokens: int, read: int) -> _Prompt:
        """A prompt with other numbers of tokens and read tokens. The other tokens have the same proportions."""
        read = max(0, min(read, tokens))
        unread, mine = tokens - read, self.tokens - self.read
        if not mine:
            return _Prompt(unread, read)
        written_5m, written_1h = unread * self.written_5m // mine, unread * self.written_1h // mine
        return _Prompt(unread - written_5m - written_1h, read, written_5m, written_1h)


class _Chain:
    """The requests of one conversation to one model so far.

    Those without tools are apart: a request for a title, beside the conversation, has a prefix of its own.
    """

    def __init__(self) -> None:
        self.last: RequestSent | None = None
        self.last_sent = 0
        # The tokens of the last request in a run without our tools, and of the last real request.
        self.last_without = 0
        self.level = 0
        # The growth of the requests without new folds, by the provider's counts and by the estimates.
        self.grown = 0
        self.grown_estimate = 0
        self.has_cache = False
        # The longest pause after which the prompt was unexpectedly still cached.
        self.life_s = 0
        # The smallest number of tokens ever read. It does not depend on the last prompt: for example, the system
        # prompt.
        self.least_read = 0
        # What the first request read, which others must have written, or less; None before it.
        self.shared_read: int | None = None
        self.new_blocks = 0
        self.writes_1h = False
        # The unread tokens of earlier prompts. Their proportions are used for a prompt without unread tokens.
        self.unread = _Prompt()
        # The tokens that a run without our tools would have read at the first of several requests that it does not
        # make. It makes one request instead of all of them, at that time.
        self.skipped_read: int | None = None
        # The differences in cost that are not yet assigned to a fold. They are assigned to the next folds.
        self.pending = 0
        self.folds: list[FoldSavings] = []


class SavingsLedger:
    """The ledger of a session. Its events must be taken in order and once."""

    def __init__(self, prices: LedgerPrices) -> None:
        self.prices = prices
        self.days: dict[str, LedgerSums] = {}
        self.model_sums: dict[str, LedgerSums] = {}
        self.run_sums: dict[str, LedgerSums] = {}
        # The prices of each model, and whether they are in money.
        self.models: dict[str, tuple[TokenPrices, bool]] = {}
        # The number of requests by the reason why something was not folded.
        self.not_folded: dict[str, int] = {}
        self.results_dropped = 0
        # The results that were left out after a pause, each once, and what that saved.
        self.left_out_results = 0
        self.left_out = FoldSavings("", "", 0, 0)
        self.points: list[LedgerPoint] = []
        self._descriptions: dict[str, str] = {}
        # The tokens that each fold removed, as its tool has answered.
        self._fold_tokens: dict[str, int] = {}
        self._chains: dict[tuple[str, str, str, bool], _Chain] = {}
        self._folds: dict[str, FoldSavings] = {}

    @property
    def sums(self) -> LedgerSums:
        return total_of(self.days.values())

    @property
    def folds(self) -> list[FoldSavings]:
        return list(self._folds.values())

    def take(self, event: Event) -> None:
        if isinstance(event, BranchCreated | WorkFolded):
            self._descriptions[event.branch_id] = event.description
        if isinstance(event, BranchFolded | WorkFolded):
            self._fold_tokens[event.branch_id] = event.tokens_folded
        elif isinstance(event, RequestSent):
            self._take_request(event)

    def _take_request(self, event: RequestSent) -> None:
        chain = self._chain(event)
        prices, is_money = self.models.setdefault(event.model, self.prices.of(event.model))
        new = self._new_folds(chain, event)
        self.left_out_results += len(event.left_out)
        self.left_out.tokens += sum(result.tokens for result in event.left_out)
        cut = min((fold.kept_tokens for fold in new), default=None)
        if event.kept_tokens is not None:
            cut = event.kept_tokens if cut is None else min(cut, event.kept_tokens)
        chain.life_s = max(chain.life_s, event.warm_after_s)
        prompt, was_warm = _sent_prompt(event, chain, cut)
        chain.new_blocks += event.new_blocks
        if prompt.read and _has_usage(event):
            chain.least_read = min(chain.least_read or prompt.read, prompt.read)
        if _has_usage(event):
            chain.shared_read = prompt.read if chain.shared_read is None else min(chain.shared_read, prompt.read)
        without = _prompt_without(event, chain, prompt, is_warm=was_warm, has_new_cut=cut is not None)
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
        self._assign_savings(chain, new, event, WORTH * (cost_without - cost_sent) // prices.input)
        chain.last, chain.last_sent, chain.level = event, prompt.tokens, without.tokens
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
        self.days[day] = self.days.get(day, LedgerSums()).plus(sums)
        self.model_sums[event.model] = self.model_sums.get(event.model, LedgerSums()).plus(sums)
        if event.run:
            self.run_sums[event.run] = self.run_sums.get(event.run, LedgerSums()).plus(sums)
        self.results_dropped = max(self.results_dropped, event.results_dropped)
        if event.reason:
            self.not_folded[event.reason] = self.not_folded.get(event.reason, 0) + 1
        self.points.append(LedgerPoint(event.n, event.at, prompt.tokens, without.tokens))
        if len(self.points) > POINTS_CACHED:
            self.points = thin_points(self.points, POINTS_CACHED // 2, height=tokens_without)

    def _chain(self, event: RequestSent) -> _Chain:
        key = (event.conversation, event.api, event.model, event.has_tools)
        if key not in self._chains and len(self._chains) >= CHAINS_MAX:
            key = next(reversed(self._chains))
        return self._chains.setdefault(key, _Chain())

    def _new_folds(self, chain: _Chain, event: RequestSent) -> list[FoldSavings]:
        """The folds that this request leaves out for the first time. Folds inside them are no longer counted."""
        new: list[FoldSavings] = []
        for seen in sorted(event.folds, key=lambda seen: seen.kept_tokens):
            description = self._descriptions.get(seen.branch_id, "")
            tokens = self._fold_tokens.get(seen.branch_id) or seen.tokens
            fold = FoldSavings(seen.branch_id, description, tokens, seen.kept_tokens)
            chain.folds = [*(one for one in chain.folds if one.kept_tokens < fold.kept_tokens), fold]
            self._folds[fold.branch_id] = fold
            new.append(fold)
        return new

    def _assign_savings(self, chain: _Chain, new: Sequence[FoldSavings], event: RequestSent, saved: int) -> None:
        """Divide the savings of a request among the folds and left-out results, in proportion to their tokens."""
        chain.pending += saved
        in_effect = chain.folds[-FOLDS_SHARING_MAX:] if event.tokens_after < event.tokens_before else []
        if event.results_dropped:
            in_effect = [*in_effect, self.left_out]
        if not in_effect:
            return
        # The new folds bear the cost of their calls before they took effect.
        overhead = chain.pending - saved if new else 0
        for fold, part in _divide(overhead, new):
            fold.saved += part
        for fold, part in _divide(chain.pending - overhead, in_effect):
            fold.saved += part
            fold.requests += 1
        chain.pending = 0


def thin_points(
    points: Sequence[AnyPoint], most: int = POINTS_MAX, *, height: Callable[[AnyPoint], int]
) -> list[AnyPoint]:
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


def ledger_of(events: Iterable[Event], prices: LedgerPrices | None = None) -> SavingsLedger:
    ledger = SavingsLedger(prices or LedgerPrices())
    for event in events:
        ledger.take(event)
    return ledger


def _has_usage(event: RequestSent) -> bool:
    return bool(event.input_tokens or event.cache_read_tokens or event.cache_write_tokens)


def _sent_prompt(event: RequestSent, chain: _Chain, cut: int | None) -> tuple[_Prompt, bool]:
    """The real prompt, from the provider's usage or else from the estimate; and whether the cache was warm."""
    usual_s = CACHE_LIFE_S if event.api == "anthropic" and not chain.writes_1h else CACHE_LIFE_1H_S
    life = timedelta(seconds=max(usual_s, chain.life_s))
    is_in_time = chain.last is not None and _moment(event) - _moment(chain.last) <= life
    expected = chain.last_sent if cut is None else min(chain.last_sent, _scale(event, cut))
    if not _has_usage(event):
        is_warm = is_in_time and chain.has_cache
        tokens = event.tokens_after
        return chain.unread.resize(tokens, min(expected, tokens) if is_warm else 0), is_warm
    written_1h = min(event.cache_write_1h_tokens, event.cache_write_tokens or 0)
    written_5m = (event.cache_write_tokens or 0) - written_1h
    prompt = _Prompt(event.input_tokens or 0, event.cache_read_tokens or 0, written_5m, written_1h)
    if event.warm_after_s:
        # Results were left out because the cache was taken to have lost them, and it had not. Less was read because of
        # the change.
        return prompt, True
    # After a new cut the provider may not find a prefix that is still cached. Then the time decides, too.
    # Where results were left out without such a cut, the cache was taken to have lost them.
    is_lost = bool(event.left_out) and event.kept_tokens is None
    if is_in_time and chain.has_cache and not is_lost and (cut is not None or expected < CACHEABLE_TOKENS):
        return prompt, True
    # What other conversations share with this one may be read after a loss, too.
    shared = chain.shared_read or 0
    return prompt, expected >= CACHEABLE_TOKENS and 2 * (prompt.read - shared) >= min(expected, prompt.tokens) - shared


def _prompt_without(event: RequestSent, chain: _Chain, prompt: _Prompt, *, is_warm: bool, has_new_cut: bool) -> _Prompt:
    """The prompt of a run without our tools at this point."""
    tokens = _tokens_without(event, chain, prompt)
    is_rewritten = 100 * tokens < REWRITTEN_PERCENT * chain.last_without
    if chain.skipped_read is not None:
        read = chain.skipped_read
    elif not chain.last_without and 2 * prompt.read >= prompt.tokens:
        # A fork goes on with a history that is still cached, with what we have left out, and without our tools.
        read = tokens - (prompt.tokens - prompt.read)
    elif not chain.last_without or is_rewritten:
        read = prompt.read
    elif not has_new_cut and _is_read_behind_folds(event, chain, prompt):
        # What is lost is behind the folds, and would have been lost without them, too.
        read = chain.last_without - max(0, chain.last_sent - prompt.read)
    elif is_warm and _is_out_of_reach(event, chain, prompt, has_new_cut=has_new_cut):
        read = chain.least_read
    elif is_warm:
        # Caches are read in steps, so slightly less than the last prompt may be read.
        missed = 0 if has_new_cut else max(0, chain.last_sent - prompt.read)
        read = chain.last_without - missed
    else:
        read = prompt.read
    base = prompt if prompt.tokens > prompt.read else chain.unread
    return base.resize(tokens, read)


def _tokens_without(event: RequestSent, chain: _Chain, prompt: _Prompt) -> int:
    estimate, last = event.tokens_before - event.our_tokens, chain.last
    if prompt.tokens > ESTIMATE_OFF_MAX * event.tokens_after:
        # The estimate does not include everything that was sent.
        return max(0, prompt.tokens + estimate - event.tokens_after)
    grown = estimate - (last.tokens_before - last.our_tokens) if last else -1
    if last is None or 100 * estimate < REWRITTEN_PERCENT * (last.tokens_before - last.our_tokens):
        # A fork begins with what its parent has left out.
        left_out = _scale(event, estimate - event.tokens_after)
        if left_out > 0 and _has_usage(event):
            left_out = left_out * LEFT_OUT_PERCENT // 100
        return max(0, prompt.tokens + left_out)
    # Marks for the cache move from message to message, so a history may seem to shrink by a few tokens.
    grown = max(0, grown)
    grown_sent = event.tokens_after - last.tokens_after
    is_counted = _has_usage(event) == _has_usage(last)
    if is_counted and abs(event.tokens_before - last.tokens_before - grown_sent) <= ROUNDED_TOKENS:
        counted = prompt.tokens - chain.last_sent
        chain.grown += max(0, counted)
        chain.grown_estimate += grown_sent
        return max(0, chain.level + counted - _scale(event, event.our_tokens - last.our_tokens))
    # New messages have more bytes per token than the whole, because there is more JSON around short texts.
    if chain.grown_estimate < GROWN_ENOUGH_TOKENS:
        return chain.level + _scale(event, grown)
    return chain.level + grown * chain.grown // chain.grown_estimate


def _is_read_behind_folds(event: RequestSent, chain: _Chain, prompt: _Prompt) -> bool:
    """Whether the provider has read more than what is in front of the last fold."""
    return bool(chain.folds) and prompt.read > _scale(event, chain.folds[-1].kept_tokens)


def _is_out_of_reach(event: RequestSent, chain: _Chain, prompt: _Prompt, *, has_new_cut: bool) -> bool:
    """Whether there are so many new blocks that the provider's search does not reach the end of the last prompt."""
    has_missed = has_new_cut or 100 * prompt.read < NEARLY_PERCENT * chain.last_sent
    return event.api == "anthropic" and chain.new_blocks > LOOKBACK_BLOCKS and has_missed


def _moment(event: RequestSent) -> datetime:
    return datetime.fromisoformat(event.at)


def _scale(event: RequestSent, estimate: int) -> int:
    """Convert an estimate of a part of the request to the provider's tokens."""
    counted = (event.input_tokens or 0) + (event.cache_read_tokens or 0) + (event.cache_write_tokens or 0)
    return estimate * counted // event.tokens_after if counted and event.tokens_after else estimate


def _divide(amount: int, folds: Sequence[FoldSavings]) -> list[tuple[FoldSavings, int]]:
    """Divide an amount among folds in proportion to their tokens, without a remainder."""
    whole = sum(fold.tokens for fold in folds) or 1
    parts: list[tuple[FoldSavings, int]] = []
    before = given = 0
    for fold in folds:
        before += fold.tokens
        until = amount * before // whole
        parts.append((fold, until - given))
        given = until
    return parts


def tokens_without(point: LedgerPoint) -> int:
    return point.without
