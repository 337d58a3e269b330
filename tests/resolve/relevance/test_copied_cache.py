"""A copied cache: its files are hashed once in a process, and every later change is noticed."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import pytest

from contextfold.errors import CacheInvalid
from contextfold.resolve.index_file import IndexFile
from contextfold.resolve.service import Cache
from tests.resolve.relevance.indexing import build_cache, random_documents
from tests.support.waiting import until


class Copy:
    """The index of a copied cache, with the number of times that the whole cache was examined."""

    def __init__(self, path: Path, *, settled_after_s: float) -> None:
        self.path = path
        self.examined = 0
        self._cache = Cache(path)
        self.files = IndexFile(bytes(path), self._examine, settled_after_s=settled_after_s)

    def _examine(self) -> str:
        self.examined += 1
        return self._cache.verify().cache_version


@pytest.fixture
def path(tmp_path: Path) -> Path:
    build_cache(tmp_path, random_documents(6, 12))
    shutil.copytree(tmp_path / "cache", tmp_path / "copy")
    newest_ns = max(file.stat().st_ctime_ns for file in (tmp_path / "copy").rglob("*"))
    until(lambda: clock_ns(tmp_path / "probe") > newest_ns, every_s=0.002)
    return tmp_path / "copy"


def clock_ns(probe: Path) -> int:
    """The time of the file system's clock. After it has passed all timestamps, every change gets a later one."""
    probe.write_bytes(b"")
    return probe.stat().st_ctime_ns


def test_a_cache_that_travelled_by_tar_verifies_and_answers_the_same(tmp_path: Path) -> None:
    built = build_cache(tmp_path, random_documents(6, 12))
    with tarfile.open(tmp_path / "cache.tgz", "w:gz") as archive:
        archive.add(tmp_path / "cache", "there")
    with tarfile.open(tmp_path / "cache.tgz") as archive:
        archive.extractall(tmp_path, filter="data")
    arrived = Cache(tmp_path / "there")
    assert (arrived.verify().faults, arrived.verify().packed) == ((), False)
    for question in ("deploy the cache", "nothing"):
        assert arrived.ask(question) == built.ask(question)
        assert arrived.resolve(question, 100) == built.resolve(question, 100)


def test_a_copied_cache_is_examined_once_in_a_process(path: Path) -> None:
    copy = Copy(path, settled_after_s=0)
    first = copy.files.open_checked()
    assert copy.files.open_checked() is first
    assert copy.examined == 1


@pytest.mark.parametrize("file", ["pack/index.sqlite", "pack/fingerprints"])
def test_a_change_of_a_remembered_file_is_noticed_although_its_size_and_mtime_stay(path: Path, file: str) -> None:
    copy = Copy(path, settled_after_s=0)
    copy.files.open_checked()
    changed = path / file
    status, raw = changed.stat(), bytearray(changed.read_bytes())
    raw[len(raw) // 2] ^= 1
    changed.write_bytes(raw)
    os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(CacheInvalid):
        copy.files.open_checked()


@pytest.mark.parametrize("file", ["manifest.json", "index.json", "documents/stranger.json", "pack/stranger"])
def test_a_change_beside_the_index_is_examined_again(path: Path, file: str) -> None:
    copy = Copy(path, settled_after_s=0)
    copy.files.open_checked()
    with (path / file).open("ab") as changed:
        changed.write(b" ")
    copy.files.open_checked()
    assert copy.examined == 2


def test_files_that_have_just_been_written_are_hashed_again(path: Path) -> None:
    """They could change once more within the same step of the clock."""
    copy = Copy(path, settled_after_s=3600)
    copy.files.open_checked()
    copy.files.open_checked()
    assert copy.examined == 2


def test_a_file_that_changes_while_the_cache_is_examined_is_not_remembered(path: Path) -> None:
    copy = Copy(path, settled_after_s=0)
    version = Cache(path).verify().cache_version

    def change() -> str:
        copy.examined += 1
        (path / "pack" / "stranger").write_bytes(b"")
        return version

    files = IndexFile(bytes(path), change, settled_after_s=0)
    files.open_checked()
    files.open_checked()
    assert copy.examined == 2
