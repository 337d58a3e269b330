"""Only regular files are read and mapped."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from contextfold.resolve.files import FileAbsent, NotRegular, map_regular, read_regular


@pytest.mark.parametrize("content_of", [read_regular, map_regular])
def test_anything_but_a_regular_file_is_refused(content_of: Callable[[bytes], object], tmp_path: Path) -> None:
    for name, text in {"full": "text", "empty": ""}.items():
        (tmp_path / name).write_text(text)
        assert content_of(os.fsencode(tmp_path / name)) == text.encode()
    (tmp_path / "link").symlink_to("full")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", ""):
        with pytest.raises(NotRegular):
            content_of(os.fsencode(tmp_path / name))
    with pytest.raises(FileAbsent):
        content_of(os.fsencode(tmp_path / "nothing"))
