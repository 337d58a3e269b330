"""`context doctor`: each thing that can be wrong between agent, hooks, proxy and daemon is found and has a remedy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from contextfold import __version__
from contextfold.cli.daemon.doctor import NOTE, OK, PROBLEM, Situation, diagnose
from tests.support.clauses import covers
from tests.support.daemon import Daemon
from tests.support.machine import context

URL = "http://localhost:9090"
STATUS = {"version": __version__, "started_at": "2026-01-01T00:00:00Z", "hosts": {}, "proxy": {}}
WELL = Situation(URL, STATUS, "", True, {}, {}, ["/docs/.context-cache"])


def problems(seen: Situation) -> list[str]:
    return [finding.text for finding in diagnose(seen) if finding.level == PROBLEM]


def test_nothing_is_wrong_where_nothing_is_installed() -> None:
    assert problems(WELL) == []
    assert problems(WELL._replace(status=None, silence="nothing answers")) == []


@covers("product.md#doctor")
@pytest.mark.parametrize(
    ("seen", "word"),
    [
        (WELL._replace(status=None, silence="nothing answers", hooked={"claude-code": "/s"}), "no daemon hears them"),
        (WELL._replace(hooked={"claude-code": "/s"}), "has reported nothing"),
        (WELL._replace(status={**STATUS, "version": "0.0.1"}), "version 0.0.1"),
        (WELL._replace(is_ready=False), "takes no commits"),
        (WELL._replace(status=None, silence="what answers is not a contextfold daemon"), "no daemon"),
        (WELL._replace(base_urls={"ANTHROPIC_BASE_URL": f"{URL}/proxy/anthropic"}), "no request to a model"),
        (WELL._replace(base_urls={"ANTHROPIC_BASE_URL": "http://localhost:1/proxy/anthropic"}), "not this daemon"),
    ],
)
def test_each_fault_is_found(seen: Situation, word: str) -> None:
    assert any(word in problem for problem in problems(seen))
    assert all(finding.remedy for finding in diagnose(seen) if finding.level == PROBLEM)


def test_hosts_and_providers_that_were_heard_of_are_well() -> None:
    status = {
        **STATUS,
        "hosts": {"claude-code": "2026-01-01T00:00:01Z"},
        "proxy": {"anthropic": "2026-01-01T00:00:02Z"},
    }
    seen = WELL._replace(status=status, hooked={"claude-code": "/s"})
    assert {finding.level for finding in diagnose(seen)} == {OK}


def test_an_agent_that_no_cache_helps_gets_a_note() -> None:
    assert [finding.level for finding in diagnose(WELL._replace(caches=[]))][-1] == NOTE


def test_it_finds_a_daemon_that_runs_and_hooks_that_are_silent(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(home)}
    daemon = Daemon(tmp_path / "state")
    try:
        url = f"http://127.0.0.1:{daemon.port}"
        well = context("doctor", "--url", url, "--json", env=env, cwd=home)
        assert well.code == 0
        assert context("install", "claude-code", "--url", url, env=env, cwd=home).code == 0
        silent = context("doctor", "--url", url, "--json", env=env, cwd=home)
        assert silent.code == 1
        assert any("has reported nothing" in finding["text"] for finding in json.loads(silent.out))
    finally:
        assert daemon.stop() == 0
    down = context("doctor", "--url", url, env=env, cwd=home)
    assert down.code == 1
    assert "no daemon hears them" in down.err + down.out.decode()
