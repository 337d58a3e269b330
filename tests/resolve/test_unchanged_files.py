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
from tests.support.waiting import until

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


def test_untouched_files_are_unchanged(folder: Path, processes: str) -> None:
    assert check(folder).result()


@pytest.mark.parametrize("number", [0, 4, 8])
@pytest.mark.parametrize("change", ["content", "time", "removed", "replaced", "link"])
def test_any_changed_file_is_noticed(folder: Path, processes: str, number: int, change: str) -> None:
    prefix = os.path.join(os.fsencode(folder), b"")
    recorded = fingerprints(prefix, FILES)
    path = folder / FILES[number].decode()
    match change:
        case "content":
            path.write_text("other")
        case "time":
            os.utime(path, ns=(1, 1))
        case "removed":
            path.unlink()
        case "replaced":
            copy = folder / "copy"
            copy.write_bytes(path.read_bytes())
            copy.replace(path)
        case "link":
            path.rename(folder / "elsewhere")
            path.symlink_to(folder / "elsewhere")
    assert not UnchangedFiles(os.fsencode(folder), FILES, recorded, uses_processes=True).result()


def test_a_closed_check_leaves_no_process(folder: Path, processes: str) -> None:
    check(folder).close()


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


def test_a_server_and_the_library_start_no_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_processes, "FILES_PER_PROCESS", FEW_FILES)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a process was started"))
    recorded = fingerprints(os.path.join(os.fsencode(folder), b""), FILES)
    assert UnchangedFiles(os.fsencode(folder), FILES, recorded, uses_processes=False).result()


@pytest.mark.parametrize("processes", ["several processes"], indirect=True)
def test_an_interrupt_while_waiting_leaves_no_process(
    folder: Path, processes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = check(folder)
    wait_for = child_processes.wait_for
    waited: list[int] = []

    def interrupted(child: int) -> int:
        if waited:
            raise KeyboardInterrupt
        waited.append(child)
        return wait_for(child)

    monkeypatch.setattr(child_processes, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        running.result()
    monkeypatch.setattr(child_processes, "wait_for", wait_for)
    running.close()


@pytest.mark.parametrize("processes", ["several processes"], indirect=True)
def test_children_that_nobody_waits_for_are_closed_without_an_error(folder: Path, processes: str) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        running = check(folder)
        until(lambda: not any(Path(f"/proc/{child}").exists() for child in running._children._children))
        running.close()
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
