"""What only a file on a disk can show: durability, use by other processes, and when the file is refused."""

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
from contextfold.stores.sqlite import schema
from contextfold.stores.sqlite import statements as sqlite_rows
from contextfold.stores.sqlite.store import SqliteStore
from tests.contract.sessions import NOON, begin, commit_of, key_of, numbers, summary_of, take, watching
from tests.stores.sqlite.files import KEY, TASKS, count, fill, operations, path, run, worker
from tests.support.clauses import covers
from tests.support.machine import times

__all__ = ["path"]

# Less than the readiness check writes.
ROOM_BYTES = 20_000


# ---- it lasts


@covers("store.md#port")
def test_what_was_committed_is_there_after_a_restart(path: Path) -> None:
    fill(path)
    assert count(path) == 3
    # After a proper close the write-ahead log is merged into the file.
    assert sorted(os.listdir(path.parent)) == ["state.db"]


@covers("store.md#commit")
def test_a_process_killed_in_the_middle_loses_nothing_it_acknowledged(path: Path) -> None:
    for turn in range(times(2, 40)):
        project = f"p{turn}"
        process = worker(path, project, 10_000)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(50 + 37 * turn)]
        process.kill()
        rest, _ = process.communicate(timeout=60)
        kept = [line.split()[1] for line in [*lines, *rest.splitlines()] if line.startswith("kept") and "/" in line]
        held = operations(path, project)
        for task, number in held.items():
            acknowledged = [name for name in kept if name.startswith(f"{project}/{task}/")]
            # One commit may have been stored but not acknowledged yet.
            assert len(acknowledged) <= number <= len(acknowledged) + 1

        async def receipts(store: SqliteStore, names: Sequence[str] = kept) -> None:
            for name in names:
                found, task, _ = name.split("/")
                assert await store.receipt(key_of(found, name=task), name) is not None

        run(path, receipts)


