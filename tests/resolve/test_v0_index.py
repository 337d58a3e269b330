"""The index saves `resolve` work and never changes an answer. It is trusted only for files that did not change."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextfold import open_cache
from contextfold.resolve import cache_writer
from contextfold.resolve.cache import CacheFolder
from contextfold.resolve.cache_format import ABSENT
from contextfold.resolve.service import Cache
from tests.resolve.test_rebuild import is_trusted
from tests.support.machine import Call, as_nobody, times, write_files

QUESTION = ("guide deployment", 4000)


def answer(cache: Path) -> str:
    return open_cache(cache).resolve(*QUESTION).to_json()


def test_after_a_build_every_file_is_trusted(cache: Path) -> None:
    assert is_trusted(cache)


def test_an_untouched_document_is_not_opened_unless_selected(cache: Path) -> None:
    script = f"""
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from contextfold import open_cache
open_cache({str(cache)!r}).resolve("security", 7)
print([name for name in opened if ".json" in name])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    # This is security.md, which is selected.
    assert "473e53dd51fa.json" in done.stdout
    assert "19835fc46fd4.json" not in done.stdout
    assert "manifest.json" not in done.stdout


@given(data=st.data())
@settings(max_examples=times(25, 3000))
def test_a_damaged_index_changes_no_answer(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, call: Call
) -> None:
    work = tmp_path_factory.mktemp("damaged")
    write_files(work / "docs", {f"{n}.md": f"guide {n} deployment{n % 3}" for n in range(6)})
    assert call("build", "--sources", work / "docs", "--cache", work / "cache").code == 0
    expected = answer(work / "cache")
    path = work / "cache" / "pack" / data.draw(st.sampled_from(["index.sqlite", "fingerprints"]))
    raw = bytearray(path.read_bytes())
    offset = data.draw(st.integers(0, len(raw) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "grow", "zero"])):
        case "flip":
            raw[offset] ^= data.draw(st.integers(1, 255))
        case "cut":
            del raw[offset:]
        case "grow":
            raw[offset:offset] = bytes(data.draw(st.integers(1, 9)))
        case "zero":
            raw[offset:] = bytes(len(raw) - offset)
    path.write_bytes(raw)
    assert answer(work / "cache") == expected


@pytest.mark.parametrize("file", ["index.sqlite", "fingerprints"])
def test_a_folder_or_pipe_or_nothing_instead_of_the_index_changes_no_answer(file: str, cache: Path) -> None:
    expected = answer(cache)
    path = cache / "pack" / file
    path.unlink()
    assert answer(cache) == expected
    path.mkdir()
    assert answer(cache) == expected
    path.rmdir()
    os.mkfifo(path)
    assert answer(cache) == expected


def test_the_index_of_another_cache_changes_no_answer(cache: Path, tmp_path: Path, call: Call) -> None:
    expected = answer(cache)
    write_files(tmp_path / "others", {"deployment.md": "nothing", "security.md": "else guide", "notes/empty.md": "x"})
    assert call("build", "--sources", tmp_path / "others", "--cache", tmp_path / "other").code == 0
    shutil.rmtree(cache / "pack")
    shutil.copytree(tmp_path / "other" / "pack", cache / "pack")
    assert answer(cache) == expected


def test_an_index_behind_a_link_is_not_followed(cache: Path, tmp_path: Path) -> None:
    expected = answer(cache)
    (cache / "pack").rename(tmp_path / "elsewhere")
    (cache / "pack").symlink_to(tmp_path / "elsewhere")
    assert CacheFolder(os.fsencode(cache)).open_index() is None
    assert answer(cache) == expected


