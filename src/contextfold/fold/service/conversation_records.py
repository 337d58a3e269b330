"""The records of proxied conversations in the store of sessions.

Records belong to an owner; an id of another owner is not found. A store that cannot write raises `StoreUnavailable`,
and then nothing is left out.

Conversations in use are cached, so that most requests do not read the store. A daemon that shares its store reads it
for each request: a lost prefix can make another daemon leave results out at any time, and both must send the same
bytes.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from contextfold.common.bounded_cache import BoundedCache
from contextfold.common.canonical import encode
from contextfold.errors import ContextError
from contextfold.fold.events import timestamp
from contextfold.fold.messages import CallOutcome, merged_outcomes
from contextfold.fold.messages.own_tools import remembered_id
from contextfold.fold.store import (
    AMBIGUOUS_OUTCOME,
    ArchivedResult,
    LeftOutDecision,
    ProxiedConversation,
    Store,
)

FRESH_S = 30.0
CACHED_MAX = 2_000


class ResultOrigin(NamedTuple):
    """The project and session of a conversation. The path is scrubbed."""

    project_hash: str = ""
    project_path: str = ""
    session_id: str = ""


ORIGIN_UNKNOWN = ResultOrigin()


@dataclass(frozen=True, slots=True)
class ConversationRecord:
    """The record of one conversation."""

    results: tuple[LeftOutDecision, ...] = ()
    # The outcomes by call id; see `fold.messages.Remembered`.
    outcomes: Mapping[str, CallOutcome] = field(default_factory=dict)
    # The time at which its last request was answered, in seconds since 1970; None before the first.
    last_request_at: float | None = None
    # The longest pause after which its prompt was still cached, if that was longer than expected.
    cache_life_s: float = 0.0
    # The time at which a request was last recorded in the store; None if that failed, so that the store is read again.
    noted_at: float | None = field(default=None, compare=False)
    # Whether it has everything that was in the store when it was last read.
    is_whole: bool = field(default=False, compare=False)

    @property
    def has_new_fold(self) -> bool:
        """Whether a fold by hand was not yet sent, so that another process may undo it."""
        return any(each.is_fold and remembered_id(each.result_id) not in self.outcomes for each in self.results)

    def merge(self, known: ConversationRecord) -> ConversationRecord:
        """Both records of a conversation. The results of this one take precedence."""
        results = {(each.call_id, each.text_hash): each for each in (*known.results, *self.results)}
        times = [at for at in (self.last_request_at, known.last_request_at) if at is not None]
        return ConversationRecord(
            tuple(results.values()),
            merged_outcomes(self.outcomes, known.outcomes),
            max(times, default=None),
            max(self.cache_life_s, known.cache_life_s),
            known.noted_at,
            self.is_whole or known.is_whole,
        )


NEW_CONVERSATION = ConversationRecord()


class ConversationRecords:
    """`fresh_s` must be shorter than the lifetime of a prompt cache that any daemon with this store assumes."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time, fresh_s: float = FRESH_S) -> None:
        self._store, self._clock, self._fresh_s = store, clock, fresh_s
        # By owner and conversation.
        self._cached = BoundedCache[tuple[str, str], ConversationRecord](CACHED_MAX)

    async def load(self, owner: str, conversation: str, *, timeout_s: float | None = None) -> ConversationRecord:
        """The record of a conversation; if the store is unavailable or slow, the one that this daemon has cached."""
        cached = self._cached.get((owner, conversation))
        if cached is not None and not cached.is_whole:
            # Its results are not known here.
            cached = None
        if (
            cached
            and not cached.has_new_fold
            and cached.noted_at is not None
            and 0 <= self._clock() - cached.noted_at < self._fresh_s
        ):
            return cached
        try:
            async with asyncio.timeout(timeout_s):
                decisions = await self._store.left_out(owner, conversation)
                noted = await self._store.conversation(owner, conversation)
        except (ContextError, TimeoutError):
            if cached is None:
                raise
            return cached
        # The cache is read again, because another request of the conversation may have been recorded meanwhile.
        known = self._cached.get((owner, conversation)) or NEW_CONVERSATION
        record = _stored_record(decisions, noted).merge(known)
        self._cached.put((owner, conversation), record)
        return record

    async def keep(
        self,
        owner: str,
        conversation: str,
        results: Sequence[ArchivedResult],
        origin: ResultOrigin = ORIGIN_UNKNOWN,
    ) -> Sequence[LeftOutDecision]:
        """Store results and texts, all or none, and return all of them. A result that is already stored stays."""
        at = _timestamp(self._clock())
        items = [
            ArchivedResult(decision._replace(decided_at=at, **origin._asdict()), text) for decision, text in results
        ]
        await self._store.keep_left_out(owner, conversation, items)
        stored = tuple(await self._store.left_out(owner, conversation))
        known = self._cached.get((owner, conversation)) or NEW_CONVERSATION
        self._cached.put((owner, conversation), replace(known, results=stored))
        return stored

    async def inherit(self, owner: str, parent: str, conversation: str) -> ConversationRecord:
        """Store what a conversation leaves out for a fork of it, too; return the record that the fork begins with."""
        known = await self.load(owner, parent)
        texts = [(each, await self._store.left_out_text(owner, each.result_id)) for each in known.results]
        items = [ArchivedResult(each, text) for each, text in texts if text is not None]
        if items:
            await self._store.keep_left_out(owner, conversation, items)
        record = replace(known, results=tuple(each.decision for each in items), noted_at=None)
        self._cached.put((owner, conversation), record)
        return record

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
        known = self._cached.get((owner, conversation)) or NEW_CONVERSATION
        request = ConversationRecord((), outcomes, at, cache_life_s, known.noted_at)
        self._cached.put((owner, conversation), known.merge(request))
        new = {call_id: each for call_id, each in outcomes.items() if known.outcomes.get(call_id) != each}
        is_longer = cache_life_s > known.cache_life_s
        if not new and not is_longer and known.noted_at is not None and _second(at) == _second(known.noted_at):
            # The store has this second already.
            return
        texts = {call_id: encode_outcome(each) for call_id, each in new.items()}
        noted = ProxiedConversation(_timestamp(at), texts, math.floor(cache_life_s))
        noted_at: float | None = None
        try:
            await self._store.note_conversation(owner, conversation, noted)
            noted_at = at
        finally:
            latest = self._cached.get((owner, conversation))
            if latest is not None:
                self._cached.put((owner, conversation), replace(latest, noted_at=noted_at))


