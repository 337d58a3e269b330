"""Sessions as the store's tests write them: commits with little in them, and what a watcher got."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from contextfold.fold.archive import Entry
from contextfold.fold.events import BranchCreated, Event, OperationCompleted, SessionStarted
from contextfold.fold.store import Commit, Operation, Seen, SessionKey, Store, Summary

NOON = "2026-01-01T12:00:00Z"
PATIENCE_S = 60.0


def key_of(project: str = "p1", *, owner: str = "local", name: str = "") -> SessionKey:
    return SessionKey(owner, project, name)


def event_at(n: int, at: str = NOON, session_id: str = "sess_1") -> Event:
    if n == 1:
        return SessionStarted(1, at, session_id, "/work/project", None)
    return OperationCompleted(n, at, None, "tool", 10, "hook", failed=False, redactions=0)


def commit_of(
    key: SessionKey,
    revision: int = 0,
    *,
    session_id: str = "sess_1",
    operation_id: str | None = None,
    at: str = NOON,
    events: int = 1,
    entries: Sequence[Entry] = (),
    summaries: Sequence[Summary] = (),
    answer: str = "",
) -> Commit:
    """A commit of some events after a revision; its operation id is made of where it stands, unless one is given."""
    return Commit(
        key,
        session_id,
        revision,
        [event_at(revision + number, at, session_id) for number in range(1, events + 1)],
        Operation(operation_id or f"{session_id}/{revision}", "asked"),
        answer or f"answer of {revision}",
        entries,
        summaries,
    )


def branch_commit(key: SessionKey, revision: int, branch_id: str, *, session_id: str = "sess_1") -> Commit:
    event = BranchCreated(revision + 1, NOON, branch_id, None, "look into it", "Do look.", 2, 0)
    return Commit(key, session_id, revision, [event], Operation(f"{session_id}/{revision}", "asked"), "")


def summary_of(
    key: SessionKey,
    branch_id: str,
    text: str,
    *,
    description: str = "",
    session_id: str = "sess_1",
    at: str = NOON,
) -> Summary:
    return Summary(key.project_hash, "/work/project", session_id, branch_id, description, text, 100, at)


async def begin(store: Store, *keys: SessionKey, at: str = NOON) -> None:
    for key in keys:
        await store.commit(commit_of(key, at=at))


async def take(watch: AsyncIterator[Seen], count: int) -> list[Seen]:
    """The next events of a watch; the wait is a bound on a hang, not a measure."""
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(watch) for _ in range(count)]


async def shut(watch: AsyncIterator[Seen]) -> None:
    close = getattr(watch, "aclose", None)
    if close is not None:
        await close()


@contextlib.asynccontextmanager
async def watching(store: Store, owner: str, after: str | None) -> AsyncIterator[AsyncIterator[Seen]]:
    watch = store.watch(owner, after)
    try:
        yield watch
    finally:
        await shut(watch)


def numbers(seen: Sequence[Seen]) -> list[tuple[str, int]]:
    return [(each.session_id, each.event.n) for each in seen]


def kinds(seen: Sequence[Seen]) -> list[str]:
    return [each.event.kind for each in seen]
