"""Patterns of .gitignore files exclude what git excludes, in time that grows with the length of a path."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextfold.resolve.documents.ignore import ignore_file
from tests.support.machine import times

ATOMS = [
    *(b"a b ab c . * ** *** ? / / [ab] [!a] [a-c] [^]-] []a] [a/b] [[:alpha:]] [[:digit:]] [ ] ! - \\ \\* \\/".split()),
    b" ",
    b"\xc3\xa9",
]
NAMES = [b"a", b"b", b"ab", b"ba", b"c", b".a", b"a b", b"abc", b"a.b", b"-", b"a]", b"*", b"1", b"\xc3\xa9"]

lines = st.lists(st.sampled_from(ATOMS), min_size=1, max_size=6).map(b"".join)
patterns = st.tuples(st.sampled_from([b"", b"", b"", b"!", b"/"]), lines, st.sampled_from([b"", b"", b"/", b" "]))
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map(tuple)


def is_excluded(raw: bytes, path: tuple[bytes, ...]) -> bool:
    """Whether the path, or a folder above it, is excluded."""
    ignored = ignore_file(raw)
    ends = range(1, len(path) + 1)
    return any(ignored.verdict(path[:end], is_folder=end < len(path)) for end in ends)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@given(data=st.data())
@settings(max_examples=times(30, 3000))
def test_the_result_is_the_same_as_gits(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    repository = tmp_path_factory.getbasetemp() / "ignoring"
    if not repository.exists():
        subprocess.run(["git", "init", "-q", repository], check=True)
    raw = b"\n".join(b"".join(parts) for parts in data.draw(st.lists(patterns, min_size=1, max_size=4)))
    sampled_paths = data.draw(st.lists(paths, min_size=10, max_size=40))
    (repository / ".gitignore").write_bytes(raw)
    git = subprocess.run(
        ["git", "-C", repository, "check-ignore", "--no-index", "-z", "--stdin", "-v", "-n"],
        input=b"".join(b"/".join(path) + b"\0" for path in sampled_paths),
        capture_output=True,
        check=False,
    )
    answers = git.stdout.split(b"\0")[:-1]
    assert len(answers) == 4 * len(sampled_paths)
    for path, pattern in zip(sampled_paths, answers[2::4], strict=True):
        expected = bool(pattern) and not pattern.startswith(b"!")
        assert is_excluded(raw, path) == expected, (raw, path)


@pytest.mark.parametrize(
    ("raw", "path", "expected"),
    [
        (b"*.log\n!keep.log", "a/keep.log", False),
        (b"*.log\n!keep.log", "a/b.log", True),
        (b"build/", "build", False),
        (b"build/", "x/build/y", True),
        (b"/build", "x/build", False),
        (b"doc/**/draft.md", "doc/draft.md", True),
        (b"doc/**/draft.md", "doc/a/b/draft.md", True),
        (b"a/**", "a", False),
        (b"\xef\xbb\xbfx.md\r\n", "x.md", True),
        (b"# x.md\n\\#y.md", "#y.md", True),
        (b"x.md  ", "x.md", True),
        (b"x.md\\ ", "x.md ", True),
        (b"folder/\n!folder/kept.md", "folder/kept.md", True),
    ],
)
def test_each_rule_of_gitignore_has_an_example(raw: bytes, path: str, expected: bool) -> None:
    assert is_excluded(raw, tuple(path.encode().split(b"/"))) is expected


def test_hostile_patterns_are_matched_in_bounded_time() -> None:
    """A matcher that backtracks over every star would exceed the timeout of the test."""
    for raw, path in [
        (b"a*" * 2000 + b"b", (b"a" * 4000,)),
        (b"**/" * 1300 + b"x", (b"a",) * 1300),
        (b"/" + b"**/a*b/" * 200 + b"c", (b"ab",) * 400),
        (b"[" * 4000, (b"[" * 200,)),
        (b"*?" * 2000, (b"a" * 200,)),
    ]:
        assert not ignore_file(raw).verdict(path, is_folder=False)


def test_a_hundred_thousand_plain_names_are_matched(tmp_path: Path) -> None:
    raw = b"\n".join(b"name%d" % number for number in range(100_000))
    ignored = ignore_file(raw + b"\n!name5")
    assert ignored.verdict((b"x", b"name99999"), is_folder=False) is True
    assert ignored.verdict((b"name5",), is_folder=False) is False
    assert ignored.verdict((b"other",), is_folder=True) is None
