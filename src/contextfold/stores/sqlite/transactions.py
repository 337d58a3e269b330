"""Units of work on a connection: several in one transaction, or one at a time in the calling thread.

Knows connections and functions, not what the functions do, and no thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from contextfold.errors import StoreUnavailable
from contextfold.stores.sqlite.state_file import unavailable

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


@dataclass(slots=True, eq=False)
class Job(Generic[T]):
    """A unit of work, and its result or its failure. A caller in another thread waits for the future."""

    work: Work[T]
    future: asyncio.Future[T] | None = None
    result: T | None = None
    problem: Exception | None = None


class Transactions:
    """Runs jobs in transactions on one connection: those of the writer's thread, or one at a time in place."""

    def __init__(self, connection: sqlite3.Connection, guard: Callable[[sqlite3.Connection], None]) -> None:
        """`guard` raises an exception if the transaction must not be made."""
        self.connection = connection
        self._guard = guard

    def perform(self, jobs: Sequence[Job[object]]) -> None:
        """Run all jobs in one transaction. If it fails, run one for each, so that only the job at fault fails."""
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            self._guard(self.connection)
        except (sqlite3.Error, StoreUnavailable) as problem:
            self._roll_back()
            _fail(jobs, problem)
            return
        try:
            for job in jobs:
                self._try(job)
            self.connection.execute("COMMIT")
        # Any failure must reach the caller and not end the thread.
        except Exception as problem:
            self._roll_back()
            if len(jobs) == 1:
                _fail(jobs, problem)
            else:
                for job in jobs:
                    self.perform([job])

    async def write(self, work: Work[T]) -> T:
        """Do the work in the calling thread, in a transaction of its own."""
        job: Job[Any] = Job(work)
        self.perform([job])
        if job.problem is not None:
            raise job.problem
        return job.result  # type: ignore[return-value]  # It is None only where T is None.

    def stop(self, _timeout_s: float) -> None:
        # The last connection to a file writes the write-ahead log back when it is closed.
        self.connection.close()

    def _try(self, job: Job[object]) -> None:
        """A refusal before the first change does not affect the other jobs of the transaction."""
        before = self.connection.total_changes
        job.result = job.problem = None
        try:
            job.result = job.work(self.connection)
        except Exception as problem:
            broken = isinstance(problem, sqlite3.Error) or not self.connection.in_transaction
            if broken or self.connection.total_changes != before:
                raise
            job.problem = problem

    def _roll_back(self) -> None:
        try:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        # SQLite has rolled back by itself, or the next BEGIN fails.
        except sqlite3.Error:
            pass


def _fail(jobs: Sequence[Job[object]], problem: Exception) -> None:
    for job in jobs:
        job.problem = unavailable(problem) if isinstance(problem, sqlite3.Error) else problem
