"""A process that commits into a state file and prints what was acknowledged, one line each.

worker.py FILE PROJECT COUNT: commits COUNT times to each of several sessions of one project, or until it is killed.
"""

from __future__ import annotations

import asyncio
import sys

from contextfold.errors import StoreUnavailable
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.store import StaleRevision
from contextfold.stores.sqlite.store import SqliteStore
from tests.contract.sessions import NOON, commit_of, key_of

TASKS = 8


async def _work(store: SqliteStore, project: str, task: int, count: int) -> None:
    key = key_of(project, name=f"{task}")
    for turn in range(count):
        operation_id = f"{project}/{task}/{turn}"
        log = await store.load(key)
        revision = len(log.events) if log else 0
        entry = ArchiveEntry(f"br_{task}", revision + 1, NOON, "operation", "x" * 2000)
        session_id = log.session_id if log else f"sess_{task}"
        try:
            await store.commit(
                commit_of(key, revision, session_id=session_id, operation_id=operation_id, entries=[entry])
            )
        except StaleRevision:
            print("stale", operation_id, flush=True)
        else:
            print("committed", operation_id, flush=True)


async def main(path: str, project: str, count: int) -> int:
    # On a busy machine another process may hold the file for longer than a daemon waits.
    store = SqliteStore(path, busy_timeout_s=60)
    try:
        await asyncio.gather(*(_work(store, project, task, count) for task in range(TASKS)))
    except StoreUnavailable as error:
        print("unavailable", error.reason, flush=True)
    finally:
        await store.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
