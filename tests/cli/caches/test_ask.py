"""`context ask` and `context get`: the nearest cache, budgets as people write them, several caches, parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.clauses import covers
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


@covers("product.md#for-people")
def test_a_question_is_answered_from_the_nearest_cache_in_this_folder_or_above(
    docs: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(docs / "guides")
    answer = json.loads(call("ask", "how do I roll back a deployment?").out)
    assert answer["documents"][0]["id"] == "guides/deploy.md"
    assert ["Deploying", "Roll back"] in [section["heading"] for section in answer["documents"][0]["sections"]]
    assert answer["selection"]["budget"] == 4000


@pytest.mark.parametrize(("written", "meant"), [("4k", 4000), ("2000", 2000), ("1,500", 1500), ("0", 0), ("7K", 7000)])
def test_a_budget_is_read_as_people_write_it(written: str, meant: int, docs: Path, call: Call) -> None:
    cache = docs / ".context-cache"
    assert json.loads(call("ask", "token", "--cache", cache, "--budget", written).out)["selection"]["budget"] == meant


@pytest.mark.parametrize("budget", ["", "k", "-1", "4kk", "four", "1e3", "9" * 40])
def test_a_budget_that_is_no_number_is_exit_3(budget: str, docs: Path, call: Call) -> None:
    ran = call("ask", "token", "--cache", docs / ".context-cache", "--budget", budget)
    assert (ran.code, ran.out) == (3, b"")


def test_without_a_cache_it_says_how_to_make_one(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = call("ask", "anything")
    assert (ran.code, ran.out) == (4, b"")
    assert "context build DIR" in ran.err


def test_a_question_that_nothing_matches_says_so_and_names_the_terms(docs: Path, call: Call) -> None:
    ran = call("ask", "xyzzy", "--cache", docs / ".context-cache")
    answer = json.loads(ran.out)
    assert (ran.code, answer["documents"], answer["selection"]["unmatched"]) == (0, [], ["xyzzy"])
    assert "nothing in the cache matches" in ran.err


def test_several_caches_are_asked_as_one_and_ids_name_them(tmp_path: Path, call: Call) -> None:
    for name in ("one", "two"):
        folder = write_files(tmp_path / name, {f"{name}.md": f"# Rollback {name}\n\nrollback\n"})
        assert call("build", "--sources", folder, "--cache", tmp_path / "caches" / name).code == 0
    answer = json.loads(call("ask", "rollback", "--cache-root", tmp_path / "caches").out)
    assert sorted(document["id"] for document in answer["documents"]) == ["one:one.md", "two:two.md"]
    got = json.loads(call("get", "two:two.md", "--cache-root", tmp_path / "caches").out)
    assert got["document"]["id"] == "two.md"


def test_get_gives_a_section_or_some_lines(docs: Path, call: Call) -> None:
    cache = docs / ".context-cache"
    section = json.loads(call("get", "guides/deploy.md", "--section", "Roll back", "--cache", cache).out)
    lines = json.loads(call("get", "guides/deploy.md", "--lines", "7", "--cache", cache).out)
    assert section["document"]["sections"] == lines["document"]["sections"]
    assert "ship --previous" in section["document"]["sections"][0]["content"]


@pytest.mark.parametrize(
    "argv", [["--lines", "9-3"], ["--lines", "x"], ["--around", "-1"], ["--lines", "1", "--section", "x"]]
)
def test_parts_that_make_no_sense_are_exit_1(argv: list[str], docs: Path, call: Call) -> None:
    ran = call("get", "guides/deploy.md", "--cache", docs / ".context-cache", *argv)
    assert (ran.code, ran.out) == (1, b"")


def test_a_document_that_is_not_there_is_exit_2(docs: Path, call: Call) -> None:
    ran = call("get", "nowhere.md", "--cache", docs / ".context-cache")
    assert (ran.code, ran.out) == (2, b"")


def test_a_link_below_the_root_is_no_cache(tmp_path: Path, call: Call) -> None:
    """As for the tools: what a link leads to may lie outside of the root."""
    write_files(tmp_path / "docs", {"a.md": "deploy guide"})
    for cache in (tmp_path / "root" / "inside", tmp_path / "outside"):
        assert call("build", "--sources", tmp_path / "docs", "--cache", cache).code == 0
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "outside")
    ran = call("ask", "deploy", "--cache-root", tmp_path / "root", "--json")
    assert json.loads(ran.out)["selection"]["documents_considered"] == 1
