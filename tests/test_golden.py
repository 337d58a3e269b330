"""The recorded answers, on every Python of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import replay
from tests.support.machine import COMMAND, GOLDEN, SHARED, command_of, interpreters

PYTHONS = interpreters()
CASES = sorted(path.parent for path in GOLDEN.glob("cases/*/case.json"))
COMPAT = sorted(path.parent for path in SHARED.glob("compat/cases/*/case.json"))


def name_of(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_installed_command_gives_the_recorded_answer(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "CONTEXT", [str(COMMAND)])
    assert replay.faults(str(case)) == []


@pytest.mark.parametrize("version", list(PYTHONS)[1:])
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_other_python_gives_the_same(case: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "CONTEXT", command_of(PYTHONS[version]))
    assert replay.faults(str(case)) == []


@pytest.mark.parametrize("case", COMPAT, ids=name_of)
def test_caches_of_the_reference_read_the_same(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "CONTEXT", [str(COMMAND)])
    assert replay.faults(str(case)) == []


def test_no_recorded_case_was_lost() -> None:
    assert len(CASES) == 137
