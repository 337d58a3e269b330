"""The index on disk: every way to build it gives the same bytes, and a damaged index never gives an answer."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from contextfold import open_cache
from contextfold.common.canonical import Malformed
from contextfold.common.question import read_question
from contextfold.errors import CacheInvalid, ContextError
from contextfold.resolve.relevance.index_format import (
    COLUMNS,
    IndexHead,
    IndexView,
    encode_postings,
    integers,
    to_bytes,
)
from contextfold.resolve.relevance.ranking import rank
from contextfold.serve.worker import Worker, WorkerFailed
from tests.resolve.killed_build import kill_at_step
from tests.resolve.relevance.indexing import build_cache, edited_documents, random_documents, write_index
from tests.support.machine import from_sources, interpreters, run_command, times, write_files
from tests.support.processes import run_in_fork

INDEX = "pack/relevance-index"


def index_bytes(folder: Path) -> bytes:
    return (folder / INDEX).read_bytes()


def test_an_index_written_in_many_runs_has_the_same_bytes(tmp_path: Path) -> None:
    files = random_documents(1, 25)
    write_index(tmp_path / "one", files)
    write_index(tmp_path / "many", files, run_entries=50)
    assert index_bytes(tmp_path / "one") == index_bytes(tmp_path / "many")
    assert sorted(os.listdir(tmp_path / "many" / "pack")) == ["relevance-contents", "relevance-index"]


@pytest.mark.parametrize("seed", range(times(3, 40)))
def test_a_rebuilt_index_has_the_bytes_of_a_new_one(seed: int, tmp_path: Path) -> None:
    before = random_documents(seed, 20)
    previous = write_index(tmp_path / "before", before).view
    after = edited_documents(seed, before, changed_share=0.2, added=5)
    write_index(tmp_path / "rebuilt", after, previous=previous, run_entries=100)
    write_index(tmp_path / "new", after)
    assert index_bytes(tmp_path / "rebuilt") == index_bytes(tmp_path / "new")


def test_the_order_of_files_does_not_change_the_index(tmp_path: Path) -> None:
    files = random_documents(2, 15)
    shuffled = list(files.items())
    random.Random(5).shuffle(shuffled)
    write_index(tmp_path / "one", files)
    write_index(tmp_path / "other", dict(shuffled))
    assert index_bytes(tmp_path / "one") == index_bytes(tmp_path / "other")


def test_an_index_of_the_other_byte_order_gives_the_same_ranking(tmp_path: Path) -> None:
    """Simulates a machine of the other byte order: every integer is swapped before it is used."""
    view = write_index(tmp_path / "index", random_documents(3, 15)).view
    columns: dict[str, bytes] = {}
    postings, offsets = bytearray(), []
    for number in range(view.head.term_count):
        offsets.append(len(postings) // 4)
        raw = encode_postings(view.postings(number, view.key(number)), view.head.document_count, swap=True)
        postings += raw
    for name, code in COLUMNS.items():
        raw = bytes(view._raw[name])
        columns[name] = to_bytes(code, integers(memoryview(raw), code), swap=True) if code else raw
    columns["postings"] = bytes(postings)
    columns["term_postings"] = to_bytes("I", offsets, swap=True)
    column_ranges, offset = {}, 0
    for name, raw in columns.items():
        column_ranges[name] = (offset, len(raw))
        offset += len(raw)
    head = IndexHead(*view.head[:-1], columns=column_ranges)
    swapped = IndexView(head, memoryview(b"".join(columns.values())), swap=True)
    for query in ("deploy the cache", "getHttpResponse", "数据库"):
        question = read_question(query, 1)
        assert rank(question, [swapped]).sections == rank(question, [view]).sections


def test_integers_are_little_endian() -> None:
    assert list(integers(memoryview(b"\1\0\2\0"), "H")) == [1, 2]
    assert to_bytes("I", [1]) == b"\1\0\0\0"
    with pytest.raises(Malformed):
        integers(memoryview(b"\1\0\2"), "H")


ASK_SCRIPT = """
import sys
from contextfold import open_cache
sys.stdout.write(open_cache(sys.argv[1]).ask("rollback of the deployment 数据库 café getHttpResponse", 700).to_json())
"""


def test_every_python_and_hash_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    write_files(tmp_path / "docs", random_documents(4, 20))
    results = set()
    for number, python in enumerate([*interpreters().values(), sys.executable]):
        cache = tmp_path / f"cache-{number}"
        env = {**os.environ, **from_sources(), "PYTHONHASHSEED": str(number)}
        argv = [str(python), "-m", "contextfold", "build", "--sources", str(tmp_path / "docs"), "--cache", str(cache)]
        subprocess.run(argv, env=env, check=True, capture_output=True, timeout=120)
        ask_command = [str(python), "-c", ASK_SCRIPT, str(cache)]
        answer = subprocess.run(ask_command, env=env, check=True, capture_output=True, timeout=120)
        results.add((index_bytes(cache), (cache / "pack/relevance-contents").read_bytes(), answer.stdout))
    assert len(results) == 1


@pytest.mark.parametrize("file", ["pack/relevance-index", "pack/relevance-contents", "pack/relevance-head"])
def test_a_flipped_bit_or_a_truncation_is_always_noticed(file: str, tmp_path: Path) -> None:
    cache = build_cache(tmp_path, random_documents(6, 12))
    path = tmp_path / "cache" / file
    intact = path.read_bytes()
    rng = random.Random(file)
    for _ in range(times(25, 400)):
        offset = rng.randrange(len(intact))
        damaged = bytearray(intact)
        damaged[offset] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged if rng.random() < 0.7 else intact[:offset])
        with pytest.raises(CacheInvalid):
            cache.ask("deploy cache", 500)
    path.write_bytes(intact)
    assert cache.ask("deploy cache", 500).documents


def test_a_view_of_a_damaged_index_never_reads_outside_of_it(tmp_path: Path) -> None:
    """Without a check of hashes, a view of damaged bytes gives an answer or Malformed and reads only these bytes."""
    view = write_index(tmp_path / "index", random_documents(6, 12)).view
    intact = index_bytes(tmp_path / "index")
    rng = random.Random(1)
    for _ in range(times(150, 3000)):
        damaged = bytearray(intact)
        for _ in range(3):
            damaged[rng.randrange(len(intact))] = rng.randrange(256)
        with contextlib.suppress(Malformed, IndexError, ValueError):
            rank(read_question("deploy the cache rollback", 1), [IndexView(view.head, memoryview(bytes(damaged)))])


@pytest.mark.parametrize("file", ["pack/relevance-index", "pack/relevance-contents", "pack/relevance-head"])
def test_verify_reports_a_damaged_file_of_the_index(file: str, tmp_path: Path) -> None:
    cache = build_cache(tmp_path, random_documents(6, 5))
    assert not cache.verify().faults
    path = tmp_path / "cache" / file
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    assert [fault.file for fault in cache.verify().faults] == [file]


@pytest.mark.parametrize("file", ["manifest.json", "index.json", "documents"])
def test_a_changed_manifest_index_or_folder_is_an_error(file: str, tmp_path: Path) -> None:
    cache = build_cache(tmp_path, random_documents(6, 5))
    path = tmp_path / "cache" / file
    if path.is_dir():
        (path / "stranger.json").write_text("{}")
    else:
        path.write_text("{}")
    with pytest.raises(CacheInvalid):
        cache.ask("deploy", 100)


def test_the_index_of_another_cache_is_refused(tmp_path: Path) -> None:
    build_cache(tmp_path / "a", random_documents(6, 5))
    other = build_cache(tmp_path / "b", random_documents(7, 5))
    for name in ("relevance-index", "relevance-contents", "relevance-head"):
        shutil.copy(tmp_path / "a" / "cache" / "pack" / name, tmp_path / "b" / "cache" / "pack" / name)
    with pytest.raises(CacheInvalid):
        other.ask("deploy", 100)


def test_without_the_index_ask_suggests_a_rebuild_and_resolve_works(tmp_path: Path) -> None:
    cache = build_cache(tmp_path, {"a.md": "deploy guide"})
    for name in ("relevance-index", "relevance-contents", "relevance-head"):
        (tmp_path / "cache" / "pack" / name).unlink()
    with pytest.raises(CacheInvalid, match=r"context build DIR --cache .* --force"):
        cache.ask("deploy", 100)
    assert cache.resolve("deploy", 100).documents


def test_an_index_that_is_a_link_is_refused(tmp_path: Path) -> None:
    cache = build_cache(tmp_path, {"a.md": "deploy guide"})
    path = tmp_path / "cache" / INDEX
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ContextError):
        cache.ask("deploy", 100)


@pytest.mark.parametrize("step", range(3, times(40, 90), times(9, 1)))
def test_after_a_killed_build_the_answer_is_the_old_or_the_new_one(step: int, tmp_path: Path) -> None:
    write_files(tmp_path / "old", {"a.md": "old deploy"})
    write_files(tmp_path / "new", {"a.md": "new deploy", "b.md": "more deploy"})
    assert run_command("build", "--sources", tmp_path / "old", "--cache", tmp_path / "c").code == 0
    argv = ["build", "--sources", str(tmp_path / "new"), "--cache", str(tmp_path / "c"), "--force"]
    run_in_fork(*argv, prepare=partial(kill_at_step, step))
    ids = {document.id for document in open_cache(tmp_path / "c").ask("deploy", 500).documents}
    assert ids in ({"a.md"}, {"a.md", "b.md"})


def test_a_truncation_during_a_question_ends_only_the_worker(tmp_path: Path) -> None:
    """The system kills a process that reads a truncated page of a mapped file. A server loses only its worker."""
    cache = build_cache(tmp_path, random_documents(6, 12))
    path = tmp_path / "cache" / INDEX
    intact = path.read_bytes()

    def respond(request: bytes) -> bytes:
        view = cache.mapped_index().view
        if request == b"cut":
            # This process is expected to be killed. A report of faulthandler would look like a failure of the suite.
            faulthandler.disable()
            os.truncate(path, 0)
        return view.document_id(0).encode()

    worker = Worker(respond)
    try:
        assert worker.call(b"", 30)
        with pytest.raises(WorkerFailed):
            worker.call(b"cut", 30)
        with pytest.raises(CacheInvalid):
            cache.ask("deploy", 100)
        path.write_bytes(intact)
        assert worker.call(b"", 30)
    finally:
        worker.stop()


def test_a_warm_cache_notices_a_rebuild(tmp_path: Path) -> None:
    cache = build_cache(tmp_path, {"a.md": "deploy guide"})
    assert not cache.ask("rollback", 100).documents
    build_cache(tmp_path, {"a.md": "rollback guide"})
    assert cache.ask("rollback", 100).documents
