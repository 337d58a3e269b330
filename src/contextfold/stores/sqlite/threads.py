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
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from contextfold.common.dataclass import dataclass
from contextfold.errors import StoreUnavailable
from contextfold.stores.sqlite.state_file import unavailable
from contextfold.stores.sqlite.transactions import Job, Transactions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextfold.stores.sqlite.transactions import Work

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


@dataclass(slots=True, eq=False)
class _Awaited(Generic[T]):
    """A job, and the future of the caller that waits for it."""

    job: Job[T]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[T]

    def deliver(self) -> None:
        # The caller has given up.
        if self.future.done():
            return
        if self.job.problem is not None:
            self.future.set_exception(self.job.problem)
        else:
            self.future.set_result(self.job.result)  # type: ignore[arg-type]  # It is None only where T is None.


class Writer:
    """Runs units of work in transactions, in the order of their arrival. It owns the connection."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._jobs: deque[_Awaited[object]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="contextfold-writer", daemon=True)
        self._thread.start()

    async def write(self, work: Work[T]) -> T:
        """Do the work; return its result when it is on disk. An error before the first change affects no other work."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        job: _Awaited[T] = _Awaited(Job(work), loop, future)
        with self._changed:
            if self._stopping:
                raise StoreUnavailable("the store is closed")
            if len(self._jobs) >= WRITES_WAITING:
                raise StoreUnavailable(f"{WRITES_WAITING} commits wait already")
            self._jobs.append(job)  # type: ignore[arg-type]  # The queue has jobs of any type.
            self._changed.notify()
        try:
            return await _result_of(future)
        except BaseException:
            self._abandon(job)  # type: ignore[arg-type]  # As above.
            raise

    def _abandon(self, job: _Awaited[object]) -> None:
        """Remove a job whose caller has gone or got a failure, so that it is not done later, unless it has begun."""
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)

    def stop(self, timeout_s: float) -> None:
        """Finish the accepted jobs and close the file. Called from any other thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while jobs := self._take():
                self._transactions.perform([awaited.job for awaited in jobs])
                _deliver(jobs)
            self._transactions.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        # The write-ahead log is as durable as the file. The next process that opens it continues from there.
        except sqlite3.Error:
            pass
        finally:
            self._transactions.connection.close()

    def _take(self) -> list[_Awaited[object]]:
        with self._changed:
            while not self._jobs and not self._stopping:
                self._changed.wait()
            return [self._jobs.popleft() for _ in range(min(BATCH_MOST, len(self._jobs)))]


def _deliver(jobs: list[_Awaited[object]]) -> None:
    """Wake each event loop once for all of its jobs."""
    for loop in {job.loop for job in jobs}:
        mine = [job for job in jobs if job.loop is loop]
        try:
            loop.call_soon_threadsafe(_deliver_all, mine)
        # The event loop is closed, so nobody waits for the result.
        except RuntimeError:
            pass


def _deliver_all(jobs: list[_Awaited[object]]) -> None:
    for job in jobs:
        job.deliver()


class Readers:
    """A few threads with a connection each."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._executor = concurrent.futures.ThreadPoolExecutor(READERS, thread_name_prefix="contextfold-reader")
        self._own = threading.local()
        self._lock = threading.Lock()
        self._connections: list[sqlite3.Connection] = []
        self._pending: set[concurrent.futures.Future[object]] = set()
        self._stopping = False

    async def read(self, work: Work[T]) -> T:
        with self._lock:
            if self._stopping:
                raise StoreUnavailable("the store is closed")
            if len(self._pending) >= READS_WAITING:
                raise StoreUnavailable(f"{READS_WAITING} reads wait already")
            future = self._executor.submit(self._run_read, work)
            self._pending.add(future)  # type: ignore[arg-type]  # As above.
        future.add_done_callback(self._forget)
        return await _result_of(asyncio.wrap_future(future))

    def stop(self, timeout_s: float) -> None:
        with self._lock:
            self._stopping = True
            pending = set(self._pending)
        _, late = concurrent.futures.wait(pending, timeout_s)
        if late:
            for connection in list(self._connections):
                connection.interrupt()
        self._executor.shutdown(wait=not late, cancel_futures=True)
        for connection in self._connections:
            connection.close()

    def _forget(self, future: concurrent.futures.Future[T]) -> None:
        with self._lock:
            self._pending.discard(future)

    def _run_read(self, work: Work[T]) -> T:
        try:
            connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
            if connection is None:
                connection = self._own.connection = self._connect()
                with self._lock:
                    self._connections.append(connection)
            return work(connection)
        except sqlite3.Error as problem:
            raise unavailable(problem) from problem
