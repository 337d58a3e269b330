"""A state file that a command only reads: when it is refused, damaged pages, and files left beside it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.stores.sqlite import schema
from contextfold.stores.sqlite.schema import FORMAT
from contextfold.stores.sqlite.state_file import SqliteReader
from tests.contract.sessions import key_of
from tests.stores.sqlite.files import fill

SESSIONS = 60
PAGE = 4096
DAMAGE = b"\xa5"


def read_all(path: Path) -> int:
    """The number of sessions whose log could be read."""
    reader = SqliteReader(path)
    try:
        return sum(reader.load(key_of(f"p{number}")) is not None for number in range(SESSIONS))
    finally:
        reader.close()


def outcome(path: Path) -> str:
    try:
        return "all" if read_all(path) == SESSIONS else "some"
    except StoreInvalid as error:
        return "damaged" if "is damaged" in error.reason else error.reason


def check_refused(path: Path, match: str) -> None:
    before = path.read_bytes()
    with pytest.raises(StoreInvalid, match=match) as raised:
        read_all(path)
    assert path.read_bytes() == before
    assert str(path) in raised.value.reason


def test_a_read_leaves_no_file_beside_the_state_file(path: Path) -> None:
    fill(path, SESSIONS)
    before = path.read_bytes()
    assert read_all(path) == SESSIONS
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_write_ahead_log_left_by_a_killed_process_is_read_and_stays_unchanged(path: Path, tmp_path: Path) -> None:
    fill(path, SESSIONS)
    writing = sqlite3.connect(path)
    writing.execute("PRAGMA wal_autocheckpoint = 0")
    schema.add_functions(writing)
    writing.execute(schema.update("sessions", "true", last_at="'2027-01-01T00:00:00Z'"))
    writing.commit()
    copy = tmp_path / "copy" / "state.db"
    copy.parent.mkdir()
    for name in os.listdir(path.parent):
        shutil.copy(path.parent / name, copy.parent / name)
    writing.close()
    log = copy.with_name("state.db-wal")
    before = copy.read_bytes(), log.read_bytes()
    assert before[1]
    reader = SqliteReader(copy)
    listed = reader.sessions("local", limit=1)
    reader.close()
    assert [session.last_at for session in listed] == ["2027-01-01T00:00:00Z"]
    assert (copy.read_bytes(), log.read_bytes()) == before


def test_a_file_of_an_older_format_is_refused(path: Path) -> None:
    fill(path)
    older = sqlite3.connect(path)
    older.execute(f"PRAGMA user_version = {FORMAT - 1}")
    older.close()
    check_refused(path, "older contextfold")


def test_an_empty_file_is_refused_as_older(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    check_refused(path, "older contextfold")


def test_a_folder_a_pipe_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreInvalid, match="is a folder"):
        SqliteReader(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreInvalid, match="not a regular file"):
        SqliteReader(tmp_path / "pipe")
    with pytest.raises(StoreInvalid, match="cannot be opened for writing"):
        SqliteReader(tmp_path / "missing.db")
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_damaged_page_is_reported_when_it_is_read(path: Path) -> None:
    fill(path, SESSIONS)
    intact = path.read_bytes()
    path.write_bytes(intact[: len(intact) // 2])
    check_refused(path, r"is damaged.*put a backup in its place")
    path.write_bytes(intact[:PAGE] + DAMAGE * (len(intact) - PAGE))
    check_refused(path, r"is damaged.*put a backup in its place")
    for start in range(PAGE, len(intact), PAGE):
        path.write_bytes(intact[:start] + DAMAGE * PAGE + intact[start + PAGE :])
        assert outcome(path) in ("all", "damaged")
    path.write_bytes(intact)
    assert read_all(path) == SESSIONS


def test_a_locked_file_is_reported_as_unavailable_and_not_as_damaged(path: Path) -> None:
    fill(path)
    other = sqlite3.connect(path)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(StoreUnavailable, match="locked"):
            read_all(path)
    finally:
        other.close()
