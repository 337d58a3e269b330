"""Every store that the contract suite runs over. A new one is one more entry in STORES."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from contextfold.fold.store import Store
from contextfold.stores.memory import MemoryStore
from contextfold.stores.sqlite import SqliteStore

Opener = Callable[[Path], Store]
STORES: dict[str, Opener] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda folder: SqliteStore.open(folder / "state.db"),
}
Act = Callable[[Store], Awaitable[None]]
Run = Callable[[Act], None]


@pytest.fixture(params=STORES)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Do something with a store that is new, and is closed afterwards."""

    def run(act: Act) -> None:
        async def whole() -> None:
            store = STORES[request.param](tmp_path)
            try:
                await act(store)
            finally:
                await store.close()

        asyncio.run(whole())

    return run
