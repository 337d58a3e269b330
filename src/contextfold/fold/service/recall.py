"""Recall as a service: updates the index, then queries it. Knows no protocol and no database.

Folded work is indexed after its commit, so that a commit does not wait for it: by the daemon's maintenance, and before
every answer. So an answer always includes everything that was stored before the question.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from contextfold.common.event_loop import in_thread, timeout
from contextfold.common.relevance.question import read_question
from contextfold.errors import ArgumentInvalid, ContextError, StoreUnavailable
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import timestamp
from contextfold.fold.ports.store import ArchivedResult, ArchivedThread, RecallSource, SessionKey, StoreReader, Summary
from contextfold.fold.recall.answer import RecallAnswer, answer, memory_line
from contextfold.fold.recall.documents import (
    FOLD,
    OPERATION_CHARACTERS,
    RESULT,
    DocumentTerms,
    count_terms,
    document_number,
    fold_fields,
    result_fields,
)
from contextfold.fold.recall.ranking import RecallScope
from contextfold.fold.sent_request import ScrubbedText
from contextfold.fold.service.archive_reader import thread_entries
from contextfold.fold.tool_arguments import RecallRequest

# This many documents are indexed in one step.
STEP_DOCUMENTS = 16
# One call of maintenance makes at most this many steps. The next call continues.
MAINTENANCE_STEPS = 500
# A question waits for the index at most this long.
CATCH_UP_S = 10.0
# How long a prompt waits for a line about earlier work.
MEMORY_S = 1.0
PAGE_CHARACTERS = 1 << 16
REDACTION_START = "[REDACTED:"


@dataclass(frozen=True, slots=True)
class Recall:
    store: StoreReader
    scrub: Callable[[str], Awaitable[Sequence[ScrubbedText]]]
    clock: Callable[[], datetime]

    async def answer(self, owner: str, request: RecallRequest) -> RecallAnswer:
        (query,) = await self.scrub(request.query)
        question = read_question(_without_redactions(query.text), request.budget_tokens)
        if not question.terms:
            raise ArgumentInvalid("query", "must have a word to look for: it has none, or only words like `the`")
        await self.catch_up(owner)
        since = request.since
        if isinstance(since, int):
            since = timestamp(self.clock() - timedelta(seconds=since))
        scope = RecallScope(request.project.hash if request.project else None, since, request.undone)
        return answer(await self.store.recall(owner, question, scope), request.budget_tokens)

    async def memory_line(self, key: SessionKey, prompt: str) -> str:
        """A line about earlier folds of the project that fit a prompt; empty if there is none, or no time for it."""
        try:
            async with timeout(MEMORY_S):
                from contextfold.fold.tool_arguments import QUERY_LENGTH_MAX

                (scrubbed,) = await self.scrub(prompt[:QUERY_LENGTH_MAX])
                question = read_question(_without_redactions(scrubbed.text), 0)
                if not question.terms:
                    return ""
                await self.catch_up(key.owner)
                return memory_line(await self.store.recall(key.owner, question, RecallScope(key.project_hash)))
        except (TimeoutError, ContextError):
            return ""

    async def catch_up(self, owner: str) -> None:
        """Index everything of an owner. Raises StoreUnavailable if that takes too long; a later call continues."""
        try:
            async with timeout(CATCH_UP_S):
                await self._steps(owner, time.monotonic() + CATCH_UP_S)
        except TimeoutError:
            raise StoreUnavailable("the index of what was folded is still being built: ask again in a minute") from None

    async def _steps(self, owner: str, until_s: float) -> None:
        """Index everything of an owner. Without an event loop the timeout is checked only here."""
        while await self._step(owner):
            if time.monotonic() > until_s:
                raise TimeoutError

    async def maintain(self) -> None:
        """Index new documents of all owners."""
        for _ in range(MAINTENANCE_STEPS):
            if not await self._step(None):
                return

    async def _step(self, owner: str | None) -> bool:
        """Index some documents; return whether there may be more."""
        sources = await self.store.unindexed(owner, STEP_DOCUMENTS)
        if sources:
            texts = [await self._fields(source) for source in sources]
            await self.store.index(await in_thread(lambda: _documents(sources, texts)))
        return len(sources) == STEP_DOCUMENTS

    async def _fields(self, source: RecallSource) -> Sequence[str] | None:
        """The texts of a document; None if it was deleted."""
        # Most questions find everything indexed.

        document = source.document
        if document is None:
            return None
        if isinstance(document, ArchivedResult):
            return result_fields(document.decision.stub, document.text)
        entries: list[ArchiveEntry] = []
        left = OPERATION_CHARACTERS
        thread = ArchivedThread(source.owner, document.project_hash, document.branch_id, document.session_id)
        async for page in thread_entries(self.store, thread, characters=PAGE_CHARACTERS):
            entries += page
            left -= sum(len(entry.text) for entry in page)
            if left <= 0:
                break
        return fold_fields(document.description, document.summary, entries, undone=document.undone)


def _documents(
    sources: Sequence[RecallSource], texts: Sequence[Sequence[str] | None]
) -> list[tuple[RecallSource, DocumentTerms | None]]:
    return [
        (source, None if fields is None else count_terms(_number(source), fields))
        for source, fields in zip(sources, texts, strict=True)
    ]


def _number(source: RecallSource) -> int:
    document = source.document
    assert document is not None, "what was deleted has no texts"
    if isinstance(document, Summary):
        return document_number(document.folded_at, source.owner, FOLD, document.session_id, document.branch_id)
    decision = document.decision
    return document_number(decision.decided_at, source.owner, RESULT, decision.result_id, decision.call_id)


def _without_redactions(text: str) -> str:
    """A query without what replaced its secrets: the names of rules are no words to look for."""
    parts = text.split(REDACTION_START)
    return " ".join([parts[0], *(part.partition("]")[2] for part in parts[1:])])
