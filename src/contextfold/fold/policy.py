"""The settings of folding, and what follows from them for a session: its limit, its health, and what to advise. Pure.

A model in a branch often forgets to return, and a model that has finished a piece of work does not think of folding it.
A line added to what it reads reminds it. Each line names something that the agent can do now, and is given once in a
session for each threshold, again after each fold, and again later where a fold would pay several times over. Only a
conversation that the proxy or hooks see gets advice: of another one it is not known what its model is sent.

A fold costs a request that reads the whole context, the output of the call, and writing the summary to the cache. Every
later request then saves reading the folded tokens. `requests_until_paid` computes the number of requests after which
the fold has paid. A call together with another call of the same turn costs no request, but the results of that turn
stay. So it should accompany a call with a short result, such as an edit.
"""

from typing import NamedTuple

from contextfold.common.bounded_cache import BoundedCache
from contextfold.common.canonical import Encodable, Hundredths, JsonObject
from contextfold.fold.model_catalog import (
    CONTEXT_TOKENS_UNKNOWN,
    HOST_TOKENS,
    MODELS,
    RELATIVE_PRICES,
    LedgerPrices,
    ModelCatalog,
    TokenPrices,
)
from contextfold.fold.session import Branch, SessionLimits, State

PERCENT = 100
# The failure rate of fewer operations is not significant.
FAILURE_RATE_OPERATIONS_MIN = 5
# Folding fewer tokens never pays.
TOKENS_WORTH_FOLDING = 5_000
# In a shorter conversation few folds pay before its end. The host's own prompt and tools are not counted.
CONTEXT_WORTH_FOLDING = 25_000
# A fold is advised if it pays within this many further requests.
PAID_WITHIN_REQUESTS = 15
# Where requests are seen, the main thread gets advice at most once in this many.
ADVICE_EVERY_REQUESTS = 5
# Advice that was not followed is given again if the fold would pay this many times over, at most once in this many
# requests.
PAYS_AGAIN_FACTOR = 2
ADVICE_AGAIN_REQUESTS = 10
# The tokens that a fold leaves in the context, and those that the model writes: medians of recorded conversations.
SUMMARY_TOKENS = 460
CALL_OUTPUT_TOKENS = 290
DESCRIPTION_LENGTH_SHOWN = 60
# At most this many sessions are remembered with the advice that they were given.
SESSIONS_ADVISED_MAX = 10_000
_ELLIPSIS = "…"
_NO_QUOTES = str.maketrans({'"': "’", "'": "’"})


class Thresholds(NamedTuple):
    """The percentages of the limit above which the main thread gets each warning."""

    medium: int = 50
    high: int = 70


class AdviceSettings(NamedTuple):
    """When an agent is advised to fold."""

    is_on: bool = True
    # From this many tokens on, a branch is advised to return; 0 means half of the context.
    branch_tokens: int = 0


class FoldPolicy(NamedTuple):
    limits: SessionLimits = SessionLimits()
    thresholds: Thresholds = Thresholds()
    counter: str = "v0"
    idle_s: int = 24 * 3600
    archive_days: int = 30
    summary_days: int = 365
    advice: AdviceSettings = AdviceSettings()
    models: ModelCatalog = MODELS
    # The prices for models with unknown prices, in hundredths of an input token.
    relative_prices: TokenPrices = RELATIVE_PRICES
    # Whether a session's first prompt is answered with earlier folds.
    recall_at_start: bool = False
    # Whether expiry counts by this machine's clock, whatever time the store has seen.
    trusts_clock: bool = False

    @property
    def ledger_prices(self) -> LedgerPrices:
        return LedgerPrices(self.models, self.relative_prices)

    def prices(self, state: State) -> TokenPrices:
        """The prices of the session's model, or relative ones if they are not known."""
        return self.models.prices(state.model) or self.relative_prices

    def context_limit(self, state: State) -> int:
        """The limit in the settings, else the model's context window less the host's prompt, else a default."""
        if self.limits.context_tokens is not None:
            return self.limits.context_tokens
        window = self.models.context_tokens(state.model) if state.model else None
        if window is None:
            return CONTEXT_TOKENS_UNKNOWN
        host_tokens = state.host_tokens if state.last_request_n else HOST_TOKENS.get(state.host, 0)
        return max(1, window - host_tokens)

    def warning(self, state: State, main_tokens: int) -> str:
        """How full the context is if the main thread has so many tokens: none, medium or high."""
        used, limit = PERCENT * main_tokens, self.context_limit(state)
        if used > self.thresholds.high * limit:
            return "high"
        return "medium" if used > self.thresholds.medium * limit else "none"

    def health(self, state: State, branch: Branch | None = None, suggestion: str | None = None) -> JsonObject:
        """The member `context_health` of results: from the size of the main thread and the failure rate of a branch."""
        main = state.main.tokens
        result: dict[str, Encodable] = {
            "warning": self.warning(state, main),
            "main_thread_usage": share(main, self.context_limit(state)),
        }
        if suggestion is not None:
            result["suggestion"] = suggestion
        if branch and branch.failed and branch.operations >= FAILURE_RATE_OPERATIONS_MIN:
            result["failure_rate"] = share(branch.failed, branch.operations)
        return result


def share(part: int, whole: int) -> Hundredths:
    """The quotient with two decimals, rounded as `percent`, so that both say the same."""
    return Hundredths(percent(part, whole) / PERCENT) if whole else Hundredths(0)


def percent(part: int, whole: int) -> int:
    """The share as a whole percentage, rounded half up."""
    return (2 * PERCENT * part + whole) // (2 * whole)


class Advice(NamedTuple):
    # The name of the threshold that was exceeded. Advice with the same key is given once.
    key: str
    # A sentence that says what to do.
    suggestion: str
    # One line without quotation marks that says what the situation is and what to do.
    line: str
    # Whether it is worth repeating if it is not followed.
    is_pressing: bool = False


