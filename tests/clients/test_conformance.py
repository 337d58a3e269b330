"""The conformance suite of MCP against a running daemon, in both eras."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.contract import HANDSHAKE, MODERN
from tests.clients.node import HERE, run_node
from tests.clients.servers import Endpoint
from tests.support.machine import SOAK

CONFORMANCE = str(HERE / "node_modules" / ".bin" / "conformance")
PASSED, FAILED, WARNED = "SUCCESS", "FAILURE", "WARNING"

# The checks of each scenario, and how often each is made. The suite also reports success if it checks nothing.
WIRE = "wire-schema-valid"
SCENARIOS: dict[tuple[str, str], dict[str, int]] = {
    ("server-initialize", HANDSHAKE): {"server-initialize": 1, WIRE: 1},
    ("ping", HANDSHAKE): {"ping": 1, WIRE: 1},
    ("tools-list", HANDSHAKE): {"tools-list": 1, "tools-name-format": 1, WIRE: 1},
    ("tools-list", MODERN): {
        "tools-list": 1,
        "tools-name-format": 1,
        "tools-list-deterministic-order": 1,
        WIRE: 1,
    },
    ("dns-rebinding-protection", HANDSHAKE): {
        "localhost-host-rebinding-rejected": 1,
        "localhost-host-valid-accepted": 1,
    },
    ("dns-rebinding-protection", MODERN): {
        "localhost-host-rebinding-rejected": 1,
        "localhost-host-valid-accepted": 1,
    },
    ("server-sse-multiple-streams", MODERN): {"server-accepts-multiple-post-streams": 1},
    ("http-header-validation", MODERN): {
        "sep-2243-server-reject-invalid-headers": 5,
        "sep-2243-server-reject-error-code": 5,
        "sep-2243-server-accepts-whitespace-header-value": 1,
        "sep-2243-header-name-case-insensitive": 2,
        WIRE: 1,
    },
}


class ScenarioResult(NamedTuple):
    code: int
    output: str
    checks: list[Any]

    def with_status(self, status: str) -> list[Any]:
        return [check for check in self.checks if check["status"] == status]


def run_conformance(folder: Path, url: str, version: str, *selection: str) -> dict[str, ScenarioResult]:
    """Runs the suite and returns the result of each scenario. Folders are named after scenario and time."""
    argv = ["--url", url, *selection, "--spec-version", version, "--output-dir", str(folder)]
    process = run_node(folder, CONFORMANCE, "server", *argv)
    return {
        re.sub(r"^server-(.+)-\d{4}-\d\d-\d\dT[\dZ-]+$", r"\1", file.parent.name): ScenarioResult(
            process.returncode, process.stdout + process.stderr, json.loads(file.read_text())
        )
        for file in folder.glob("*/checks.json")
    }


Conformance = Callable[[str], dict[str, ScenarioResult]]


@pytest.fixture(scope="module")
def results(daemon: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Conformance:
    """The results of all scenarios of a version, from one process, because loading the suite takes long."""
    return cache(
        lambda version: run_conformance(tmp_path_factory.mktemp(version), daemon.url, version, "--suite", "all")
    )


@pytest.mark.parametrize(("scenario", "version"), SCENARIOS)
def test_every_check_of_a_scenario_passes(scenario: str, version: str, results: Conformance) -> None:
    result = results(version)[scenario]
    assert not result.with_status(FAILED) + result.with_status(WARNED), result.checks
    assert Counter(check["id"] for check in result.with_status(PASSED)) == SCENARIOS[scenario, version], result.checks


def test_the_scenario_of_streams_stops_without_a_session_id(results: Conformance) -> None:
    """Our daemon gives no session id, because any daemon can answer any call. The scenario then stops."""
    [check] = results(HANDSHAKE)["server-sse-multiple-streams"].checks
    assert (check["id"], check["status"]) == ("server-sse-multiple-streams-session", WARNED)
    assert check["details"]["message"].startswith("Server did not provide session ID")


def test_the_stateless_scenario_fails_only_checks_that_need_the_suites_own_tools(results: Conformance) -> None:
    result = results(MODERN)["server-stateless"]
    assert len(result.with_status(PASSED)) == 21, result.checks
    assert len(result.with_status(FAILED)) == 4, result.checks
    for check in result.with_status(FAILED):
        assert check["errorMessage"].startswith("Not testable: server does not list the diagnostic tool"), check


@pytest.mark.parametrize("version", [HANDSHAKE, MODERN] if SOAK else [MODERN])
def test_a_path_that_is_no_mcp_server_fails(version: str, daemon: Endpoint, tmp_path: Path) -> None:
    """This shows that the scenarios above can fail."""
    other_url = daemon.url.replace("/mcp", "/healthz")
    [result] = run_conformance(tmp_path, other_url, version, "--scenario", "tools-list").values()
    assert result.code != 0, result.output
    assert result.with_status(FAILED)
