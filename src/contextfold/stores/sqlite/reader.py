"""Reads a state file for a command, in the calling thread. The daemon reads and writes through `store`."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from contextfold.fold.recall.documents import DocumentTerms
from contextfold.fold.store import RecallSource
from contextfold.stores.sqlite import state_file, statements

Arguments = ParamSpec("Arguments")
T = TypeVar("T")


def _reads(
    query: Callable[Concatenate[sqlite3.Connection, Arguments], T],
) -> Callable[Concatenate[SqliteReader, Arguments], T]:
    """The query as a method of the reader."""

    def method(self: SqliteReader, /, *args: Arguments.args, **named: Arguments.kwargs) -> T:
        try:
            return query(self.connection, *args, **named)
        except sqlite3.Error as problem:
            raise state_file.reading_failed(self.path, problem) from problem

    return method


class SqliteReader:
    """An open state file, which is only read. What recall's index lacks is written through a second connection."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the file. Raises StoreInvalid if it cannot be used, or has an older format."""
        self.path = os.path.realpath(os.fspath(path))
        self.connection = state_file.open_existing(self.path)

    load = _reads(statements.load)
    sessions = _reads(statements.sessions)
    ended_sessions = _reads(statements.ended_sessions)
    find = _reads(statements.find)
    search = _reads(statements.search)
    summaries = _reads(statements.summaries)
    unindexed = _reads(statements.unindexed)
    recall = _reads(statements.recall)
    trajectory = _reads(statements.trajectory)
    left_out_text = _reads(statements.left_out_text)

    def index(self, documents: Sequence[tuple[RecallSource, DocumentTerms | None]]) -> None:
        connection = state_file.open_for_writing(self.path, may_migrate=False)
        with state_file.transaction(connection, "BEGIN IMMEDIATE"):
            statements.index(connection, documents)

    def close(self) -> None:
        self.connection.close()
