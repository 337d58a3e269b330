"""The commands print the same of the same sessions, whether these are in a file or on NATS."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from contextfold.fold.project import Caller
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.store import Store
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.settings import NatsOptions
from contextfold.stores.nats.store import NatsStore
from contextfold.stores.sqlite.store import SqliteStore
from tests.support.machine import Call

PROJECT = "/work/app"
LOCAL = {"project_path": PROJECT}
COMMANDS = (
    ("fold", "status", "--project", PROJECT),
    ("fold", "status", "--all", "--json"),
    ("fold", "list", "--json", "--project", PROJECT),
    ("fold", "list", "--ended", "--all"),
    ("fold", "savings", "--all", "--json"),
    ("fold", "savings", "--by", "project", "--json"),
    ("fold", "search", "index"),
    ("fold", "show", "br_0", "--project", PROJECT),
    ("fold", "expand", "br_0"),
    ("fold", "report", "--project", PROJECT),
    ("recall", "database"),
    ("fold", "rollback", "br_0", "--project", PROJECT, "--dry-run"),
    ("fold", "rollback", "br_0", "--project", PROJECT, "--yes", "--json"),
    # The time of the rollback may differ by a second; a list of branches has no times.
    ("fold", "list", "--project", PROJECT),
)


async def fill(store: Store, now: datetime) -> None:
    numbers = count()
    service = FoldService(
        store, standard_scrubber(), clock=lambda: now, new_id=lambda prefix: f"{prefix}_{next(numbers)}"
    )
    caller = Caller("local")
    await service.open_branch(caller, {"description": "Slow query", "prompt": "Look at the database.", **LOCAL})
    await service.record(caller, {"type": "Bash", "content": "EXPLAIN SELECT 1", **LOCAL})
    await service.return_branch(caller, {"message": "An index was missing.", **LOCAL})
    await service.open_branch(caller, {"description": "Add the index", "prompt": "Add it.", **LOCAL})
    await service.close()


def test_a_command_prints_the_same_of_a_file_and_of_nats(nats: NatsOptions, tmp_path: Path, call: Call) -> None:
    now = datetime.now(UTC)
    path = tmp_path / "state.db"
    asyncio.run(fill(SqliteStore(path), now))
    asyncio.run(fill(NatsStore(nats), now))
    for argv in COMMANDS:
        of_file, of_nats = (call(*argv, "--store", store) for store in (path, nats.servers[0]))
        assert of_file.code == 0, (argv, of_file.err)
        assert (of_nats.code, of_nats.out, of_nats.err) == (0, of_file.out, of_file.err), argv
