"""Stores to be moved, and moving them, for the tests of `context store migrate`."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contextfold.app import open_for_moving
from contextfold.fold.moving import Progress, move
from contextfold.fold.store import Store
from contextfold.stores.nats.connection import Place as NatsPlace
from tests.cli.daemon.moves import Place, Worker, all_of, file_at, fill, flags_of
from tests.support.machine import ROOT, Call
from tests.support.nats_servers import NatsServer, drop, random_prefix

KILLER = ROOT / "tests" / "cli" / "daemon" / "killed_migrate.py"
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


def refused(call: Call, source: Place, target: Place) -> str:
    before = all_of(source), all_of(target)
    ran = call(*argv(source, target))
    assert (ran.code, ran.out) == (5, b"")
    assert ran.err.startswith("error: The sessions cannot be moved\n")
    assert (all_of(source), all_of(target)) == before
    return ran.err
