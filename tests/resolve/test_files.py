"""Only regular files are read, and replaced in one step."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from contextfold.resolve.files import FileAbsent, NotRegular, read_regular, replace_file


def test_anything_but_a_regular_file_is_refused(tmp_path: Path) -> None:
    for name, text in {"full": "text", "empty": ""}.items():
        (tmp_path / name).write_text(text)
        assert read_regular(os.fsencode(tmp_path / name)) == text.encode()
    (tmp_path / "link").symlink_to("full")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", ""):
        with pytest.raises(NotRegular):
            read_regular(os.fsencode(tmp_path / name))
    with pytest.raises(FileAbsent):
        read_regular(os.fsencode(tmp_path / "nothing"))


def _replace_often(path: str, letter: str) -> None:
    for _ in range(20):
        replace_file(path, letter.encode() * 100_000)


def test_a_file_that_processes_replace_at_once_always_has_the_whole_content_of_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with ProcessPoolExecutor(3, multiprocessing.get_context("fork")) as pool:
        running = [pool.submit(_replace_often, str(path), letter) for letter in "abc"]
        while not all(each.done() for each in running):
            content = path.read_bytes() if path.exists() else b""
            assert content in (b"", b"a" * 100_000, b"b" * 100_000, b"c" * 100_000)
        for each in running:
            each.result()
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
