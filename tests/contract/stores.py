"""Every store that the contract suite runs over. A new one is one more entry in STORES."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from contextfold.fold.ports.store import Store
from contextfold.stores.memory import MemoryStore
from contextfold.stores.nats.store import NatsStore
from contextfold.stores.nats.wire.connection import NatsOptions
from contextfold.stores.sqlite.store import SqliteStore
from tests.support.nats_servers import NatsServer, drop, random_prefix

# The arguments are a folder for files, and a function that provides a prefix on NATS.
Opener = Callable[[Path, Callable[[], NatsOptions]], Store]
STORES: dict[str, Opener] = {
    "memory": lambda _folder, _place: MemoryStore(),
    "sqlite": lambda folder, _place: SqliteStore.open(folder / "state.db"),
    "sqlite in place": lambda folder, _place: SqliteStore.open(folder / "state.db", in_place=True),
    "nats": lambda _folder, place: NatsStore(place()),
}
Act = Callable[[Store], Awaitable[None]]
Run = Callable[[Act], None]


def options_on(server: NatsServer) -> NatsOptions:
    """A prefix that was never used before."""
    return NatsOptions(servers=(server.url,), prefix=random_prefix())


@pytest.fixture(params=STORES)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a function with a new store, and closes the store afterwards."""

    def run(act: Act) -> None:
        taken: list[NatsOptions] = []

        def place() -> NatsOptions:
            taken.append(options_on(request.getfixturevalue("nats_server")))
            return taken[-1]

        async def whole() -> None:
            store = STORES[request.param](tmp_path, place)
            try:
                await act(store)
            finally:
                await store.close()
                for used in taken:
                    await drop(used)

        asyncio.run(whole())

    return run
