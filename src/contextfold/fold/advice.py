"""Decides what to advise an agent about its context, and remembers what it was advised. Knows no store.

A model in a branch often forgets to return, and a model that has finished a piece of work does not think of folding it.
A line added to what it reads reminds it. Each line names something that the agent can do now, and is given once in a
session.

A fold costs a request that reads the whole context, the output of the call, and writing the summary to the cache. Every
later request then saves reading the folded tokens. `requests_until_paid` computes the number of requests after which
the fold has paid. A call together with another call of the same turn costs no request, but the results of that turn
stay. So it should accompany a call with a short result, such as an edit.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from contextfold.fold.model_catalog import TokenPrices
from contextfold.fold.policy import FoldPolicy, percent
from contextfold.fold.session import Branch, State

# Folding fewer tokens never pays.
TOKENS_WORTH_FOLDING = 5_000
# In a shorter context few folds pay before the end of the conversation.
CONTEXT_WORTH_FOLDING = 25_000
# A fold is advised if it pays within this many further requests.
PAID_WITHIN_REQUESTS = 15
# The tokens that a fold leaves in the context, and those that the model writes: medians of recorded conversations.
SUMMARY_TOKENS = 460
CALL_OUTPUT_TOKENS = 290
DESCRIPTION_LENGTH_SHOWN = 60
# At most this many sessions are remembered with the advice that they were given.
SESSIONS_ADVISED_MAX = 10_000
_ELLIPSIS = "…"
_NO_QUOTES = str.maketrans({'"': "’", "'": "’"})


class Advice(NamedTuple):
    # The name of the threshold that was exceeded. Advice with the same key is given once.
    key: str
    # A sentence that says what to do.
    suggestion: str
    # One line without quotation marks that says what the situation is and what to do.
    line: str


class GivenAdvice:
    """Remembers which advice the latest sessions were given."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str | None, set[str]] = OrderedDict()

    def has(self, state: State, advice: Advice) -> bool:
        return advice.key in self._keys.get(state.session_id, ())

    def add(self, state: State, advice: Advice) -> None:
        self._keys.setdefault(state.session_id, set()).add(advice.key)
        self._keys.move_to_end(state.session_id)
        if len(self._keys) > SESSIONS_ADVISED_MAX:
            self._keys.popitem(last=False)


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
    if not policy.advice.is_on:
        return None
    if state.active is None:
        return _advise_main_thread(state, policy, waiting_tokens)
    return _advise_branch(state, state.active, policy, waiting_tokens)


def _advise_branch(state: State, branch: Branch, policy: FoldPolicy, waiting_tokens: int) -> Advice | None:
    limit = policy.advice.branch_tokens or max(1, policy.context_limit(state) // 2)
    tokens = branch.tokens + waiting_tokens
    if tokens >= limit:
        threshold, situation = "limit", "is at its limit"
        suggestion = "Call context_return now with what you have found."
    elif pays(state.total_tokens - branch.tokens, tokens, policy.prices(state), requests=len(state.requests)):
        threshold, situation = "pays", "is open"
        suggestion = "When it is done, call context_return with all that is needed later."
    else:
        return None
    figures = f"{tokens} of {limit} tokens"
    line = f"contextfold: branch {branch.id} ({_describe(branch)}) {situation}: {figures}. {suggestion}"
    return Advice(f"{branch.id} {threshold}", suggestion, line)


def _advise_main_thread(state: State, policy: FoldPolicy, waiting_tokens: int) -> Advice | None:
    main, work = state.main.tokens + waiting_tokens, state.main.recent.tokens + waiting_tokens
    if not pays(main - work, work, policy.prices(state), requests=len(state.requests)):
        return None
    level, context_tokens = policy.warning(state, main), policy.context_limit(state)
    suggestion = f"Call context_fold with what is still needed of the last {work} tokens of work, if that work is done."
    used = f"{main} of {context_tokens} tokens ({percent(main, context_tokens)} %)"
    line = f"contextfold: the main thread holds {used}. {suggestion}"
    return Advice(f"main {'pays' if level == 'none' else level}", suggestion, line)


def _describe(branch: Branch) -> str:
    text = " ".join(branch.description.translate(_NO_QUOTES).split())
    if len(text) > DESCRIPTION_LENGTH_SHOWN:
        text = text[: DESCRIPTION_LENGTH_SHOWN - len(_ELLIPSIS)].rstrip() + _ELLIPSIS
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
