"""The conformance suite of the protocol's authors against a running daemon, in both eras."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.contract import HANDSHAKE, MODERN
from tests.clients.node import HERE, run_node
from tests.clients.servers import Endpoint
from tests.support.clauses import covers

CONFORMANCE = str(HERE / "node_modules" / ".bin" / "conformance")
PASSED, FAILED, WARNED = "SUCCESS", "FAILURE", "WARNING"

# What each scenario checks, and how often: the suite calls it a success too when it finds nothing to check.
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


class Ran(NamedTuple):
    code: int
    printed: str
    checks: list[Any]

    def ended(self, status: str) -> list[Any]:
        return [check for check in self.checks if check["status"] == status]


def conform(folder: Path, url: str, scenario: str, version: str) -> Ran:
    asked = ["--url", url, "--scenario", scenario, "--spec-version", version, "--output-dir", str(folder)]
    done = run_node(folder, CONFORMANCE, "server", *asked)
    checks = [json.loads(file.read_text()) for file in folder.glob("*/checks.json")]
    return Ran(done.returncode, done.stdout + done.stderr, [check for file in checks for check in file])


@covers("seed-004#overview")
@pytest.mark.parametrize(("scenario", "version"), SCENARIOS)
def test_every_check_of_a_scenario_passes(scenario: str, version: str, daemon: Endpoint, tmp_path: Path) -> None:
    ran = conform(tmp_path, daemon.url, scenario, version)
    assert ran.code == 0, ran.printed
    assert not ran.ended(FAILED) + ran.ended(WARNED), ran.printed
    assert Counter(check["id"] for check in ran.ended(PASSED)) == SCENARIOS[scenario, version], ran.printed


def test_streams_of_the_handshake_era_are_not_looked_at_without_a_session_id(daemon: Endpoint, tmp_path: Path) -> None:
    """Any daemon can answer any call, so none gives an id; the scenario then stops, and says no more than that."""
    ran = conform(tmp_path, daemon.url, "server-sse-multiple-streams", HANDSHAKE)
    assert ran.code == 0, ran.printed
    [check] = ran.checks
    assert (check["id"], check["status"]) == ("server-sse-multiple-streams-session", WARNED)
    assert check["details"]["message"].startswith("Server did not provide session ID")


def test_a_stateless_server_fails_only_where_the_suite_wants_tools_of_its_own(daemon: Endpoint, tmp_path: Path) -> None:
    ran = conform(tmp_path, daemon.url, "server-stateless", MODERN)
    assert len(ran.ended(PASSED)) == 21, ran.printed
    assert len(ran.ended(FAILED)) == 4, ran.printed
    for check in ran.ended(FAILED):
        assert check["errorMessage"].startswith("Not testable: server does not list the diagnostic tool"), check


@pytest.mark.parametrize("version", [HANDSHAKE, MODERN])
def test_what_is_no_mcp_server_does_not_pass(version: str, daemon: Endpoint, tmp_path: Path) -> None:
    """So the scenarios above can fail."""
    ran = conform(tmp_path, daemon.url.replace("/mcp", "/healthz"), "tools-list", version)
    assert ran.code != 0, ran.printed
    assert ran.ended(FAILED)
