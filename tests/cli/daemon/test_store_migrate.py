"""`context store migrate`: everything arrives, once, and is told well."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from contextfold.cli import output as render
from contextfold.cli.main import main
from contextfold.fold.store import Store
from tests.cli.daemon.migrating import SESSIONS, argv, at_work, file, filled, migrated, on_nats, other, small, template
from tests.cli.daemon.moves import Place, Worker, all_of, file_at, fill
from tests.cli.fold.folds import on_terminal, without_colours
from tests.support.machine import Call, Ran

__all__ = ["file", "filled", "on_nats", "other", "small", "template"]

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
