"""`context store migrate`: everything arrives, once, whatever happens on the way; and what cannot arrive is refused."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.folds import on_terminal, without_colours
from cli.moves import LAST_YEAR, Place, Worker, all_of, branch_id_of, file_at, fill, flags_of
from contextfold.app import open_for_moving
from contextfold.cli import render
from contextfold.cli.main import main
from contextfold.errors import StoreUnavailable
from contextfold.fold import moving
from contextfold.fold.moving import Progress, move
from contextfold.fold.store import Store
from contextfold.stores import sqlite_moving
from contextfold.stores.nats_link import Place as NatsPlace
from machine import COMMAND, ROOT, SOAK, SOURCE, Call, Ran, times
from nats_servers import NatsServer, connected, drop, random_prefix
from stores.files import OLD_FILE

KILLER = ROOT / "tests" / "cli" / "killed_migrate.py"
SESSIONS = 8  # of a store that is filled


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "state.db"
    file_at(path).do(fill)
    return path


@pytest.fixture
def filled(template: Path, tmp_path: Path) -> Place:
    """A file of this test's own."""
    shutil.copy(template, tmp_path / "filled.db")
    return file_at(tmp_path / "filled.db")


@pytest.fixture
def small(tmp_path: Path) -> Place:
    """A file with one session in it."""
    place = file_at(tmp_path / "small.db")
    place.do(at_work("first"))
    return place


@pytest.fixture
def file(tmp_path: Path) -> Place:
    return file_at(tmp_path / "other" / "state.db")


@pytest.fixture
def on_nats(nats_server: NatsServer) -> Iterator[Place]:
    prefix = random_prefix()
    yield Place(nats_server.url, {"nats-prefix": prefix})
    asyncio.run(drop(NatsPlace(servers=(nats_server.url,), prefix=prefix)))


@pytest.fixture(params=["file", "on_nats"])
def other(request: pytest.FixtureRequest) -> Place:
    """A store of each kind, where nobody has been before."""
    place: Place = request.getfixturevalue(request.param)
    return place


def at_work(*texts: str) -> Callable[[Store], Any]:
    """An agent that records these in the project's session."""

    async def work(store: Store) -> None:
        for text in texts:
            await Worker(store).record(text)

    return work


def argv(source: Place, target: Place, *words: str) -> list[str]:
    return ["store", "migrate", "--from", source.named, "--to", target.named, *flags_of(source, target), *words]


async def moved(source: Place, target: Place, on_progress: Callable[[Progress], None]) -> Progress:
    """As the command does it, but with somebody who looks on."""
    given = await open_for_moving(source.settings, is_source=True)
    taken = await open_for_moving(target.settings, is_source=False)
    try:
        return await move(given, taken, on_progress)
    finally:
        await taken.close()
        await given.close()


