"""Fixtures of the tests of commands: projects of each host, a faster disk, and a store on NATS."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from contextfold.settings import NatsOptions
from tests.cli.agents.wiring import FILES, HostProject
from tests.support.machine import Call
from tests.support.nats_servers import NatsServer, delete_streams, random_prefix


@pytest.fixture
def caches(tmp_path: Path) -> Path:
    """A folder of caches inside the project. Files that a team shares may name only such folders."""
    caches = tmp_path / "project" / "caches"
    caches.mkdir(parents=True)
    return caches


@pytest.fixture(params=sorted(FILES))
def project(request: pytest.FixtureRequest, tmp_path: Path, call: Call, caches: Path) -> HostProject:
    return HostProject(tmp_path / "project", request.param, call, caches)


@pytest.fixture
def vscode(tmp_path: Path, call: Call, caches: Path) -> HostProject:
    return HostProject(tmp_path / "project", "vscode", call, caches)


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips fsync. Durability is tested elsewhere, and a thousand syncs take a minute."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def nats(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[NatsOptions]:
    """An empty store, which commands use if they are given the address of the server."""
    options = NatsOptions(servers=(nats_server.url,), prefix=random_prefix())
    monkeypatch.setenv("CONTEXT_NATS_PREFIX", options.prefix)
    yield options
    asyncio.run(delete_streams(options))
