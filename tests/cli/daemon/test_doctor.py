"""`context doctor`: each problem between agent, hooks, proxy and daemon is reported with a remedy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from contextfold import __version__
from contextfold.cli.doctor import NOTE, OK, PROBLEM, Situation, diagnose
from tests.support.daemon import Daemon
from tests.support.machine import run_command

URL = "http://localhost:9090"
STATUS = {"version": __version__, "started_at": "2026-01-01T00:00:00Z", "hosts": {}, "proxy": {}}
HEALTHY = Situation(URL, STATUS, "", True, {}, {}, ["/docs/.context-cache"])


def problems(situation: Situation) -> list[str]:
    return [finding.text for finding in diagnose(situation) if finding.level == PROBLEM]


def test_without_installed_hooks_there_is_no_problem() -> None:
    assert problems(HEALTHY) == []
    assert problems(HEALTHY._replace(status=None, silence="nothing answers")) == []


@pytest.mark.parametrize(
    ("situation", "message"),
    [
        (
            HEALTHY._replace(status=None, silence="nothing answers", hooked={"claude-code": "/s"}),
            "no daemon hears them",
        ),
        (HEALTHY._replace(hooked={"claude-code": "/s"}), "has reported nothing"),
        (HEALTHY._replace(status={**STATUS, "version": "0.0.1"}), "version 0.0.1"),
        (HEALTHY._replace(is_ready=False), "takes no commits"),
        (HEALTHY._replace(status=None, silence="what answers is not a contextfold daemon"), "no daemon"),
        (HEALTHY._replace(base_urls={"ANTHROPIC_BASE_URL": f"{URL}/proxy/anthropic"}), "no request to a model"),
        (HEALTHY._replace(base_urls={"ANTHROPIC_BASE_URL": "http://localhost:1/proxy/anthropic"}), "not this daemon"),
    ],
)
def test_each_problem_is_reported_with_a_remedy(situation: Situation, message: str) -> None:
    assert any(message in problem for problem in problems(situation))
    assert all(finding.remedy for finding in diagnose(situation) if finding.level == PROBLEM)


def test_a_gateway_of_the_users_own_is_no_problem() -> None:
    gateway = {"ANTHROPIC_BASE_URL": "https://gateway.example/proxy/anthropic"}
    assert problems(HEALTHY._replace(base_urls=gateway)) == []


def test_active_hosts_and_providers_are_ok() -> None:
    status = {
        **STATUS,
        "hosts": {"claude-code": "2026-01-01T00:00:01Z"},
        "proxy": {"anthropic": "2026-01-01T00:00:02Z"},
    }
    situation = HEALTHY._replace(status=status, hooked={"claude-code": "/s"})
    assert {finding.level for finding in diagnose(situation)} == {OK}


def test_missing_caches_are_a_note() -> None:
    assert [finding.level for finding in diagnose(HEALTHY._replace(caches=[]))][-1] == NOTE


def test_a_running_daemon_without_hook_reports_is_a_problem(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(home)}
    daemon = Daemon(tmp_path / "state")
    try:
        url = f"http://127.0.0.1:{daemon.port}"
        healthy = run_command("doctor", "--url", url, "--json", env=env, cwd=home)
        assert healthy.code == 0
        (home / ".claude").mkdir()
        (home / ".claude" / "settings.json").write_text(
            json.dumps({"enabledPlugins": {"contextfold@contextfold": True}})
        )
        silent = run_command("doctor", "--url", url, "--json", env=env, cwd=home)
        assert silent.code == 1
        assert any("has reported nothing" in finding["text"] for finding in json.loads(silent.out))
    finally:
        assert daemon.stop() == 0
    down = run_command("doctor", "--url", url, env=env, cwd=home)
    assert down.code == 1
    assert "no daemon hears them" in down.err + down.out.decode()
