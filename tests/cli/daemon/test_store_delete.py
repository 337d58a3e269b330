"""`context store delete` deletes our file alone, after consent, and never one that is in use."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from contextfold.stores.sqlite.state_file import connect
from tests.cli.fold.folds import StoreAgent
from tests.support.machine import Call

USAGE, REFUSED = 1, 5


def test_everything_is_deleted_after_consent(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    StoreAgent(path).branch("A secret plan")
    shown = call("store", "delete", "--store", path, "--dry-run")
    assert (shown.code, path.exists()) == (0, True)
    assert str(path) in shown.out.decode()
    # Nobody can be asked in a test.
    unasked = call("store", "delete", "--store", path)
    assert (unasked.code, path.exists()) == (USAGE, True)
    assert "--yes" in unasked.err
    deleted = call("store", "delete", "--store", path, "--yes")
    assert deleted.code == 0, deleted.err
    assert list(tmp_path.iterdir()) == []
    again = call("store", "delete", "--store", path, "--yes")
    assert (again.code, again.out) == (0, b"")


def test_a_store_in_use_and_files_of_others_are_left_alone(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    StoreAgent(path).branch("In use")
    with closing(connect(str(path), 0)) as connection:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        in_use = call("store", "delete", "--store", path, "--yes")
    assert (in_use.code, path.exists()) == (REFUSED, True)
    assert "stop the daemon" in in_use.err
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE mine (a)")
    link = tmp_path / "notes.txt"
    link.write_text("mine\n" * 100)
    for theirs in (other, link):
        assert call("store", "delete", "--store", theirs, "--yes").code == REFUSED
        assert theirs.exists()
    on_nats = call("store", "delete", "--store", "nats://127.0.0.1:4222", "--yes")
    assert on_nats.code != 0
    assert "nats stream rm" in on_nats.err
