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
    "target",
    [
        ".env",
        ".envrc",
        "package-lock.json",
        "skipped/a.md",
        ".git/config",
        "drafts/private.txt",
        "node_modules/x/README.md",
        "env/lib/a.md",
    ],
)
def test_a_link_to_a_file_that_is_left_out_is_left_out_too(target: str, tmp_path: Path, call: Call) -> None:
    ignored = {".gitignore": ".env\n", "drafts/.gitignore": "*", "env/pyvenv.cfg": ""}
    docs = write_files(tmp_path / "docs", {"a.md": "a", target: "secret", **ignored})
    (docs / "linked.md").symlink_to(target)
    (docs / "again.md").symlink_to("a.md")
    ran = call("build", docs, "--exclude", "skipped/")
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


PLANTED_CACHES = {
    "any manifest": {"manifest.json": "{}", "a/d": "x"},
    "nothing": {},
    "a real cache": None,
}


@pytest.mark.parametrize("planted", PLANTED_CACHES)
@pytest.mark.parametrize("options", [(), ("--force",)])
def test_a_link_in_a_cloned_repository_never_leads_a_build_outside(
    planted: str, options: tuple[str, ...], tmp_path: Path, call: Call
) -> None:
    site = tmp_path / "home" / "site"
    files = PLANTED_CACHES[planted]
    if files is None:
        write_files(tmp_path / "home" / "docs", {"mine.md": "mine"})
        assert call("build", tmp_path / "home" / "docs", "--cache", site).code == 0
    else:
        site.mkdir(parents=True)
        write_files(site, files)
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    repository = write_files(tmp_path / "evil", {"README.md": "# r"})
    (repository / ".context-cache").symlink_to("../home/site")
    ran = call("build", repository, *options)
    assert ran.code == 6
    assert "is a link to" in ran.err
    assert {path: path.read_bytes() for path in site.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("options", [(), ("--force",)])
def test_only_a_cache_of_ours_is_replaced(options: tuple[str, ...], tmp_path: Path, call: Call) -> None:
    docs = write_files(
        tmp_path / "docs", {"a.md": "a", ".context-cache/manifest.json": "{}", ".context-cache/a/d": "x"}
    )
    ran = call("build", docs, *options)
    assert ran.code == 6
    assert "nor a cache that contextfold made" in ran.err
    assert (docs / ".context-cache" / "a" / "d").read_text() == "x"


def test_a_planted_folder_of_an_interrupted_build_is_not_followed(tmp_path: Path, call: Call) -> None:
    private = write_files(tmp_path / "home", {"inner/file": "x"})
    (private / "inner").chmod(0o500)
    docs = write_files(tmp_path / "docs", {"a.md": "a"})
    assert call("build", docs).code == 0
    (docs / "..context-cache.contextfold-replaced").symlink_to(private)
    write_files(docs, {"b.md": "b"})
    assert call("build", docs).code == 0
    assert ids(docs / ".context-cache") == ["a.md", "b.md"]
    assert (private / "inner").stat().st_mode & 0o777 == 0o500
    assert (private / "inner" / "file").read_text() == "x"
    assert not (docs / "..context-cache.contextfold-replaced").is_symlink()
