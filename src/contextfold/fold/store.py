"""What folding needs of a store, and nothing about how one does it. One contract suite runs over every implementation.

A commit is all or nothing, only on the revision it was decided on, and once for each operation id, however often it is
tried. Whatever an owner asks for is looked for among that owner's things alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from contextfold.fold.archive import Entry
from contextfold.fold.events import Event

SEARCH_MOST = 1_000  # summaries that one search gives


class StaleRevision(Exception):
    """Somebody else committed first: load again, decide again."""


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Where a session lives. Project and name are hashes, so that any path and any name make a safe key."""

    owner: str
    project_hash: str
    name_hash: str  # empty for the project's own session


@dataclass(frozen=True, slots=True)
class Known:
    """What a caller has already: the log up to there need not be sent again."""

    session_id: str
    revision: int


@dataclass(frozen=True, slots=True)
class Log:
    session_id: str
    events: Sequence[Event]  # those after `known`, if it is this session; else all of them


@dataclass(frozen=True, slots=True)
class Listed:
    """A live session among others."""

    key: SessionKey
    session_id: str
    last_at: str


@dataclass(frozen=True, slots=True)
class Operation:
    """A call that must not have its effect twice."""

    id: str
    fingerprint: str  # of what was asked: the same id for something else is a mistake


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a commit was answered with, then and whenever it is asked again."""

    fingerprint: str
    answer: str
    repeated: bool = field(default=False, compare=False)  # whether it is an earlier commit's


@dataclass(frozen=True, slots=True)
class Summary:
    """A branch's outcome in the main collection."""

    project_hash: str
    project_path: str
    session_id: str
    branch_id: str
    description: str
    summary: str
    tokens_folded: int
    folded_at: str


@dataclass(frozen=True, slots=True)
class Commit:
    key: SessionKey
    session_id: str
    expected_revision: int  # 0 begins a session
    events: Sequence[Event]
    operation: Operation | None  # None if nobody can send this again: then no receipt is kept
    answer: str
    entries: Sequence[Entry] = ()
    summaries: Sequence[Summary] = ()
    retracted: Sequence[str] = ()  # branches whose summaries no longer hold, since a rollback undid their folds

    def __post_init__(self) -> None:
        """A log with a gap could never be read again, so no store is asked to keep one."""
        numbers = [event.n for event in self.events]
        if not numbers or numbers != list(range(self.expected_revision + 1, self.revision + 1)):
            raise ValueError(f"events {numbers} do not follow revision {self.expected_revision}")
        whose = (self.key.project_hash, self.session_id)
        if any((summary.project_hash, summary.session_id) != whose for summary in self.summaries):
            raise ValueError("a summary of another session")

    @property
    def revision(self) -> int:
        """The session's, once this is committed."""
        return self.expected_revision + len(self.events)


@dataclass(frozen=True, slots=True)
class Seen:
    """An event as a watcher gets it; `cursor` is where to go on after it."""

    cursor: str
    key: SessionKey
    session_id: str
    event: Event


@dataclass(frozen=True, slots=True)
class Trajectory:
    entries: Sequence[Entry]
    rollbacks: Sequence[tuple[int, int]]  # (undone from, at) of the whole branch


class Store(Protocol):
    async def load(self, key: SessionKey, known: Known | None = None) -> Log | None:
        """The live session of this key; None if there is none."""

    async def commit(self, commit: Commit) -> Receipt:
        """Append, or give the receipt of the commit that had this operation id; StaleRevision if it is too late.

        A branch has one summary in the main collection: one that is folded again replaces its own.
        """

    async def receipt(self, key: SessionKey, operation_id: str) -> Receipt | None:
        """What an operation of the live session was answered with."""

    async def sessions(self, owner: str, *, after: tuple[str, str] | None = None, limit: int) -> Sequence[Listed]:
        """The owner's live sessions, the latest activity first; those after one's `(last_at, session_id)`."""

    async def find(self, owner: str, session_id: str) -> SessionKey | None:
        """Where the owner's live session of this id is."""

    async def cursor(self) -> str:
        """Where the events stand now. Taken before a session is loaded, a watch after it misses nothing."""

    async def check_cursor(self, cursor: str) -> None:
        """ArgumentInvalid for a cursor that this store cannot have given out."""

    def watch(self, owner: str, after: str | None = None) -> AsyncIterator[Seen]:
        """The owner's events in order, those still kept after a cursor first, until the store is closed.

        Without a cursor it begins where the events stand when the first one is asked for. ArgumentInvalid for a cursor
        that is none of this store, at once or when the first event is asked for.
        """

    async def search(self, owner: str, query: str, project_hash: str | None, limit: int) -> Sequence[Summary]:
        """Summaries that hold every word of the query, the last as a beginning, the best first; SEARCH_MOST at most."""

    async def trajectory(
        self,
        owner: str,
        project_hash: str,
        branch_id: str | None,
        *,
        session_id: str = "",
        after_n: int = 0,
        limit: int,
        characters: int | None = None,
    ) -> Trajectory | None:
        """Entries of a branch in order, from the archive; None if it holds nothing of such a branch.

        Without a branch they are those of the main thread of a session, which is only then asked for.
        None after the first whose texts have `characters` together: a text may be megabytes, and a page small.
        They come as they were committed: what a rollback took back is for `archive.readable` to say.
        """

    async def expire(self, idle_since: str, at: str) -> int:
        """End every session without activity after `idle_since`; their number.

        Each gets a `session.expired` event, which watchers can still see until a later call passes it too. Nothing else
        of its log and its receipts is left; archive and summaries are.
        """

    async def retain(self, archive_since: str, summaries_since: str) -> None:
        """Forget archive entries and summaries of sessions that have ended and were last active before.

        A session is forgotten as a whole: half a trajectory would mislead, and a live one may still grow.
        """

    async def reach(self) -> None:
        """Be there before anything is asked: StoreInvalid if it says no, StoreUnavailable if it may still come."""

    async def settle(self) -> None:
        """Until nothing is left to do of what was committed: whoever stops for a while must not leave it undone."""

    async def count(self, owner: str | None = None) -> int:
        """How many sessions are live, of an owner or of all."""

    async def check(self) -> None:
        """StoreUnavailable if a commit would fail now."""

    async def close(self) -> None:
        """Finish what was taken, and let go."""
