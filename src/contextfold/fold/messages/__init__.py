"""Folds a list of messages: leaves the turns of returned branches and of folds out of a request.

Little else is changed, and nothing that a user wrote is ever left out.

    projection = project(messages, "anthropic")
    client.messages.create(messages=projection.messages, ...)

Pure: the same history always gives the same list. Knows the lists of four APIs, no protocol and no session.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contextfold.fold.messages.apis.facts import members_of
from contextfold.fold.messages.body import BODY_REASONS, NO_MESSAGES, BodyProjection, project_body
from contextfold.fold.messages.cold_results import ColdResult, ColdSettings, remembered_stubs
from contextfold.fold.messages.formats import FORMATS, Api, Format, api_of, facts_of
from contextfold.fold.messages.formats import binds_thinking as model_binds_thinking
from contextfold.fold.messages.own_tools import CallOutcome, confirmed_names, names_in
from contextfold.fold.messages.receipt import (
    OPEN_BRANCH,
    Fold,
    Plan,
    Receipt,
    Skipped,
    Span,
    outcome_of,
    plan_of,
    untouched,
)
from contextfold.fold.messages.remembered import NOTHING_REMEMBERED, LeftOutResult, Remembered, by_call, merged_outcomes
from contextfold.fold.messages.rewriting import rewritten
from contextfold.fold.messages.walk import FOLD_REASONS, Walk
from contextfold.fold.messages.weight import IMAGE_TOKENS, weight_of

__all__ = [
    "FORMATS",
    "IMAGE_TOKENS",
    "OPEN_BRANCH",
    "REASONS",
    "BodyProjection",
    "CallOutcome",
    "ColdResult",
    "ColdSettings",
    "Fold",
    "Format",
    "LeftOutResult",
    "Projection",
    "Receipt",
    "Remembered",
    "Skipped",
    "Span",
    "by_call",
    "merged_outcomes",
    "project",
    "project_body",
]

# The reasons why something was not folded. OPEN_BRANCH is not among them, because an open branch is not a problem.
REASONS: tuple[str, ...] = FOLD_REASONS + BODY_REASONS


@dataclass(frozen=True, slots=True)
class Projection:
    # The list of the same objects, some left out and a few rewritten. A text instead of a list is returned unchanged.
    messages: Any
    receipt: Receipt
    # The main thread, then the open branches, the outermost first.
    threads: tuple[Span, ...]
    # The session id in the last result of our tools.
    session_id: str | None
    # The outcomes of our calls by call id, to be stored for later requests of the conversation.
    outcomes: Mapping[str, CallOutcome]

    @property
    def changed(self) -> bool:
        return self.receipt.first_changed is not None


def project(
    messages: Sequence[Mapping[str, Any]] | str,
    format: Format,
    *,
    model: str = "",
    binds_thinking: bool | None = None,
    tools: object = None,
    remembered: Remembered = NOTHING_REMEMBERED,
) -> Projection:
    """The messages to send.

    `binds_thinking` says whether the model accepts its thinking only after exactly the same messages. By default the
    model's name decides; an unknown model is assumed to bind it. `tools` is the request's list of tools.
    """
    api = api_of(format)
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        is_text = isinstance(messages, str) and api.takes_text
        return Projection(messages, *untouched(weight_of(messages), "" if is_text else NO_MESSAGES), None, {})
    walk = Walk(remembered.outcomes, confirmed_names(names_in(tools)) if tools else frozenset())
    stubs: dict[int, dict[int, LeftOutResult]] = {}
    for place, fact in enumerate(facts_of(messages, api)):
        walk.take(fact)
        those = remembered_stubs(fact.results, remembered) if remembered.results else {}
        if those:
            stubs[place] = those
    weights = array("q", map(weight_of, messages))
    is_bound = model_binds_thinking(api, model) if binds_thinking is None else binds_thinking
    plan = plan_of(walk, binds_thinking=is_bound, merges_words=bool(api.parts_name), stubs=stubs)
    sent, sent_weights = _applied(messages, plan, api, weights)
    receipt, threads = outcome_of(walk, plan, weights, sent_weights, 0)
    return Projection(sent, receipt, threads, walk.session_id, walk.outcomes)


def _applied(messages: Sequence[Any], plan: Plan, api: Api, weights: array[int]) -> tuple[list[Any], array[int]]:
    sent, sent_weights = list(messages), weights[:]
    for place, rewrite in plan.rewrites.items():
        sources = [members_of(messages[source]) or {} for source in rewrite.words_of]
        sent[place] = rewritten(members_of(messages[place]) or {}, rewrite, sources, api)
        sent_weights[place] = weight_of(sent[place])
    for start, end in reversed(plan.cuts):
        del sent[start:end]
        sent_weights[start:end] = array("q", bytes((end - start) * weights.itemsize))
    return sent, sent_weights
