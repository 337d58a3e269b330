"""The port for the records of proxied conversations: left-out tool results, outcomes of our calls, times.

Records belong to an owner; an id of another owner is not found. Texts are already scrubbed. A store that cannot write
raises `StoreUnavailable`, and then nothing is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from contextfold.common.dataclass import dataclass, field, replace
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


class LeftOutResults(Protocol):
    async def remembered(self, owner: str, conversation: str) -> ConversationRecord:
        """Return the record of a conversation; NEW_CONVERSATION if there is none."""
        ...

    async def keep(
        self,
        owner: str,
        conversation: str,
        results: Sequence[StoredResult],
        origin: ResultOrigin = ORIGIN_UNKNOWN,
    ) -> Sequence[LeftOutResult]:
        """Store results and texts, all or none, and return all of them. A result that is already stored stays."""
        ...

    async def note_request(
        self,
        owner: str,
        conversation: str,
        at: float,
        outcomes: Mapping[str, CallOutcome],
        *,
        cache_life_s: float = 0.0,
    ) -> None:
        """Store the time of a request, if it is later, and add outcomes (`merged_outcomes`).

        `cache_life_s`: after such a pause the prompt was still cached; the longest is stored.
        """
        ...

    async def text(self, owner: str, result_id: str) -> str | None:
        """The scrubbed text of a result; None for one that is unknown, expired, or another owner's."""
        ...


class LeftOutResultsInMemory:
    """The records in the memory of one process. The oldest conversations are forgotten first."""

    CONVERSATIONS_MAX = 10_000

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], ConversationRecord] = {}
        self._texts: dict[tuple[str, str], str] = {}

    async def remembered(self, owner: str, conversation: str) -> ConversationRecord:
        return self._records.get((owner, conversation), NEW_CONVERSATION)

    async def keep(
        self,
        owner: str,
        conversation: str,
        results: Sequence[StoredResult],
        origin: ResultOrigin = ORIGIN_UNKNOWN,
    ) -> Sequence[LeftOutResult]:
        record = self._records.get((owner, conversation), NEW_CONVERSATION)
        known = {each.id for each in record.results}
        new = [each for each in results if each.result.id not in known]
        for each in new:
            self._texts[owner, each.result.id] = each.text
        added = (*record.results, *(each.result for each in new))
        self._put(owner, conversation, replace(record, results=added))
        return added

    async def note_request(
        self,
        owner: str,
        conversation: str,
        at: float,
        outcomes: Mapping[str, CallOutcome],
        *,
        cache_life_s: float = 0.0,
    ) -> None:
        record = self._records.get((owner, conversation), NEW_CONVERSATION)
        self._put(owner, conversation, record.with_request(at, outcomes, cache_life_s))

    async def text(self, owner: str, result_id: str) -> str | None:
        return self._texts.get((owner, result_id))

    def _put(self, owner: str, conversation: str, record: ConversationRecord) -> None:
        self._records.pop((owner, conversation), None)
        self._records[owner, conversation] = record
        while len(self._records) > self.CONVERSATIONS_MAX:
            oldest = next(iter(self._records))
            for result in self._records.pop(oldest).results:
                self._texts.pop((oldest[0], result.id), None)
