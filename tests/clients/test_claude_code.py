"""Claude Code connects to the server that `context install` configures. Needs Claude Code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.machine import COMMAND, run_command
from tests.support.prerequisites import CLAUDE, NO_CLAUDE

pytestmark = pytest.mark.skipif(not CLAUDE, reason=NO_CLAUDE)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose owner has approved the server, in a home of its own."""
    project, home = tmp_path / "project", tmp_path / "home"
    (tmp_path / "caches").mkdir()
    project.mkdir()
    home.mkdir()
    approved = {"hasTrustDialogAccepted": True, "enabledMcpjsonServers": ["contextfold"]}
    (home / ".claude.json").write_text(json.dumps({"projects": {str(project): approved}}))
    return project


def mcp_list(project: Path) -> str:
    """The output of `claude mcp list`, without a network where possible."""
    env = {"PATH": os.environ["PATH"], "HOME": str(project.parent / "home"), "DISABLE_AUTOUPDATER": "1"}
    env |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1"}
    argv = [CLAUDE, "mcp", "list"]
    without_network = ["unshare", "--net", *argv] if os.geteuid() == 0 else argv
    result = subprocess.run(
        without_network, cwd=project, env=env, capture_output=True, text=True, timeout=120, check=True
    )
    return result.stdout


def test_claude_code_connects_after_install_and_not_after_uninstall(project: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(project.parent / "home")}
    argv = ("claude-code", "--cache-root", project.parent / "caches")
    assert run_command("install", *argv, cwd=project, env=env).code == 0
    assert "contextfold: " in mcp_list(project)
    assert "Connected" in mcp_list(project)
    assert run_command("uninstall", "claude-code", cwd=project, env=env).code == 0
    assert "contextfold" not in mcp_list(project)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="a network of its own takes root and `ip`")
def test_claude_code_connects_with_the_entry_of_the_readme(project: Path) -> None:
    """Daemon and Claude Code run in a network namespace with only a loopback interface."""
    entry = {"mcpServers": {"contextfold": {"type": "http", "url": "http://localhost:9090/mcp"}}}
    (project / ".mcp.json").write_text(json.dumps(entry))
    script = f"""
        ip link set lo up
        {COMMAND} serve --store {project.parent}/state.db > listens 2> log & daemon=$!
        until grep -q listens listens; do sleep 0.05; done
        {CLAUDE} mcp list
        kill $daemon
        wait $daemon
    """
    env = {"PATH": os.environ["PATH"], "HOME": str(project.parent / "home"), "DISABLE_AUTOUPDATER": "1"}
    env |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1"}
    argv = ["unshare", "--net", "bash", "-ec", script]
    result = subprocess.run(argv, cwd=project, env=env, capture_output=True, text=True, timeout=120, check=True)
    assert "contextfold: http://localhost:9090/mcp (HTTP)" in result.stdout
    assert "Connected" in result.stdout
