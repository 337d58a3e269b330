"""Fixtures of the tests of commands: a store on NATS."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from contextfold.settings import NatsOptions
from tests.support.nats_servers import NatsServer, delete_streams, random_prefix


@pytest.fixture
def nats(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[NatsOptions]:
    """An empty store, which commands use if they are given the address of the server."""
    options = NatsOptions(servers=(nats_server.url,), prefix=random_prefix())
    monkeypatch.setenv("CONTEXT_NATS_PREFIX", options.prefix)
    yield options
    asyncio.run(delete_streams(options))
