"""Every store that the contract suite runs over. A new one is one more entry in STORES."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from contextfold.fold.store import Store
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


def options_on(server: NatsServer) -> NatsOptions:
    """A prefix that was never used before."""
    return NatsOptions(servers=(server.url,), prefix=random_prefix())


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A new store of each kind, which is closed afterwards."""
    used_options: list[NatsOptions] = []

    def new_options() -> NatsOptions:
        used_options.append(options_on(request.getfixturevalue("nats_server")))
        return used_options[-1]

    opened = STORES[request.param](tmp_path, new_options)
    yield opened
    await opened.close()
    for options in used_options:
        await delete_streams(options)
