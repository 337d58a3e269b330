"""A build leaves out what git leaves out."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextfold.errors import SourceInvalid
from contextfold.resolve.build import BuildRequest
from contextfold.resolve.kinds import ALL_TEXT
from contextfold.resolve.rules import make_rules
from contextfold.resolve.sources import survey
from tests.support.machine import times, write_files

ATOMS = ["a", "b", "ab", "c", ".", "*", "**", "?", "/", "/", "[ab]", "[a-c]", "-", " ", "*.md", "\\*"]
NAMES = ["a", "b", "ab", "ba", "c", ".a", "a b", "abc", "a.b", "-", "*", "1"]

lines = st.lists(st.sampled_from(ATOMS), min_size=1, max_size=5).map("".join)
patterns = st.builds("{}{}{}".format, st.sampled_from(["", "", "!", "/"]), lines, st.sampled_from(["", "", "/", " "]))
ignore_files = st.lists(patterns, min_size=1, max_size=4).map("\n".join)
folders = st.lists(st.sampled_from(NAMES), max_size=3).map("/".join)
trees = st.lists(st.tuples(folders, st.sampled_from(NAMES)), min_size=5, max_size=20)


def find_documents(sources: Path) -> set[str]:
    """The files that a build takes."""
    rules = make_rules(ALL_TEXT, include=["*"])
    return {source.source for source in survey(bytes(sources), rules, cache=bytes(sources / "no cache")).sources}


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@given(tree=trees, ignored=st.dictionaries(folders, ignore_files, min_size=1, max_size=3))
@settings(max_examples=times(30, 3000))
def test_the_result_is_the_same_as_gits(
    tree: list[tuple[str, str]], ignored: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    repository = tmp_path_factory.getbasetemp() / "ignoring"
    shutil.rmtree(repository, ignore_errors=True)
    subprocess.run(["git", "init", "-q", repository], check=True)
    write_files(repository, {f"{folder}/{name}.md": "text" for folder, name in tree})
    write_files(repository, {f"{folder}/.gitignore": text for folder, text in ignored.items()})
    listed = subprocess.run(
        ["git", "-C", repository, "-c", "core.excludesFile=", "ls-files", "--others", "--exclude-standard", "-z"],
        capture_output=True,
        check=True,
    )
    assert find_documents(repository) == {path.decode() for path in listed.stdout.split(b"\0")[:-1]}


def test_each_rule_of_gitignore_has_an_example(tmp_path: Path) -> None:
    for number, (raw, path, expected) in enumerate(
        [
            ("*.log\n!keep.log", "a/keep.log", False),
            ("*.log\n!keep.log", "a/b.log", True),
            ("*\n!*/\n!*.md", "a/b.md", False),
            ("*\n!*/\n!*.md", "a/b.log", True),
            ("build/", "build", False),
            ("build/", "x/build/y", True),
            ("/build", "x/build", False),
            ("doc/**/draft.md", "doc/draft.md", True),
            ("doc/**/draft.md", "doc/a/b/draft.md", True),
            ("a/**", "a", False),
            ("\ufeffx.md\r\n", "x.md", True),
            ("# x.md\n\\#y.md", "#y.md", True),
            ("x.md  ", "x.md", True),
            ("x.md\\ ", "x.md ", True),
            ("é*.md", "été.md", True),
            ("[!a].md", "b.md", True),
            ("folder/\n!folder/kept.md", "folder/kept.md", True),
            ("[\n[b-a]\nx\\\n[[:alpha:]]\ny.md", "y.md", True),
        ]
    ):
        folder = write_files(tmp_path / str(number), {path: "text", ".gitignore": raw})
        assert (path not in find_documents(folder)) is expected, (raw, path)


def test_a_file_in_a_folder_decides_before_the_one_above_but_not_about_the_folders_that_it_is_in(
    tmp_path: Path,
) -> None:
    folder = write_files(
        tmp_path,
        {
            ".gitignore": "*.txt\nhidden/\n",
            "docs/.gitignore": "!kept.txt\n!inner\n",
            "docs/kept.txt": "",
            "docs/lost.txt": "",
            "docs/inner/lost.txt": "",
            "hidden/.gitignore": "!*\n",
            "hidden/lost.txt": "",
        },
    )
    found = find_documents(folder)
    assert "docs/kept.txt" in found
    assert not [path for path in found if "lost" in path or "hidden" in path]


def test_a_pattern_that_takes_too_long_to_match_is_refused_at_once(tmp_path: Path) -> None:
    hostile = {
        "*a*a*a*a*b": "more than 4 stars between two slashes",
        "/x/!*a*a*a*a*b/": "more than 4 stars between two slashes",
        "*a*a*b/*a*a*b/c": "stars in too many places",
        "a/**/a/**/a/**/a/**/a/**/b": "stars in too many places",
    }
    for number, (pattern, problem) in enumerate(hostile.items()):
        ignored = f"# x\n\n{pattern}"
        folder = write_files(tmp_path / str(number), {"a" * 200 + "/" + "a" * 200: "", ".gitignore": ignored})
        with pytest.raises(SourceInvalid, match=f"^line 3 of {folder}/.gitignore has {problem}, which takes too long"):
            find_documents(folder)
        with pytest.raises(SourceInvalid, match=f"^the pattern '{re.escape(pattern)}' has {problem}, which"):
            BuildRequest(folder, exclude=[pattern]).check()
    harmless = [
        "a" + "*" * 50 + "b",
        "*a*a*a*b",
        "\\*\\*\\*\\*\\*",
        "/*/*/*/*/*/*/b",
        "**/a/**/b/**/*.md",
        "*.a/*.b/*.c/*.d/*.e",
    ]
    folder = write_files(tmp_path / "harmless", {"a" * 100: "", "axb": "", ".gitignore": "\n".join(harmless)})
    assert find_documents(folder) == {"a" * 100, ".gitignore"}
