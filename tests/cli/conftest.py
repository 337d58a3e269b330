"""Fixtures of the tests of `context install`: projects of each host, and a faster disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.agents.wiring import FILES, HostProject
from tests.support.machine import Call


@pytest.fixture
def caches(tmp_path: Path) -> Path:
    """A folder of caches inside the project. Files that a team shares may name only such folders."""
    caches = tmp_path / "project" / "caches"
    caches.mkdir(parents=True)
    return caches


@pytest.fixture(params=sorted(FILES))
def project(request: pytest.FixtureRequest, tmp_path: Path, call: Call, caches: Path) -> HostProject:
    return HostProject(tmp_path / "project", request.param, call, caches)


@pytest.fixture
def vscode(tmp_path: Path, call: Call, caches: Path) -> HostProject:
    return HostProject(tmp_path / "project", "vscode", call, caches)


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips fsync. Durability is tested elsewhere, and a thousand syncs take a minute."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
