"""Folds a list of parsed messages: reads them, finds what folds, makes a plan, applies it, and describes it.

    messages  →  facts  →  walk (ranges)  →  plan  →  messages to send, receipt, threads

Each step is a function of the step before it. The proxy and users of the library call the same `project`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contextfold.common.tokens import tokens_of
from contextfold.fold.messages.apis import Format, api_of, read_facts
from contextfold.fold.messages.by_hand import FOLDED, find_folds, note_outcomes
from contextfold.fold.messages.cold_results import (
    AFTER_A_PAUSE,
    NOTHING_REMEMBERED,
    ColdResult,
    ColdSettings,
    LeftOutPart,
    Remembered,
    choose_results,
    choose_thinking,
    find_left_out,
    hash_text,
    list_results,
)
from contextfold.fold.messages.facts import Api, Fact
from contextfold.fold.messages.own_tools import CallOutcome, confirm_names, list_tool_names, remembered_id
from contextfold.fold.messages.plan import Plan, find_first_movable, leave_out, make_plan, rewrite_messages
from contextfold.fold.messages.receipt import Receipt, Span, make_empty_receipt, make_receipt
from contextfold.fold.messages.walk import Fate, Walk, is_inside, walk_messages
from contextfold.fold.messages.weight import encode_message, weigh_message
from contextfold.fold.store import LeftOutDecision

# The reason why nothing was folded if there is no list of messages.
NO_MESSAGES = "no_messages"

# The bytes of an empty list, and of the separator before each message but the first.
_BRACKETS, _COMMA = 2, 1


@dataclass(frozen=True, slots=True)
class ProjectionDetails:
    """What was read from the messages, and what was changed."""

    facts: Sequence[Fact] = ()
    walk: Walk = field(default_factory=Walk)
    # What earlier requests left out, also inside folds.
    left_out: Sequence[LeftOutPart] = ()
    plan: Plan = field(default_factory=Plan)
    binds_thinking: bool = False
    # The weight of each original message as it is sent (0 if it is left out), and of the rest of the request.
    sent_weights: Sequence[int] = ()
    rest_weight: int = 0
    # The hash of the JSON of each original message, and of each that is sent.
    hashes: Sequence[int] = ()
    sent_hashes: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Projection:
    # The list of the same objects, some left out and a few rewritten. A text instead of a list is returned unchanged.
    messages: Any
    receipt: Receipt
    # The main thread, then the open branches, the outermost first.
    threads: tuple[Span, ...]
    details: ProjectionDetails

    @property
    def changed(self) -> bool:
        return self.receipt.first_changed is not None

    @property
    def session_id(self) -> str | None:
        """The session id in the last result of our tools."""
        return self.details.walk.session_id

    @property
    def outcomes(self) -> Mapping[str, CallOutcome]:
        """The outcomes of our calls by call id, to be stored for later requests of the conversation."""
        by_hand = (each.branch_id for each in self.details.plan.folded if each.by_hand)
        return {**self.details.walk.outcomes, **note_outcomes(by_hand, FOLDED)}

    def has_words(self, place: int) -> bool:
        """Whether the user wrote a part of a message."""
        return self.details.walk.fates[place] in (Fate.WORDS, Fate.MIXED)

    @property
    def opening_tokens(self) -> int:
        """The tokens that are sent before the model's first message; all of them if there is none."""
        first = self.details.walk.turns[0] if self.details.walk.turns else len(self.details.sent_weights)
        return tokens_of(self.details.rest_weight + sum(self.details.sent_weights[:first]))

    @property
    def left_out(self) -> list[LeftOutDecision]:
        """The results and texts of edits that are sent as a stub."""
        return [part.decision for part in self.left_out_parts]

    @property
    def left_out_parts(self) -> list[LeftOutPart]:
        """The same, each with its place. The result that a fold by hand replaces counts as a part of the fold."""
        parts = (part for part in self.details.left_out if not part.decision.is_fold)
        return [part for part in parts if not is_inside(part.place, self.details.plan.folded)]

    def tokens_before_stubs(self, results: Collection[str]) -> int | None:
        """The tokens that are sent before the first stub of these results; None if none of them is sent."""
        places = [part.place for part in self.left_out_parts if part.decision.result_id in results]
        return self.tokens_before(min(places)) if places else None

    def tokens_before(self, place: int) -> int:
        """The tokens that are sent before an original message."""
        return tokens_of(self.details.rest_weight + sum(self.details.sent_weights[:place]))

    def place_of_sent(self, number: int) -> int:
        """The index in the original list of the message that is sent with this number."""
        place = number
        for start, end in self.details.plan.cuts:
            place += end - start if start <= place else 0
        return place

    def cold_results(
        self, *, salt: str, settings: ColdSettings, first_place: int = 0, when: str = AFTER_A_PAUSE
    ) -> list[ColdResult]:
        """What to leave out of the messages from `first_place` on, which the prompt cache does not hold any more.

        It is without what is already left out. A change in front of bound thinking that must stay is not possible.
        """
        details = self.details
        seen, folded = list_results(details.facts), details.plan.folded
        gone = {(remembered_id(part.decision.call_id), part.decision.text_hash) for part in details.left_out}
        by_hand = {part.place for part in details.left_out if part.decision.is_fold}
        for each in seen:
            if is_inside(each.place, folded) or each.place in by_hand:
                texts = [each.text, *each.arguments.values()]
                gone |= {(remembered_id(each.call_id), hash_text(text)) for text in texts if isinstance(text, str)}
        if details.binds_thinking:
            first_place = max(first_place, find_first_movable(details.walk))
        chosen = choose_results(
            seen, details.walk, gone, first_place=first_place, salt=salt, settings=settings, when=when
        )
        if settings.has_inputs:
            # What a fold leaves out, or a change before it, is not left out again.
            bare = {place for place, rewrite in details.plan.rewrites.items() if rewrite.without_thinking}
            inside = {place for place in range(details.walk.count) if is_inside(place, folded)}
            chosen += choose_thinking(details.facts, details.walk, bare | inside, first_place=first_place, salt=salt)
        return chosen


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
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        reason = "" if isinstance(messages, str) and api.takes_text else NO_MESSAGES
        return make_empty_projection(messages, weigh_message(messages, encode_message(messages)), reason)
    if binds_thinking is None:
        binds_thinking = api.binds_thinking(model, None)
    projection, _ = project_and_encode(messages, api, binds_thinking=binds_thinking, tools=tools, remembered=remembered)
    return projection


