"""A watch reports a change once the folder has settled, and ends cleanly."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from contextfold.resolve.build import make_request
from contextfold.resolve.rebuild.watch import PAUSE_MAX_S, PAUSE_MIN_S, RESTLESS_LOOKS_MAX, Watch
from tests.support.machine import COMMAND, ids, write_files
from tests.support.waiting import until


def watch_of(docs: Path) -> Watch:
    request = make_request(
        docs, None, kinds="text", include=None, exclude=None, gitignore=None, defaults=False, force=False
    )
    return Watch(request)


class Steps:
    """Does one thing in each pause; after the last, ends the watch."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps: Iterator[Callable[[], object]] = iter(steps)
        self.pauses = 0

    def __call__(self, seconds: float) -> None:
        assert PAUSE_MIN_S <= seconds <= PAUSE_MAX_S
        self.pauses += 1
        step = next(self._steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()


def changes(watch: Watch, steps: Steps) -> list[int]:
    """After which pauses a change was reported."""
    seen = []
    try:
        for _ in watch.changes(steps):
            seen.append(steps.pauses)
    except KeyboardInterrupt:
        pass
    return seen


def nothing() -> None:
    pass


def test_a_change_is_reported_when_the_folder_is_at_rest(tmp_path: Path) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": "a"})
    writes = [lambda n=n: write_files(docs, {f"{n}.md": "x" * n}) for n in range(3)]
    assert changes(watch_of(docs), Steps(nothing, *writes, nothing, nothing, nothing)) == [5]


def test_new_changed_and_removed_documents_count_and_other_files_do_not(tmp_path: Path) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": "a"})
    steps = Steps(
        lambda: write_files(docs, {"new.md": ""}),
        nothing,
        lambda: write_files(docs, {"a.md": "changed"}),
        nothing,
        (docs / "new.md").unlink,
        nothing,
        lambda: write_files(docs, {"x.png": "", ".context-cache/a.md": ""}),
        nothing,
        lambda: write_files(docs, {".gitignore": "a.md"}),
        nothing,
    )
    assert changes(watch_of(docs), steps) == [2, 4, 6, 10]


def test_a_folder_that_never_rests_is_built_nevertheless(tmp_path: Path) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": ""})
    writes = [lambda n=n: write_files(docs, {"a.md": "x" * n}) for n in range(1, 50)]
    assert changes(watch_of(docs), Steps(*writes)) == [RESTLESS_LOOKS_MAX, 2 * RESTLESS_LOOKS_MAX]


def test_a_folder_that_vanishes_and_returns_is_a_change(tmp_path: Path) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": ""})
    away = tmp_path / "away"
    steps = Steps(lambda: docs.rename(away), nothing, lambda: away.rename(docs), nothing, nothing)
    assert changes(watch_of(docs), steps) == [2, 4]


def test_the_command_builds_again_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": "a"})
    process = subprocess.Popen([COMMAND, "build", docs, "--watch"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "watching" in process.stderr.readline()
        write_files(docs, {"b.md": "b"})
        until(lambda: ids(docs / ".context-cache") == ["a.md", "b.md"])
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    finally:
        process.kill()
        process.communicate()
