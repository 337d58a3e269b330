"""The daemon and the transports that the contract suites share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.stores import store
from tests.contract.transports import InProcess, OverHttp, Stdio, Transport
from tests.support.daemon import LEGACY, MODERN, Daemon
from tests.support.nats_servers import NatsServer, random_prefix

__all__ = ["store"]


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("daemon"))
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def nats_daemon(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[Daemon]:
    """A daemon that stores its sessions on NATS."""
    argv = ("--nats-prefix", random_prefix())
    running = Daemon(tmp_path_factory.mktemp("nats_daemon"), *argv, store=nats_server.url)
    yield running
    assert running.stop() == 0


@pytest.fixture(params=["in process", "stdio", f"http {LEGACY}", f"http {MODERN}", "http over nats"], scope="session")
def transport(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transport]:
    opened: Transport
    match request.param.split():
        case ["in", "process"]:
            opened = InProcess()
        case ["stdio"]:
            opened = Stdio(tmp_path_factory.mktemp("stdio"))
        case [_, "over", "nats"]:
            opened = OverHttp(request.getfixturevalue("nats_daemon").port, MODERN)
        case [_, era]:
            opened = OverHttp(request.getfixturevalue("daemon").port, era)
    yield opened
    opened.close()


@pytest.fixture
def project(request: pytest.FixtureRequest) -> str:
    """A project path for this test alone, so that tests can share a daemon."""
    return f"/projects/{request.node.nodeid}"