def test_a_file_written_in_the_same_clock_tick_as_the_record_is_not_trusted(
    sources: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands still during the build, so every file could still change without a new timestamp."""
    monkeypatch.setattr(cache_writer.CacheWriter, "_clock_after", lambda _build, seen: min(seen[1::4]))
    assert call("build", "--sources", sources, "--cache", tmp_path / "c").code == 0
    assert not is_trusted(tmp_path / "c")
    assert call("resolve", "--cache", tmp_path / "c", "--query", "guide", "--budget", 4000).code == 0


def test_an_open_cache_notices_every_change_before_it_answers(cache: Path) -> None:
    opened = Cache(cache)
    first = opened.resolve(*QUESTION)
    document = cache / "documents" / "19835fc46fd4.json"
    before = document.read_bytes()
    document.write_bytes(before.replace(b"guide.", b"guide!"))
    with pytest.raises(Exception, match="19835fc46fd4"):
        opened.resolve("security", 7)
    document.write_bytes(before)
    assert opened.resolve(*QUESTION) == first
    shutil.rmtree(cache / "pack")
    assert opened.resolve(*QUESTION) == first


def test_an_open_cache_uses_the_files_of_a_rebuild(cache: Path, sources: Path, call: Call) -> None:
    opened = Cache(cache)
    assert opened.resolve("new", 4000).documents[0].why.term_matches == 0
    (sources / "new.md").write_text("new")
    assert call("build", "--sources", sources, "--cache", cache, "--force").code == 0
    assert opened.resolve("new", 4000).documents[0].id == "new.md"


def test_reading_writes_nothing_into_a_cache(cache: Path, call: Call) -> None:
    def state() -> dict[str, tuple[int, int, int]]:
        return {
            str(p): (p.lstat().st_mtime_ns, p.lstat().st_ctime_ns, p.lstat().st_size)
            for p in [cache, *cache.rglob("*")]
        }

    before = state()
    call("resolve", "--cache", cache, "--query", "guide", "--budget", 4000)
    call("inspect", "--cache", cache)
    call("verify", "--cache", cache)
    assert state() == before


@pytest.mark.parametrize("inode", [2**63 + 5, 2**64 - 1])
def test_inodes_beyond_63_bits_are_distinguished(
    inode: int, cache: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """Some network file systems use such numbers."""
    real = os.lstat

    def lstat(path: bytes, *, dir_fd: int | None = None) -> os.stat_result:
        status = real(path, dir_fd=dir_fd)
        if b".json" not in os.fsencode(path):
            return status
        times_ns = {"st_mtime_ns": status.st_mtime_ns, "st_ctime_ns": status.st_ctime_ns}
        return os.stat_result([status.st_mode, inode - len(os.path.basename(path)), *list(status)[2:]], times_ns)

    docs = cache.parent / "docs"
    monkeypatch.setattr(os, "lstat", lstat)
    assert call("build", "--sources", docs, "--cache", cache, "--force").code == 0
    assert is_trusted(cache)
    (cache / "documents" / "19835fc46fd4.json").unlink()
    assert call("resolve", "--cache", cache, "--query", "security", "--budget", 7).code == 5


def test_nothing_is_trusted_if_the_file_system_lets_ctime_be_set(
    sources: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.lstat

    def lstat(path: bytes, *, dir_fd: int | None = None) -> os.stat_result:
        status = real(path, dir_fd=dir_fd)
        return os.stat_result(list(status), {"st_mtime_ns": status.st_mtime_ns, "st_ctime_ns": status.st_mtime_ns})

    monkeypatch.setattr(os, "lstat", lstat)
    assert call("build", "--sources", sources, "--cache", tmp_path / "c").code == 0
    assert not is_trusted(tmp_path / "c")


def test_a_file_without_a_fingerprint_is_not_trusted(
    sources: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_fingerprints(_prefix: bytes, files: list[bytes]) -> array[int]:
        return array("q", [*ABSENT] * len(files))

    with monkeypatch.context() as patch:
        patch.setattr(cache_writer, "fingerprints", no_fingerprints)
        assert call("build", "--sources", sources, "--cache", tmp_path / "c").code == 0
    (tmp_path / "c" / "documents" / "19835fc46fd4.json").unlink()
    assert call("resolve", "--cache", tmp_path / "c", "--query", "security", "--budget", 7).code == 5


@given(data=st.data())
@settings(max_examples=times(25, 3000))
def test_a_wrong_record_with_a_valid_checksum_causes_no_crash(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, call: Call
) -> None:
    """The record may be from an attacker or another version. It must not be trusted, and it must not cause a crash."""
    work = tmp_path_factory.mktemp("malice")
    write_files(work / "docs", {f"{n}.md": f"guide {n}" for n in range(3)})
    assert call("build", "--sources", work / "docs", "--cache", work / "cache").code == 0
    path = work / "cache" / "pack" / "fingerprints"
    _, head_line, rest = path.read_bytes().split(b"\n", 2)
    head = json.loads(head_line)
    name = data.draw(st.sampled_from(sorted(head)))
    wrong_values = (
        st.none()
        | st.integers(-1, 2**70)
        | st.text(max_size=3)
        | st.lists(st.integers(0, 99) | st.text(max_size=2), max_size=12)
    )
    head[name] = data.draw(wrong_values)
    body = json.dumps(head).encode() + b"\n" + rest[data.draw(st.integers(0, 9)) :]
    path.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    assert call("resolve", "--cache", work / "cache", "--query", "guide", "--budget", 50).code in (0, 5)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
@pytest.mark.parametrize("file", ["pack", "pack/index.sqlite", "pack/fingerprints"])
def test_an_index_without_read_permission_changes_no_answer(file: str, cache: Path, tmp_path: Path) -> None:
    expected = answer(cache)
    (cache / file).chmod(0)
    ran = as_nobody(tmp_path, "resolve", "--cache", str(cache), "--query", QUESTION[0], "--budget", str(QUESTION[1]))
    assert (ran.returncode, ran.stdout) == (0, expected)


def test_files_of_absurd_size_are_not_read(cache: Path) -> None:
    expected = answer(cache)
    for name in ("index.sqlite", "fingerprints"):
        os.truncate(cache / "pack" / name, 200 * 2**30)
        assert answer(cache) == expected