def _stored_record(decisions: Iterable[LeftOutDecision], noted: ProxiedConversation | None) -> ConversationRecord:
    results = tuple(decisions)
    if noted is None:
        return ConversationRecord(results, is_whole=True)
    outcomes = {call_id: _decode_outcome(text) for call_id, text in noted.outcomes.items()}
    last_request_at = datetime.fromisoformat(noted.last_request_at).timestamp() if noted.last_request_at else None
    return ConversationRecord(results, outcomes, last_request_at, noted.cache_life_s, is_whole=True)


def encode_outcome(outcome: CallOutcome) -> str:
    """Encode an outcome; an ambiguous one as an empty text, so that the store merges it in the same way."""
    if not outcome.verb:
        return AMBIGUOUS_OUTCOME
    return encode([outcome.verb, outcome.branch_id, outcome.session_id, list(outcome.discarded)])


def _decode_outcome(text: str) -> CallOutcome:
    if text == AMBIGUOUS_OUTCOME:
        return CallOutcome("")
    verb, branch_id, session_id, discarded = json.loads(text)
    return CallOutcome(verb, branch_id, session_id, tuple(discarded))


def _timestamp(at: float) -> str:
    """A time, rounded up, so that a warm prompt cache never seems to be expired."""
    return timestamp(datetime.fromtimestamp(_second(at), UTC))


def _second(at: float) -> int:
    return math.ceil(at)
