"""What is remembered of a conversation from its earlier requests: plain data, to be stored by others. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from contextfold.common.dataclass import dataclass, field
from contextfold.fold.messages.own_tools import CallOutcome
from contextfold.fold.ports.call_outcomes import merged_by_call


@dataclass(frozen=True, slots=True)
class LeftOutResult:
    """A tool result whose text is left out of every later request of its conversation, and what stands there."""

    # `res_…`
    id: str
    call_id: str
    # Of the text, as the request has it: some clients use a call id again.
    text_hash: str
    stub: str
    # Of the text.
    tokens: int
    # How many messages the conversation had when this was decided. Bound thinking in front of that is left out too.
    decided_at: int


@dataclass(frozen=True, slots=True)
class Remembered:
    # By call id. An outcome without a verb: the client used the id for several calls, so it says nothing.
    outcomes: Mapping[str, CallOutcome] = field(default_factory=dict)
    # By call id, then by hash of the text.
    results: Mapping[str, Mapping[str, LeftOutResult]] = field(default_factory=dict)


NOTHING_REMEMBERED = Remembered()


def by_call(results: tuple[LeftOutResult, ...]) -> dict[str, dict[str, LeftOutResult]]:
    """Results in the order in which `Remembered` wants them."""
    ordered: dict[str, dict[str, LeftOutResult]] = {}
    for result in results:
        ordered.setdefault(result.call_id, {})[result.text_hash] = result
    return ordered


def merged_outcomes(old: Mapping[str, CallOutcome], new: Mapping[str, CallOutcome]) -> dict[str, CallOutcome]:
    """Both, the latest if they are too many. An id that stood for two different calls is never used again."""
    return merged_by_call(old, new, ambiguous=CallOutcome(""))
