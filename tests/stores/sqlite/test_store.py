"""The SQLite store on a real file: durability, several processes, locks, a full disk and concurrency."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from contextfold.errors import StoreUnavailable
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.store import ArchivedThread
from contextfold.stores.sqlite import state_file
from contextfold.stores.sqlite import statements as sqlite_rows
from contextfold.stores.sqlite.store import SqliteStore
from tests.contract.sessions import NOON, begin, commit_of, key_of, numbers, summary_of, take, watching
from tests.stores.sqlite.files import KEY, TASKS, count, event_counts, fill, run, worker
from tests.support.machine import times

# This is less than the readiness check writes.
ROOM_BYTES = 20_000


# ---- durability


def test_commits_are_in_the_file_after_a_restart(path: Path) -> None:
    fill(path)
    assert count(path) == 3
    # After a proper close the write-ahead log is merged into the file.
    assert sorted(os.listdir(path.parent)) == ["state.db"]


def test_a_killed_process_loses_no_acknowledged_commit(path: Path) -> None:
    for turn in range(times(2, 40)):
        project = f"p{turn}"
        process = worker(path, project, 10_000)
        assert process.stdout is not None
        with process.stdout as output:
            lines = [output.readline() for _ in range(50 + 37 * turn)]
            process.kill()
            # `communicate` would pass over the lines that `readline` has buffered.
            lines += output.read().splitlines()
        process.wait(timeout=60)
        acknowledged = [line.split()[1] for line in lines if line.startswith("committed") and "/" in line]
        for task, number in event_counts(path, project).items():
            of_task = [name for name in acknowledged if name.startswith(f"{project}/{task}/")]
            # One commit may have been stored but not acknowledged yet.
            assert len(of_task) <= number <= len(of_task) + 1

        async def check_receipts(store: SqliteStore, names: Sequence[str] = acknowledged) -> None:
            for name in names:
                of_project, task, _ = name.split("/")
                assert await store.receipt(key_of(of_project, name=task), name) is not None

        run(path, check_receipts)
        # `pytest -rP` shows this, for a table of faults.
        print(f"kill 1, {len(acknowledged)} commits acknowledged, 0 lost, 0 doubled")


def test_two_processes_on_one_file_lose_nothing(path: Path) -> None:
    turns = times(8, 500)
    processes = [worker(path, "shared", turns) for _ in range(2)] + [worker(path, "own", turns)]
    outputs = [process.communicate(timeout=300)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    lines = [line for output in outputs for line in output]
    assert {line.split()[0] for line in lines} <= {"committed", "stale"}
    shared = {line.split()[1] for line in lines if line.startswith("committed shared/")}
    # Both processes send the same operations, and each of them counts once.
    assert sum(event_counts(path, "shared").values()) == len(shared)
    assert event_counts(path, "own") == {str(task): turns for task in range(TASKS)}


async def test_a_watcher_receives_the_events_of_another_process(store: SqliteStore, path: Path) -> None:
    async with watching(store, "local", await store.cursor()) as watch:
        process = worker(path, "elsewhere", 2)
        seen = await take(watch, TASKS * 2)
        await asyncio.to_thread(process.communicate, timeout=60)
    assert len(set(zip([each.key for each in seen], numbers(seen), strict=True))) == TASKS * 2


# ---- temporary faults


@pytest.fixture
def lock(path: Path) -> Iterator[sqlite3.Connection]:
    fill(path)
    other = sqlite3.connect(path, isolation_level=None)
    yield other
    other.close()


def test_a_file_locked_by_another_process_is_unavailable_until_it_is_unlocked(
    path: Path, lock: sqlite3.Connection
) -> None:
    async def act(store: SqliteStore) -> None:
        lock.execute("BEGIN IMMEDIATE")
        for call in (store.check(), store.commit(commit_of(KEY)), store.expire(NOON, NOON)):
            with pytest.raises(StoreUnavailable, match="locked"):
                await call
        # Readers do not wait for the lock.
        assert await store.load(key_of("p0")) is not None
        lock.execute("ROLLBACK")
        await store.check()
        await store.commit(commit_of(KEY))

    run(path, act, busy_timeout_s=0.05)


async def _fill_up(store: SqliteStore, text: str) -> int:
    """Commits until the store is unavailable; returns the number of successful commits."""
    for revision in range(1, 100):
        try:
            entry = ArchiveEntry("br_1", revision + 1, NOON, "operation", text)
            await store.commit(commit_of(KEY, revision, entries=[entry]))
        except StoreUnavailable:
            return revision - 1
    return 99


async def test_a_full_disk_fails_the_commit_and_nothing_else(store: SqliteStore) -> None:
    """A limit on the size of files replaces a full disk: a write beyond it fails in the same way."""
    text = "x" * 400_000
    await begin(store, KEY)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
    try:
        committed = await _fill_up(store, text)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert 0 < committed < 99
    log = await store.load(KEY)
    assert log is not None
    assert len(log.events) == committed + 1
    await store.commit(commit_of(KEY, committed + 1))
    trajectory = await store.trajectory(ArchivedThread("local", "p1", "br_1"), limit=100)
    assert trajectory is not None
    assert len(trajectory.entries) == committed


async def test_the_check_notices_a_disk_without_room_for_an_ordinary_commit(store: SqliteStore, path: Path) -> None:
    """There is room for a small write, but not for a commit with a text of a few pages."""
    await begin(store, KEY)
    await store.check()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = path.with_name(f"{path.name}-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + ROOM_BYTES, hard))
    try:
        with pytest.raises(StoreUnavailable):
            await store.check()
        entry = ArchiveEntry("br_1", 2, NOON, "operation", "x" * 2 * ROOM_BYTES)
        with pytest.raises(StoreUnavailable):
            await store.commit(commit_of(KEY, 1, entries=[entry]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await store.check()


async def test_an_invalid_commit_does_not_fail_others_in_its_transaction(store: SqliteStore) -> None:
    good = [store.commit(commit_of(key_of(f"p{number}"))) for number in range(20)]
    # The text cannot be encoded, which is noticed after other rows are written.
    half = ArchiveEntry("br_1", 1, NOON, "operation", "half of a pair: \ud800")
    bad = [store.commit(commit_of(key_of(f"bad {number}"), entries=[half])) for number in range(3)]
    results = await asyncio.gather(*good[:10], *bad, *good[10:], return_exceptions=True)
    assert [type(result) for result in results if isinstance(result, Exception)] == [UnicodeEncodeError] * 3
    assert await store.count() == 20


# ---- concurrency


def test_commits_that_wait_together_share_a_transaction(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statements: list[str] = []
    open_for_writing = state_file.open_for_writing

    def traced(*args: object, **named: object) -> sqlite3.Connection:
        connection = open_for_writing(*args, **named)  # type: ignore[arg-type]
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(state_file, "open_for_writing", traced)

    async def act(store: SqliteStore) -> None:
        await asyncio.gather(*(begin(store, key_of(f"p{number}")) for number in range(200)))
        assert await store.count() == 200

    run(path, act)
    assert 1 <= statements.count("COMMIT") <= 20


async def test_reads_do_not_wait_for_a_commit(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, resume = threading.Event(), threading.Event()
    advance = sqlite_rows._advance_session

    def paused_advance(*args: object) -> int:
        cursor = advance(*args)  # type: ignore[arg-type]
        reached.set()
        assert resume.wait(60)
        return cursor

    await begin(store, KEY)
    monkeypatch.setattr(sqlite_rows, "_advance_session", paused_advance)
    writing = asyncio.ensure_future(store.commit(commit_of(KEY, 1)))
    assert await asyncio.to_thread(reached.wait, 60)
    log = await store.load(KEY)
    assert log is not None
    assert len(log.events) == 1
    assert await store.count() == 1
    resume.set()
    await writing


async def test_commits_beyond_the_waiting_limit_are_refused(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contextfold.stores.sqlite.threads.WRITES_WAITING", 10)
    commits = (store.commit(commit_of(key_of(f"p{number}"))) for number in range(1000))
    results = await asyncio.gather(*commits, return_exceptions=True)
    refusals = [result for result in results if isinstance(result, StoreUnavailable)]
    assert refusals
    assert await store.count() == len(results) - len(refusals)


def test_an_expired_session_leaves_no_rows_after_its_retention(path: Path) -> None:
    async def act(store: SqliteStore) -> None:
        entry = ArchiveEntry("br_1", 1, NOON, "prompt", "text")
        await store.commit(commit_of(KEY, entries=[entry], summaries=[summary_of(KEY, "br_1", "outcome")], events=9))
        for moment in ("2026-01-02T12:00:00Z", "2026-01-03T12:00:00Z", "2026-01-04T12:00:00Z"):
            await store.expire(moment, moment)
        await store.retain("2026-02-01T00:00:00Z", "2026-02-01T00:00:00Z")

    run(path, act)
    connection = sqlite3.connect(path)
    for table in ("sessions", "events", "operations", "archive", "summaries", "summary_words"):
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table
    connection.execute("INSERT INTO summary_words (summary_words) VALUES ('integrity-check')")
    connection.close()


def test_a_commit_is_flushed_before_it_is_acknowledged(tmp_path: Path) -> None:
    connection = state_file.open_for_writing(str(tmp_path / "state.db"))
    values = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")]
    connection.close()
    # The value 2 means FULL.
    assert values == [2, "wal"]


async def test_a_cancelled_commit_is_not_done_later(store: SqliteStore) -> None:
    await begin(store, KEY)
    started, resume = threading.Event(), threading.Event()

    def block(_connection: sqlite3.Connection) -> None:
        started.set()
        resume.wait(60)

    blocking = asyncio.create_task(store._writer.write(block))
    await asyncio.to_thread(started.wait, 60)
    waiting = asyncio.create_task(store.commit(commit_of(KEY, 1)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    resume.set()
    await blocking
    log = await store.load(KEY)
    assert log is not None
    assert len(log.events) == 1
