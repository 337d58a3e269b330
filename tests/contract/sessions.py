"""Sessions for the tests of stores: commits with few contents, and what a watcher received."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import (
    BranchCreated,
    Event,
    FoldSeen,
    OperationCompleted,
    RequestSent,
    SessionStarted,
    ThreadSeen,
    kind_of,
)
from contextfold.fold.store import Commit, Operation, SessionKey, Store, Summary, WatchedEvent

NOON = "2026-01-01T12:00:00Z"
PATIENCE_S = 60.0
# One of this many events is a request, so that every store is tested with the largest kind too.
REQUEST_EVERY = 3


def key_of(project: str = "p1", *, owner: str = "local", name: str = "") -> SessionKey:
    return SessionKey(owner, project, name)


def event_at(n: int, at: str = NOON, session_id: str = "sess_1") -> Event:
    if n == 1:
        return SessionStarted(1, at, session_id, "/work/project", None)
    if n % REQUEST_EVERY == 0:
        return request_at(n, at)
    return OperationCompleted(n, at, None, "tool", 10, "hook", failed=False, redactions=0)


def request_at(n: int, at: str = NOON) -> RequestSent:
    """A request with a value for every member, except those that a provider may not report."""
    usage = (20, 900, None, 7) if n % 2 else (None, None, None, None)
    folds = (FoldSeen(f"br_{n}", 400, 500), FoldSeen(f"br_{n + 1}", 30, 600))
    threads = (ThreadSeen(None, n), ThreadSeen("br_1", 2))
    return RequestSent(
        n,
        at,
        api="anthropic",
        model="a-model",
        tokens_before=1350,
        tokens_after=920,
        turns_dropped=4,
        first_changed=3,
        reason="shared_turn",
        input_tokens=usage[0],
        cache_read_tokens=usage[1],
        cache_write_tokens=usage[2],
        output_tokens=usage[3],
        call_id=f"call {n}",
        folds=folds,
        threads=threads,
    )


def commit_of(
    key: SessionKey,
    revision: int = 0,
    *,
    session_id: str = "sess_1",
    operation_id: str | None = None,
    at: str = NOON,
    events: int = 1,
    entries: Sequence[ArchiveEntry] = (),
    summaries: Sequence[Summary] = (),
    answer: str = "",
) -> Commit:
    """A commit of some events after a revision. Its operation id follows from its position, unless one is given."""
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


async def take(watch: AsyncIterator[WatchedEvent], count: int) -> list[WatchedEvent]:
    """The next events of a watch; the timeout only bounds a hang."""
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(watch) for _ in range(count)]


async def shut(watch: AsyncIterator[WatchedEvent]) -> None:
    close = getattr(watch, "aclose", None)
    if close is not None:
        await close()


@contextlib.asynccontextmanager
async def watching(store: Store, owner: str, after: str | None) -> AsyncIterator[AsyncIterator[WatchedEvent]]:
    watch = store.watch(owner, after)
    try:
        yield watch
    finally:
        await shut(watch)


def numbers(events: Sequence[WatchedEvent]) -> list[tuple[str, int]]:
    return [(watched.session_id, watched.event.n) for watched in events]


def kinds(events: Sequence[WatchedEvent]) -> list[str]:
    return [kind_of(watched.event) for watched in events]
