"""Reads the trajectory of a thread from the archive, page by page and in order.

`ThreadReading` decides which page comes next and what its entries are, and reads nothing itself. So a command, whose
store answers at once, gets the same entries as the daemon, which awaits its store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import NamedTuple

from contextfold.common.canonical import JsonObject
from contextfold.errors import BranchNotFound
from contextfold.fold.archive import ArchiveEntry, apply_ranges, has_moved_work
from contextfold.fold.ports.store import ArchivedThread, Store, StoreReader, Trajectory
from contextfold.fold.tool_arguments import cursor_of
from contextfold.fold.tool_results import TrajectoryPage

PAGE_ENTRIES = 64
# To find a summary, this many characters of the archive are read at a time.
SUMMARY_READ_CHARACTERS = 1 << 18


class PagePosition(NamedTuple):
    """The page to read next: entries of a thread after an event."""

    thread: ArchivedThread
    after_n: int


class ThreadReading:
    """The position in a thread, and the entries of the pages that were read.

    The operations of a branch that was folded afterwards come first; they are stored with its parent thread.
    """

    def __init__(self, thread: ArchivedThread, after_n: int = 0) -> None:
        self._thread = thread
        # None at the end.
        self.next: PagePosition | None = PagePosition(thread, after_n)
        # The page of such a branch that follows its operations, while those are read.
        self._held: Trajectory | None = None

    def take(self, found: Trajectory | None) -> list[ArchiveEntry]:
        """The entries of the next page, which the store has returned."""
        assert self.next is not None, "everything is read"
        if self._held is not None:
            return self._take_moved(found, self._held, self.next)
        if found is None or not found.entries:
            self.next = None
            return []
        first = found.entries[0]
        if not has_moved_work(first):
            return self._take_own(found)
        parent = ArchivedThread(self._thread.owner, self._thread.project_hash, first.child_id, first.source)
        self._held, self.next = found, PagePosition(parent, max(self.next.after_n, first.undone_from or 0))
        return []

    def _take_own(self, found: Trajectory) -> list[ArchiveEntry]:
        self._held, self.next = None, PagePosition(self._thread, found.entries[-1].n)
        return apply_ranges(found.entries, found.rollbacks)

    def _take_moved(self, found: Trajectory | None, held: Trajectory, at: PagePosition) -> list[ArchiveEntry]:
        """Operations of the parent thread before the fold, including those that moved away from it."""
        if found is None:
            return self._take_own(held)
        entries = [entry for entry in found.entries if entry.n < held.entries[0].n]
        shown = apply_ranges(entries, found.rollbacks, with_moved=True)
        operations = [entry for entry in shown if entry.kind == "operation"]
        if len(entries) < len(found.entries) or not entries:
            return operations + self._take_own(held)
        self.next = PagePosition(at.thread, entries[-1].n)
        return operations


def thread_pages(
    store: StoreReader, thread: ArchivedThread, *, characters: int | None = None
) -> Iterator[Sequence[ArchiveEntry]]:
    """Yield the entries of a thread, in pages of about so many characters."""
    reading = ThreadReading(thread)
    while at := reading.next:
        page = store.trajectory(at.thread, after_n=at.after_n, limit=PAGE_ENTRIES, characters=characters)
        yield reading.take(page)


async def thread_entries(
    store: Store, thread: ArchivedThread, *, after_n: int = 0, characters: int | None = None
) -> AsyncIterator[Sequence[ArchiveEntry]]:
    """Yield the entries of a thread after event `after_n`, in pages of about so many characters."""
    reading = ThreadReading(thread, after_n)
    while at := reading.next:
        page = await store.trajectory(at.thread, after_n=at.after_n, limit=PAGE_ENTRIES, characters=characters)
        yield reading.take(page)


async def read_page(
    store: Store, thread: ArchivedThread, budget_tokens: int, position: tuple[int, int], count: Callable[[str], int]
) -> JsonObject:
    """A page of a thread's trajectory from a position on, within a budget. `count` counts the tokens of a text."""
    page = TrajectoryPage(thread.branch_id or "", budget_tokens, count)
    if thread.branch_id is not None and await store.trajectory(thread, limit=1, characters=1) is None:
        raise BranchNotFound(thread.branch_id, thread.session_id or None)
    after_n, offset = position
    async for entries in thread_entries(store, thread, after_n=after_n, characters=offset + page.characters):
        for entry in entries:
            stopped_at = page.take(entry, offset)
            if stopped_at is not None:
                return page.result(cursor_of(after_n, stopped_at))
            after_n, offset = entry.n, 0
    return page.result(None)


async def read_summary(store: Store, thread: ArchivedThread) -> str:
    """The last summary of a folded branch; empty if the archive no longer has it."""
    summary = ""
    async for entries in thread_entries(store, thread, characters=SUMMARY_READ_CHARACTERS):
        for entry in entries:
            if entry.kind == "summary" and not entry.undone:
                summary = entry.text
    return summary
