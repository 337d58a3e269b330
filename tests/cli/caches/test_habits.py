"""What people type first: a question beside the folder that was built, a list of documents, half a document's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.machine import Call, write_files

DOCS = {
    "guides/logging.md": "# How we log\n\nStructured lines.\n",
    "guides/deploy.md": "# Deploying\n\nRoll back a deployment.\n",
}


@pytest.fixture
def project(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path / "docs", DOCS)
    monkeypatch.chdir(tmp_path)
    assert call("build", "docs").code == 0
    return tmp_path


def test_a_cache_just_built_in_a_subfolder_is_asked(project: Path, call: Call) -> None:
    assert call("ask", "roll back a deployment").out.startswith(b"guides/deploy.md (lines 1-3)\n")
    assert call("get", "guides/deploy.md").code == 0


def test_a_cache_is_found_some_folders_down_and_the_nearest_level_counts(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path / "site" / "content" / "docs", DOCS)
    monkeypatch.chdir(tmp_path)
    assert call("build", "site/content/docs").code == 0
    assert call("ask", "roll back a deployment").out.startswith(b"guides/deploy.md (lines 1-3)\n")
    write_files(tmp_path / "api" / "docs", {"limits.md": "# Limits\n\nA deployment has limits.\n"})
    assert call("build", "api/docs").code == 0
    assert call("ask", "roll back a deployment").out.startswith(b"limits.md (lines 1-3)\n")


def test_of_several_subfolders_all_caches_are_asked_and_the_own_cache_goes_first(project: Path, call: Call) -> None:
    write_files(project / "api", {"limits.md": "# Limits\n\nA deployment has limits.\n"})
    assert call("build", "api").code == 0
    asked = json.loads(call("ask", "deployment", "--json").out)
    assert {document["id"] for document in asked["documents"]} == {"docs:guides/deploy.md", "api:limits.md"}
    assert call("build", ".", "--exclude", "api/").code == 0
    asked = json.loads(call("ask", "deployment", "--json").out)
    assert {document["id"] for document in asked["documents"]} == {"docs/guides/deploy.md"}


def test_ls_lists_the_documents_of_a_cache(project: Path, call: Call) -> None:
    lines = [line.split() for line in call("ls").out.decode().splitlines()]
    expected = [["document", "title"], ["guides/deploy.md", "Deploying"], ["guides/logging.md", "How", "we", "log"]]
    assert lines == expected
    listed = json.loads(call("ls", "--cache", "docs", "--json").out)
    assert listed["documents"][0] == {"id": "guides/deploy.md", "title": "Deploying"}


@pytest.mark.parametrize("name", ["logging", "Logging.md", "docs/logging", "how we log", "loging"])
def test_get_suggests_the_document_that_may_be_meant(name: str, project: Path, call: Call) -> None:
    ran = call("get", name)
    assert (ran.code, ran.out) == (2, b"")
    assert "did you mean guides/logging.md?" in ran.err


def test_get_suggests_nothing_that_is_not_similar(project: Path, call: Call) -> None:
    assert "did you mean" not in call("get", "zebra").err
    assert "did you mean" not in call("get", "/").err
