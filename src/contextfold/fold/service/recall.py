"""Recall as a service: updates the index, then queries it. Knows no protocol and no database.

Folded work is indexed after its commit, so that a commit does not wait for it: by the daemon's maintenance, and before
every answer. So an answer always includes everything that was stored before the question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from contextfold.common.question import read_question
from contextfold.errors import ContextError, StoreUnavailable
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.recall import (
    CATCH_UP_S,
    INDEX_INCOMPLETE,
    PAGE_CHARACTERS,
    STEP_DOCUMENTS,
    RecallAnswer,
    answer,
    index_document,
    memory_line,
    operations_thread,
    parse_question,
    scope_of,
    without_redactions,
)
from contextfold.fold.recall_ranking import OPERATION_CHARACTERS, RecallScope
from contextfold.fold.sent_request import ScrubbedText
from contextfold.fold.service.stored_sessions import thread_entries
from contextfold.fold.store import RecallSource, SessionKey, Store
from contextfold.fold.tool_calls import QUERY_LENGTH_MAX, RecallRequest

# One call of maintenance makes at most this many steps. The next call continues.
MAINTENANCE_STEPS = 500
# How long a prompt waits for a line about earlier work.
MEMORY_S = 1.0


class Recall(NamedTuple):
    store: Store
    scrub: Callable[[str], Awaitable[Sequence[ScrubbedText]]]
    clock: Callable[[], datetime]

    async def answer(self, owner: str, request: RecallRequest) -> RecallAnswer:
        (query,) = await self.scrub(request.query)
        question = parse_question(request, query.text)
        await self.catch_up(owner)
        recalled = await self.store.recall(owner, question, scope_of(request, self.clock()))
        return answer(recalled, request)

    async def memory_line(self, key: SessionKey, prompt: str) -> str:
        """A line about earlier folds of the project that fit a prompt; empty if there is none, or no time for it."""
        try:
            async with asyncio.timeout(MEMORY_S):
                (scrubbed,) = await self.scrub(prompt[:QUERY_LENGTH_MAX])
                question = read_question(without_redactions(scrubbed.text), 0)
                if not question.terms:
                    return ""
                await self.catch_up(key.owner)
                return memory_line(await self.store.recall(key.owner, question, RecallScope(key.project_hash)))
        except (TimeoutError, ContextError):
            return ""

    async def catch_up(self, owner: str) -> None:
        """Index everything of an owner. Raises StoreUnavailable if that takes too long; a later call continues."""
        try:
            async with asyncio.timeout(CATCH_UP_S):
                while await self._step(owner):
                    pass
        except TimeoutError:
            raise StoreUnavailable(INDEX_INCOMPLETE) from None

    async def maintain(self) -> None:
        """Index new documents of all owners."""
        for _ in range(MAINTENANCE_STEPS):
            if not await self._step(None):
                return

    async def _step(self, owner: str | None) -> bool:
        """Index some documents; return whether there may be more."""
        sources = await self.store.unindexed(owner, STEP_DOCUMENTS)
        if sources:
            entries = [await self._entries(source) for source in sources]
            await self.store.index(await asyncio.to_thread(lambda: list(map(index_document, sources, entries))))
        return len(sources) == STEP_DOCUMENTS

    async def _entries(self, source: RecallSource) -> list[ArchiveEntry]:
        """The first entries of a fold's thread."""
        entries: list[ArchiveEntry] = []
        thread = operations_thread(source)
        if thread is None:
            return entries
        async for page in thread_entries(self.store, thread, characters=PAGE_CHARACTERS):
            entries += page
            if sum(len(entry.text) for entry in entries) >= OPERATION_CHARACTERS:
                break
        return entries
