"""The state file: when it is refused and left unchanged, older formats, its owner and its path."""

from __future__ import annotations

import asyncio
import gzip
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.store import ArchivedResult, ArchivedThread, LeftOutDecision
from contextfold.fold.tool_calls import RecallRequest
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.stores.sqlite import schema
from contextfold.stores.sqlite.state_file import SqliteReader
from contextfold.stores.sqlite.store import SqliteStore
from tests.contract.sessions import NOON, begin, commit_of, key_of
from tests.stores.sqlite.files import KEY, OLD_FILE, count, fill, run
from tests.support.machine import SOURCE

NEXT_YEAR = "2027-01-01T00:00:00Z"


# ---- files that are refused and left unchanged


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def check_refused(path: Path, match: str) -> None:
    """By a daemon and by a command that only reads."""
    before = path.read_bytes()
    for open_file in (SqliteStore, SqliteReader):
        with pytest.raises(StoreInvalid, match=match) as raised:
            open_file(path)
        assert path.read_bytes() == before
        assert str(path) in raised.value.reason
        assert "move it away" in raised.value.reason
        assert raised.value.message == "State store is unavailable"


@pytest.mark.parametrize("content", [b"hello", b"\0" * 5000, b"SQLite format 3\0 but short", bytes(range(256)) * 40])
def test_a_file_that_is_not_a_database_is_refused(path: Path, content: bytes) -> None:
    write(path, content)
    check_refused(path, "is not a SQLite file")


def test_a_database_of_another_program_is_refused(path: Path) -> None:
    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE sessions (id)")
    other.close()
    check_refused(path, "of another program")


@pytest.mark.parametrize("is_in_log", [False, True])
def test_a_file_of_a_newer_format_is_refused(path: Path, *, is_in_log: bool) -> None:
    """Also while its header is only in the write-ahead log."""
    fill(path)
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA wal_autocheckpoint = {0 if is_in_log else 1}")
    newer.execute("PRAGMA user_version = 99")
    try:
        assert (int.from_bytes(path.read_bytes()[60:64]) == schema.FORMAT) == is_in_log
        check_refused(path, r"newer contextfold: its format is 99.*Upgrade contextfold")
    finally:
        newer.close()


def test_a_damaged_file_is_refused(path: Path) -> None:
    fill(path, 200)
    intact = path.read_bytes()
    write(path, intact[: len(intact) // 2])
    check_refused(path, "is damaged")
    write(path, intact[:4096] + os.urandom(len(intact) - 4096))
    check_refused(path, "is damaged")
    write(path, intact)
    assert count(path) == 200


def test_a_page_damaged_during_use_makes_the_store_unavailable(path: Path) -> None:
    fill(path, 50)
    intact = path.read_bytes()

    async def act(store: SqliteStore) -> None:
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(os.urandom(len(intact) - 4096))
        loads = (store.load(key_of(f"p{number}")) for number in range(50))
        results = await asyncio.gather(*loads, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        assert {type(error) for error in errors} == {StoreUnavailable}
        path.write_bytes(intact)

    run(path, act)


@pytest.mark.parametrize("may_migrate", [True, False])
def test_a_folder_a_pipe_and_an_impossible_path_are_refused(tmp_path: Path, *, may_migrate: bool) -> None:
    with pytest.raises(StoreInvalid, match="is a folder"):
        SqliteStore(tmp_path, may_migrate=may_migrate)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreInvalid, match="not a regular file"):
        SqliteStore(tmp_path / "pipe", may_migrate=may_migrate)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreInvalid, match="cannot be opened for writing"):
        SqliteStore(tmp_path / "file" / "below.db", may_migrate=may_migrate)


def test_a_file_without_write_permission_is_refused(path: Path) -> None:
    fill(path)
    code = f"from contextfold.stores.sqlite.store import SqliteStore\nSqliteStore({str(path)!r})"
    for folder in [path.parent, *path.parents]:
        if str(folder) not in ("/", "/tmp"):
            folder.chmod(0o755)
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c"]
    if subprocess.run([*nobody, "pass"], capture_output=True, check=False).returncode != 0:
        pytest.skip("the user nobody cannot read the interpreter")
    environment = {"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    # First the file cannot be written, then only its folder.
    for mode in (0o444, 0o666):
        path.chmod(mode)
        done = subprocess.run([*nobody, code], capture_output=True, text=True, check=False, env=environment)
        assert f"StoreInvalid: {path} cannot be opened for writing" in done.stderr


# ---- older formats


def test_a_file_of_format_1_opens_with_all_its_data(path: Path) -> None:
    write(path, gzip.decompress(OLD_FILE.read_bytes()))

    async def act(store: SqliteStore) -> None:
        log = await store.load(KEY)
        assert log is not None
        assert len(log.events) == 2
        assert [summary.branch_id for summary in await store.search("local", "outcome", None, 10)] == ["br_1"]
        trajectory = await store.trajectory(ArchivedThread("local", "p1", "br_1"), limit=10)
        assert trajectory is not None
        assert [entry.text for entry in trajectory.entries] == ["Look into it."]
        service = FoldService(store, standard_scrubber())
        for query in ("outcomes", "looking"):
            answer = await service.recalls.answer("local", RecallRequest(query))
            assert [fold.id for fold in answer.folds] == ["br_1"]
        await store.commit(commit_of(KEY, 2))
        await store.keep_left_out(
            "local", "c", [ArchivedResult(LeftOutDecision("call", "hash", "res_1", "[]", NOON), "x")]
        )
        assert await store.left_out_text("local", "res_1") == "x"
        assert await store.expire(NEXT_YEAR, NEXT_YEAR) == 1
        assert len(await store.ended_log(KEY, log.session_id)) == 4

    run(path, act)


def test_a_failed_migration_leaves_the_file_unchanged(path: Path) -> None:
    """The file has a table of the same name as one that a migration makes after it has made others."""
    write(path, gzip.decompress(OLD_FILE.read_bytes()))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE clock (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(StoreInvalid, match=r"could not be brought to format 7 .* as it was"):
        SqliteStore(path)
    assert path.read_bytes() == before


async def test_a_store_notices_that_its_file_was_changed_by_a_newer_version(store: SqliteStore, path: Path) -> None:
    await begin(store, KEY)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {schema.FORMAT + 1}")
    with pytest.raises(StoreUnavailable, match="another format"):
        await store.commit(commit_of(KEY, 1))


# ---- permissions and paths


def test_only_the_owner_of_the_file_may_read_it(path: Path) -> None:
    async def act(store: SqliteStore) -> None:
        await begin(store, KEY)
        modes = {entry.name: entry.stat().st_mode & 0o777 for entry in path.parent.iterdir()}
        assert modes == {"state.db": 0o600, "state.db-wal": 0o600, "state.db-shm": 0o600}
        assert path.parent.stat().st_mode & 0o777 == 0o700

    old = os.umask(0)
    try:
        run(path, act)
    finally:
        os.umask(old)


def test_a_link_is_followed_and_special_characters_in_a_name_are_literal(tmp_path: Path) -> None:
    target = tmp_path / "a ?mode=memory#%20 é.db"
    link = tmp_path / "link.db"
    link.symlink_to(target)
    fill(link)
    assert count(target) == 3


async def test_a_file_moved_during_use_accepts_no_more_commits(store: SqliteStore, path: Path) -> None:
    await begin(store, KEY)
    os.rename(path, path.with_name("moved.db"))
    for call in (store.check(), store.commit(commit_of(KEY, 1))):
        with pytest.raises(StoreUnavailable, match="moved or deleted"):
            await call
