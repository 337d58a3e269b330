"""The archive entries of a thread, which outlive the session. Knows no store.

Entries are written with each event and are never changed. So folding a long branch moves no entries, and the entries of
a discarded branch can still be read. Two kinds of entries are about other entries of their thread:

    rollback       earlier entries were undone; they are shown with `undone`
    work folded    earlier entries moved to a branch that `context_fold` made; it is shown as a `child` of the thread

Both name a range of entries (`EntryRange`), and a store returns all ranges of a thread with every page of it. The
branch that `context_fold` made has only its summary, which says where its operations are: in the parent thread, between
two events.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from contextfold.fold.events import (
    BranchCreated,
    BranchDiscarded,
    BranchFolded,
    Event,
    OperationCompleted,
    SessionRolledBack,
    WorkFolded,
)
from contextfold.fold.session import State

# The `type` of the summary of a branch that was folded afterwards.
FOLDED_AFTERWARDS = "folded_afterwards"


class EntryRange(NamedTuple):
    """The entries between two events. They were undone, or have moved to another thread.

    Stores know one kind of range, that of a rollback. The beginning of entries that have moved is stored as a negative
    number.
    """

    begin: int
    end: int
    has_moved: bool = False

    @classmethod
    def from_stored(cls, undone_from: int, n: int) -> Self:
        return cls(-undone_from - 1, n, has_moved=True) if undone_from < 0 else cls(undone_from, n)

    @property
    def undone_from(self) -> int:
        """The stored form of its beginning."""
        return -self.begin - 1 if self.has_moved else self.begin

    def __contains__(self, n: object) -> bool:
        return isinstance(n, int) and self.begin < n < self.end


class ArchiveEntry(NamedTuple):
    # None for the main thread.
    branch_id: str | None
    # The number of its event.
    n: int
    at: str
    # One of prompt, operation, child, summary and rollback.
    kind: str
    text: str
    tokens: int = 0
    type: str = ""
    source: str = ""
    failed: bool = False
    child_id: str | None = None
    # Where the range of entries begins that this entry is about, in its stored form (`EntryRange`).
    undone_from: int | None = None
    undone: bool = False

    @property
    def range(self) -> EntryRange:
        """The entries of its thread that a rollback, or folded work, is about."""
        return EntryRange.from_stored(self.undone_from or 0, self.n)


def entries_of(before: State, events: Iterable[Event], texts: Mapping[int, str]) -> list[ArchiveEntry]:
    """The archive entries of events after state `before`. `texts` has the texts of operations by their `n`."""
    entries: list[ArchiveEntry] = []
    discarded: list[str] = []
    for event in events:
        match event:
            case BranchCreated():
                entries.append(_entry(event, event.branch_id, "prompt", event.prompt, event.tokens))
            case OperationCompleted():
                text, more = texts.get(event.n, ""), (event.type, event.source, event.failed)
                entries.append(_entry(event, event.branch_id, "operation", text, event.tokens, *more))
            case BranchFolded():
                entries.extend(_fold_entries(before, event))
            case WorkFolded():
                entries.extend(_work_folded_entries(before, event))
            case BranchDiscarded():
                discarded.append(event.branch_id)
            case SessionRolledBack():
                entries.extend(_rollback_entries(before, event, discarded))
    return entries


def _entry(event: Event, thread_id: str | None, kind: str, *more: Any, **named: Any) -> ArchiveEntry:  # noqa: ANN401
    return ArchiveEntry(thread_id, event.n, event.at, kind, *more, **named)


def _fold_entries(before: State, event: BranchFolded) -> list[ArchiveEntry]:
    parent_id, summary = before.branches[event.branch_id].parent_id, (event.summary, event.summary_tokens)
    return [
        _entry(event, event.branch_id, "summary", *summary),
        _entry(event, parent_id, "child", *summary, child_id=event.branch_id),
    ]


def _work_folded_entries(before: State, event: WorkFolded) -> list[ArchiveEntry]:
    summary, moved = (event.summary, event.summary_tokens), (FOLDED_AFTERWARDS, before.session_id or "")
    above = {"child_id": event.parent_id, "undone_from": event.since}
    moved_from = EntryRange(event.since, event.n, has_moved=True).undone_from
    below = {"child_id": event.branch_id, "undone_from": moved_from}
    return [
        _entry(event, event.branch_id, "summary", *summary, *moved, **above),
        _entry(event, event.parent_id, "rollback", *summary, **below),
    ]


def _rollback_entries(before: State, event: SessionRolledBack, discarded: Sequence[str]) -> list[ArchiveEntry]:
    checkpoint = before.checkpoints[event.branch_id]
    threads: list[str | None] = list(discarded)
    if before.branches[event.branch_id].folded_afterwards_n:
        threads.append(event.branch_id)
    if event.restore_state:
        threads += [None, *(branch.id for branch in checkpoint.path)]
    return [_entry(event, thread, "rollback", "", undone_from=checkpoint.revision) for thread in threads]


def limit_characters(entries: Iterable[ArchiveEntry], characters: int | None) -> Iterator[ArchiveEntry]:
    """Entries until their texts together have this many characters, including the entry that reaches the limit."""
    length = 0
    for entry in entries:
        yield entry
        length += len(entry.text)
        if characters is not None and length >= characters:
            return


def apply_ranges(
    entries: Sequence[ArchiveEntry], stored: Sequence[tuple[int, int]], *, with_moved: bool = False
) -> list[ArchiveEntry]:
    """Mark the undone entries of a thread and remove those that moved to a branch, unless they are wanted.

    `stored` has `undone_from` and `n` of all entries of the thread that are about a range.
    """
    ranges = [EntryRange.from_stored(undone_from, n) for undone_from, n in stored]
    undone = [each for each in ranges if not each.has_moved]
    # If the fold itself was undone, its entries are in the thread again.
    moved = [each for each in ranges if each.has_moved and not _is_in(each.end, undone)]
    return [
        _show_entry(entry, is_undone=_is_in(entry.n, undone))
        for entry in entries
        if with_moved or not _is_in(entry.n, moved)
    ]


def has_moved_work(entry: ArchiveEntry) -> bool:
    """Whether this is the summary of a branch that was folded afterwards.

    Its operations are in the thread `child_id` of the session `source`, between `undone_from` and the entry.
    """
    return entry.kind == "summary" and entry.type == FOLDED_AFTERWARDS


def _show_entry(entry: ArchiveEntry, *, is_undone: bool) -> ArchiveEntry:
    """The entry as it is shown, without what is only stored."""
    if entry.kind == "rollback" and not entry.range.has_moved:
        return entry
    if entry.kind == "rollback":
        return entry._replace(kind="child", undone_from=None, undone=is_undone)
    if has_moved_work(entry):
        return entry._replace(type="", source="", child_id=None, undone_from=None, undone=is_undone)
    return entry._replace(undone=True) if is_undone else entry


def _is_in(n: int, ranges: Sequence[EntryRange]) -> bool:
    return any(n in each for each in ranges)
