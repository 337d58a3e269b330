"""`context fold search`: its output for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.fold.folds import StoreAgent
from tests.support.machine import Call


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("search") / "state.db"
    for owner, project, summary in (
        ("local", "/work/app", "Login fails.\nThe token's expiry is \x1b[31mone minute\x1b[0m."),
        ("local", "/work/other", "Token rotation works; -v shows it."),
        ("alice", "/work/app", "alice's token"),
    ):
        agent = StoreAgent(path, project, owner=owner)
        agent.branch("Look")
        agent.fold(summary)
    return str(path)


def test_the_output_has_time_project_branch_and_summary(call: Call, store: str) -> None:
    ran = call("fold", "search", "expiry", "--store", store)
    lines = ran.out.decode().splitlines()
    assert ran.code == 0
    assert "/work/app" in lines[0]
    assert "br_" in lines[0]
    assert lines[1:] == ["  Look", "  | Login fails.", "  | The token's expiry is \\x1b[31mone minute\\x1b[0m.", ""]


def test_json_has_the_summaries(call: Call, store: str) -> None:
    (summary,) = json.loads(call("fold", "search", "rotat", "--json", "--store", store).out)["summaries"]
    assert list(summary) == [
        "project_path", "session_id", "branch_id", "description", "summary", "tokens_folded", "folded_at",
    ]  # fmt: skip
    assert summary["summary"] == "Token rotation works; -v shows it."


def projects_found(call: Call, store: str, *argv: str) -> list[str]:
    ran = call("fold", "search", "--json", "--store", store, *argv)
    assert ran.code == 0, ran.err
    return sorted(summary["project_path"] for summary in json.loads(ran.out)["summaries"])


def test_words_project_limit_and_owner_narrow_the_search(call: Call, store: str) -> None:
    assert projects_found(call, store, "TOKEN") == ["/work/app", "/work/other"]
    assert projects_found(call, store, "token works") == ["/work/other"]
    assert projects_found(call, store, "token", "--project", "/work/app/x/..") == ["/work/app"]
    assert len(projects_found(call, store, "token", "--limit", "1")) == 1
    assert projects_found(call, store, "token", "--owner", "alice") == ["/work/app"]
    assert projects_found(call, store, "nothing of the kind") == []
    assert projects_found(call, store, '" OR * NEAR(') == []
    assert projects_found(call, store, "--", "-v") == ["/work/other"]


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1001", "9" * 5000, "١"])
def test_an_invalid_limit_is_an_error_that_names_the_range(call: Call, store: str, limit: str) -> None:
    ran = call("fold", "search", "token", "--limit", limit, "--store", store)
    assert (ran.code, ran.out) == (1, b"")
    assert "--limit must be a whole number from 1 to 1000" in ran.err


def test_a_file_that_is_no_store_is_refused_and_unchanged(call: Call, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database at all, and longer than a header would be" * 3)
    before = (tmp_path / "notes.txt").read_bytes()
    ran = call("fold", "search", "x", "--store", tmp_path / "notes.txt")
    assert ran.code == 5
    assert "move it away" in ran.err
    assert (tmp_path / "notes.txt").read_bytes() == before
