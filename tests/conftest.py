"""Fixtures every test may use."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

from tests.support.machine import DOCUMENTS, SOAK, Call, run_command, times, write_files
from tests.support.nats_servers import NatsServer
from tests.support.processes import end_processes
from tests.support.signals import give_children_default_signals, lead_process_group
from tests.support.temporary_home import remove_temporary_home, use_temporary_home

give_children_default_signals()
lead_process_group()
# This is done before any test module is imported, because some read the environment at import.
HOME = use_temporary_home()

settings.register_profile(
    "contextfold",
    max_examples=times(14, 2000),
    deadline=None,
    # `make test` uses the same examples every time, `make soak` new ones.
    derandomize=times(1, 0) == 1,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("contextfold")


# Only `make soak` runs the whole bench.
collect_ignore = [] if SOAK else ["test_bench.py"]

# These take longest, in this order.
LONG = (
    "web/test_page.py",
    "stores/nats/test_connection_loss.py",
    "stores/nats/test_cluster.py",
    "serve/test_stdio_clients.py",
    "serve/proxy/test_hostile_peers.py",
    "stores/nats/test_expiry.py",
    "test_golden.py",
    "clients/test_typescript_clients.py",
    "clients/test_python_client.py",
    "resolve/test_build_faults.py",
)


# Files that need the same large packages, or caches and daemons that take long to make: one worker runs them.
TOGETHER = (
    ("tests/serve/proxy/test_scripted_agent.py", "tests/serve/proxy/test_provider_clients.py"),
    (
        "tests/clients/test_typescript_clients.py",
        "tests/clients/test_python_client.py",
        "tests/clients/test_recall_across_sessions.py",
        "tests/clients/test_inspector.py",
        "tests/clients/test_conformance.py",
    ),
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """With `--dist loadfile`, the files of a group go to the same worker."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    if config.getvalue("dist") != "loadfile":
        return None
    first = {name: group[0] for group in TOGETHER for name in group}

    class ByFileOrGroup(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            name: str = super()._split_scope(nodeid)
            return first.get(name, name)

    return ByFileOrGroup(config, log)


@pytest.fixture
def call() -> Call:
    """Runs a command in this process; returns its exit code and what it wrote."""
    return run_command


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Three small documents: two match `guide`, one is empty."""
    return write_files(tmp_path / "docs", DOCUMENTS)


@pytest.fixture
def cache(sources: Path, tmp_path: Path, call: Call) -> Path:
    """A cache of `sources`."""
    path = tmp_path / "docs.cache"
    assert call("build", "--sources", sources, "--cache", path).code == 0
    return path


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Tests that are coroutines run on asyncio, as everything here does."""
    return "asyncio"


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server that all tests share, each with a prefix of its own; no test may stop it."""
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests begin first, so that at the end no worker runs a long one alone."""
    ranks = {name: rank for rank, name in enumerate(LONG)}
    items.sort(key=lambda item: next((ranks[name] for name in LONG if name in item.nodeid), len(LONG)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collected tests live until the end, so the garbage collector need not examine them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """In a worker, sends one report of each test instead of five: its result, and a set-up or tear-down that failed.

    Sending and receiving a report takes longer than most tests. `-n 0` reports everything.
    """
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


def pytest_unconfigure() -> None:
    end_processes()
    remove_temporary_home(HOME)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints how many tests were skipped, one line for each reason."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.getreports("skipped")
        if isinstance(report.longrepr, tuple)
    )
    for reason, number in sorted(reasons.items()):
        terminalreporter.write_line(f"left out: {number} test{'s' if number > 1 else ''}: {reason}")
