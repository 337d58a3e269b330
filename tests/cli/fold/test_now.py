"""`context fold now`: a person folds what the agent in this folder has done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, Http, HttpAgent
from tests.support.machine import Call


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("now")) as daemon:
        yield daemon


def work(daemon: Daemon, project: Path, session: str = "") -> None:
    with HttpAgent(daemon.port) as agent:
        meta = {"contextfold/session": session} if session else None
        agent.call("context_record", meta, project_path=str(project), type="Bash", content="y" * 4000)


def test_the_work_of_the_agent_in_this_folder_is_folded(
    daemon: Daemon, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(daemon, tmp_path)
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")
    url = ["--url", f"http://127.0.0.1:{daemon.port}"]
    ran = call("fold", "now", "It", "works.", *url)
    assert ran.code == 0, ran.err
    assert ran.out.decode().startswith("folded 1000 tokens as br_")
    assert "requests still have this work" in ran.err
    with HttpAgent(daemon.port) as agent:
        (branch,) = agent.call("context_list_branches", project_path=str(tmp_path))["branches"]
    assert (branch["status"], branch["description"]) == ("folded", "It works.")
    again = call("fold", "now", "Nothing more.", *url)
    assert (again.code, again.out) == (8, b"")
    assert "nothing was done since the last fold" in again.err


def test_the_session_that_is_named_is_folded(daemon: Daemon, tmp_path: Path, call: Call) -> None:
    for session in ("one", "two"):
        work(daemon, tmp_path, session)
    with Http(daemon.port) as http:
        sessions = http.ask("GET", "/v1/sessions").json["sessions"]
    (two,) = [each["session_id"] for each in sessions if each["name"] == "two"]
    ran = call("fold", "now", "Of two.", "--session", two, "--json", "--url", f"http://127.0.0.1:{daemon.port}")
    assert ran.code == 0, ran.err
    with HttpAgent(daemon.port) as agent:
        meta = {"contextfold/session": "two"}
        (branch,) = agent.call("context_list_branches", meta, project_path=str(tmp_path))["branches"]
    assert branch["id"] == json.loads(ran.out)["branch_id"]


def test_without_an_agent_or_a_daemon_the_error_says_what_to_do(daemon: Daemon, tmp_path: Path, call: Call) -> None:
    ran = call("fold", "now", "x", "--project", tmp_path / "x", "--url", f"http://127.0.0.1:{daemon.port}")
    assert (ran.code, "no agent is known to have worked in" in ran.err) == (1, True)
    ran = call("fold", "now", "x", "--url", "http://127.0.0.1:1")
    assert (ran.code, "context serve" in ran.err) == (1, True)
