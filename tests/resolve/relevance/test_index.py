"""The index on disk: the same bytes however it was made, and no damage to it ever becomes an answer."""

from __future__ import annotations

import faulthandler
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from contextfold import open_cache
from contextfold.cache_errors import CacheInvalid
from contextfold.common.canonical import Malformed
from contextfold.common.relevance.question import read_question
from contextfold.errors import ContextError
from contextfold.resolve.relevance.index.index_format import (
    COLUMNS,
    IndexHead,
    IndexView,
    encode_postings,
    integers,
    to_bytes,
)
from contextfold.resolve.relevance.ranking import rank
from contextfold.serve.worker import Worker, WorkerFailed
from tests.resolve.relevance.indexing import built, some_documents, written
from tests.support.forked import forker
from tests.support.machine import ROOT, context, from_sources, interpreters, times, write_files

INDEX = "pack/relevance-index"
PATIENCE_S = 60
KILLER = ROOT / "tests" / "resolve" / "killed_build.py"


def index_of(folder: Path) -> bytes:
    return (folder / INDEX).read_bytes()


def test_runs_in_temporary_files_give_the_same_bytes(tmp_path: Path) -> None:
    files = some_documents(1, 25)
    written(tmp_path / "one", files)
    written(tmp_path / "many", files, run_entries=50)
    assert index_of(tmp_path / "one") == index_of(tmp_path / "many")
    assert sorted(os.listdir(tmp_path / "many" / "pack")) == ["relevance-contents", "relevance-index"]


@pytest.mark.parametrize("seed", range(times(3, 40)))
def test_a_rebuild_gives_the_bytes_of_a_build_from_nothing(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    before = some_documents(seed, 20)
    previous = written(tmp_path / "before", before).view
    after = {name: text for name, text in before.items() if chance.random() < 0.8}
    after |= {name: text + "\n\nchanged deploy\n" for name, text in after.items() if chance.random() < 0.2}
    after |= some_documents(seed + 100, 5)
    written(tmp_path / "rebuilt", after, previous=previous, run_entries=100)
    written(tmp_path / "new", after)
    assert index_of(tmp_path / "rebuilt") == index_of(tmp_path / "new")


def test_the_order_in_which_files_are_met_does_not_matter(tmp_path: Path) -> None:
    files = some_documents(2, 15)
    shuffled = list(files.items())
    random.Random(5).shuffle(shuffled)
    written(tmp_path / "one", files)
    written(tmp_path / "other", dict(shuffled))
    assert index_of(tmp_path / "one") == index_of(tmp_path / "other")


def test_an_index_of_the_other_byte_order_reads_the_same(tmp_path: Path) -> None:
    """As a machine of the other byte order sees it: every integer swapped before it is used."""
    view = written(tmp_path / "index", some_documents(3, 15)).view
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
    places, at = {}, 0
    for name, raw in columns.items():
        places[name] = (at, len(raw))
        at += len(raw)
    head = IndexHead(*view.head[:-1], columns=places)
    swapped = IndexView(head, memoryview(b"".join(columns.values())), swap=True)
    for query in ("deploy the cache", "getHttpResponse", "数据库"):
        question = read_question(query, 1)
        assert rank(question, [swapped]).sections == rank(question, [view]).sections


def test_integers_are_little_endian_whatever_the_machine() -> None:
    assert list(integers(memoryview(b"\1\0\2\0"), "H")) == [1, 2]
    assert to_bytes("I", [1]) == b"\1\0\0\0"
    with pytest.raises(Malformed):
        integers(memoryview(b"\1\0\2"), "H")


ASK = """
import sys
from contextfold import open_cache
sys.stdout.write(open_cache(sys.argv[1]).ask("rollback of the deployment 数据库 café getHttpResponse", 700).to_json())
"""


def test_every_python_and_hash_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    write_files(tmp_path / "docs", some_documents(4, 20))
    seen = set()
    for number, python in enumerate([*interpreters().values(), sys.executable]):
        cache = tmp_path / f"cache-{number}"
        env = {**os.environ, **from_sources(), "PYTHONHASHSEED": str(number)}
        argv = [str(python), "-m", "contextfold", "build", "--sources", str(tmp_path / "docs"), "--cache", str(cache)]
        subprocess.run(argv, env=env, check=True, capture_output=True, timeout=120)
        ask = [str(python), "-c", ASK, str(cache)]
        asked = subprocess.run(ask, env=env, check=True, capture_output=True, timeout=120)
        seen.add((index_of(cache), (cache / "pack/relevance-contents").read_bytes(), asked.stdout))
    assert len(seen) == 1


@pytest.mark.parametrize("file", ["pack/relevance-index", "pack/relevance-contents", "pack/relevance-head"])
def test_a_flipped_bit_or_a_cut_is_always_noticed(file: str, tmp_path: Path) -> None:
    cache = built(tmp_path, some_documents(6, 12))
    path = tmp_path / "cache" / file
    whole = path.read_bytes()
    chance = random.Random(file)
    for _ in range(times(25, 400)):
        at = chance.randrange(len(whole))
        damaged = bytearray(whole)
        damaged[at] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged if chance.random() < 0.7 else whole[:at])
        with pytest.raises(CacheInvalid):
            cache.ask("deploy cache", 500)
    path.write_bytes(whole)
    assert cache.ask("deploy cache", 500).documents


