"""A folder of caches for clients to ask about, and the daemons they ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path

import pytest

from tests.clients.node import Script, Scripts
from tests.clients.servers import Endpoint, Server, serving
from tests.support.daemon import Daemon
from tests.support.machine import SOAK, context, write_files

pytest.register_assert_rewrite("tests.clients.contract", "tests.clients.folding")

DOCUMENTS = {
    "deployment.md": "Deployment deployment deployment guide.",
    "größe.md": 'Größe "naïve" guide \\ \u2028 文書 🗺️\r\n\tend\x7f',
    "notes/empty.md": "",
}
PAGE = "A page of a big document, naïve and long.\n"


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`docs` is sound, `big` larger than any request may be, `broken` damaged, `empty` no cache at all."""
    folder = tmp_path_factory.mktemp("clients")
    root = folder / "shelf"
    sources = write_files(folder / "docs", DOCUMENTS)
    big = write_files(folder / "big", {"big.md": PAGE * 26_000})
    for name, documents in (("docs", sources), ("broken", sources), ("big", big)):
        ran = context("build", "--sources", documents, "--cache", root / name)
        assert ran.code == 0, ran.err
    (root / "broken" / "index.json").write_text("damaged")
    (root / "empty").mkdir()
    return root


@pytest.fixture(scope="session")
def daemon(shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A daemon as it comes, open to this machine."""
    running = Daemon(tmp_path_factory.mktemp("daemon"), "--cache-root", str(shelf))
    yield Endpoint(f"{running.url}/mcp")
    assert running.stop() == 0


@pytest.fixture(scope="session")
def guarded_daemon(shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A daemon that wants a token, and lets no context grow beyond 100 tokens and one branch."""
    folder = tmp_path_factory.mktemp("guarded")
    made = context("token", "ann", "--token-file", folder / "tokens")
    assert made.code == 0, made.err
    settings = {"CONTEXT_HARD_LIMIT": "on", "CONTEXT_LIMIT_TOKENS": "100", "CONTEXT_BRANCH_DEPTH": "1"}
    argv = ("--cache-root", str(shelf), "--token-file", str(folder / "tokens"))
    running = Daemon(folder, *argv, env=settings)
    yield Endpoint(f"{running.url}/mcp", {"Authorization": f"Bearer {made.out.decode().strip()}"})
    assert running.stop() == 0


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest, shelf: Path) -> Server:
    """Either; the suites have one of their own."""
    if request.param == "stdio":
        return serving(shelf)
    daemon: Endpoint = request.getfixturevalue("daemon")
    return daemon


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripts]:
    """Each is started when first wanted: starting Node costs more than all that a test does with it."""
    with ExitStack() as running:
        yield cache(lambda name: running.enter_context(closing(Script(tmp_path_factory.mktemp("node"), name))))


@pytest.fixture
def project(request: pytest.FixtureRequest) -> str:
    """A project of this test's own, so that tests can share a daemon."""
    return f"/projects/{request.node.nodeid}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each call of the Inspector starts a program: over HTTP the sample leaves out what other clients show there."""
    if SOAK:
        return
    left_out = [item for item in items if "::TestInspectorOverHttp::" in item.nodeid and not _is_in_sample(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _is_in_sample(item: pytest.Item) -> bool:
    return any(name in item.name for name in ("lists_all_tools", "nobody_else"))
