"""A watch keeps the cache there, and says what it leaves out."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

import pytest

from tests.support.machine import COMMAND, Call, ids, write_files
from tests.support.waiting import until


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return write_files(tmp_path / "docs", {"a.md": "a"})


@pytest.fixture
def watch(docs: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([COMMAND, "build", docs, "--watch"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "watching" in process.stderr.readline()
        yield process
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.usefixtures("watch")
def test_a_change_is_built(docs: Path) -> None:
    write_files(docs, {"b.md": "b"})
    until(lambda: ids(docs / ".context-cache") == ["a.md", "b.md"])


def test_a_removed_cache_is_built_again(docs: Path, watch: subprocess.Popen[str]) -> None:
    rmtree(docs / ".context-cache")
    until((docs / ".context-cache" / "manifest.json").exists)
    assert ids(docs / ".context-cache") == ["a.md"]
    assert watch.poll() is None


def test_a_file_that_is_left_out_later_is_reported(docs: Path, watch: subprocess.Popen[str]) -> None:
    assert watch.stderr is not None
    write_files(docs, {"b.md": b"\xff\xfe"})
    assert "1 not UTF-8" in watch.stderr.readline()
    (docs / "b.md").unlink()
    assert "nothing" in watch.stderr.readline()


@pytest.mark.parametrize("pattern", ["[ab]", "*", "**", "/drafts/**/x[0-9].md", "!a", "a\\[", "[!a]"])
def test_a_pattern_that_can_match_is_taken(pattern: str, docs: Path, call: Call) -> None:
    assert call("build", docs, "--include", pattern).code == 0
