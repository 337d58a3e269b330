"""Commits into state files while their writes and syncs fail in turn, and checks each file afterwards.

io_fault_worker.py LIBRARY FOLDER ERROR LASTING STEP: the first call fails in the first file, STEP calls later in the
next one, until no call is left to fail. Prints the number of files; an assertion says which file lost something. The
library is preloaded, and is named here only to reach its functions.
"""

from __future__ import annotations

import asyncio
import ctypes
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path

from contextfold.errors import FoldError
from contextfold.fold.archive import ArchiveEntry
from contextfold.stores.sqlite.store import SqliteStore
from tests.contract.sessions import NOON, commit_of, key_of

COMMITS = 6
KEY = key_of("faulty")


async def commit_all(path: Path) -> list[int]:
    """Commit in turn; the numbers of the commits that were acknowledged. Typed errors are expected."""
    acknowledged: list[int] = []
    try:
        store = SqliteStore(path)
    except FoldError:
        return acknowledged
    for number in range(COMMITS):
        entry = ArchiveEntry("br_1", number + 1, NOON, "operation", "x" * 3000)
        commit = commit_of(KEY, len(acknowledged), session_id="sess_1", operation_id=f"op{number}", entries=[entry])
        try:
            await store.commit(commit)
        except FoldError:
            # Its outcome is not known; the next commit would be refused if it had been stored.
            break
        acknowledged.append(number)
    with suppress(FoldError):
        await store.close()
    return acknowledged


async def check(path: Path, acknowledged: list[int], call: int) -> None:
    store = SqliteStore(path)
    try:
        for number in acknowledged:
            assert await store.receipt(KEY, f"op{number}") is not None, f"call {call}: commit {number} is lost"
        log = await store.load(KEY)
        numbers = [event.n for event in log.events] if log else []
        assert numbers == list(range(1, len(numbers) + 1)), f"call {call}: events {numbers}"
        # The commit that failed may have been stored; nothing else may.
        assert len(acknowledged) <= len(numbers) <= len(acknowledged) + 1, f"call {call}: {len(numbers)} events"
    finally:
        await store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",), f"call {call}: damaged"
    connection.close()


def main(library: str, folder: str, error: int, lasting: int, step: int) -> None:
    faults = ctypes.CDLL(library)
    files, call = 0, 1
    while True:
        path = Path(folder) / f"{error}-{lasting}-{call}" / "state.db"
        faults.io_faults_arm(ctypes.c_long(call), error, lasting)
        acknowledged = asyncio.run(commit_all(path))
        is_over = faults.io_faults_seen() < call
        faults.io_faults_arm(ctypes.c_long(0), 0, 0)
        asyncio.run(check(path, acknowledged, call))
        if is_over:
            assert len(acknowledged) == COMMITS
            break
        files, call = files + 1, call + step
    print(files)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
