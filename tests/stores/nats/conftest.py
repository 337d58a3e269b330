"""A prefix on NATS for one test, and a store on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from contextfold.settings import NatsOptions
from contextfold.stores.nats.store import NatsStore
from tests.stores.nats.sample_commits import Pair
from tests.support.nats_servers import NatsServer, delete_streams, random_prefix


@pytest.fixture
async def options(nats_server: NatsServer) -> AsyncIterator[NatsOptions]:
    """Options with a prefix that no other test uses; its streams are deleted afterwards."""
    made = NatsOptions((nats_server.url,), random_prefix())
    yield made
    await delete_streams(made)


@pytest.fixture
async def stores(options: NatsOptions) -> AsyncIterator[Pair]:
    """Two stores on the same streams, as two daemons have them."""
    opened = NatsStore(options), NatsStore(options)
    yield opened
    for store in opened:
        await store.close()


@pytest.fixture
async def store(options: NatsOptions) -> AsyncIterator[NatsStore]:
    opened = NatsStore(options)
    yield opened
    await opened.close()
