"""Projects to be wired up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.agents.wiring import FILES, Project
from tests.support.machine import Call


@pytest.fixture
def caches(tmp_path: Path) -> Path:
    """A folder of caches inside the project: a file that a team shares may name no other."""
    caches = tmp_path / "project" / "caches"
    caches.mkdir(parents=True)
    return caches


@pytest.fixture(params=sorted(FILES))
def project(request: pytest.FixtureRequest, tmp_path: Path, call: Call, caches: Path) -> Project:
    return Project(tmp_path / "project", request.param, call, caches)


@pytest.fixture
def vscode(tmp_path: Path, call: Call, caches: Path) -> Project:
    return Project(tmp_path / "project", "vscode", call, caches)


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Durability is tested elsewhere, and a thousand syncs are a minute."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
