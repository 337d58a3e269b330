"""`context ask` and `context get`: how they choose caches, and which budgets and parts they accept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.machine import Call, write_files

DOCS = {
    "guides/deploy.md": "# Deploying\n\nShip it.\n\n## Roll back\n\nTo roll back a deployment: `ship --previous`.\n",
    "guides/tokens.md": "# Tokens\n\nA token is four bytes.\n",
}


@pytest.fixture
def docs(tmp_path: Path, call: Call) -> Path:
    folder = write_files(tmp_path / "docs", DOCS)
    assert call("build", folder).code == 0
    return folder


def test_ask_uses_the_nearest_cache_in_this_folder_or_above(
    docs: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(docs / "guides")
    answer = json.loads(call("ask", "--json", "how do I roll back a deployment?").out)
    assert answer["documents"][0]["id"] == "guides/deploy.md"
    assert ["Deploying", "Roll back"] in [section["heading"] for section in answer["documents"][0]["sections"]]
    assert answer["selection"]["budget"] == 4000


@pytest.mark.parametrize(("text", "budget"), [("4k", 4000), ("2000", 2000), ("1,500", 1500), ("0", 0), ("7K", 7000)])
def test_a_budget_may_have_commas_and_the_suffix_k(text: str, budget: int, docs: Path, call: Call) -> None:
    cache = docs / ".context-cache"
    assert (
        json.loads(call("ask", "--json", "token", "--cache", cache, "--budget", text).out)["selection"]["budget"]
        == budget
    )


@pytest.mark.parametrize("budget", ["", "k", "-1", "4kk", "four", "1e3", "9" * 40])
def test_an_invalid_budget_is_exit_3(budget: str, docs: Path, call: Call) -> None:
    ran = call("ask", "token", "--cache", docs / ".context-cache", "--budget", budget)
    assert (ran.code, ran.out) == (3, b"")


def test_without_a_cache_the_error_says_how_to_build_one(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = call("ask", "anything")
    assert (ran.code, ran.out) == (4, b"")
    assert "context build DIR" in ran.err


def test_several_caches_are_searched_together_and_ids_have_their_names(tmp_path: Path, call: Call) -> None:
    for name in ("one", "two"):
        folder = write_files(tmp_path / name, {f"{name}.md": f"# Rollback {name}\n\nrollback\n"})
        assert call("build", "--sources", folder, "--cache", tmp_path / "caches" / name).code == 0
    answer = json.loads(call("ask", "--json", "rollback", "--cache-root", tmp_path / "caches").out)
    assert sorted(document["id"] for document in answer["documents"]) == ["one:one.md", "two:two.md"]
    got = json.loads(call("get", "--json", "two:two.md", "--cache-root", tmp_path / "caches").out)
    assert got["document"]["id"] == "two:two.md"


def test_get_returns_a_section_or_lines(docs: Path, call: Call) -> None:
    cache = docs / ".context-cache"
    section = json.loads(call("get", "--json", "guides/deploy.md", "--section", "Roll back", "--cache", cache).out)
    lines = json.loads(call("get", "--json", "guides/deploy.md", "--lines", "7", "--cache", cache).out)
    assert section["document"]["sections"] == lines["document"]["sections"]
    assert "ship --previous" in section["document"]["sections"][0]["content"]


@pytest.mark.parametrize(
    "argv", [["--lines", "9-3"], ["--lines", "x"], ["--around", "-1"], ["--lines", "1", "--section", "x"]]
)
def test_invalid_lines_or_sections_are_exit_1(argv: list[str], docs: Path, call: Call) -> None:
    ran = call("get", "guides/deploy.md", "--cache", docs / ".context-cache", *argv)
    assert (ran.code, ran.out) == (1, b"")


def test_links_below_the_cache_root_are_not_caches(tmp_path: Path, call: Call) -> None:
    """The target of a link may be outside the root. The tools ignore links too."""
    write_files(tmp_path / "docs", {"a.md": "deploy guide"})
    for cache in (tmp_path / "root" / "inside", tmp_path / "outside"):
        assert call("build", "--sources", tmp_path / "docs", "--cache", cache).code == 0
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "outside")
    ran = call("ask", "deploy", "--cache-root", tmp_path / "root", "--json")
    assert json.loads(ran.out)["selection"]["documents_considered"] == 1
