"""Claude Code with what `context install` and `context run` give it, in each version that `make programs` installs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.machine import COMMAND, Ran, run_command
from tests.support.prerequisites import CLAUDES, NO_CLAUDE
from tests.support.upstream import Upstream

pytestmark = pytest.mark.skipif(not CLAUDES, reason=NO_CLAUDE)

FOLDING = ["mcp__contextfold__context_expand", "mcp__contextfold__context_fold"]
INSTALLED = [name.replace("mcp__", "mcp__plugin_contextfold_") for name in FOLDING]


class Machine:
    """A home with a project, a daemon and a provider; Claude Code is on the path."""

    def __init__(self, folder: Path, claude: Path) -> None:
        self.home, self.project = folder / "home", folder / "home" / "project"
        self.project.mkdir(parents=True)
        self.upstream = Upstream()
        self.daemon = Daemon(folder / "daemon", *self.upstream.argv())
        self.env = {"PATH": f"{claude.parent}:{os.environ['PATH']}", "HOME": str(self.home)}
        self.env |= {"ANTHROPIC_API_KEY": "sk-ant-local-0123456789", "DISABLE_AUTOUPDATER": "1"}
        self.env |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1"}

    def context(self, *argv: object) -> Ran:
        return run_command(*argv, env=self.env, cwd=self.project)

    def run(self, *argv: str | Path, **variables: str) -> str:
        """Runs a program in the project, and returns what it wrote on standard error."""
        done = subprocess.run(
            argv,
            cwd=self.project,
            env=self.env | variables,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=120,
            check=True,
        )
        return done.stderr

    def tools_of(self, *argv: str | Path, proxy: str = "") -> list[str]:
        """Our tools in the request that a program makes for one prompt."""
        self.upstream.requests.clear()
        self.run(*argv, "-p", "hello", **({"ANTHROPIC_BASE_URL": proxy} if proxy else {}))
        names = [tool["name"] for got in self.upstream.requests for tool in got.body.get("tools", ())]
        return [name for name in names if "context_" in name]


@pytest.fixture(params=CLAUDES, ids=lambda path: str(path.parents[2].name))
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path, request.param)
    yield machine
    machine.daemon.stop()
    machine.upstream.close()


def test_a_run_offers_each_folding_tool_once_whatever_is_installed(machine: Machine) -> None:
    context_run = (COMMAND, "run", "--url", machine.daemon.url, "claude")
    assert machine.tools_of(*context_run) == FOLDING
    assert machine.context("install", "claude-code", "--url", machine.daemon.url).code == 0
    assert machine.tools_of(*context_run) == FOLDING
    # A server in the project's own file, as the README has it, and approved by its user.
    entry = {"type": "http", "url": f"{machine.daemon.url}/mcp"}
    (machine.project / ".mcp.json").write_text(json.dumps({"mcpServers": {"contextfold": entry}}))
    config = machine.home / ".claude.json"
    approved = {"hasTrustDialogAccepted": True, "enabledMcpjsonServers": ["contextfold"]}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"projects": {str(machine.project): approved}}))
    assert machine.tools_of(*context_run) == FOLDING


def test_the_installed_plugin_works_alone_and_goes_without_a_trace(machine: Machine) -> None:
    proxy = f"{machine.daemon.url}/proxy/anthropic"
    before = machine.tools_of("claude", proxy=proxy)
    assert machine.context("install", "claude-code", "--url", machine.daemon.url).code == 0
    assert machine.tools_of("claude", proxy=proxy) == INSTALLED
    assert machine.context("uninstall", "claude-code").code == 0
    assert machine.tools_of("claude", proxy=proxy) == before == []
    assert "contextfold" not in (machine.home / ".claude" / "settings.json").read_text()
    assert not (machine.home / ".local" / "share" / "contextfold" / "claude-code").exists()


def test_installed_with_the_proxy_requests_go_through_the_daemon(machine: Machine) -> None:
    assert machine.context("install", "claude-code", "--url", machine.daemon.url, "--proxy").code == 0
    assert machine.tools_of("claude") == INSTALLED
    # The run's own address comes before that of the settings.
    said = machine.run(COMMAND, "run", "--url", machine.daemon.url, "claude", "-p", "hello")
    assert "1 request sent " in said
    assert re.search(r"to go on through the proxy: context run --url \S+ claude --resume \S+", said)
    assert machine.context("uninstall", "claude-code").code == 0
    assert "ANTHROPIC_BASE_URL" not in (machine.home / ".claude" / "settings.json").read_text()


def test_in_one_project_the_plugin_is_for_that_project(machine: Machine) -> None:
    proxy = f"{machine.daemon.url}/proxy/anthropic"
    argv = ("claude-code", "--project", machine.project)
    assert machine.context("install", *argv, "--url", machine.daemon.url).code == 0
    assert machine.tools_of("claude", proxy=proxy) == INSTALLED
    machine.project = machine.home
    assert machine.tools_of("claude", proxy=proxy) == []
    assert machine.context("uninstall", *argv).code == 0


def test_a_stdio_server_is_connected_after_install_and_not_after_uninstall(machine: Machine) -> None:
    def listed() -> str:
        argv = ["claude", "mcp", "list"]
        done = subprocess.run(argv, cwd=machine.project, env=machine.env, capture_output=True, text=True, check=True)
        return done.stdout

    (machine.home / "caches").mkdir()
    argv = ("claude-code", "--cache-root", machine.home / "caches")
    assert machine.context("install", *argv).code == 0
    assert "contextfold: " in listed()
    assert "Connected" in listed()
    assert machine.context("install", *argv).code == 0
    assert machine.context("uninstall", "claude-code").code == 0
    assert "contextfold" not in listed()
