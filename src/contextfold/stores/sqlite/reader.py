"""The half of the SQLite store that changes no session. It is all that most commands need.

A command reads in the calling thread (`SqliteFileReader`); the daemon's store reads in threads of its own (`store`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, TypeVarTuple

from contextfold.errors import ContextError, StoreUnavailable
from contextfold.fold.ports.store import RecallSource
from contextfold.fold.recall.documents import DocumentTerms
from contextfold.stores.sqlite import state_file, statements
from contextfold.stores.sqlite.threads import Readers
from contextfold.stores.sqlite.transactions import Work

if TYPE_CHECKING:
    from contextfold.stores.sqlite.store import SqliteStore

Arguments = ParamSpec("Arguments")
Positional = TypeVarTuple("Positional")

T = TypeVar("T")


class ReaderInPlace:
    """Reads in the calling thread."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        error_of: Callable[[sqlite3.Error], ContextError] = state_file.unavailable,
    ) -> None:
        self._connection = connection
        self._error_of = error_of
        self._is_stopped = False

    async def read(self, work: Work[T]) -> T:
        if self._is_stopped:
            raise StoreUnavailable("the store is closed")
        try:
            return work(self._connection)
        except sqlite3.Error as problem:
            raise self._error_of(problem) from problem

    def stop(self, _timeout_s: float) -> None:
        self._is_stopped = True
        self._connection.close()


def reads(
    query: Callable[Concatenate[sqlite3.Connection, Arguments], T],
) -> Callable[Concatenate[SqliteReads, Arguments], Coroutine[Any, Any, T]]:
    """The query as a method of the store."""

    async def method(self: SqliteReads, /, *args: Arguments.args, **named: Arguments.kwargs) -> T:
        return await self._readers.read(lambda connection: query(connection, *args, **named))

    return method


class SqliteReads:
    """The queries of a store, as the port has them."""

    def __init__(self, readers: Readers | ReaderInPlace) -> None:
        self._readers = readers

    async def _read(self, query: Callable[[sqlite3.Connection, *Positional], T], *args: *Positional) -> T:
        return await self._readers.read(lambda connection: query(connection, *args))

    load = reads(statements.load)
    sessions = reads(statements.sessions)
    ended_sessions = reads(statements.ended_sessions)
    find = reads(statements.find)
    cursor = reads(statements.cursor)
    search = reads(statements.search)
    summaries = reads(statements.summaries)
    unindexed = reads(statements.unindexed)
    recall = reads(statements.recall)
    trajectory = reads(statements.trajectory)
    left_out_text = reads(statements.left_out_text)
    count = reads(statements.count)


class SqliteFileReader(SqliteReads):
    """Reads a state file in place, for a command. Only what recall's index lacks is written, with `open_writer`."""

    def __init__(self, path: str | os.PathLike[str], open_writer: Callable[[], SqliteStore]) -> None:
        """Open the file. Raises StoreInvalid if it cannot be used, or has an older format."""
        place = os.path.realpath(os.fspath(path))
        connection = state_file.open_existing(place)
        super().__init__(ReaderInPlace(connection, lambda problem: state_file.reading_failed(place, problem)))
        self._open_writer = open_writer

    async def index(self, documents: Sequence[tuple[RecallSource, DocumentTerms | None]]) -> None:
        writer = self._open_writer()
        try:
            await writer.index(documents)
        finally:
            await writer.close()

    async def close(self) -> None:
        self._readers.stop(0)
