"""A build over an existing cache reuses unchanged documents, and gives the same bytes as a new build."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import contextfold
from contextfold import open_cache
from contextfold.errors import CacheExists, NoDocuments, SourceInvalid
from contextfold.resolve import index_writer, previous
from contextfold.resolve.cache import CacheFolder
from contextfold.resolve.fingerprint_record import DATABASE_FILE, RECORD_FILE, decode_record
from tests.resolve.killed_build import kill_at_step
from tests.support.machine import Call, file_version, ids, times, write_files
from tests.support.processes import run_in_fork

CREATED_AT = "2026-01-02T03:04:05Z"

NAMES = st.sampled_from(["a.md", "B.md", "b.md", "c/d.md", "e.html", "F.HTML", "g.ipynb", "h.py", "i.txt", "z.md"])
LINKS = ["[a word](a.md) [other](c/d.md)", "[two words](/x/a.md)"]
TEXTS = st.sampled_from(
    ["", "one", "two words", "<h1>T</h1><p>x", '{"cells": []}', "three\n# more", "\0", "word " * 50, *LINKS]
)
EDITS = st.lists(st.tuples(NAMES, TEXTS | st.none()), max_size=5)


def content_of(cache: Path) -> dict[str, object]:
    """Every file of a cache. Fingerprints are left out: they record times and inodes, which differ in each build."""
    files: dict[str, object] = {
        str(path.relative_to(cache)): path.read_bytes()
        for path in cache.rglob("*")
        if path.is_file() and path.parent.name != "pack"
    }
    connection = sqlite3.connect(f"file:{cache}/{DATABASE_FILE}?immutable=1", uri=True)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    for table in tables:
        files[table] = sorted(connection.execute(f"SELECT * FROM {table}"), key=repr)
    connection.close()
    record = decode_record((cache / RECORD_FILE).read_bytes())
    files[RECORD_FILE] = (record.cache_version, record.files)
    return files


def is_trusted(cache: Path) -> bool:
    folder = CacheFolder(os.fsencode(cache))
    opened = folder.open_index()
    return opened is not None and folder.is_as_built(opened.record)


@given(rounds=st.lists(EDITS, min_size=1, max_size=5), kinds=st.sampled_from(["text", "markdown"]))
@settings(max_examples=times(25, 1500))
def test_a_rebuild_after_any_edits_equals_a_new_build(
    rounds: list[list[tuple[str, str | None]]], kinds: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    work = tmp_path_factory.mktemp("edits")
    write_files(work / "docs", {"always.md": "always", "z2.md": "last"})
    with pytest.MonkeyPatch.context() as patch:
        # Segments have few documents, so that some of them are reused.
        patch.setattr(index_writer, "SEGMENT_MIN_DOCUMENTS", 1)
        patch.setattr(index_writer, "SEGMENT_ENDS_IN", 2)
        for number, changes in enumerate(rounds):
            for name, text in changes:
                path = work / "docs" / name
                if text is not None:
                    write_files(work / "docs", {name: text})
                elif path.exists():
                    path.unlink()
            outcomes = []
            for cache in ("again", f"new{number}"):
                try:
                    force = kinds == "markdown"
                    contextfold.build(work / "docs", work / cache, kinds=kinds, force=force, created_at=CREATED_AT)
                    outcomes.append("built")
                except SourceInvalid as problem:
                    outcomes.append(problem.reason)
            assert outcomes[0] == outcomes[1]
            if outcomes == ["built", "built"]:
                assert content_of(work / "again") == content_of(work / f"new{number}")
                assert open_cache(work / "again").verify().faults == ()


def test_after_one_change_all_other_files_and_segments_are_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = write_files(tmp_path / "docs", {f"{n:04}.md": f"word{n} text" for n in range(500)})
    monkeypatch.setattr(index_writer, "SEGMENT_MIN_DOCUMENTS", 1)
    monkeypatch.setattr(index_writer, "SEGMENT_ENDS_IN", 64)
    contextfold.build(docs, tmp_path / "c", created_at=CREATED_AT)
    inodes = {path.name: path.stat().st_ino for path in (tmp_path / "c" / "documents").iterdir()}
    (docs / "0200.md").write_text("changed")
    report = contextfold.build(docs, tmp_path / "c", created_at=CREATED_AT)
    after = {path.name: path.stat().st_ino for path in (tmp_path / "c" / "documents").iterdir()}
    assert len(set(inodes.items()) & set(after.items())) == 499
    assert 0 < report.reused < 500
    assert is_trusted(tmp_path / "c")
    contextfold.build(docs, tmp_path / "new", created_at=CREATED_AT)
    assert content_of(tmp_path / "c") == content_of(tmp_path / "new")


def test_a_build_without_changes_does_not_replace_the_cache(tmp_path: Path) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": "a", "b.html": "<p>b"})
    assert contextfold.build(docs).is_changed
    manifest = docs / ".context-cache" / "manifest.json"
    before = file_version(manifest)
    os.utime(docs / "a.md")
    assert not contextfold.build(docs).is_changed
    assert file_version(manifest) == before
    assert contextfold.build(docs, force=True).is_changed


@pytest.mark.parametrize("damage", ["index.sqlite", "fingerprints", "document", "manifest", "source of a document"])
def test_damaged_files_are_built_again_and_not_reused(damage: str, tmp_path: Path) -> None:
    docs = write_files(tmp_path / "docs", {"A.md": "a b c", "b.html": "<p>b", "c.md": "c"})
    cache = docs / ".context-cache"
    contextfold.build(docs, created_at=CREATED_AT)
    expected = content_of(cache)
    match damage:
        case "document":
            path = next((cache / "documents").iterdir())
            path.write_bytes(path.read_bytes()[:-1] + b" }")
        case "source of a document":
            for path in (cache / "documents").iterdir():
                path.write_bytes(path.read_bytes().replace(b'"A.md"', b'"a.MD"'))
        case "manifest":
            (cache / "manifest.json").write_text("{}")
        case file:
            raw = bytearray((cache / "pack" / file).read_bytes())
            raw[len(raw) // 2] ^= 1
            (cache / "pack" / file).write_bytes(raw)
    write_files(docs, {"c.md": "changed"})
    contextfold.build(docs, created_at=CREATED_AT)
    write_files(docs, {"c.md": "c"})
    contextfold.build(docs, created_at=CREATED_AT)
    assert content_of(cache) == expected
    assert open_cache(cache).verify().faults == ()


def test_a_path_that_changes_only_in_case_is_built_again(tmp_path: Path) -> None:
    docs = write_files(tmp_path / "docs", {"Readme.md": "x", "other.md": "y"})
    contextfold.build(docs, tmp_path / "c", created_at=CREATED_AT)
    (docs / "Readme.md").rename(docs / "README.md")
    (docs / "other.md").write_text("z")
    contextfold.build(docs, tmp_path / "c", created_at=CREATED_AT)
    contextfold.build(docs, tmp_path / "new", created_at=CREATED_AT)
    assert content_of(tmp_path / "c") == content_of(tmp_path / "new")


def test_a_file_system_without_hard_links_gives_the_same_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": "a", "b.md": "b"})
    contextfold.build(docs, tmp_path / "c", created_at=CREATED_AT)
    (docs / "b.md").write_text("changed")
    monkeypatch.setattr(previous.PreviousCache, "link", lambda *_: False)
    contextfold.build(docs, tmp_path / "c", created_at=CREATED_AT)
    contextfold.build(docs, tmp_path / "new", created_at=CREATED_AT)
    assert content_of(tmp_path / "c") == content_of(tmp_path / "new")
    assert is_trusted(tmp_path / "c")


def test_after_a_failed_rebuild_the_old_cache_is_still_trusted(tmp_path: Path, call: Call) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": "a", "b.md": "b"})
    assert call("build", "--sources", docs, "--cache", tmp_path / "c").code == 0
    write_files(docs, {"z.md": b"\xff"})
    assert call("build", "--sources", docs, "--cache", tmp_path / "c", "--force").code == 5
    assert is_trusted(tmp_path / "c")


@pytest.mark.parametrize("has_exchange", [True, False])
def test_a_rebuild_killed_at_any_step_leaves_the_old_cache_or_the_new(has_exchange: bool, tmp_path: Path) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": "a", "b.html": "<p>b", "c.md": "old"})
    contextfold.build(docs)
    shutil.copytree(docs, tmp_path / "start", symlinks=True)
    outcomes = set()
    for step in range(1, 1000, times(9, 1)):
        shutil.rmtree(docs)
        shutil.copytree(tmp_path / "start", docs, symlinks=True)
        # After this build its files are trusted, so the next build links them.
        contextfold.build(docs, force=True)
        (docs / "c.md").write_text("new")
        done = run_in_fork("build", docs, prepare=partial(kill_at_step, step, has_exchange=has_exchange))
        if has_exchange or (docs / ".context-cache").exists():
            cache = open_cache(docs / ".context-cache")
            assert cache.verify().faults == ()
            outcomes.add({d.id: d.content for d in cache.resolve("x", 100).documents}["c.md"])
        contextfold.build(docs)
        assert not [name for name in os.listdir(docs) if "contextfold" in name]
        assert is_trusted(docs / ".context-cache")
        if done.code == 0:
            break
        assert done.code == -signal.SIGKILL
    else:
        pytest.fail("the build never ran to its end")
    assert outcomes == {"old", "new"}


class TestRememberedOptions:
    def test_a_build_without_options_uses_those_of_the_previous_build(self, tmp_path: Path, call: Call) -> None:
        docs = write_files(
            tmp_path / "docs", {"a.md": "a", "b.rst": "b", "c/d.md": "d", ".gitignore": "/x.md", "x.md": ""}
        )
        argv = ("build", "--sources", docs, "--cache", tmp_path / "c")
        assert call(*argv, "--include", "*.rst", "--exclude", "c/", "--gitignore").code == 0
        assert ids(tmp_path / "c") == ["a.md", "b.rst"]
        assert call(*argv, "--force").code == 0
        assert ids(tmp_path / "c") == ["a.md", "b.rst"]
        assert call(*argv, "--force", "--exclude", "a.md").code == 0
        assert ids(tmp_path / "c") == ["c/d.md", "x.md"]
        assert call(*argv, "--force", "--defaults").code == 0
        assert ids(tmp_path / "c") == ["a.md", "c/d.md", "x.md"]
        assert "build_options" not in (tmp_path / "c" / "manifest.json").read_text()

    def test_an_exclude_pattern_overrides_gitignore_files(self, tmp_path: Path) -> None:
        docs = write_files(tmp_path / "docs", {".gitignore": "*.md", "a.md": "a", "b.txt": "b"})
        contextfold.build(docs, tmp_path / "c", exclude=["!a.md"])
        assert ids(tmp_path / "c") == ["a.md", "b.txt"]

    def test_invalid_options_in_a_manifest_are_ignored(self, tmp_path: Path) -> None:
        docs = write_files(tmp_path / "docs", {"a.md": "a"})
        contextfold.build(docs)
        manifest = docs / ".context-cache" / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"gitignore": true', '"gitignore": 5'))
        assert open_cache(docs / ".context-cache").verify().faults == ()
        contextfold.build(docs)
        assert '"gitignore": true' in manifest.read_text()


class TestBuildOfAFolder:
    def test_text_files_become_documents_and_the_others_are_counted(self, tmp_path: Path) -> None:
        docs = write_files(
            tmp_path / "docs",
            {
                **dict.fromkeys(["a.md", "B.MDX", "c.markdown", "d.txt", "e.rst", "f.adoc", "g.org", "Makefile"], "x"),
                "h.html": "<h1>H</h1>",
                "i.ipynb": '{"cells": []}',
                "src/j.py": "x = 1",
                "broken.ipynb": "{",
                "binary.txt": b"a\0b",
                "latin.md": b"caf\xe9",
                "huge.txt": b"x" * (9 << 20),
                "app.min.js": "x",
                "long.js": "x" * 6000,
                "made.go": "// Code generated by tool. DO NOT EDIT.",
                "picture.png": "x",
                "node_modules/k.md": "x",
                "env/pyvenv.cfg": "",
                "env/l.py": "x",
                ".git/m.md": "x",
                ".context-cache-like/n.md": "x",
            },
        )
        report = contextfold.build(docs)
        expected_ids = """
            .context-cache-like/n.md a.md b.mdx c.markdown d.txt e.rst f.adoc g.org h.html i.ipynb makefile src/j.py
        """
        assert ids(docs / ".context-cache") == expected_ids.split()
        assert report.left_out == {
            "broken notebooks": 1,
            "binary": 1,
            "not UTF-8": 1,
            "larger than 8 MiB": 1,
            "generated": 3,
            "of another kind": 1,
            "folders that programs fill": 2,
        }
        (page,) = [d for d in open_cache(docs / ".context-cache").resolve("H", 9).documents if d.id == "h.html"]
        assert page.content == "# H\n"

    def test_gitignore_files_apply_from_the_root_of_the_repository(self, tmp_path: Path) -> None:
        repository = write_files(
            tmp_path / "repository",
            {
                ".git/HEAD": "",
                ".gitignore": "*.tmp.md\n/docs/built/\n",
                "docs/.gitignore": "draft*\n!draft-kept.md\n",
                "docs/a.md": "",
                "docs/b.tmp.md": "",
                "docs/built/c.md": "",
                "docs/draft.md": "",
                "docs/draft-kept.md": "",
                "docs/sub/.gitignore": "!b.tmp.md",
                "docs/sub/b.tmp.md": "",
                "docs/sub/built/d.md": "",
            },
        )
        contextfold.build(repository / "docs", tmp_path / "c")
        assert ids(tmp_path / "c") == ["a.md", "draft-kept.md", "sub/b.tmp.md", "sub/built/d.md"]

    def test_the_default_cache_is_ignored_by_git_and_by_builds(self, tmp_path: Path, call: Call) -> None:
        docs = write_files(tmp_path / "docs", {"a.md": "a"})
        for _ in range(2):
            ran = call("build", docs, "--include", "*.json")
            assert (ran.code, ran.out) == (0, b"")
            assert ids(docs / ".context-cache") == ["a.md"]
        assert (docs / ".context-cache" / ".gitignore").read_text() == "*\n"
        assert call("verify", "--cache", docs / ".context-cache").code == 0

    def test_of_two_files_with_the_same_id_one_is_left_out(self, tmp_path: Path) -> None:
        docs = write_files(tmp_path / "docs", {"A.md": "1", "a.md": "2"})
        assert contextfold.build(docs).left_out == {"with the id of another file": 1}
        assert ids(docs / ".context-cache") == ["a.md"]

    def test_a_folder_without_documents_is_an_error(self, tmp_path: Path, call: Call) -> None:
        docs = write_files(tmp_path / "docs", {"a.png": "x"})
        ran = call("build", docs)
        assert ran.code == 5
        assert "1 of another kind" in ran.err
        assert os.listdir(docs) == ["a.png"]
        with pytest.raises(NoDocuments):
            contextfold.build(docs)
        # The contract of the first version requires this.
        assert call("build", "--sources", docs, "--cache", tmp_path / "c").code == 0

    def test_a_cache_built_with_sources_and_cache_options_is_replaced_only_with_force(
        self, sources: Path, cache: Path
    ) -> None:
        with pytest.raises(CacheExists):
            contextfold.build(sources, cache)
        contextfold.build(sources, cache, force=True)
        contextfold.build(sources, cache)

    def test_the_number_of_files_left_out_is_printed_to_a_pipe(self, tmp_path: Path, call: Call) -> None:
        docs = write_files(tmp_path / "docs", {"a.md": "a", "b.txt": b"\0"})
        assert "1 binary" in call("build", docs).err

    @pytest.mark.parametrize("argv", [[], ["--cache", "c"], ["docs", "--sources", "docs"]])
    def test_the_folder_must_be_given_exactly_once(self, argv: list[str], call: Call) -> None:
        assert call("build", *argv).code == 1
