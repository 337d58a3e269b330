"""The outcomes of our calls in several requests of a conversation. Knows neither messages nor stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

# The most outcomes that are kept of a conversation.
OUTCOMES_MAX = 2_000

Outcome = TypeVar("Outcome")


def merge_by_call(old: Mapping[str, Outcome], new: Mapping[str, Outcome], *, ambiguous: Outcome) -> dict[str, Outcome]:
    """Merge outcomes by call id; drop the oldest if there are too many. An id of two different calls is ambiguous."""
    merged = dict(old)
    for call_id, outcome in new.items():
        earlier = merged.get(call_id, outcome)
        merged[call_id] = outcome if earlier == outcome else ambiguous
    for call_id in list(merged)[: max(0, len(merged) - OUTCOMES_MAX)]:
        del merged[call_id]
    return merged
