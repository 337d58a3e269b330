"""The threads that use SQLite: one writer that commits the work of many callers at once, and a few readers.

A transaction costs one flush to disk, whatever its size. So all jobs that wait when the writer is free go into one
transaction, and none is answered before it is on disk. Knows connections and functions, not what the functions do.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from contextfold.errors import StoreUnavailable
from contextfold.stores.sqlite.state_file import unavailable

# The most units of work in one transaction.
BATCH_MOST: Final = 256
WRITES_WAITING: Final = 4096
READERS: Final = 3
READS_WAITING: Final = 4096
# Several times as long as another process may lock the file.
ANSWER_TIMEOUT_S: Final = 30.0

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


async def _wait_for(future: concurrent.futures.Future[T]) -> T:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await asyncio.wrap_future(future)
    except TimeoutError:
        raise StoreUnavailable(f"SQLite did not answer within {ANSWER_TIMEOUT_S:.0f} s") from None


@dataclass(slots=True, eq=False)
class _Job:
    """A unit of work, and its result or its failure, which the future gets when the transaction is on disk."""

    work: Work[Any]
    future: concurrent.futures.Future[Any]
    result: object = None
    problem: Exception | None = None


class Writer:
    """Runs units of work in transactions, in the order of their arrival. It owns the connection."""

    def __init__(self, connection: sqlite3.Connection, check: Callable[[sqlite3.Connection], None]) -> None:
        """`check` raises StoreUnavailable if the transaction must not be made."""
        self._connection, self._check = connection, check
        # None is the last item.
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="contextfold-writer", daemon=True)
        self._thread.start()

    async def write(self, work: Work[T]) -> T:
        """Do the work; return its result when it is on disk. An error before the first change affects no other work.

        If the caller is cancelled or gets a timeout, the work is not done later, unless it has begun.
        """
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        with self._lock:
            if self._is_stopping:
                raise StoreUnavailable("the store is closed")
            if self._jobs.qsize() >= WRITES_WAITING:
                raise StoreUnavailable(f"{WRITES_WAITING} commits wait already")
            self._jobs.put(_Job(work, future))
        return await _wait_for(future)

    def stop(self, timeout_s: float) -> None:
        """Finish the accepted jobs and close the file. Called from any other thread."""
        with self._lock:
            if not self._is_stopping:
                self._is_stopping = True
                self._jobs.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            is_last = False
            while not is_last:
                jobs, is_last = self._take()
                if jobs:
                    self._perform(jobs)
                    _deliver(jobs)
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        # The write-ahead log is as durable as the file. The next process that opens it continues from there.
        except sqlite3.Error:
            pass
        finally:
            self._connection.close()

    def _take(self) -> tuple[list[_Job], bool]:
        """The jobs that wait, at least one if there are more to come; and whether they are the last."""
        jobs: list[_Job] = []
        while len(jobs) < BATCH_MOST and not (jobs and self._jobs.empty()):
            job = self._jobs.get()
            if job is None:
                return jobs, True
            # Otherwise the caller has given up.
            if job.future.set_running_or_notify_cancel():
                jobs.append(job)
        return jobs, False

    def _perform(self, jobs: Sequence[_Job]) -> None:
        """Run all jobs in one transaction. If it fails, run one for each, so that only the job at fault fails."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._check(self._connection)
        except (sqlite3.Error, StoreUnavailable) as problem:
            self._roll_back()
            _fail(jobs, problem)
            return
        try:
            for job in jobs:
                self._try(job)
            self._connection.execute("COMMIT")
        # Any failure must reach the caller and not end the thread.
        except Exception as problem:
            self._roll_back()
            if len(jobs) == 1:
                _fail(jobs, problem)
            else:
                for job in jobs:
                    self._perform([job])

    def _try(self, job: _Job) -> None:
        """A refusal before the first change does not affect the other jobs of the transaction."""
        before = self._connection.total_changes
        job.result = job.problem = None
        try:
            job.result = job.work(self._connection)
        except Exception as problem:
            is_broken = isinstance(problem, sqlite3.Error) or not self._connection.in_transaction
            if is_broken or self._connection.total_changes != before:
                raise
            job.problem = problem

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        # SQLite has rolled back by itself, or the next BEGIN fails.
        except sqlite3.Error:
            pass


def _fail(jobs: Sequence[_Job], problem: Exception) -> None:
    for job in jobs:
        job.problem = unavailable(problem) if isinstance(problem, sqlite3.Error) else problem


def _deliver(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        if job.problem is not None:
            job.future.set_exception(job.problem)
        else:
            job.future.set_result(job.result)


class Readers:
    """A few threads with a connection each."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._executor = concurrent.futures.ThreadPoolExecutor(READERS, thread_name_prefix="contextfold-reader")
        self._own = threading.local()
        self._lock = threading.Lock()
        self._connections: list[sqlite3.Connection] = []
        self._pending: set[concurrent.futures.Future[Any]] = set()
        self._is_stopping = False

    async def read(self, work: Work[T]) -> T:
        if len(self._pending) >= READS_WAITING:
            raise StoreUnavailable(f"{READS_WAITING} reads wait already")
        with self._lock:
            if self._is_stopping:
                raise StoreUnavailable("the store is closed")
            future = self._executor.submit(self._run_read, work)
            self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return await _wait_for(future)

    def stop(self, timeout_s: float) -> None:
        """Finish the accepted reads. Those that are not done in time fail, and one that hangs is left alone."""
        with self._lock:
            self._is_stopping = True
        _, late = concurrent.futures.wait(self._pending.copy(), timeout_s)
        if late:
            for connection in list(self._connections):
                connection.interrupt()
        self._executor.shutdown(wait=not late, cancel_futures=True)
        for connection in self._connections:
            connection.close()

    def _run_read(self, work: Work[T]) -> T:
        try:
            connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
            if connection is None:
                connection = self._own.connection = self._connect()
                self._connections.append(connection)
            return work(connection)
        except sqlite3.Error as problem:
            raise unavailable(problem) from problem
