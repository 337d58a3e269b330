"""Cache roots for the tests of the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machine import Call


@pytest.fixture
def own_root(sources: Path, tmp_path: Path, call: Call) -> Path:
    """A cache root with one cache, `docs`."""
    root = tmp_path / "caches"
    assert call("build", "--sources", sources, "--cache", root / "docs").code == 0
    return root


@pytest.fixture
def root(own_root: Path) -> Path:
    """A cache root with one cache, `docs`. Files whose tests change nothing replace this by one root for the module."""
    return own_root
