"""A watch reports a change when the folder is quiet again, and ends cleanly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree

import contextfold
from contextfold.resolve.build import PAUSE_MAX_S, PAUSE_MIN_S, RESTLESS_LOOKS_MAX, BuildRequest, Watch
from tests.support.machine import write_files


def watch_of(docs: Path) -> Watch:
    return Watch(BuildRequest(docs))


class Steps:
    """Runs one step in each pause; ends the watch after the last one."""

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


def pauses_with_changes(watch: Watch, steps: Steps) -> list[int]:
    """The numbers of the pauses after which a change was reported."""
    pauses = []
    try:
        for _ in watch.changes(steps):
            pauses.append(steps.pauses)
    except KeyboardInterrupt:
        pass
    return pauses


def no_step() -> None:
    pass


def test_a_change_is_reported_when_the_folder_is_quiet(tmp_path: Path) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": "a"})
    contextfold.build(docs)
    writes = [lambda n=n: write_files(docs, {f"{n}.md": "x" * n}) for n in range(3)]
    assert pauses_with_changes(watch_of(docs), Steps(no_step, *writes, no_step, no_step, no_step)) == [5]


def test_a_cache_that_was_removed_before_the_first_look_is_a_change(tmp_path: Path) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": "a"})
    watch = watch_of(docs)
    contextfold.build(docs)
    rmtree(docs / ".context-cache")
    assert pauses_with_changes(watch, Steps(no_step, no_step, no_step)) == [1]


def test_new_changed_and_removed_documents_are_reported_and_other_files_are_not(tmp_path: Path) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": "a"})
    steps = Steps(
        lambda: write_files(docs, {"new.md": ""}),
        no_step,
        lambda: write_files(docs, {"a.md": "changed"}),
        no_step,
        (docs / "new.md").unlink,
        no_step,
        lambda: write_files(docs, {"x.png": "", ".context-cache/a.md": ""}),
        no_step,
        lambda: write_files(docs, {".gitignore": "a.md"}),
        no_step,
    )
    assert pauses_with_changes(watch_of(docs), steps) == [2, 4, 6, 10]


def test_a_folder_that_changes_all_the_time_is_reported_after_a_limit(tmp_path: Path) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": ""})
    writes = [lambda n=n: write_files(docs, {"a.md": "x" * n}) for n in range(1, 50)]
    assert pauses_with_changes(watch_of(docs), Steps(*writes)) == [RESTLESS_LOOKS_MAX, 2 * RESTLESS_LOOKS_MAX]


def test_a_folder_that_is_removed_and_restored_is_reported(tmp_path: Path) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": ""})
    away = tmp_path / "away"
    steps = Steps(lambda: docs.rename(away), no_step, lambda: away.rename(docs), no_step, no_step)
    assert pauses_with_changes(watch_of(docs), steps) == [2, 4]
