"""A build whose words are counted by child processes gives the same bytes, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import contextfold
from contextfold.errors import StorageFailed
from contextfold.resolve.relevance import counting_processes, index_writer
from contextfold.resolve.relevance.counting_processes import FAILED, ChildProcesses
from contextfold.resolve.relevance.index_merge import RUN_PREFIX
from tests.resolve.relevance.indexing import edited_documents, random_documents, write_index
from tests.serve.stdio_client import is_running
from tests.support.machine import leftover_files, times, write_files
from tests.support.waiting import until

# The test runner has threads, but the child processes of these tests need none of them.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

FEW_BYTES = 500
PROCESSES = 3
# The `context` command on a machine with three processors, where children count the first documents, too.
COMMAND = f"""
from contextfold.resolve import cache_writer
from contextfold.resolve.relevance import counting_processes, index_writer
cache_writer.processors = lambda: {PROCESSES}
index_writer.COUNTED_ALONE_BYTES = 0
counting_processes.BATCH_BYTES = {FEW_BYTES}
%s
from contextfold.cli.main import run
run()
"""
# The parent waits while its children wait for it.
STOPS_BEFORE_THE_END = "import time; counting_processes.CountingProcesses.rows = lambda self: time.sleep(60)"
# A child has three descriptors of the build, and its file of rows.
DESCRIPTORS_OF_A_CHILD = 4


@pytest.fixture(autouse=True)
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Children count small documents, too, and none is left when the test ends."""
    monkeypatch.setattr(index_writer, "COUNTED_ALONE_BYTES", FEW_BYTES)
    monkeypatch.setattr(counting_processes, "BATCH_BYTES", FEW_BYTES)
    children: list[int] = []
    fork = os.fork

    def recorded_fork() -> int:
        children.append(fork())
        return children[-1]

    monkeypatch.setattr(os, "fork", recorded_fork)
    yield
    for child in children:
        with pytest.raises(ChildProcessError):
            os.waitpid(child, os.WNOHANG)


def packed_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "pack").iterdir()}


@pytest.mark.parametrize("processes", [2, 3, 5])
def test_an_index_counted_by_children_has_the_same_bytes(processes: int, tmp_path: Path) -> None:
    files = random_documents(processes, 40)
    write_index(tmp_path / "one", files)
    write_index(tmp_path / "several", files, processes=processes)
    write_index(tmp_path / "runs", files, processes=processes, run_entries=100)
    assert packed_files(tmp_path / "several") == packed_files(tmp_path / "one")
    assert packed_files(tmp_path / "runs") == packed_files(tmp_path / "one")


@pytest.mark.parametrize("seed", range(times(3, 40)))
def test_an_index_rebuilt_by_children_has_the_bytes_of_a_new_one(seed: int, tmp_path: Path) -> None:
    before = random_documents(seed, 30)
    previous = write_index(tmp_path / "before", before).view
    after = edited_documents(seed, before, changed_share=0.5, added=15)
    write_index(tmp_path / "rebuilt", after, previous=previous, processes=2)
    write_index(tmp_path / "new", after)
    assert packed_files(tmp_path / "rebuilt") == packed_files(tmp_path / "new")


def test_a_killed_child_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = ChildProcesses.start
    monkeypatch.setattr(ChildProcesses, "start", lambda self, _run: start(self, lambda: FAILED))
    with pytest.raises(StorageFailed, match="run the build again"):
        write_index(tmp_path, random_documents(1, 40), processes=2)


def test_a_child_that_cannot_write_fails_the_build_with_the_reason(tmp_path: Path) -> None:
    write_files(tmp_path, {f"pack/{RUN_PREFIX}1-0": "this name is taken"})
    with pytest.raises(StorageFailed, match="File exists"):
        write_index(tmp_path, random_documents(1, 40), processes=2)


@pytest.mark.parametrize("started", [0, 1])
def test_a_system_without_room_for_processes_builds_in_one(
    started: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = random_documents(1, 40)
    write_index(tmp_path / "one", files)
    fork = os.fork
    forks = iter(range(10))

    def refuse() -> int:
        if next(forks) < started:
            return fork()
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refuse)
    write_index(tmp_path / "several", files, processes=2)
    assert packed_files(tmp_path / "several") == packed_files(tmp_path / "one")


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    return write_files(tmp_path / "docs", {f"{number}.md": f"word{number} and more " * 300 for number in range(400)})


def start_build(documents: Path, cache: Path, code: str = "") -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", COMMAND % code, "build", "--sources", str(documents), "--cache", str(cache)]
    return subprocess.Popen(argv)


def start_stopped_build(documents: Path, cache: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A build that does not end by itself, and its children."""
    process = start_build(documents, cache, STOPS_BEFORE_THE_END)

    def children() -> list[int]:
        return [int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]

    until(lambda: len(children()) == PROCESSES)
    for child in children():
        until(lambda child=child: len(os.listdir(f"/proc/{child}/fd")) <= DESCRIPTORS_OF_A_CHILD)  # type: ignore[misc]
    return process, children()


def test_the_children_of_a_killed_build_end_and_the_next_build_succeeds(documents: Path, tmp_path: Path) -> None:
    process, children = start_stopped_build(documents, tmp_path / "c")
    process.kill()
    process.wait()
    contextfold.build(documents, tmp_path / "c", kinds="markdown")
    assert contextfold.open_cache(tmp_path / "c").verify().faults == ()
    until(lambda: not any(map(is_running, children)))
    assert leftover_files(tmp_path / "c") == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_build_ended_by_a_signal_leaves_no_files_and_no_children(
    number: signal.Signals, documents: Path, tmp_path: Path
) -> None:
    process, children = start_stopped_build(documents, tmp_path / "c")
    process.send_signal(number)
    assert process.wait() == 128 + number
    assert not any(map(is_running, children))
    assert os.listdir(tmp_path) == ["docs"]


@pytest.mark.parametrize("before", ["exec 0<&- 1>&- 2>&-", "trap '' CHLD"])
def test_a_build_succeeds_without_streams_and_without_the_status_of_children(
    before: str, documents: Path, tmp_path: Path
) -> None:
    argv = [sys.executable, "-c", COMMAND % "", "build", "--sources", str(documents), "--cache", str(tmp_path / "c")]
    assert subprocess.run(["bash", "-c", f'{before}; exec "$@"', "bash", *argv], check=False).returncode == 0
    assert contextfold.open_cache(tmp_path / "c").verify().faults == ()


def test_a_command_that_builds_in_several_processes_makes_the_same_cache(documents: Path, tmp_path: Path) -> None:
    assert start_build(documents, tmp_path / "several").wait() == 0
    contextfold.build(documents, tmp_path / "one", kinds="markdown")
    several, one = packed_files(tmp_path / "several"), packed_files(tmp_path / "one")
    assert several.keys() == one.keys()
    for name in ("postings", "relevance-index", "relevance-contents"):
        assert several[name] == one[name]
