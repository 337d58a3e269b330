"""The trajectory of a branch, entry by entry, as it is kept after the session is gone. Knows no store.

Entries are made while things happen, so folding a long branch moves nothing, and what was discarded is still there. A
rollback is an entry of its own on every thread it took back or discarded: those between are marked `undone`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from contextfold.fold.events import (
    BranchCreated,
    BranchDiscarded,
    BranchFolded,
    Event,
    OperationCompleted,
    SessionRolledBack,
)
from contextfold.fold.session import State


@dataclass(frozen=True, slots=True)
class Entry:
    branch_id: str | None  # None is the main thread
    n: int  # of the event it comes from
    at: str
    kind: str  # prompt, operation, child, summary, rollback
    text: str
    tokens: int = 0
    type: str = ""
    source: str = ""
    failed: bool = False
    child_id: str | None = None
    undone_from: int | None = None  # of a rollback: entries after this n were undone
    undone: bool = False


def entries_of(before: State, events: Iterable[Event], texts: Mapping[int, str]) -> list[Entry]:
    """What these events, decided on in state `before`, leave in the archive. Texts of operations are by their `n`."""
    made: list[Entry] = []
    discarded: list[str] = []
    for event in events:
        match event:
            case BranchCreated():
                made.append(Entry(event.branch_id, event.n, event.at, "prompt", event.prompt, event.tokens))
            case OperationCompleted():
                made.append(
                    Entry(
                        event.branch_id,
                        event.n,
                        event.at,
                        "operation",
                        texts.get(event.n, ""),
                        event.tokens,
                        event.type,
                        event.source,
                        event.failed,
                    )
                )
            case BranchFolded():
                made.extend(_of_fold(before, event))
            case BranchDiscarded():
                discarded.append(event.branch_id)
            case SessionRolledBack():
                made.extend(_of_rollback(before, event, discarded))
    return made


def _of_fold(before: State, event: BranchFolded) -> list[Entry]:
    parent_id = before.branches[event.branch_id].parent_id
    told = (event.n, event.at)
    return [
        Entry(event.branch_id, *told, "summary", event.summary, event.summary_tokens),
        Entry(parent_id, *told, "child", event.summary, event.summary_tokens, child_id=event.branch_id),
    ]


def _of_rollback(before: State, event: SessionRolledBack, discarded: Sequence[str]) -> list[Entry]:
    checkpoint = before.checkpoints[event.branch_id]
    threads: list[str | None] = list(discarded)
    if event.restore_state:
        threads += [None, *(branch.id for branch in checkpoint.path)]
    return [Entry(thread, event.n, event.at, "rollback", "", undone_from=checkpoint.revision) for thread in threads]


def up_to(entries: Iterable[Entry], characters: int | None) -> Iterator[Entry]:
    """Entries until their texts have so many characters together, the one that reaches it included."""
    seen = 0
    for entry in entries:
        yield entry
        seen += len(entry.text)
        if characters is not None and seen >= characters:
            return


def mark_undone(entries: Sequence[Entry], rollbacks: Sequence[tuple[int, int]]) -> list[Entry]:
    """The entries of one thread, those that a later rollback took back marked as such."""
    return [
        replace(entry, undone=True)
        if entry.kind != "rollback" and any(start < entry.n < end for start, end in rollbacks)
        else entry
        for entry in entries
    ]
