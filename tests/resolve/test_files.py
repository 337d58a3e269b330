"""Only regular files are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from contextfold.resolve.files import FileAbsent, NotRegular, read_regular


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
