"""The half of the SQLite store that changes no session. It is all that most commands need.

A command reads in the calling thread (`SqliteFileReader`); the daemon's store reads in threads of its own (`store`).
"""

from __future__ import annotations

import os

from contextfold.common.record import TypeVar
from contextfold.errors import StoreUnavailable
from contextfold.stores.sqlite import queries, state_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from typing import TypeVarTuple

    from contextfold.common.relevance.question import Question
    from contextfold.errors import ContextError
    from contextfold.fold.ports.stored_records import (
        EndedSession,
        KnownRevision,
        ListedSession,
        Recalled,
        RecallSource,
        SessionKey,
        SessionLog,
        Summary,
        Trajectory,
    )
    from contextfold.fold.recall.documents import DocumentTerms
    from contextfold.fold.recall.ranking import RecallScope
    from contextfold.stores.sqlite.store import SqliteStore
    from contextfold.stores.sqlite.threads import Readers
    from contextfold.stores.sqlite.transactions import Work

    Arguments = TypeVarTuple("Arguments")

T = TypeVar("T")


class ReaderInPlace:
    """Reads in the calling thread. The connection is made for the first read."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        error_of: Callable[[sqlite3.Error], ContextError] = state_file.unavailable,
    ) -> None:
        self._connect = connect
        self._error_of = error_of
        self._connection: sqlite3.Connection | None = None
        self._is_stopped = False

    async def read(self, work: Work[T]) -> T:
        if self._is_stopped:
            raise StoreUnavailable("the store is closed")
        try:
            self._connection = self._connection or self._connect()
            return work(self._connection)
        except state_file.SqliteError as problem:
            raise self._error_of(problem) from problem

    def stop(self, _timeout_s: float) -> None:
        self._is_stopped = True
        if self._connection is not None:
            self._connection.close()


class SqliteReads:
    """The queries of a store, as the port has them."""

    def __init__(self, readers: Readers | ReaderInPlace) -> None:
        self._readers = readers

    async def _read(self, query: Callable[[sqlite3.Connection, *Arguments], T], *args: *Arguments) -> T:
        return await self._readers.read(lambda connection: query(connection, *args))

    async def load(self, key: SessionKey, known: KnownRevision | None = None) -> SessionLog | None:
        return await self._read(queries.load, key, known)

    async def sessions(
        self, owner: str, *, after: tuple[str, str] | None = None, limit: int
    ) -> Sequence[ListedSession]:
        return await self._read(queries.sessions, owner, after, limit)

    async def ended_sessions(
        self, owner: str, *, after: tuple[str, str] | None = None, limit: int, session_id: str | None = None
    ) -> Sequence[EndedSession]:
        return await self._read(queries.ended_sessions, owner, after, limit, session_id)

    async def find(self, owner: str, session_id: str) -> SessionKey | None:
        return await self._read(queries.find, owner, session_id)

    async def cursor(self) -> str:
        return str(await self._read(queries.last_seq))

    async def search(self, owner: str, query: str, project_hash: str | None, limit: int) -> Sequence[Summary]:
        return await self._read(queries.search, owner, query, project_hash, limit)

    async def summaries(self, owner: str, project_hash: str | None) -> Sequence[Summary]:
        return await self._read(queries.summaries, owner, project_hash)

    async def unindexed(self, owner: str | None, limit: int) -> Sequence[RecallSource]:
        return await self._read(queries.unindexed, owner, limit)

    async def recall(self, owner: str, question: Question, scope: RecallScope) -> Recalled:
        return await self._read(queries.recall, owner, question, scope)

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
        query = queries.TrajectoryQuery(owner, project_hash, branch_id, session_id, after_n, limit, characters)
        return await self._read(queries.trajectory, query)

    async def left_out_text(self, owner: str, result_id: str) -> str | None:
        return await self._read(queries.left_out_text, owner, result_id)

    async def count(self, owner: str | None = None) -> int:
        return await self._read(queries.count, owner)


class SqliteFileReader(SqliteReads):
    """Reads a state file in place, for a command. Only what recall's index lacks is written, with `open_writer`."""

    def __init__(self, path: str | os.PathLike[str], open_writer: Callable[[], SqliteStore]) -> None:
        """Open the file. Raises StoreInvalid if it cannot be used, or has an older format."""
        place = os.path.realpath(os.fspath(path))
        connection = state_file.open_existing(place)
        super().__init__(ReaderInPlace(lambda: connection, lambda problem: state_file.reading_failed(place, problem)))
        self._connection = connection
        self._open_writer = open_writer

    async def index(self, documents: Sequence[tuple[RecallSource, DocumentTerms | None]]) -> None:
        writer = self._open_writer()
        try:
            await writer.index(documents)
        finally:
            await writer.close()

    async def close(self) -> None:
        self._readers.stop(0)
        self._connection.close()
