"""`context recall` and `context build --from-folds`: what they return of folded work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.fold.folds import StoreAgent
from tests.support.machine import Call

FOLDS = (
    ("local", "/work/app", "Why logins fail", "The token's expiry is \x1b[31mone minute\x1b[0m.", "curl: ECONNRESET"),
    ("local", "/work/other", "Rotate tokens", "Token rotation works.", "vault rotate"),
    ("alice", "/work/app", "Alice's token", "Nobody else's.", "secret business"),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("recall") / "state.db"
    for owner, project, description, summary, content in (*FOLDS, ("local", "/work/app", "Undone walrus", "w", "w")):
        agent = StoreAgent(path, project, owner=owner)
        branch_id = agent.branch(description)
        agent.record("Bash", content)
        agent.fold(summary)
    agent.rollback(branch_id)
    return str(path)


def recalled(call: Call, store: str, *argv: str) -> list[str]:
    ran = call("recall", "--json", "--store", store, *argv)
    assert ran.code == 0, ran.err
    return sorted(fold["description"] for fold in json.loads(ran.out)["folds"])


def test_recall_is_limited_by_project_time_budget_and_owner(call: Call, store: str) -> None:
    assert recalled(call, store, "token") == ["Rotate tokens", "Why logins fail"]
    assert recalled(call, store, "token", "--project", "/work/app/x/..") == ["Why logins fail"]
    assert recalled(call, store, "where did we see ECONNRESET?") == ["Why logins fail"]
    assert recalled(call, store, "token", "--since", "1h") == ["Rotate tokens", "Why logins fail"]
    assert recalled(call, store, "token", "--since", "2999-01-01") == []
    assert len(recalled(call, store, "token", "--budget", "200")) < 2
    assert recalled(call, store, "token", "--owner", "alice") == ["Alice's token"]
    assert recalled(call, store, "walrus") == []
    assert recalled(call, store, "walrus", "--undone") == ["Undone walrus"]


def test_the_same_question_gives_the_same_bytes(call: Call, store: str) -> None:
    assert call("recall", "token", "--store", store).out == call("recall", "token", "--store", store).out


def test_recall_prints_what_the_tool_answers(call: Call, store: str) -> None:
    text = call("recall", "login token walrus", "--project", "/work/app", "--store", store).out.decode()
    assert "› Why logins fail (" in text
    assert "why: " in text
    # The terminal's controls are in a pipe as they were stored.
    assert "The token's expiry is \x1b[31mone minute\x1b[0m." in text
    nothing = call("recall", "gnu", "--store", store)
    assert nothing.out.decode() == "Nothing that was folded matches.\n[in no fold: gnu]\n"
    assert "nothing that was folded matches" in nothing.err


@pytest.mark.parametrize(
    "argv", [("",), ("the of",), ("q", "--since", "soon"), ("q", "--budget", "7"), ("q" * 20_000,), ("\udc80",)]
)
def test_an_invalid_question_or_option_fails_without_output(call: Call, store: str, argv: tuple[str, ...]) -> None:
    ran = call("recall", "--store", store, *argv)
    assert (ran.code != 0, ran.out) == (True, b"")
    assert "internal" not in ran.err


def test_a_cache_of_folds_is_an_ordinary_cache(call: Call, store: str, tmp_path: Path) -> None:
    caches = [tmp_path / name for name in ("one", "two")]
    for cache in caches:
        ran = call("build", "--from-folds", "--project", "/work/app", "--cache", str(cache), "--store", store)
        assert ran.code == 0, ran.err
    assert call("verify", "--cache", str(caches[0])).code == 0
    resolved = json.loads(call("resolve", "--cache", str(caches[0]), "--query", "token expiry", "--budget", "500").out)
    (document,) = resolved["documents"]
    assert "# Why logins fail" in document["content"]
    answer = json.loads(call("ask", "logins", "--cache", str(caches[0]), "--json").out)
    assert [each["title"] for each in answer["documents"]] == ["Why logins fail"]
    manifests = [(cache / "manifest.json").read_bytes() for cache in caches]
    assert manifests[0] == manifests[1]


def test_a_cache_of_folds_needs_folds_and_a_target_folder(call: Call, store: str, tmp_path: Path) -> None:
    assert call("build", "--from-folds", "--store", store).code == 1
    ran = call("build", "--from-folds", "--project", "/nowhere", "--cache", str(tmp_path / "c"), "--store", store)
    assert (ran.code, (tmp_path / "c").exists()) == (5, False)