@covers("folding.md#commit", "store.md#commit")
def test_two_processes_on_one_file_lose_nothing(path: Path) -> None:
    turns = times(8, 500)
    processes = [worker(path, "shared", turns) for _ in range(2)] + [worker(path, "own", turns)]
    told = [process.communicate(timeout=300)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    lines = [line for each in told for line in each]
    assert {line.split()[0] for line in lines} <= {"kept", "stale"}
    shared = {line.split()[1] for line in lines if line.startswith("kept shared/")}
    # Both processes send the same operations, and each of them counts once.
    assert sum(operations(path, "shared").values()) == len(shared)
    assert operations(path, "own") == {str(task): turns for task in range(TASKS)}


@covers("store.md#events")
def test_a_watcher_hears_of_another_process(path: Path) -> None:
    async def act(store: SqliteStore) -> None:
        async with watching(store, "local", await store.cursor()) as watch:
            process = worker(path, "elsewhere", 2)
            seen = await take(watch, TASKS * 2)
            await asyncio.to_thread(process.communicate, timeout=60)
        assert len(set(zip([each.key for each in seen], numbers(seen), strict=True))) == TASKS * 2

    run(path, act)


# ---- faults that pass


@pytest.fixture
def lock(path: Path) -> Iterator[sqlite3.Connection]:
    fill(path)
    other = sqlite3.connect(path, isolation_level=None)
    yield other
    other.close()


@covers("folding.md#errors")
def test_a_file_that_another_process_holds_is_unavailable_until_it_lets_go(
    path: Path, lock: sqlite3.Connection
) -> None:
    async def act(store: SqliteStore) -> None:
        lock.execute("BEGIN IMMEDIATE")
        for use in (store.check(), store.commit(commit_of(KEY)), store.expire(NOON, NOON)):
            with pytest.raises(StoreUnavailable, match="locked"):
                await use
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


@covers("folding.md#errors", "store.md#commit")
def test_a_full_disk_fails_the_commit_and_nothing_else(path: Path) -> None:
    """A limit on the file's size replaces a full disk: writing beyond it fails in the same place."""
    text = "x" * 400_000

    async def act(store: SqliteStore) -> None:
        await begin(store, KEY)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
        try:
            kept = await _fill_up(store, text)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert 0 < kept < 99
        log = await store.load(KEY)
        assert log is not None
        assert len(log.events) == kept + 1
        await store.commit(commit_of(KEY, kept + 1))
        told_of = await store.trajectory("local", "p1", "br_1", limit=100)
        assert told_of is not None
        assert len(told_of.entries) == kept

    run(path, act)


def test_a_disk_without_room_for_an_ordinary_commit_is_noticed_before_one_fails(path: Path) -> None:
    """There is room for a small write, but not for a commit with a text of a few pages."""

    async def act(store: SqliteStore) -> None:
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

    run(path, act)


@covers("store.md#commit")
def test_a_commit_that_breaks_fails_alone(path: Path) -> None:
    async def act(store: SqliteStore) -> None:
        good = [store.commit(commit_of(key_of(f"p{number}"))) for number in range(20)]
        # The text cannot be encoded, which is noticed after other rows are written.
        half = ArchiveEntry("br_1", 1, NOON, "operation", "half of a pair: \ud800")
        bad = [store.commit(commit_of(key_of(f"bad {number}"), entries=[half])) for number in range(3)]
        told = await asyncio.gather(*good[:10], *bad, *good[10:], return_exceptions=True)
        assert [type(each) for each in told if isinstance(each, Exception)] == [UnicodeEncodeError] * 3
        assert await store.count() == 20

    run(path, act)


# ---- many at once


def test_commits_that_wait_together_share_a_transaction(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statements: list[str] = []
    opened = schema.open_for_writing

    def traced(*args: object, **named: object) -> sqlite3.Connection:
        connection = opened(*args, **named)  # type: ignore[arg-type]
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(schema, "open_for_writing", traced)

    async def act(store: SqliteStore) -> None:
        await asyncio.gather(*(begin(store, key_of(f"p{number}")) for number in range(200)))
        assert await store.count() == 200

    run(path, act)
    assert 1 <= statements.count("COMMIT") <= 20


@covers("store.md#port")
def test_reads_do_not_wait_for_a_commit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go_on = threading.Event(), threading.Event()
    advance = sqlite_rows._advance

    def held(*args: object) -> int:
        made = advance(*args)  # type: ignore[arg-type]
        reached.set()
        assert go_on.wait(60)
        return made

    async def act(store: SqliteStore) -> None:
        await begin(store, KEY)
        monkeypatch.setattr(sqlite_rows, "_advance", held)
        writing = asyncio.ensure_future(store.commit(commit_of(KEY, 1)))
        assert await asyncio.to_thread(reached.wait, 60)
        log = await store.load(KEY)
        assert log is not None
        assert len(log.events) == 1
        assert await store.count() == 1
        go_on.set()
        await writing

    run(path, act)


def test_too_many_waiting_commits_are_told_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contextfold.stores.sqlite.threads.WRITES_WAITING", 10)

    async def act(store: SqliteStore) -> None:
        asked = (store.commit(commit_of(key_of(f"p{number}"))) for number in range(1000))
        told = await asyncio.gather(*asked, return_exceptions=True)
        refusals = [each for each in told if isinstance(each, StoreUnavailable)]
        assert refusals
        assert await store.count() == len(told) - len(refusals)

    run(path, act)


@covers("store.md#expiry")
def test_nothing_is_left_of_a_session_whose_time_is_over(path: Path) -> None:
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


@covers("store.md#port")
def test_a_commit_is_flushed_before_it_is_acknowledged(tmp_path: Path) -> None:
    connection = schema.open_for_writing(str(tmp_path / "state.db"))
    told = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")]
    connection.close()
    # The value 2 means FULL.
    assert told == [2, "wal"]


def test_who_gave_up_waiting_finds_nothing_done_later(path: Path) -> None:
    async def act(store: SqliteStore) -> None:
        await begin(store, KEY)
        started, go_on = threading.Event(), threading.Event()

        def hold(_connection: sqlite3.Connection) -> None:
            started.set()
            go_on.wait(60)

        holding = asyncio.create_task(store._writer.write(hold))
        await asyncio.to_thread(started.wait, 60)
        waiting = asyncio.create_task(store.commit(commit_of(KEY, 1)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go_on.set()
        await holding
        log = await store.load(KEY)
        assert log is not None
        assert len(log.events) == 1

    run(path, act)