def test_no_offset_of_a_damaged_index_is_followed(tmp_path: Path) -> None:
    """Below the hashes: a view over damaged bytes gives an answer or Malformed, and never reads outside of them."""
    view = written(tmp_path / "index", some_documents(6, 12)).view
    whole = index_of(tmp_path / "index")
    chance = random.Random(1)
    for _ in range(times(150, 3000)):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[chance.randrange(len(whole))] = chance.randrange(256)
        try:
            rank(read_question("deploy the cache rollback", 1), [IndexView(view.head, memoryview(bytes(damaged)))])
        except (Malformed, IndexError, ValueError):
            pass


@pytest.mark.parametrize("file", ["pack/relevance-index", "pack/relevance-contents", "pack/relevance-head"])
def test_verify_reports_a_damaged_file_of_the_index(file: str, tmp_path: Path) -> None:
    cache = built(tmp_path, some_documents(6, 5))
    assert not cache.verify().faults
    path = tmp_path / "cache" / file
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    assert [fault.file for fault in cache.verify().faults] == [file]


@pytest.mark.parametrize("file", ["manifest.json", "index.json", "documents"])
def test_a_changed_frame_is_an_error(file: str, tmp_path: Path) -> None:
    cache = built(tmp_path, some_documents(6, 5))
    path = tmp_path / "cache" / file
    if path.is_dir():
        (path / "stranger.json").write_text("{}")
    else:
        path.write_text("{}")
    with pytest.raises(CacheInvalid):
        cache.ask("deploy", 100)


def test_a_copied_cache_is_hashed_and_answers_the_same(tmp_path: Path) -> None:
    cache = built(tmp_path, some_documents(6, 12))
    shutil.copytree(tmp_path / "cache", tmp_path / "copy")
    assert open_cache(tmp_path / "copy").ask("deploy cache", 900) == cache.ask("deploy cache", 900)


def test_the_index_of_another_cache_is_refused(tmp_path: Path) -> None:
    built(tmp_path / "a", some_documents(6, 5))
    other = built(tmp_path / "b", some_documents(7, 5))
    for name in ("relevance-index", "relevance-contents", "relevance-head"):
        shutil.copy(tmp_path / "a" / "cache" / "pack" / name, tmp_path / "b" / "cache" / "pack" / name)
    with pytest.raises(CacheInvalid):
        other.ask("deploy", 100)


def test_a_cache_without_the_index_asks_for_a_rebuild_and_still_resolves(tmp_path: Path) -> None:
    cache = built(tmp_path, {"a.md": "deploy guide"})
    for name in ("relevance-index", "relevance-contents", "relevance-head"):
        (tmp_path / "cache" / "pack" / name).unlink()
    with pytest.raises(CacheInvalid, match="context build --force"):
        cache.ask("deploy", 100)
    assert cache.resolve("deploy", 100).documents


def test_an_index_that_is_a_link_is_refused(tmp_path: Path) -> None:
    cache = built(tmp_path, {"a.md": "deploy guide"})
    path = tmp_path / "cache" / INDEX
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ContextError):
        cache.ask("deploy", 100)


@pytest.mark.parametrize("step", range(3, times(40, 90), times(9, 1)))
def test_a_build_that_is_killed_leaves_the_old_answer_or_the_new_one(step: int, tmp_path: Path) -> None:
    write_files(tmp_path / "old", {"a.md": "old deploy"})
    write_files(tmp_path / "new", {"a.md": "new deploy", "b.md": "more deploy"})
    assert context("build", "--sources", tmp_path / "old", "--cache", tmp_path / "c").code == 0
    argv = ["build", "--sources", str(tmp_path / "new"), "--cache", str(tmp_path / "c"), "--force"]
    forker().run([str(KILLER), "exchange", str(step), *argv], PATIENCE_S)
    found = {document.id for document in open_cache(tmp_path / "c").ask("deploy", 500).documents}
    assert found in ({"a.md"}, {"a.md", "b.md"})


def test_a_file_that_is_cut_during_a_question_costs_that_question(tmp_path: Path) -> None:
    """The system ends a process that reads a page of a mapped file which is gone. A server loses its worker alone."""
    cache = built(tmp_path, some_documents(6, 12))
    path = tmp_path / "cache" / INDEX
    whole = path.read_bytes()

    def respond(request: bytes) -> bytes:
        view = cache.mapped_index().view
        if request == b"cut":
            # The death of this process is expected, and its report would look like a failure of the suite.
            faulthandler.disable()
            os.truncate(path, 0)
        return view.document_id(0).encode()

    worker = Worker(respond)
    try:
        assert worker.ask(b"", 30)
        with pytest.raises(WorkerFailed):
            worker.ask(b"cut", 30)
        with pytest.raises(CacheInvalid):
            cache.ask("deploy", 100)
        path.write_bytes(whole)
        assert worker.ask(b"", 30)
    finally:
        worker.stop()


def test_a_warm_cache_notices_a_rebuild(tmp_path: Path) -> None:
    cache = built(tmp_path, {"a.md": "deploy guide"})
    assert not cache.ask("rollback", 100).documents
    built(tmp_path, {"a.md": "rollback guide"})
    assert cache.ask("rollback", 100).documents
