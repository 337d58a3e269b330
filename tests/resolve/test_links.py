"""Links among the sources: a cache is made to be shared, so `context build DIR` reads nothing outside of the folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machine import Call, ids, write_files


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    outside = write_files(tmp_path / "outside", {"secret.txt": "secret"})
    folder = write_files(tmp_path / "docs", {"guide/a.md": "deploy"})
    (folder / "secret.md").symlink_to(outside / "secret.txt")
    (folder / "guide" / "again.md").symlink_to(folder / "secret.md")
    (folder / "same.md").symlink_to("../docs/guide/a.md")
    (folder / "nothing.md").symlink_to("nothing")
    return folder


def test_a_link_that_leaves_the_folder_is_left_out_and_counted(docs: Path, call: Call) -> None:
    ran = call("build", docs)
    assert ran.code == 0
    assert ids(docs / ".context-cache") == ["guide/a.md", "same.md"]
    assert "2 links that lead out of the folder" in ran.err


@pytest.mark.parametrize(
    "target", [".env", ".git/config", "drafts/private.txt", "node_modules/x/README.md", "env/lib/a.md"]
)
def test_a_link_to_a_file_that_is_left_out_is_left_out_too(target: str, tmp_path: Path, call: Call) -> None:
    ignored = {".gitignore": ".env\n", "drafts/.gitignore": "*", "env/pyvenv.cfg": ""}
    docs = write_files(tmp_path / "docs", {"a.md": "a", target: "secret", **ignored})
    (docs / "linked.md").symlink_to(target)
    (docs / "again.md").symlink_to("a.md")
    ran = call("build", docs)
    assert ids(docs / ".context-cache") == ["a.md", "again.md"]
    assert "1 links to files that are left out" in ran.err


def test_a_link_to_an_included_file_is_read(tmp_path: Path, call: Call) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": "a", "node_modules/x/b.md": "b"})
    (docs / "linked.md").symlink_to("node_modules/x/b.md")
    assert call("build", docs, "--include", "node_modules/").code == 0
    assert ids(docs / ".context-cache") == ["a.md", "linked.md", "node_modules/x/b.md"]


def test_sources_that_are_a_link_themselves_are_read(docs: Path, call: Call, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(docs)
    assert call("build", tmp_path / "linked", "--cache", tmp_path / "cache").code == 0
    assert ids(tmp_path / "cache") == ["guide/a.md", "same.md"]


def test_include_does_not_take_a_link_that_leaves_the_folder(docs: Path, call: Call) -> None:
    assert call("build", docs, "--include", "secret.md").code == 0
    assert ids(docs / ".context-cache") == ["guide/a.md", "same.md"]


def test_the_frozen_form_follows_links_to_regular_files(docs: Path, call: Call, tmp_path: Path) -> None:
    assert call("build", "--sources", docs, "--cache", tmp_path / "cache").code == 0
    assert ids(tmp_path / "cache") == ["guide/a.md", "guide/again.md", "same.md", "secret.md"]
