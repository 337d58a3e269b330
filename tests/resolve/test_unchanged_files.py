"""The check of many files gives the same result in several processes as in one; a failed process counts as a change."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from contextfold.resolve import processes as child_processes
from contextfold.resolve.files import fingerprints
from contextfold.resolve.processes import UnchangedFiles
from contextfold.resolve.service import Cache
from tests.support.machine import Call, write_files

# The test runner has threads, but the child processes of these tests need none of them.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

FILES = [f"documents/{number}.json".encode() for number in range(9)]
FEW_FILES = 2
PROCESSES = 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path, {name.decode(): f"content of {name!r}" for name in FILES})
    return tmp_path


@pytest.fixture(params=["one process", "several processes"])
def processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    several = request.param == "several processes"
    monkeypatch.setattr(child_processes, "FILES_PER_PROCESS", FEW_FILES if several else len(FILES))
    monkeypatch.setattr(child_processes, "processors", lambda: PROCESSES)
    children: list[int] = []
    fork = os.fork

    def recorded_fork() -> int:
        children.append(fork())
        return children[-1]

    monkeypatch.setattr(os, "fork", recorded_fork)
    yield request.param
    assert bool(children) == several
    for child in children:
        with pytest.raises(ChildProcessError):
            os.waitpid(child, os.WNOHANG)


def check(folder: Path) -> UnchangedFiles:
    prefix = os.path.join(os.fsencode(folder), b"")
    return UnchangedFiles(os.fsencode(folder), FILES, fingerprints(prefix, FILES), uses_processes=True)


@pytest.mark.parametrize("processes", ["several processes"], indirect=True)
def test_a_killed_process_counts_as_a_change(folder: Path, processes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_processes, "_are_as_recorded", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    assert not check(folder).result()


def test_files_count_as_changed_if_the_status_of_child_processes_is_unknown(folder: Path, processes: str) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert check(folder).result() == (processes == "one process")
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_resolve_in_several_processes_answers_the_same_and_notices_a_change(
    tmp_path: Path, call: Call, processes: str
) -> None:
    write_files(tmp_path / "docs", {f"{number}.md": f"guide number {number}" for number in range(9)})
    assert call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c").code == 0
    result = Cache(tmp_path / "c", uses_processes=True).resolve("number 7", 6)
    assert [document.id for document in result.documents] == ["7.md"]
    document = sorted((tmp_path / "c" / "documents").iterdir())[3]
    document.write_bytes(document.read_bytes().replace(b"guide", b"Guide"))
    with pytest.raises(Exception, match=document.name):
        Cache(tmp_path / "c", uses_processes=True).resolve("number 7", 6)
