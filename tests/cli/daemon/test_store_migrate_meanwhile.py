"""`context store migrate` whatever happens on the way: killed, half written, ended, gone on meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from contextfold.errors import StoreUnavailable
from contextfold.fold import moving
from contextfold.fold.moving import Progress
from contextfold.fold.store import Store
from contextfold.stores.sqlite import moving as sqlite_moving
from tests.cli.daemon.migrating import (
    KILLER,
    SESSIONS,
    argv,
    aside,
    at_work,
    file,
    filled,
    migrated,
    moved,
    on_nats,
    other,
    refused,
    rows,
    small,
    template,
)
from tests.cli.daemon.moves import LAST_YEAR, Place, Worker, all_of, branch_id_of, file_at
from tests.support.machine import COMMAND, SOAK, SOURCE, Call, times

__all__ = ["file", "filled", "on_nats", "other", "small", "template"]

# ---- whatever happens on the way


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 13, 21])
def test_one_that_was_killed_goes_on_when_it_is_run_again(call: Call, filled: Place, other: Place, steps: int) -> None:
    before = all_of(filled)
    killed_after(steps, filled, other)
    told = migrated(call, filled, other)
    assert told["moved"] + told["already_there"] == SESSIONS
    assert all_of(other) == before


def test_one_that_is_killed_again_and_again_arrives_too(call: Call, filled: Place, other: Place) -> None:
    for _ in range(times(4, 20)):
        killed_after(3, filled, other)
    migrated(call, filled, other)
    assert all_of(other) == all_of(filled)


@pytest.mark.parametrize("messages", [1, 2, 4, 7, 9, 12, 30, 60, 90, 250] if not SOAK else range(1, 270))
def test_one_that_was_killed_before_any_message_to_nats_goes_on_too(
    call: Call, filled: Place, on_nats: Place, messages: int
) -> None:
    killed_after(messages, filled, on_nats, step="put")
    migrated(call, filled, on_nats)
    assert all_of(on_nats) == all_of(filled)


@pytest.mark.parametrize("messages", range(2, 14, 2))
def test_what_was_half_written_on_nats_is_not_there_twice(
    call: Call, filled: Place, on_nats: Place, monkeypatch: pytest.MonkeyPatch, messages: int
) -> None:
    """Whoever goes on may cut an archive into other pages: the first sessions are those that have ended."""
    killed_after(messages, filled, on_nats, step="put")
    monkeypatch.setattr(sqlite_moving, "PAGE_ENTRIES", 1)
    migrated(call, filled, on_nats)
    assert all_of(on_nats) == all_of(filled)


def killed_after(steps: int, source: Place, target: Place, *, step: str = "told") -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, str(KILLER), step, str(steps), *argv(source, target)]
    done = subprocess.run(words, env=environment, capture_output=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


async def old_work(store: Store) -> str:
    """A session that has been idle for long, and that nobody has ended yet; its branch."""
    worker = Worker(store, at=LAST_YEAR)
    branch_id = branch_id_of(await worker.branch("Old"))
    for number in range(100):
        await worker.record(f"operation {number}")
    return branch_id


def end_idle(place: Place) -> int:
    return place.do(lambda store: Worker(store).service.end_idle())


def trajectory(place: Place, branch_id: str) -> list[str]:
    async def work(store: Store) -> list[str]:
        key = Worker(store).key
        told = await store.trajectory(key.owner, key.project_hash, branch_id, limit=1000)
        return [entry.text for entry in told.entries] if told else []

    return place.do(work)


def test_a_session_that_ends_at_the_source_meanwhile_arrives_as_ended(call: Call, tmp_path: Path, other: Place) -> None:
    source = file_at(tmp_path / "old.db")
    branch_id = source.do(old_work)
    killed_after(1, source, other)
    assert other.do(lambda store: store.count()) == 1
    assert end_idle(source) == 1
    assert migrated(call, source, other)["moved"] == 1
    assert other.do(lambda store: store.count()) == 0
    assert len(trajectory(other, branch_id)) == 101
    assert trajectory(other, branch_id) == trajectory(source, branch_id)
    assert migrated(call, source, other)["already_there"] == 1


def test_nothing_of_a_log_is_left_where_a_session_came_as_ended(call: Call, tmp_path: Path, file: Place) -> None:
    source = file_at(tmp_path / "old.db")
    source.do(old_work)
    migrated(call, source, file)
    end_idle(source)
    migrated(call, source, file)
    for table in ("events", "operations"):
        assert rows(file, f"SELECT count(*) FROM {table}") == [(0,)]


def test_a_session_that_ended_at_the_source_but_went_on_at_the_target_is_left_alone(
    call: Call, tmp_path: Path, other: Place
) -> None:
    source = file_at(tmp_path / "old.db")
    source.do(old_work)
    migrated(call, source, other)
    end_idle(source)

    async def work(store: Store) -> None:
        worker = Worker(store, at=LAST_YEAR)
        await worker.record("more")
        await worker.record("and more")

    other.do(work)
    assert "went on at the target" in refused(call, source, other)


def test_a_session_that_ends_at_the_target_is_there_all_the_same(call: Call, tmp_path: Path, other: Place) -> None:
    source = file_at(tmp_path / "old.db")
    source.do(old_work)
    migrated(call, source, other)
    assert end_idle(other) == 1
    assert migrated(call, source, other)["already_there"] == 1


def test_a_daemon_that_ends_idle_sessions_at_the_target_is_in_nobodys_way(tmp_path: Path, other: Place) -> None:
    source = file_at(tmp_path / "old.db")
    branch_id = source.do(old_work)
    ended: list[int] = []
    told = asyncio.run(moved(source, other, lambda _: aside(lambda: ended.append(end_idle(other)))))
    assert (told.moved, sum(ended)) == (1, 1)
    assert len(trajectory(other, branch_id)) == 101
    assert trajectory(other, branch_id) == trajectory(source, branch_id)


def test_what_is_done_at_the_source_meanwhile_arrives_too(small: Place, other: Place) -> None:
    left = ["second", "third", "fourth"]  # one while it is copied, and some while it is compared

    def work(_progress: Progress) -> None:
        if left:
            aside(lambda: small.do(at_work(left.pop(0))))

    told = asyncio.run(moved(small, other, work))
    assert (told.moved, told.entries) == (1, 4)
    assert all_of(other) == all_of(small)


@pytest.mark.parametrize("when", [2, 3])  # it is copied, the archive of the source is read, then that of the target
def test_what_is_done_while_it_is_compared_arrives_too(small: Place, other: Place, when: int) -> None:
    steps = iter(range(1, 1000))

    def work(_progress: Progress) -> None:
        if next(steps) == when:
            aside(lambda: small.do(at_work("second")))

    told = asyncio.run(moved(small, other, work))
    assert (told.moved, told.already_there, told.entries) == (1, 0, 2)
    assert all_of(other) == all_of(small)


def test_a_session_that_begins_meanwhile_arrives_too(filled: Place, other: Place) -> None:
    async def work(store: Store) -> None:
        await Worker(store, "/work/new").record("new")

    left = [work]

    def begin(progress: Progress) -> None:
        if progress.done == SESSIONS and left:
            aside(lambda: filled.do(left.pop()))

    told = asyncio.run(moved(filled, other, begin))
    assert told.done == SESSIONS + 1
    assert all_of(other) == all_of(filled)


def test_a_source_that_never_rests_is_told(small: Place, other: Place) -> None:
    with pytest.raises(StoreUnavailable, match="keeps changing: stop the daemons"):
        asyncio.run(moved(small, other, lambda _: aside(lambda: small.do(at_work("more")))))


def test_what_is_undone_at_the_source_is_undone_at_the_target(call: Call, tmp_path: Path, other: Place) -> None:
    source = file_at(tmp_path / "source.db")
    folded: list[str] = []

    async def work(store: Store) -> None:
        worker = Worker(store)
        folded.append(branch_id_of(await worker.branch("Branch")))
        await worker.fold("folded and done")

    source.do(work)
    migrated(call, source, other)
    assert found(other, "folded") == ["folded and done"]
    source.do(lambda store: Worker(store).rollback(folded[0]))
    assert migrated(call, source, other)["moved"] == 1
    assert found(other, "folded") == []
    assert all_of(other) == all_of(source)


def found(place: Place, word: str) -> list[str]:
    return [summary.summary for summary in place.do(lambda store: store.search("local", word, None, 10))]


def test_a_session_that_began_long_ago_is_not_ended_while_it_comes(tmp_path: Path, other: Place) -> None:
    source = file_at(tmp_path / "long.db")

    async def work(store: Store) -> None:
        worker = Worker(store)
        for hours in reversed(range(1, 100)):  # of which the first part is older than an idle session may be
            worker.at = datetime.now(UTC) - timedelta(hours=hours)
            await worker.record(f"{hours} hours ago")

    source.do(work)
    ended: list[int] = []
    asyncio.run(moved(source, other, lambda _: aside(lambda: ended.append(end_idle(other)))))
    assert (len(ended) > 1, sum(ended)) == (True, 0)
    assert all_of(other) == all_of(source)


def test_two_at_once_are_in_nobodys_way(filled: Place, other: Place) -> None:
    words = [str(COMMAND), *argv(filled, other)]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    told = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert all_of(other) == all_of(filled)


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_parts_and_pages_of_any_size_make_the_same(
    call: Call, filled: Place, file: Place, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(moving, "PART_EVENTS", most)
    monkeypatch.setattr(sqlite_moving, "PAGE_ENTRIES", most)
    monkeypatch.setattr(sqlite_moving, "PAGE_SESSIONS", most)
    migrated(call, filled, file)
    assert all_of(file) == all_of(filled)
