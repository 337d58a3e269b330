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
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from contextfold.errors import StoreUnavailable
from contextfold.stores.sqlite.state_file import unavailable

# The most units of work in one transaction.
BATCH_MAX: Final = 256
WRITES_WAITING: Final = 4096
READERS: Final = 3
READS_WAITING: Final = 4096
# Several times as long as another process may lock the file.
ANSWER_TIMEOUT_S: Final = 30.0

T = TypeVar("T")
Arguments = ParamSpec("Arguments")
# A unit of work, whose first argument is a connection.
Work = Callable[Concatenate[sqlite3.Connection, Arguments], T]


async def _wait_for(future: concurrent.futures.Future[T]) -> T:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await asyncio.wrap_future(future)
    except TimeoutError:
        raise StoreUnavailable(f"SQLite did not answer within {ANSWER_TIMEOUT_S:.0f} s") from None


class _Job(NamedTuple):
    """A unit of work, and the future that gets its result or its failure when the transaction is on disk."""

    work: Callable[[sqlite3.Connection], Any]
    future: concurrent.futures.Future[Any]


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

    async def write(self, work: Work[Arguments, T], *args: Arguments.args, **named: Arguments.kwargs) -> T:
        """Do the work; return its result when it is on disk. Work that fails changes nothing and affects no other.

        If the caller is cancelled or gets a timeout, the work is not done later, unless it has begun.
        """
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        with self._lock:
            if self._is_stopping:
                raise StoreUnavailable("the store is closed")
            if self._jobs.qsize() >= WRITES_WAITING:
                raise StoreUnavailable(f"{WRITES_WAITING} commits wait already")
            self._jobs.put(_Job(lambda connection: work(connection, *args, **named), future))
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
            while jobs := self._take():
                self._perform(jobs)
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        # The write-ahead log is as durable as the file. The next process that opens it continues from there.
        except sqlite3.Error:
            pass
        finally:
            self._connection.close()

    def _take(self) -> list[_Job]:
        """The jobs that wait, at least one. None is left when the writer stops."""
        jobs: list[_Job] = []
        while len(jobs) < BATCH_MAX and not (jobs and self._jobs.empty()):
            job = self._jobs.get()
            if job is None:
                self._jobs.put(None)
                break
            # Otherwise the caller has given up.
            if job.future.set_running_or_notify_cancel():
                jobs.append(job)
        return jobs

    def _perform(self, jobs: Sequence[_Job]) -> None:
        """Run all jobs in one transaction, and tell their callers when it is on disk."""
        results: list[object]
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._check(self._connection)
            results = [self._try(job) for job in jobs]
            self._connection.execute("COMMIT")
        # Any failure must reach the callers and not end the thread.
        except Exception as problem:
            self._roll_back()
            results = [problem] * len(jobs)
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, sqlite3.Error):
                job.future.set_exception(unavailable(result))
            elif isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)

    def _try(self, job: _Job) -> object:
        """The result of a job, or the exception that it raised. What a failed job has changed is taken back."""
        self._connection.execute("SAVEPOINT job")
        try:
            result = job.work(self._connection)
        except Exception as problem:
            # A disk that is full or broken may have ended the transaction, and with it the jobs before this one.
            if not self._connection.in_transaction:
                raise
            self._connection.execute("ROLLBACK TO job")
            result = problem
        self._connection.execute("RELEASE job")
        return result

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        # SQLite has rolled back by itself, or the next BEGIN fails.
        except sqlite3.Error:
            pass


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

    async def read(self, work: Work[Arguments, T], *args: Arguments.args, **named: Arguments.kwargs) -> T:
        if len(self._pending) >= READS_WAITING:
            raise StoreUnavailable(f"{READS_WAITING} reads wait already")
        with self._lock:
            if self._is_stopping:
                raise StoreUnavailable("the store is closed")
            future = self._executor.submit(self._run_read, lambda connection: work(connection, *args, **named))
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

    def _run_read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
            if connection is None:
                connection = self._own.connection = self._connect()
                self._connections.append(connection)
            return work(connection)
        except sqlite3.Error as problem:
            raise unavailable(problem) from problem
