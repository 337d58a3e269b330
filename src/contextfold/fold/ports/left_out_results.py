"""The records of proxied conversations, as values: left-out tool results, outcomes of our calls, times.

`fold/service/stored_results.py` stores them. Texts are already scrubbed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from contextfold.common.dataclass import dataclass, field
from contextfold.fold.messages.own_tools import CallOutcome
from contextfold.fold.messages.remembered import LeftOutResult, merged_outcomes


class StoredResult(NamedTuple):
    result: LeftOutResult
    # The scrubbed text.
    text: str


@dataclass(frozen=True, slots=True)
class ResultOrigin:
    """The project and session of a conversation. The path is scrubbed."""

    project_hash: str = ""
    project_path: str = ""
    session_id: str = ""


ORIGIN_UNKNOWN = ResultOrigin()


@dataclass(frozen=True, slots=True)
class ConversationRecord:
    """The record of one conversation."""

    results: tuple[LeftOutResult, ...] = ()
    # The outcomes by call id; see `fold.messages.remembered`.
    outcomes: Mapping[str, CallOutcome] = field(default_factory=dict)
    # The time at which its last request was answered, in seconds since 1970; None before the first.
    last_request_at: float | None = None
    # The longest pause after which its prompt was still cached, if that was longer than expected.
    cache_life_s: float = 0.0

    def with_request(
        self, at: float, outcomes: Mapping[str, CallOutcome], cache_life_s: float = 0.0
    ) -> ConversationRecord:
        return ConversationRecord(
            self.results,
            merged_outcomes(self.outcomes, outcomes),
            at if self.last_request_at is None else max(at, self.last_request_at),
            max(self.cache_life_s, cache_life_s),
        )


NEW_CONVERSATION = ConversationRecord()
