"""`context run`: starts a program that uses the daemon, and passes on its arguments, signals and exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from contextfold.cli.run import launch, plugin_files, savings_line
from tests.support.daemon import Daemon
from tests.support.machine import COMMAND, run_command

URL = "http://127.0.0.1:9100"
SUMS = {"requests": 0, "tokens_sent": 0, "tokens_without": 0, "cost_saved": 0, "cost_without": 0, "money": None}


def env_of(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home)}


def test_a_program_gets_base_urls_its_own_arguments_and_a_running_daemon(tmp_path: Path) -> None:
    script = (
        "import os, sys, json, urllib.request as u; url = os.environ['ANTHROPIC_BASE_URL'].rpartition('/proxy/')[0];"
        "print(json.dumps([sys.argv[1:], json.load(u.urlopen(url + '/v1/daemon'))['version'],"
        " sorted(name for name in os.environ if name.endswith('BASE_URL'))]))"
    )
    ran = run_command(
        "run", sys.executable, "-c", script, "--help", "-V", "--", "x", env=env_of(tmp_path), cwd=tmp_path
    )
    assert ran.code == 0
    arguments, version, variables = json.loads(ran.out)
    assert arguments == ["--help", "-V", "--", "x"]
    assert version
    assert variables == ["ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "OPENAI_BASE_URL"]
    assert "no request to a model went through the proxy" in ran.err
    assert [path for path in tmp_path.iterdir() if path.name != ".local"] == []


def test_a_running_daemon_is_used_and_keeps_running(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "state")
    try:
        url = f"http://127.0.0.1:{daemon.port}"
        script = "import os; print(os.environ['OPENAI_BASE_URL'])"
        ran = run_command("run", "--url", url, sys.executable, "-c", script, env=env_of(tmp_path), cwd=tmp_path)
        assert ran.out.decode().strip() == f"{url}/proxy/openai/v1"
    finally:
        assert daemon.stop() == 0


@pytest.mark.parametrize("code", [3, 255])
def test_the_exit_status_of_the_program_is_passed_on(code: int, tmp_path: Path) -> None:
    ran = run_command("run", sys.executable, "-c", f"raise SystemExit({code})", env=env_of(tmp_path), cwd=tmp_path)
    assert ran.code == code


def test_a_missing_program_is_exit_127(tmp_path: Path) -> None:
    ran = run_command("run", "no-such-agent", env=env_of(tmp_path), cwd=tmp_path)
    assert (ran.code, ran.out) == (127, b"")
    assert "no-such-agent" in ran.err


def test_a_signal_is_passed_to_the_program_and_gives_the_exit_status(tmp_path: Path) -> None:
    script = "import time; print('ready', flush=True); time.sleep(60)"
    argv = [str(COMMAND), "run", sys.executable, "-c", script]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=env_of(tmp_path), cwd=tmp_path)
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    process.stdout.close()


def test_claude_code_gets_one_plugin_with_server_hooks_and_skill_for_this_daemon() -> None:
    launched = launch("claude", URL, "/tmp/x", plugin_files(), tools="fold-afterwards")
    assert launched.arguments == ("--plugin-dir", "/tmp/x/plugin")
    assert launched.environment == {"ANTHROPIC_BASE_URL": f"{URL}/proxy/anthropic"}
    assert (
        json.loads(launched.files["plugin/.mcp.json"])["mcpServers"]["contextfold"]["url"]
        == f"{URL}/mcp?tools=fold-afterwards"
    )
    assert f"{URL}/hooks/claude-code" in launched.files["plugin/hooks/hooks.json"]
    assert "localhost:9090" not in json.dumps(launched.files)
    assert any(name.endswith("SKILL.md") for name in launched.files)


@pytest.mark.parametrize("program", ["claude", "codex", "opencode", "gemini", "anything"])
def test_every_program_gets_the_proxy_of_this_daemon(program: str) -> None:
    launched = launch(program, URL, "/tmp/x", plugin_files(), tools="fold-afterwards")
    assert f"{URL}/proxy/" in json.dumps([launched.arguments, dict(launched.environment)])
    assert all(not name.startswith("/") and ".." not in name for name in launched.files)


@pytest.mark.parametrize(
    ("sums_after", "message"),
    [
        (SUMS, "nothing was saved"),
        (
            SUMS | {"requests": 3, "tokens_sent": 60, "tokens_without": 100, "cost_saved": 40, "cost_without": 100},
            "saved 40",
        ),
        (
            SUMS | {"requests": 3, "tokens_sent": 120, "tokens_without": 100, "cost_saved": -20, "cost_without": 100},
            "cost more",
        ),
        (None, "not known"),
    ],
)
def test_the_last_line_says_what_was_saved_or_lost(sums_after: dict[str, object] | None, message: str) -> None:
    assert message in savings_line(SUMS, sums_after)
