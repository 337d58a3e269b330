"""Reads the trajectory of a thread from the archive, page by page and in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from contextfold.fold.archive import ArchiveEntry, has_moved_work, readable
from contextfold.fold.ports.store import ArchivedThread, StoreReader, Trajectory

PAGE_ENTRIES = 64


async def thread_entries(
    store: StoreReader, thread: ArchivedThread, *, after_n: int = 0, characters: int | None = None
) -> AsyncIterator[Sequence[ArchiveEntry]]:
    """Yield pages of entries after event `after_n`, each with about so many characters.

    The operations of a branch that was folded afterwards come first; they are stored with its parent thread.
    """
    while found := await _page(store, thread, after_n, characters):
        if not found.entries:
            return
        first = found.entries[0]
        if has_moved_work(first):
            above = ArchivedThread(thread.owner, thread.project_hash, first.child_id, first.source)
            async for entries in _between(store, above, max(after_n, first.undone_from or 0), first.n, characters):
                yield entries
        yield readable(found.entries, found.rollbacks)
        after_n = found.entries[-1].n


async def is_archived(store: StoreReader, thread: ArchivedThread) -> bool:
    return await _page(store, thread, 0, 1) is not None


async def _between(
    store: StoreReader, thread: ArchivedThread, after_n: int, before_n: int, characters: int | None
) -> AsyncIterator[Sequence[ArchiveEntry]]:
    """The operations of a thread between two events, including those that moved away from it."""
    while found := await _page(store, thread, after_n, characters):
        undone = [(start, end) for start, end in found.rollbacks if start >= 0]
        entries = [entry for entry in found.entries if entry.n < before_n]
        yield [entry for entry in readable(entries, undone) if entry.kind == "operation"]
        if len(entries) < len(found.entries) or not entries:
            return
        after_n = entries[-1].n


async def _page(store: StoreReader, thread: ArchivedThread, after_n: int, characters: int | None) -> Trajectory | None:
    return await store.trajectory(thread, after_n=after_n, limit=PAGE_ENTRIES, characters=characters)
