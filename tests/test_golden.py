"""The command gives the recorded answers, on every Python of this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.golden import replay
from tests.support.machine import (
    COMMAND,
    GOLDEN,
    SHARED,
    SOAK,
    Call,
    command_of,
    interpreters,
    times,
)

PYTHONS = interpreters()
CASES = sorted(path.parent for path in GOLDEN.glob("cases/*/case.json"))
# These have 16 million words, the limit of what a 32-bit float can count, and take ten seconds each.
# tests/common/test_float32.py tests scores at that limit too.
LARGE = ("score_tiny_1_16777216", "score_tiny_1_16777217", "score_tiny_1_16777219")
SAMPLE = CASES if SOAK else [case for case in CASES if case.name not in LARGE]
COMPAT = sorted(path.parent for path in SHARED.glob("compat/cases/*/case.json"))


def run_in_this_process(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """Run the command in this process where possible, because a new process takes ten times as long as most cases."""
    run_new_process = replay.run

    def run(work: str, step: dict[str, Any]) -> subprocess.CompletedProcess[bytes]:
        argv = [str(COMMAND), *step["argv"]]
        if step.get("user"):
            done: subprocess.CompletedProcess[bytes] = run_new_process(work, step)
            return done
        env = {**os.environ, **step["env"]} if "env" in step else None
        ran = call(*step["argv"], env=env, cwd=Path(work))
        return subprocess.CompletedProcess(argv, ran.code, ran.out, os.fsencode(ran.err))

    monkeypatch.setattr(replay, "CONTEXT", [str(COMMAND)])
    monkeypatch.setattr(replay, "run", run)


def name_of(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("case", SAMPLE, ids=name_of)
def test_the_command_gives_the_recorded_answer(case: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    run_in_this_process(monkeypatch, call)
    assert replay.faults(str(case)) == []


@pytest.mark.parametrize("case", SAMPLE[:: times(12, 1)], ids=name_of)
def test_the_installed_command_gives_the_recorded_answer_too(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "CONTEXT", [str(COMMAND)])
    assert replay.faults(str(case)) == []


@pytest.mark.parametrize("version", list(PYTHONS)[1:])
@pytest.mark.parametrize("case", [case for case in CASES if case.name not in LARGE][:: times(28, 1)], ids=name_of)
def test_every_other_python_gives_the_recorded_answer(
    case: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests a sample; `make pythons` runs all cases on each Python."""
    monkeypatch.setattr(replay, "CONTEXT", command_of(PYTHONS[version]))
    assert replay.faults(str(case)) == []


@pytest.mark.parametrize("case", COMPAT, ids=name_of)
def test_caches_of_the_reference_implementation_give_the_recorded_answer(
    case: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    run_in_this_process(monkeypatch, call)
    assert replay.faults(str(case)) == []


def test_no_recorded_case_was_lost() -> None:
    assert len(CASES) == 137
