"""Every store that the contract suite runs over. A new one is one more entry in STORES."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from contextfold.fold.ports.store import Store
from contextfold.settings import NatsOptions
from contextfold.stores.nats.store import NatsStore
from contextfold.stores.sqlite.store import SqliteStore
from tests.support.nats_servers import NatsServer, delete_streams, random_prefix

# The arguments are a folder for files, and a function that provides a prefix on NATS.
Opener = Callable[[Path, Callable[[], NatsOptions]], Store]
STORES: dict[str, Opener] = {
    "sqlite": lambda folder, _new_options: SqliteStore(folder / "state.db"),
    "nats": lambda _folder, new_options: NatsStore(new_options()),
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
        used_options: list[NatsOptions] = []

        def new_options() -> NatsOptions:
            used_options.append(options_on(request.getfixturevalue("nats_server")))
            return used_options[-1]

        async def run_and_close() -> None:
            store = STORES[request.param](tmp_path, new_options)
            try:
                await act(store)
            finally:
                await store.close()
                for options in used_options:
                    await delete_streams(options)

        asyncio.run(run_and_close())

    return run
