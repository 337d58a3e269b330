"""Folding the message list itself: whole turns of returned branches are left out of a request, nothing else is touched.

    projection = project(messages, "anthropic")
    client.messages.create(messages=projection.messages, ...)

Pure: the same history gives the same list, whatever came before. Knows the three APIs' lists, no wire and no session.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contextfold.fold.messages.body import BODY_REASONS, NO_MESSAGES, BodyProjection, project_body
from contextfold.fold.messages.facts import UNKNOWN, members_of
from contextfold.fold.messages.formats import FORMATS, Format, api_of
from contextfold.fold.messages.receipt import Fold, Receipt, Skipped, Span, outcome_of, untouched
from contextfold.fold.messages.walk import PAIR_REASONS, Walk
from contextfold.fold.messages.weight import IMAGE_TOKENS, weight_of

__all__ = [
    "FORMATS",
    "IMAGE_TOKENS",
    "REASONS",
    "BodyProjection",
    "Fold",
    "Format",
    "Projection",
    "Receipt",
    "Skipped",
    "Span",
    "project",
    "project_body",
]

REASONS: tuple[str, ...] = PAIR_REASONS + BODY_REASONS


@dataclass(frozen=True, slots=True)
class Projection:
    messages: Any  # a list of the same objects, some left out; text that was given for a list is given back
    receipt: Receipt
    threads: tuple[Span, ...]  # main first, then open branches, outermost first
    session_id: str | None  # the last that a result of our tools names

    @property
    def changed(self) -> bool:
        return self.receipt.first_changed is not None


def project(messages: Sequence[Mapping[str, Any]] | str, format: Format, *, binds_thinking: bool = False) -> Projection:
    """The messages to send. `binds_thinking`: the model takes thinking back only behind the very same messages."""
    api = api_of(format)
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        outcome = untouched(weight_of(messages), "" if isinstance(messages, str) and api.takes_text else NO_MESSAGES)
        return Projection(messages, outcome.receipt, outcome.threads, None)
    walk = Walk()
    for message in messages:
        members = members_of(message)
        walk.take(UNKNOWN if members is None else api.read(members))
    weights = array("q", map(weight_of, messages))
    outcome = outcome_of(walk, weights, 0, binds_thinking=binds_thinking)
    sent = list(messages)
    for start, end in reversed(outcome.cuts):
        del sent[start:end]
    return Projection(sent, outcome.receipt, outcome.threads, walk.session_id)