class GivenAdvice:
    """Remembers which advice the latest sessions were given."""

    def __init__(self) -> None:
        # The keys of a session's advice, and the id of its last request when it was given advice last.
        self._given = BoundedCache[str | None, tuple[frozenset[str], str]](SESSIONS_ADVISED_MAX)

    def has(self, state: State, advice: Advice) -> bool:
        """Whether this advice was given before, or another one only a few requests ago."""
        given = self._given.get(state.session_id)
        if given is None:
            return False
        keys, last_request = given
        since = None
        if state.requests:
            # A session remembers only its latest requests.
            found = state.requests.index(last_request) + 1 if last_request in state.requests else 0
            since = len(state.requests) - found
        if advice.key in keys:
            return not advice.is_pressing or since is None or since < ADVICE_AGAIN_REQUESTS
        return since is not None and since < ADVICE_EVERY_REQUESTS and not state.path

    def add(self, state: State, advice: Advice) -> None:
        keys, _ = self._given.get(state.session_id) or (frozenset[str](), "")
        last_request = state.requests[-1] if state.requests else ""
        self._given.put(state.session_id, (keys | {advice.key}, last_request))


def requests_until_paid(
    before_tokens: int, folded_tokens: int, prices: TokenPrices, *, is_shared: bool = False
) -> float:
    """The number of further requests after which a fold of so many tokens, after so many others, has paid.

    A call that shares its turn with another call (`is_shared`) costs no request.
    """
    saved = prices.cache_read * (folded_tokens - SUMMARY_TOKENS)
    if saved <= 0:
        return float("inf")
    cost = prices.cache_write_5m * SUMMARY_TOKENS + prices.output * CALL_OUTPUT_TOKENS
    if not is_shared:
        cost += prices.cache_read * (before_tokens + folded_tokens)
    return cost / saved


def pays(
    before_tokens: int,
    folded_tokens: int,
    prices: TokenPrices,
    *,
    requests: int = 0,
    is_shared: bool = False,
) -> bool:
    """Whether to advise a fold. `requests` is the number of the conversation's requests, 0 if it is not known.

    A conversation is expected to continue for as many requests as it has had, so a fold must pay within that number. In
    a short context the conversation too often ends before.
    """
    if folded_tokens < TOKENS_WORTH_FOLDING:
        return False
    if requests and before_tokens + folded_tokens < CONTEXT_WORTH_FOLDING:
        return False
    within = min(PAID_WITHIN_REQUESTS, requests or PAID_WITHIN_REQUESTS)
    return requests_until_paid(before_tokens, folded_tokens, prices, is_shared=is_shared) <= within


def choose_advice(state: State, policy: FoldPolicy, *, waiting_tokens: int = 0) -> Advice | None:
    """The most urgent advice now. `waiting_tokens` are reported but not yet recorded."""
    is_seen = state.requests or state.host or waiting_tokens
    if not policy.advice.is_on or not is_seen:
        return None
    is_short = state.total_tokens + waiting_tokens < CONTEXT_WORTH_FOLDING
    if state.active is None:
        return None if is_short else _advise_main_thread(state, policy, waiting_tokens)
    # A limit that the user has set holds in a short conversation, too.
    if is_short and not policy.advice.branch_tokens:
        return None
    return _advise_branch(state, state.active, policy, waiting_tokens)


def _advise_branch(state: State, branch: Branch, policy: FoldPolicy, waiting_tokens: int) -> Advice | None:
    limit = policy.advice.branch_tokens or max(1, policy.context_limit(state) // 2)
    tokens = branch.tokens + waiting_tokens
    if tokens >= limit:
        threshold, situation = "limit", "is at its limit"
        suggestion = "Call context_return now with what you have found."
    elif pays(state.context_tokens - branch.tokens, tokens, policy.prices(state), requests=len(state.requests)):
        threshold, situation = "pays", "is open"
        suggestion = "When it is done, call context_return with all that is needed later."
    else:
        return None
    figures = f"{tokens} of {limit} tokens"
    line = f"contextfold: branch {branch.id} ({_describe(branch)}) {situation}: {figures}. {suggestion}"
    return Advice(f"{branch.id} {threshold}", suggestion, line)


def _advise_main_thread(state: State, policy: FoldPolicy, waiting_tokens: int) -> Advice | None:
    main, work = state.main.tokens + waiting_tokens, state.main.recent.tokens + waiting_tokens
    before, prices = state.host_tokens + main - work, policy.prices(state)
    if not pays(before, work, prices, requests=len(state.requests)):
        return None
    is_pressing = PAYS_AGAIN_FACTOR * requests_until_paid(before, work, prices) <= PAID_WITHIN_REQUESTS
    level, context_tokens = policy.warning(state, main), policy.context_limit(state)
    suggestion = f"Call context_fold with what is still needed of the last {work} tokens of work, if that work is done."
    situation = "every request sends what was read before again"
    if level != "none":
        situation = f"the main thread holds {main} of {context_tokens} tokens ({percent(main, context_tokens)} %)"
    line = f"contextfold: {situation}. {suggestion}"
    # After each fold it is given again.
    folds = sum(branch.status == "folded" for branch in state.branches.values())
    return Advice(f"main {'pays' if level == 'none' else level} {folds}", suggestion, line, is_pressing)


def _describe(branch: Branch) -> str:
    text = " ".join(branch.description.translate(_NO_QUOTES).split())
    if len(text) > DESCRIPTION_LENGTH_SHOWN:
        text = text[: DESCRIPTION_LENGTH_SHOWN - len(_ELLIPSIS)].rstrip() + _ELLIPSIS
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