def aside(work: Callable[[], object]) -> None:
    """Something done by somebody else, now."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def migrated(call: Call, source: Place, target: Place) -> Any:
    ran = call(*argv(source, target, "--json"))
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def path_of(place: Place) -> Path:
    return Path(place.named.removeprefix("sqlite:"))


def changed(place: Place, statement: str) -> None:
    connection = sqlite3.connect(path_of(place))
    with connection:
        assert connection.execute(statement).rowcount > 0
    connection.close()


def rows(place: Place, statement: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path_of(place))
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


# ---- everything arrives


def test_everything_arrives(call: Call, filled: Place, other: Place) -> None:
    before = all_of(filled)
    told = migrated(call, filled, other)
    assert (told["moved"], told["already_there"], told["verified"]) == (SESSIONS, 0, SESSIONS)
    assert told["bytes_copied"] > 5_000_000
    assert all_of(other) == before
    assert all_of(filled) == before


def test_moved_twice_is_moved_once(call: Call, filled: Place, other: Place) -> None:
    migrated(call, filled, other)
    before = all_of(other)
    told = migrated(call, filled, other)
    assert (told["moved"], told["already_there"], told["entries_copied"]) == (0, SESSIONS, 0)
    assert all_of(other) == before


def test_there_and_back_is_as_before(call: Call, filled: Place, other: Place, tmp_path: Path) -> None:
    back = file_at(tmp_path / "back.db")
    migrated(call, filled, other)
    assert migrated(call, other, back)["moved"] == SESSIONS
    assert all_of(back) == all_of(filled)
    assert migrated(call, back, filled)["already_there"] == SESSIONS


def test_what_was_done_on_nats_arrives_in_a_file(call: Call, on_nats: Place, file: Place) -> None:
    on_nats.do(fill)
    before = all_of(on_nats)
    assert migrated(call, on_nats, file)["moved"] == SESSIONS
    assert all_of(file) == before
    assert migrated(call, on_nats, file)["already_there"] == SESSIONS
    assert migrated(call, file, on_nats)["already_there"] == SESSIONS
    assert all_of(on_nats) == before


def test_work_goes_on_at_the_target_and_what_was_done_is_not_done_again(
    call: Call, filled: Place, other: Place
) -> None:
    async def again(store: Store) -> tuple[str, str, int]:
        worker = Worker(store)
        answers = await worker.record("short", as_operation="first"), await worker.branch("Outer", as_operation="outer")
        log = await store.load(worker.key)
        assert log is not None
        return (*answers, len(log.events))

    before = filled.do(again)
    migrated(call, filled, other)
    assert other.do(again) == before
    other.do(at_work("more"))
    assert other.do(again)[2] == before[2] + 1


def test_an_empty_store_moves_to_an_empty_store(call: Call, tmp_path: Path, other: Place) -> None:
    empty = file_at(tmp_path / "empty.db")
    empty.do(lambda store: store.count())
    assert call(*argv(empty, other)).out == (
        b"0 sessions moved, 0 already there, verified; 0 entries with 0 bytes copied\n"
    )


def test_sessions_join_those_that_are_there(call: Call, filled: Place, other: Place) -> None:
    async def work(store: Store) -> None:
        await Worker(store, "/somewhere/else").record("mine")

    other.do(work)
    migrated(call, filled, other)
    assert other.do(lambda store: store.count()) == filled.do(lambda store: store.count()) + 1


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


# ---- what cannot arrive


def test_another_session_in_its_place_is_left_alone(call: Call, filled: Place, other: Place) -> None:
    other.do(at_work("mine"))
    before = all_of(other)
    ran = call(*argv(filled, other))
    assert (ran.code, ran.out) == (5, b"")
    assert "the target has another live session" in ran.err
    assert all_of(other) == before


def test_a_session_that_went_on_at_the_target_is_left_alone(call: Call, small: Place, other: Place) -> None:
    migrated(call, small, other)
    other.do(at_work("more"))
    assert "went on at the target" in refused(call, small, other)


@pytest.mark.parametrize("more", [("mine",), ("mine", "too")])
def test_a_session_that_went_on_in_both_places_is_left_alone(
    call: Call, small: Place, other: Place, more: tuple[str, ...]
) -> None:
    migrated(call, small, other)
    other.do(at_work("theirs"))
    small.do(at_work(*more))
    assert "is at the target too" in refused(call, small, other)


def refused(call: Call, source: Place, target: Place) -> str:
    before = all_of(source), all_of(target)
    ran = call(*argv(source, target))
    assert (ran.code, ran.out) == (5, b"")
    assert ran.err.startswith("error: The sessions cannot be moved\n")
    assert (all_of(source), all_of(target)) == before
    return ran.err


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE archive SET text = text || ' ' WHERE id = (SELECT max(id) FROM archive)", "archive entries"),
        ("UPDATE archive SET failed = 1 - failed WHERE id = (SELECT min(id) FROM archive)", "archive entries"),
        ("DELETE FROM archive WHERE id = (SELECT min(id) FROM archive)", "archive entries"),
        ("UPDATE events SET body = replace(body, 'Begin Open', 'Begin') WHERE body LIKE '%Begin Open%'", "events"),
        ("UPDATE operations SET answer = answer || ' ' WHERE rowid = 1", "receipts"),
        ("DELETE FROM operations WHERE rowid = 1", "receipts"),
        ("UPDATE summaries SET summary = 'all is well' WHERE id = 1", "summaries"),
        ("UPDATE sessions SET last_at = '2001-01-01T00:00:00Z' WHERE stage > 0", "last moments"),
    ],
)
def test_a_difference_is_found(call: Call, filled: Place, file: Place, statement: str, told: str) -> None:
    migrated(call, filled, file)
    changed(file, statement)
    ran = call(*argv(filled, file))
    assert (ran.code, ran.out) == (5, b"")
    assert f"its {told} are not the source's" in ran.err


@pytest.mark.parametrize("statement", ["UPDATE archive SET text = 'x'", "UPDATE summaries SET summary = 'x'"])
def test_a_difference_is_found_wherever_it_is(call: Call, filled: Place, other: Place, statement: str) -> None:
    migrated(call, filled, other)
    changed(filled, statement)
    ran = call(*argv(filled, other))
    assert (ran.code, ran.out) == (5, b"")
    assert "are not the source's" in ran.err


def test_an_entry_that_is_lost_on_nats_is_missed(call: Call, small: Place, on_nats: Place) -> None:
    prefix = on_nats.flags["nats-prefix"]
    migrated(call, small, on_nats)

    async def lose() -> None:
        connection = await connected(on_nats.named)
        purge = json.dumps({"filter": f"{prefix}_archive.*.*.*.entries.>"}).encode()
        answer = await connection.request(f"$JS.API.STREAM.PURGE.{prefix}_archive", purge)
        await connection.close()
        assert json.loads(answer.data)["purged"] == 1

    asyncio.run(lose())
    ran = call(*argv(small, on_nats))
    assert (ran.code, ran.out) == (5, b"")
    assert "its archive entries are not the source's" in ran.err


def test_a_source_that_is_not_there_is_not_made(call: Call, tmp_path: Path, other: Place) -> None:
    ran = call(*argv(file_at(tmp_path / "none.db"), other))
    assert (ran.code, ran.out) == (5, b"")
    assert "is not there" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_nats_does_not_have_is_not_made(call: Call, file: Place, on_nats: Place) -> None:
    ran = call(*argv(on_nats, file))
    assert (ran.code, ran.out) == (5, b"")
    assert "NATS has no stream" in ran.err
    assert call(*argv(on_nats, file)).err == ran.err
    assert not path_of(file).exists()


def test_nats_that_does_not_answer_is_told(call: Call, small: Place) -> None:
    ran = call(*argv(small, Place("nats://127.0.0.1:1", {})))
    assert (ran.code, ran.out) == (6, b"")
    assert ran.err.startswith("error: State store is unavailable\nreason: NATS: ")


def test_nats_is_not_moved_onto_itself(call: Call) -> None:
    ran = call("store", "migrate", "--from", "nats://one:4222,nats://two", "--to", "nats://two:4222")
    assert (ran.code, ran.out) == (1, b"")
    assert "--to names the store that --from names" in ran.err


def test_a_store_is_not_moved_onto_itself(call: Call, small: Place, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(path_of(small))
    for place in (small, file_at(tmp_path / "link.db"), Place(str(path_of(small)), {})):
        ran = call(*argv(small, place))
        assert (ran.code, ran.out) == (1, b"")
        assert "--to names the store that --from names" in ran.err


def test_what_is_no_store_is_refused(call: Call, small: Place, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no store at all, but long enough to be looked at" * 10)
    text = file_at(tmp_path / "text.db")
    for ran in (call(*argv(text, small)), call(*argv(small, text))):
        assert (ran.code, ran.out) == (5, b"")
        assert "is not a SQLite file" in ran.err


def test_a_file_of_an_older_version_is_not_touched(call: Call, tmp_path: Path, file: Place) -> None:
    older = file_at(tmp_path / "older.db")
    path_of(older).write_bytes(gzip.decompress(OLD_FILE.read_bytes()))
    before = path_of(older).read_bytes()
    ran = call(*argv(older, file))
    assert (ran.code, ran.out) == (5, b"")
    assert "was written by an older contextfold" in ran.err
    assert path_of(older).read_bytes() == before


@pytest.mark.parametrize("side", ["--from", "--to"])
def test_a_place_of_an_unknown_kind_is_refused_by_its_flag(call: Call, small: Place, side: str) -> None:
    words = ["--from", small.named, "--to", small.named]
    words[words.index(side) + 1] = "redis://localhost"
    ran = call("store", "migrate", *words)
    assert (ran.code, ran.out) == (1, b"")
    assert ran.err.startswith(f"error: {side} must be a file")


def test_flags_of_nats_are_refused_where_no_side_is_there(call: Call, small: Place, file: Place) -> None:
    ran = call(*argv(small, file, "--nats-prefix", "mine"))
    assert (ran.code, ran.out) == (1, b"")
    assert "--nats-prefix is for a store on NATS" in ran.err


# ---- how it is told


def test_a_person_sees_what_came_of_it(filled: Place, other: Place) -> None:
    seen = without_colours(on_terminal(*argv(filled, other), columns=120))
    assert f"✓ {SESSIONS} sessions moved, 0 already there, verified" in seen


def test_a_person_sees_how_far_it_is(filled: Place, file: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "PROGRESS_EVERY_S", 0.0)
    shown = Watched(io.BytesIO(), "utf-8")
    with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")):
        assert main(argv(filled, file)) == 0
    seen = shown.buffer.getvalue().decode()  # type: ignore[attr-defined]  # its own buffer
    assert f"moving 0 of {SESSIONS} sessions, " in seen
    assert f"moving 7 of {SESSIONS} sessions, " in seen
    assert seen.endswith(render.CLEAR_LINE)


class Watched(io.TextIOWrapper):
    """Somebody looks at it."""

    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_one_line(call: Call, small: Place, other: Place) -> None:
    assert call(*argv(small, other)) == Ran(
        0, b"1 session moved, 0 already there, verified; 1 entry with 5 bytes copied\n", ""
    )
