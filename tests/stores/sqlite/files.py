"""Helpers of the tests of state files: open, fill and count them, and run other processes on them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from contextfold.stores.sqlite.store import SqliteStore
from tests.contract.sessions import begin, key_of
from tests.support.machine import ROOT, SOURCE

HERE = Path(__file__).parent
KEY = key_of()
OLD_FILE = HERE / "format-1.db.gz"
# This number must agree with worker.py.
TASKS = 8


def run(path: Path, act: Callable[[SqliteStore], Awaitable[None]], *, busy_timeout_s: float = 5.0) -> None:
    async def run_with_store() -> None:
        store = SqliteStore(path, busy_timeout_s=busy_timeout_s, poll_s=0.02)
        try:
            await act(store)
        finally:
            await store.close()

    asyncio.run(run_with_store())


def fill(path: Path, sessions: int = 3) -> None:
    run(path, lambda store: begin(store, *(key_of(f"p{number}") for number in range(sessions))))


def count(path: Path) -> int:
    counted: list[int] = []

    async def act(store: SqliteStore) -> None:
        counted.append(await store.count())

    run(path, act)
    return counted[0]


def worker(path: Path, project: str, turns: int) -> subprocess.Popen[str]:
    """A process that commits, and writes what was acknowledged to its stdout."""
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, str(HERE / "worker.py"), str(path), project, str(turns)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment)


def event_counts(path: Path, project: str) -> dict[str, int]:
    """The number of events in each task's session of a project."""
    events: dict[str, int] = {}

    async def act(store: SqliteStore) -> None:
        for task in range(TASKS):
            log = await store.load(key_of(project, name=f"{task}"))
            assert log is None or [event.n for event in log.events] == list(range(1, len(log.events) + 1))
            events[f"{task}"] = len(log.events) if log else 0

    run(path, act)
    return events
