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

Opener = Callable[[Path, Callable[[], NatsOptions]], Store]  # a folder to lie in, a place on NATS if it is asked for
STORES: dict[str, Opener] = {
    "memory": lambda _folder, _place: MemoryStore(),
    "sqlite": lambda folder, _place: SqliteStore.open(folder / "state.db"),
    "sqlite in place": lambda folder, _place: SqliteStore.open(folder / "state.db", in_place=True),
    "nats": lambda _folder, place: NatsStore(place()),
}
Act = Callable[[Store], Awaitable[None]]
Run = Callable[[Act], None]


def options_on(server: NatsServer) -> NatsOptions:
    """Where nobody has been before."""
    return NatsOptions(servers=(server.url,), prefix=random_prefix())


@pytest.fixture(params=STORES)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Do something with a store that is new, and is closed afterwards."""

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
