"""The state file: the checks before it is opened, connections to it, its creation and its migration, and its reader
for commands. The daemon reads and writes through `store`.

Owns the file, its folder, its header, its format number and the errors of SQLite; the tables are in `schema`. A file
that is refused is opened read-only and stays unchanged, because it may be the only copy of a user's work.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Concatenate, Final, ParamSpec, TypeVar
from urllib.parse import quote

from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.fold.recall_ranking import DocumentTerms
from contextfold.fold.store import RecallSource
from contextfold.stores.sqlite import statements, verification
from contextfold.stores.sqlite.schema import FORMAT, MIGRATIONS, Migration, add_functions

# "cxfd" in the header of the file identifies it as ours.
APPLICATION_ID: Final = 0x63786664
# The longest time to wait for a lock of another process.
BUSY_TIMEOUT_S: Final = 2.0
# A check of all pages of a file of this size takes about 0.1 s, and the start waits for it.
CHECK_MAX_BYTES: Final = 128 * 1024 * 1024
# A command that reads waits for the check of a file of this size for about 10 ms.
COMMAND_CHECK_MAX_BYTES: Final = 16 * 1024 * 1024
FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
WAL_KEEPS_BYTES: Final = 64 * 1024 * 1024
WAL_TRIES: Final = 100
WAL_PAUSE_S: Final = 0.05
START_ANEW: Final = "move it away (with its -wal and -shm files) to start with a new file, or name another file"

# These errors are caused by a statement, not by the disk or a lock.
_STATEMENT_AT_FAULT: Final = ("SQLITE_ERROR", "SQLITE_CONSTRAINT", "SQLITE_MISMATCH")
_HEADER_BYTES: Final = 100
# A version that no file exceeds.
NEWEST_POSSIBLE: Final = 1 << 31
_MAGIC: Final = b"SQLite format 3\x00"


# ---- connections


def connect(path: str, busy_timeout_s: float, *, read_only: bool = False) -> sqlite3.Connection:
    address = f"file:{quote(os.fsencode(path))}?mode={'ro' if read_only else 'rw'}"
    connection = sqlite3.connect(
        address,
        uri=True,
        timeout=busy_timeout_s,
        # Transactions begin and end explicitly.
        isolation_level=None,
        # It is opened and closed by one thread and used by another.
        check_same_thread=False,
    )
    add_functions(connection)
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def open_for_reading(path: str, busy_timeout_s: float) -> sqlite3.Connection:
    """A second connection for reading. In WAL mode it neither waits for a commit nor delays one."""
    connection = connect(path, busy_timeout_s)
    connection.execute("PRAGMA query_only = ON")
    return connection


def open_existing(path: str) -> sqlite3.Connection:
    """Open a file of this version for a command that reads. Raises StoreInvalid if it cannot be used.

    The pages of a large file are not checked, because a command reads few of them: `reading_failed` is the error of a
    damaged one.
    """
    check_regular(path)
    check_header(path)
    # When its last connection closes, SQLite moves the write-ahead log into the file, unless that connection is
    # read-only. A log that another process has left must stay, so the file is then opened read-only. Without such a
    # log the connection may write, so that SQLite removes its -wal and -shm files again.
    read_only = _has_content(f"{path}-wal") or is_unfinished(path)
    with _opening(path, BUSY_TIMEOUT_S, read_only=read_only) as connection:
        connection.execute("PRAGMA query_only = ON")
        refuse_other_format(path, version_of(connection))
        if os.stat(path).st_size <= COMMAND_CHECK_MAX_BYTES:
            _refuse_damaged(connection, path)
    return connection


def open_for_writing(
    path: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S, may_migrate: bool = True
) -> sqlite3.Connection:
    """Open the file. Raises StoreInvalid if it is not ours or cannot be used.

    With `may_migrate` a missing file is created and an older one migrated; otherwise both are refused.
    """
    if may_migrate:
        try:
            _create_folders(os.path.dirname(os.path.abspath(path)))
        except OSError as problem:
            raise not_writable(path, problem.strerror or str(problem)) from problem
    check_regular(path, creates=may_migrate)
    version = check_file(path, busy_timeout_s)
    if not may_migrate:
        refuse_other_format(path, version)
    with _opening(path, busy_timeout_s) as connection:
        _migrate(connection, path)
        _enable_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_KEEPS_BYTES}")
        if may_migrate and os.stat(path).st_size <= COMMAND_CHECK_MAX_BYTES:
            _restore_derived(connection)
    return connection


@contextmanager
def _opening(path: str, busy_timeout_s: float, *, read_only: bool = False) -> Iterator[sqlite3.Connection]:
    """A connection that stays open if the block succeeds. An error of SQLite becomes one about the file."""
    connection: sqlite3.Connection | None = None
    try:
        connection = connect(path, busy_timeout_s, read_only=read_only)
        yield connection
    except BaseException as problem:
        if connection is not None:
            connection.close()
        if isinstance(problem, sqlite3.Error):
            raise refusal(path, problem) from problem
        raise


def _create_folders(folder: str) -> None:
    """Create the folders that are missing. Each has the mode, which `os.makedirs` sets only for the last one."""
    if os.path.exists(folder):
        return
    _create_folders(os.path.dirname(folder))
    try:
        os.mkdir(folder, FOLDER_MODE)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise


@contextmanager
def transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """A transaction on a connection that is closed afterwards, which rolls back what was not committed."""
    try:
        connection.execute(begin)
        yield
        connection.execute("COMMIT")
    except sqlite3.Error as problem:
        raise unavailable(problem) from problem
    finally:
        connection.close()


def version_of(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


# ---- checks


def check_regular(path: str, *, creates: bool = False) -> None:
    """Refuse what is not a file that may be written. SQLite writes beside a file also to read it.

    With `creates` a missing file is created, empty. SQLite gives the -wal and -shm files the same mode.
    """
    try:
        if os.path.isdir(path):
            raise StoreInvalid(f"{path} is a folder: name a file for the state")
        opened = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_CREAT * creates, FILE_MODE)
        is_regular = stat.S_ISREG(os.fstat(opened).st_mode)
        os.close(opened)
        if not is_regular:
            raise StoreInvalid(f"{path} is not a regular file: name a file for the state")
    except OSError as problem:
        raise not_writable(path, problem.strerror or str(problem)) from problem


def check_header(path: str, newest: int = FORMAT) -> bool:
    """Refuse a file that is not ours before SQLite opens it. False if it is empty, so that it is to be created."""
    with open(path, "rb") as file:
        header = file.read(_HEADER_BYTES)
    if not header:
        return False
    if not header.startswith(_MAGIC) or len(header) < _HEADER_BYTES:
        raise StoreInvalid(f"{path} is not a SQLite file, so not a state of contextfold: {START_ANEW}")
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise StoreInvalid(f"{path} is a SQLite file of another program: {START_ANEW}")
    refuse_newer(path, int.from_bytes(header[60:64], "big"), newest)
    return True


def check_file(path: str, busy_timeout_s: float) -> int:
    """Refuse a file that is not ours, or that is damaged, before SQLite opens it for writing.

    Returns its version, which is 0 if the file has to be created or completed first.
    """
    if not check_header(path) or is_unfinished(path):
        return 0
    with _opening(path, busy_timeout_s, read_only=True) as connection, closing(connection):
        # The header may still be in the -wal file.
        version = version_of(connection)
        refuse_newer(path, version)
        _refuse_damaged(connection, path)
        return version


def refuse_newer(path: str, version: int, newest: int = FORMAT) -> None:
    if version > newest:
        raise StoreInvalid(
            f"{path} was written by a newer contextfold: its format is {version}, and this version knows formats up to"
            f" {newest}. Upgrade contextfold, or {START_ANEW}"
        )


def refuse_other_format(path: str, version: int) -> None:
    """Refuse an older file, too: a daemon of the older version may use it, and a migration would stop it."""
    refuse_newer(path, version)
    if version < FORMAT:
        raise StoreInvalid(
            f"{path} was written by an older contextfold: stop its daemon if one runs, then start `context serve` once"
        )


def is_unfinished(path: str) -> bool:
    """Whether the process that created the file was killed. Only opening the file for writing can undo that."""
    return _has_content(f"{path}-journal")


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except FileNotFoundError:
        return False


def _refuse_damaged(connection: sqlite3.Connection, path: str) -> None:
    """Check every page and every index of a file of usual size. A larger one is not checked: the start would wait.

    Damage of a row makes the call fail that reads it. Damage of an index could hide a row, so it is noticed here.
    """
    if os.stat(path).st_size > CHECK_MAX_BYTES:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    elif (found := verification.check_pages(connection)) is not None:
        raise StoreInvalid(f"{path} is damaged ({found}): put a backup in its place, or {START_ANEW}")


def _restore_derived(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("BEGIN IMMEDIATE")
        verification.restore_derived(connection)
        connection.execute("COMMIT")
    except sqlite3.OperationalError as problem:
        # Another process writes at this moment. It has checked the file when it opened it.
        if not problem.sqlite_errorname.startswith("SQLITE_BUSY"):
            raise
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def verify_file(path: str) -> list[str]:
    """Check everything in a file, and make again what is derived. Returns what is damaged, in words."""
    path = os.path.realpath(path)
    check_regular(path)
    check_header(path)
    connection = connect(path, BUSY_TIMEOUT_S)
    try:
        refuse_other_format(path, version_of(connection))
        damage = list(verification.find_damage(connection))
        if not damage:
            _restore_derived(connection)
    except sqlite3.OperationalError as problem:
        raise unavailable(problem) from problem
    except sqlite3.Error as problem:
        return [f"pages: {problem}"]
    finally:
        connection.close()
    return damage


# ---- creation and migration


def delete_file(path: str) -> None:
    """Delete a state file of any version, unless a process uses it."""
    check_regular(path)
    check_header(path, NEWEST_POSSIBLE)
    try:
        connection = connect(path, 0)
        try:
            # Leaving WAL mode needs the file alone.
            connection.execute("PRAGMA journal_mode = DELETE")
        finally:
            connection.close()
    except sqlite3.Error as problem:
        # A damaged file may go, too.
        if not is_damage(problem):
            raise StoreInvalid(
                f"{path} is in use ({problem}), so nothing was deleted: stop the daemon, with `context service stop` "
                "or Ctrl-C where it runs, and end the runs of `context run`"
            ) from problem
    for name in (path, f"{path}-wal", f"{path}-shm"):
        with suppress(FileNotFoundError):
            os.unlink(name)


def _migrate(connection: sqlite3.Connection, path: str) -> None:
    """Run the missing migrations in one transaction: a failure leaves the file as it was.

    A new file is created the same way, before it changes to WAL mode: from the first commit on its header identifies
    it, and a process that is killed meanwhile leaves a journal that makes it empty again.
    """
    if version_of(connection) == FORMAT:
        return
    connection.execute("BEGIN EXCLUSIVE")
    try:
        # Another process may have migrated it while we waited.
        version = version_of(connection)
        refuse_newer(path, version)
        for number, migration in enumerate(MIGRATIONS[version:], version + 1):
            _run_migration(connection, path, number, migration)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _run_migration(connection: sqlite3.Connection, path: str, number: int, migration: Migration) -> None:
    try:
        for statement in migration:
            connection.execute(statement)
    except sqlite3.Error as problem:
        if not (getattr(problem, "sqlite_errorname", "") or "").startswith(_STATEMENT_AT_FAULT):
            raise
        raise StoreInvalid(
            f"{path} could not be brought to format {number} ({problem}) and is as it was: report this, or {START_ANEW}"
        ) from problem


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Enable WAL mode. The change needs an exclusive lock, and SQLite itself does not wait for it."""
    for attempt in range(WAL_TRIES):
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError:
            if attempt == WAL_TRIES - 1:
                raise
        else:
            if mode == "wal":
                return
        time.sleep(WAL_PAUSE_S)
    raise StoreInvalid("SQLite cannot use a write-ahead log on this file system: name a file on a local disk")


