"""The conformance suite of the protocol's authors against a running daemon, in both eras."""

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
from tests.support.clauses import covers
from tests.support.machine import SOAK

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


def conform(folder: Path, url: str, version: str, *which: str) -> dict[str, Ran]:
    """What was found, by scenario: a folder has the name of its scenario, and the time."""
    asked = ["--url", url, *which, "--spec-version", version, "--output-dir", str(folder)]
    done = run_node(folder, CONFORMANCE, "server", *asked)
    return {
        re.sub(r"^server-(.+)-\d{4}-\d\d-\d\dT[\dZ-]+$", r"\1", file.parent.name): Ran(
            done.returncode, done.stdout + done.stderr, json.loads(file.read_text())
        )
        for file in folder.glob("*/checks.json")
    }


Conformance = Callable[[str], dict[str, Ran]]


@pytest.fixture(scope="module")
def found(daemon: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Conformance:
    """Every scenario of a version, in one process: loading the suite takes longer than all of them."""
    return cache(lambda version: conform(tmp_path_factory.mktemp(version), daemon.url, version, "--suite", "all"))


@covers("seed-004#overview")
@pytest.mark.parametrize(("scenario", "version"), SCENARIOS)
def test_every_check_of_a_scenario_passes(scenario: str, version: str, found: Conformance) -> None:
    ran = found(version)[scenario]
    assert not ran.ended(FAILED) + ran.ended(WARNED), ran.checks
    assert Counter(check["id"] for check in ran.ended(PASSED)) == SCENARIOS[scenario, version], ran.checks


def test_streams_of_the_handshake_era_are_not_looked_at_without_a_session_id(found: Conformance) -> None:
    """Any daemon can answer any call, so none gives an id; the scenario then stops, and says no more than that."""
    [check] = found(HANDSHAKE)["server-sse-multiple-streams"].checks
    assert (check["id"], check["status"]) == ("server-sse-multiple-streams-session", WARNED)
    assert check["details"]["message"].startswith("Server did not provide session ID")


def test_a_stateless_server_fails_only_where_the_suite_wants_tools_of_its_own(found: Conformance) -> None:
    ran = found(MODERN)["server-stateless"]
    assert len(ran.ended(PASSED)) == 21, ran.checks
    assert len(ran.ended(FAILED)) == 4, ran.checks
    for check in ran.ended(FAILED):
        assert check["errorMessage"].startswith("Not testable: server does not list the diagnostic tool"), check


@pytest.mark.parametrize("version", [HANDSHAKE, MODERN] if SOAK else [MODERN])
def test_what_is_no_mcp_server_does_not_pass(version: str, daemon: Endpoint, tmp_path: Path) -> None:
    """So the scenarios above can fail."""
    not_ours = daemon.url.replace("/mcp", "/healthz")
    [ran] = conform(tmp_path, not_ours, version, "--scenario", "tools-list").values()
    assert ran.code != 0, ran.printed
    assert ran.ended(FAILED)
