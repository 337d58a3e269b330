"""A cache root for the clients, and the daemons that they connect to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path

import pytest

from tests.clients.node import Script, Scripts
from tests.clients.servers import Endpoint, Server, stdio_server
from tests.support.daemon import Daemon
from tests.support.machine import SOAK, run_command, write_files

pytest.register_assert_rewrite("tests.clients.contract", "tests.clients.http_contract")

DOCUMENTS = {
    "deployment.md": "Deployment deployment deployment guide.",
    "größe.md": 'Größe "naïve" guide \\ \u2028 文書 🗺️\r\n\tend\x7f',
    "notes/empty.md": "",
}
PAGE = "A page of a big document, naïve and long.\n"


@pytest.fixture(scope="session")
def cache_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`docs` is a valid cache, `big` is larger than any request, `broken` is damaged, `empty` is no cache."""
    folder = tmp_path_factory.mktemp("clients")
    root = folder / "caches"
    sources = write_files(folder / "docs", DOCUMENTS)
    big = write_files(folder / "big", {"big.md": PAGE * 26_000})
    for name, documents in (("docs", sources), ("broken", sources), ("big", big)):
        result = run_command("build", "--sources", documents, "--cache", root / name)
        assert result.code == 0, result.err
    (root / "broken" / "index.json").write_text("damaged")
    (root / "empty").mkdir()
    return root


@pytest.fixture(scope="session")
def daemon(cache_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A daemon with default settings."""
    with Daemon(tmp_path_factory.mktemp("daemon"), "--cache-root", str(cache_root)) as daemon:
        yield Endpoint(f"{daemon.url}/mcp")


@pytest.fixture(scope="session")
def guarded_daemon(cache_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A daemon that requires a token, with a limit of 100 tokens and of one open branch."""
    folder = tmp_path_factory.mktemp("guarded")
    created = run_command("token", "ann", "--token-file", folder / "tokens")
    assert created.code == 0, created.err
    settings = {"CONTEXT_HARD_LIMIT": "on", "CONTEXT_LIMIT_TOKENS": "100", "CONTEXT_BRANCH_DEPTH": "1"}
    argv = ("--cache-root", str(cache_root), "--token-file", str(folder / "tokens"))
    with Daemon(folder, *argv, env=settings) as daemon:
        yield Endpoint(f"{daemon.url}/mcp", {"Authorization": f"Bearer {created.out.decode().strip()}"})


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest, cache_root: Path) -> Server:
    """Both transports in turn, for tests outside the suites."""
    if request.param == "stdio":
        return stdio_server(cache_root)
    daemon: Endpoint = request.getfixturevalue("daemon")
    return daemon


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripts]:
    """Starts each script once, when it is first used, because starting Node takes longer than most tests."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(closing(Script(tmp_path_factory.mktemp("node"), name))))


@pytest.fixture
def project(request: pytest.FixtureRequest) -> str:
    """A project of this test's own, so that tests can share a daemon."""
    return f"/projects/{request.node.nodeid}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs only a few tests of the Inspector over HTTP in `make test`, because each of its calls starts a program."""
    if SOAK:
        return
    left_out = [item for item in items if "::TestInspectorOverHttp::" in item.nodeid and not _is_in_sample(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _is_in_sample(item: pytest.Item) -> bool:
    return any(name in item.name for name in ("lists_all_tools", "is_unauthorized"))