# ---- errors


def is_damage(problem: sqlite3.Error) -> bool:
    """Whether a row is not what was stored. SQLite says only that a function failed, and no other can."""
    return str(problem) == "user-defined function raised exception"


def unavailable(problem: sqlite3.Error) -> StoreInvalid | StoreUnavailable:
    if is_damage(problem):
        return StoreInvalid(f"a record in the state file is damaged: {statements.REPAIR}")
    name = getattr(problem, "sqlite_errorname", None) or type(problem).__name__
    return StoreUnavailable(f"SQLite: {problem} ({name})")


def not_writable(path: str, said: object) -> StoreInvalid:
    return StoreInvalid(f"{path} cannot be opened for writing: {said}. Check its folder and who owns it")


def refusal(path: str, problem: sqlite3.Error) -> StoreInvalid | StoreUnavailable:
    """Damage and missing permissions are permanent; a lock or a full disk is temporary."""
    if isinstance(problem, sqlite3.OperationalError):
        name = getattr(problem, "sqlite_errorname", "") or ""
        if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
            return not_writable(path, problem)
        return StoreUnavailable(f"{path}: {problem} ({name})")
    return StoreInvalid(f"{path} is damaged ({problem}): put a backup in its place, or {START_ANEW}")


def reading_failed(path: str, problem: sqlite3.Error) -> StoreInvalid | StoreUnavailable:
    """The error of a query by a command, which opens a file without checking its pages."""
    return unavailable(problem) if isinstance(problem, sqlite3.OperationalError) else refusal(path, problem)