def project_and_encode(
    messages: Sequence[Mapping[str, Any]],
    api: Api,
    *,
    binds_thinking: bool,
    tools: object,
    remembered: Remembered,
    other_bytes: int = 0,
) -> tuple[Projection, list[bytes]]:
    """The messages to send, and the JSON of each, which is made to count their tokens.

    `other_bytes` is the size of the rest of the request, which counts as tokens in the receipt.
    """
    facts = read_facts(messages, api)
    folds = find_folds(facts, remembered)
    by_hand = {place: parts[0].decision for place, parts in folds.items()}
    walk = walk_messages(facts, remembered.outcomes, confirm_names(list_tool_names(tools, messages)), by_hand)
    left_out = [*find_left_out(facts, walk, remembered), *(part for parts in folds.values() for part in parts)]
    plan = make_plan(walk, api, left_out, binds_thinking=binds_thinking)
    rewritten = rewrite_messages(messages, plan, api)
    encoded = [encode_message(message) for message in messages]
    weights = [weigh_message(*each) + _COMMA for each in zip(messages, encoded, strict=True)]
    sent_weights = list(weights)
    hashes = list(map(hash, encoded))
    for place in plan.rewrites:
        encoded[place] = encode_message(rewritten[place])
        sent_weights[place] = weigh_message(rewritten[place], encoded[place]) + _COMMA
    for start, end in plan.cuts:
        sent_weights[start:end] = [0] * (end - start)
    # The first message has no separator before it.
    rest_weight = other_bytes + _BRACKETS - (_COMMA if messages else 0)
    receipt, threads = make_receipt(walk, plan, weights, sent_weights, rest_weight)
    sent = leave_out(encoded, plan)
    sent_hashes = list(map(hash, sent)) if plan.rewrites or plan.cuts else hashes
    details = ProjectionDetails(
        facts, walk, left_out, plan, binds_thinking, sent_weights, rest_weight, hashes, sent_hashes
    )
    return Projection(leave_out(rewritten, plan), receipt, threads, details), sent


def make_empty_projection(messages: object, weight: int, reason: str) -> Projection:
    """The projection of a request whose messages are not read."""
    receipt, threads = make_empty_receipt(weight, reason)
    return Projection(messages, receipt, threads, ProjectionDetails(rest_weight=weight))
