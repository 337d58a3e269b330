"""The record of a conversation's earlier requests, which others store. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from contextfold.fold.messages.own_tools import CallOutcome

# The most outcomes of our calls that are stored of a conversation.
OUTCOMES_MAX = 2_000
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class LeftOutResult:
    """A tool result that every later request of its conversation leaves out, and the stub that replaces it."""

    # The id, which begins with `res_`.
    id: str
    call_id: str
    # The hash of the text in the request, because some clients reuse call ids.
    text_hash: str
    stub: str
    # The tokens of the text.
    tokens: int
    # The number of the conversation's messages at the time of the decision. Bound thinking before is left out, too.
    decided_at: int


@dataclass(frozen=True, slots=True)
class Remembered:
    # The outcomes by call id. An outcome without a verb is ambiguous, because the client used the id for several calls.
    outcomes: Mapping[str, CallOutcome] = field(default_factory=dict)
    # The results by call id, then by hash of the text.
    results: Mapping[str, Mapping[str, LeftOutResult]] = field(default_factory=dict)


NOTHING_REMEMBERED = Remembered()


def by_call(results: tuple[LeftOutResult, ...]) -> dict[str, dict[str, LeftOutResult]]:
    """Results by call id and hash, for `Remembered`."""
    ordered: dict[str, dict[str, LeftOutResult]] = {}
    for result in results:
        ordered.setdefault(result.call_id, {})[result.text_hash] = result
    return ordered


def merged_outcomes(old: Mapping[str, CallOutcome], new: Mapping[str, CallOutcome]) -> dict[str, CallOutcome]:
    """Merge outcomes; drop the oldest if there are too many. An id of two different calls is ambiguous."""
    return merge_by_call(old, new, ambiguous=CallOutcome(""))


def merge_by_call(old: Mapping[str, Outcome], new: Mapping[str, Outcome], *, ambiguous: Outcome) -> dict[str, Outcome]:
    """Merge outcomes by call id; drop the oldest if there are too many. An id of two different calls is ambiguous."""
    merged = dict(old)
    for call_id, outcome in new.items():
        earlier = merged.get(call_id, outcome)
        merged[call_id] = outcome if earlier == outcome else ambiguous
    for call_id in list(merged)[: max(0, len(merged) - OUTCOMES_MAX)]:
        del merged[call_id]
    return merged
