"""The threads that use SQLite: one writer that commits the work of many callers at once, and a few readers.

A transaction costs one flush to disk, whatever its size. So all jobs that wait when the writer is free go into one
transaction, and none is answered before it is on disk. Knows connections and functions, not what the functions do.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from contextfold.errors import StoreUnavailable
from contextfold.stores.sqlite.state_file import unavailable
from contextfold.stores.sqlite.transactions import Job, Transactions, Work

# The most units of work in one transaction.
BATCH_MOST: Final = 256
WRITES_WAITING: Final = 4096
READERS: Final = 3
READS_WAITING: Final = 4096
# Several times as long as another process may lock the file.
ANSWER_TIMEOUT_S: Final = 30.0

T = TypeVar("T")


async def _result_of(future: asyncio.Future[T]) -> T:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await future
    except TimeoutError:
        raise StoreUnavailable(f"SQLite did not answer within {ANSWER_TIMEOUT_S:.0f} s") from None


class Writer:
    """Runs units of work in transactions, in the order of their arrival. It owns the connection."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._jobs: deque[Job[object]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="contextfold-writer", daemon=True)
        self._thread.start()

    async def write(self, work: Work[T]) -> T:
        """Do the work; return its result when it is on disk. An error before the first change affects no other work."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job: Job[Any] = Job(work, future)
        with self._changed:
            if self._stopping:
                raise StoreUnavailable("the store is closed")
            if len(self._jobs) >= WRITES_WAITING:
                raise StoreUnavailable(f"{WRITES_WAITING} commits wait already")
            self._jobs.append(job)
            self._changed.notify()
        try:
            return await _result_of(future)
        except BaseException:
            # The caller has gone or gets a failure, so the job is not done later, unless it has begun.
            with self._changed:
                if job in self._jobs:
                    self._jobs.remove(job)
            raise

    def stop(self, timeout_s: float) -> None:
        """Finish the accepted jobs and close the file. Called from any other thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while jobs := self._take():
                self._transactions.perform(jobs)
                _deliver(jobs)
            self._transactions.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        # The write-ahead log is as durable as the file. The next process that opens it continues from there.
        except sqlite3.Error:
            pass
        finally:
            self._transactions.connection.close()

    def _take(self) -> list[Job[object]]:
        with self._changed:
            while not self._jobs and not self._stopping:
                self._changed.wait()
            return [self._jobs.popleft() for _ in range(min(BATCH_MOST, len(self._jobs)))]


def _deliver(jobs: Sequence[Job[object]]) -> None:
    """Wake the event loop once for all jobs."""
    awaited = [(job, job.future) for job in jobs if job.future is not None]
    try:
        awaited[0][1].get_loop().call_soon_threadsafe(_set_results, awaited)
    # The event loop is closed, so nobody waits for the results.
    except RuntimeError:
        pass


def _set_results(awaited: Sequence[tuple[Job[object], asyncio.Future[object]]]) -> None:
    for job, future in awaited:
        # Otherwise the caller has given up.
        if not future.done():
            if job.problem is not None:
                future.set_exception(job.problem)
            else:
                future.set_result(job.result)


class Readers:
    """A few threads with a connection each."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._executor = concurrent.futures.ThreadPoolExecutor(READERS, thread_name_prefix="contextfold-reader")
        self._own = threading.local()
        self._lock = threading.Lock()
        self._connections: list[sqlite3.Connection] = []
        self._pending: set[concurrent.futures.Future[Any]] = set()
        self._stopping = False

    async def read(self, work: Work[T]) -> T:
        if len(self._pending) >= READS_WAITING:
            raise StoreUnavailable(f"{READS_WAITING} reads wait already")
        with self._lock:
            if self._stopping:
                raise StoreUnavailable("the store is closed")
            future = self._executor.submit(self._run_read, work)
            self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return await _result_of(asyncio.wrap_future(future))

    def stop(self, timeout_s: float) -> None:
        """Finish the accepted reads. Those that are not done in time fail, and one that hangs is left alone."""
        with self._lock:
            self._stopping = True
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
