"""The archive entries of a thread, which outlive the session. Knows no store.

Entries are written with each event and are never changed. So folding a long branch moves no entries, and the entries of
a discarded branch can still be read. Two kinds of entries are about other entries of their thread:

    rollback       the entries between `undone_from` and itself were undone; they are shown with `undone`
    work folded    the entries between `undone_from` and itself moved to a branch that `context_fold` made

A store returns both kinds with every page of a thread (`ranges` below), so the second kind is stored as a rollback with
a negative `undone_from`. It is shown as the `child` entry of its thread. The branch itself has only its summary, which
says where its operations are: in the parent thread, between two events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
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
    # Only in a rollback: the entries after this number were undone.
    undone_from: int | None = None
    undone: bool = False


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
                entries.extend(_of_fold(before, event))
            case WorkFolded():
                entries.extend(_of_work_folded(before, event))
            case BranchDiscarded():
                discarded.append(event.branch_id)
            case SessionRolledBack():
                entries.extend(_of_rollback(before, event, discarded))
    return entries


def _entry(event: Event, thread_id: str | None, kind: str, *more: Any, **named: Any) -> ArchiveEntry:  # noqa: ANN401
    return ArchiveEntry(thread_id, event.n, event.at, kind, *more, **named)


def _of_fold(before: State, event: BranchFolded) -> list[ArchiveEntry]:
    parent_id, summary = before.branches[event.branch_id].parent_id, (event.summary, event.summary_tokens)
    return [
        _entry(event, event.branch_id, "summary", *summary),
        _entry(event, parent_id, "child", *summary, child_id=event.branch_id),
    ]


def _of_work_folded(before: State, event: WorkFolded) -> list[ArchiveEntry]:
    summary, moved = (event.summary, event.summary_tokens), (FOLDED_AFTERWARDS, before.session_id or "")
    above = {"child_id": event.parent_id, "undone_from": event.since}
    below = {"child_id": event.branch_id, "undone_from": -event.since - 1}
    return [
        _entry(event, event.branch_id, "summary", *summary, *moved, **above),
        _entry(event, event.parent_id, "rollback", *summary, **below),
    ]


def _of_rollback(before: State, event: SessionRolledBack, discarded: Sequence[str]) -> list[ArchiveEntry]:
    checkpoint = before.checkpoints[event.branch_id]
    threads: list[str | None] = list(discarded)
    if before.branches[event.branch_id].folded_afterwards_n:
        threads.append(event.branch_id)
    if event.restore_state:
        threads += [None, *(branch.id for branch in checkpoint.path)]
    return [_entry(event, thread, "rollback", "", undone_from=checkpoint.revision) for thread in threads]


def up_to(entries: Iterable[ArchiveEntry], characters: int | None) -> Iterator[ArchiveEntry]:
    """Entries until their texts together have this many characters, including the entry that reaches the limit."""
    length = 0
    for entry in entries:
        yield entry
        length += len(entry.text)
        if characters is not None and length >= characters:
            return


def readable(entries: Sequence[ArchiveEntry], ranges: Sequence[tuple[int, int]]) -> list[ArchiveEntry]:
    """Mark the undone entries of a thread and remove those that moved to a branch.

    `ranges` has `undone_from` and `n` of all its rollback entries.
    """
    undone = [(start, end) for start, end in ranges if start >= 0]
    moved = [(-start - 1, end) for start, end in ranges if start < 0 and not _is_between(end, undone)]
    return [
        _read(entry, is_undone=_is_between(entry.n, undone)) for entry in entries if not _is_between(entry.n, moved)
    ]


def has_moved_work(entry: ArchiveEntry) -> bool:
    """Whether this is the summary of a branch that was folded afterwards.

    Its operations are in the thread `child_id` of the session `source`, between `undone_from` and the entry.
    """
    return entry.kind == "summary" and entry.type == FOLDED_AFTERWARDS


def _read(entry: ArchiveEntry, *, is_undone: bool) -> ArchiveEntry:
    if entry.kind == "rollback" and (entry.undone_from or 0) >= 0:
        return entry
    if entry.kind == "rollback":
        return replace(entry, kind="child", undone_from=None, undone=is_undone)
    if has_moved_work(entry):
        return replace(entry, type="", source="", child_id=None, undone_from=None, undone=is_undone)
    return replace(entry, undone=True) if is_undone else entry


def _is_between(n: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(start < n < end for start, end in ranges)