Arguments = ParamSpec("Arguments")
T = TypeVar("T")


def _reader_method(
    query: Callable[Concatenate[sqlite3.Connection, Arguments], T],
) -> Callable[Concatenate[SqliteReader, Arguments], T]:
    """The query as a method of the reader."""

    def method(self: SqliteReader, /, *args: Arguments.args, **named: Arguments.kwargs) -> T:
        try:
            return query(self.connection, *args, **named)
        except sqlite3.Error as problem:
            raise reading_failed(self.path, problem) from problem

    return method


class SqliteReader:
    """An open state file, which is only read. What recall's index lacks is written through a second connection."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the file. Raises StoreInvalid if it cannot be used, or has an older format."""
        self.path = os.path.realpath(os.fspath(path))
        self.connection = open_existing(self.path)

    load = _reader_method(statements.load)
    sessions = _reader_method(statements.sessions)
    ended_sessions = _reader_method(statements.ended_sessions)
    ended_log = _reader_method(statements.ended_log)
    find = _reader_method(statements.find)
    search = _reader_method(statements.search)
    summaries = _reader_method(statements.summaries)
    unindexed = _reader_method(statements.unindexed)
    recall = _reader_method(statements.recall)
    trajectory = _reader_method(statements.trajectory)
    left_out_text = _reader_method(statements.left_out_text)

    def index(self, documents: Sequence[tuple[RecallSource, DocumentTerms | None]]) -> None:
        connection = open_for_writing(self.path, may_migrate=False)
        with transaction(connection, "BEGIN IMMEDIATE"):
            statements.index(connection, documents)

    def close(self) -> None:
        self.connection.close()
