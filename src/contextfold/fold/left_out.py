"""What a return leaves out, from the archive: reads as much of the branch as can be afforded. Knows no wire.

A return must not wait for this, nor fail by it: what cannot be read in time, or at all, is not looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from contextfold.errors import FoldError
from contextfold.fold.accounting import Health
from contextfold.fold.archive import Entry, mark_undone
from contextfold.fold.loss import Piece, fold_loss, pieces_of
from contextfold.fold.session import State
from contextfold.fold.store import SessionKey, Store

LOOK_S = 0.5  # at most, for all of it, the wait for a thread included
FIRST_ENTRIES, LAST_EVENTS = 64, 64  # of a long branch both ends are read
CHARACTERS_READ = 300_000  # of each end: a text may be megabytes
CHARACTERS_LOOKED_AT = 80_000  # of both, the last ones first
INLINE_CHARACTERS = 16_384  # more is looked at in a thread, so that others are answered meanwhile

SUGGESTION = "Say in your next message what of fold_loss is still needed; context_expand reads the branch again"


@dataclass(frozen=True, slots=True)
class LeftOut:
    branch_id: str = ""
    items: Sequence[str] = ()

    def in_health(self, health: Health, branch_id: str) -> Health:
        """How things stand after the fold of a branch, with what it lost."""
        if not self.items or branch_id != self.branch_id:
            return health
        return replace(health, suggestion=health.suggestion or SUGGESTION, fold_loss=tuple(self.items))


NOTHING = LeftOut()


async def left_out(
    store: Store, key: SessionKey, state: State, branch_id: str | None, summary: str, *, executor: Executor
) -> LeftOut:
    """What the summary of a branch, by default the active one, does not say and is likely to be needed."""
    path = state.path
    target = branch_id or (path[-1] if path else "")
    if target not in path:
        return NOTHING
    branches = path[path.index(target) :]  # what is open below it is folded with it
    if not _has_work(state, branches):
        return NOTHING
    try:
        async with asyncio.timeout(LOOK_S):
            entries = [await _read(store, key, state, each) for each in branches]
            items = await _looked_for(state.branches[target].description, entries, summary, executor)
            return LeftOut(target, items)
    except (FoldError, TimeoutError):
        return NOTHING


def _has_work(state: State, branches: Sequence[str]) -> bool:
    has_operations = any(state.branches[each].operations for each in branches)
    return has_operations or any(branch.parent_id in branches for branch in state.branches.values())


async def _read(store: Store, key: SessionKey, state: State, branch_id: str) -> list[Entry]:
    """Both ends of a branch: what it was asked, and what it came to."""
    last_after = max(0, state.revision - LAST_EVENTS)
    is_long = state.checkpoints[branch_id].revision <= last_after
    ends = [(last_after, LAST_EVENTS)] + ([(0, FIRST_ENTRIES)] if is_long else [])
    entries: dict[int, Entry] = {}
    for after_n, limit in ends:
        found = await store.trajectory(
            key.owner, key.project_hash, branch_id, after_n=after_n, limit=limit, characters=CHARACTERS_READ
        )
        if found is not None:
            entries |= {entry.n: entry for entry in mark_undone(found.entries, found.rollbacks)}
    return [entries[n] for n in sorted(entries)]


def _affordable(pieces: Sequence[Piece]) -> list[Piece]:
    left = CHARACTERS_LOOKED_AT
    kept: list[Piece] = []
    for piece in reversed(pieces):
        left -= _length(piece)
        if left < 0:
            break
        kept.append(piece)
    return kept[::-1]


def _length(piece: Piece) -> int:
    return len(piece.written) + len(piece.got)


async def _looked_for(
    description: str, entries: Sequence[Sequence[Entry]], summary: str, executor: Executor
) -> list[str]:
    """Entries are those of the branch itself, and of each that is folded with it."""
    prompt = "\n".join(entry.text for entry in entries[0] if entry.kind == "prompt")
    ordered = sorted((entry for thread in entries for entry in thread), key=lambda entry: entry.n)
    pieces = _affordable(pieces_of(ordered))
    asked = (f"{description}\n{prompt}", pieces, summary)
    if sum(map(_length, pieces)) <= INLINE_CHARACTERS:
        return fold_loss(*asked)
    return await asyncio.get_running_loop().run_in_executor(executor, fold_loss, *asked)
