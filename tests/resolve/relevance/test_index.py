"""The index on disk: every way to build it gives the same answers, and a damaged index never gives one."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from contextfold import open_cache
from contextfold.errors import CacheInvalid, ContextError
from contextfold.resolve import index_writer
from contextfold.resolve.fingerprint_record import decode_record
from tests.resolve.killed_build import kill_at_step
from tests.resolve.relevance.indexing import build_cache, random_documents
from tests.support.machine import Call, from_sources, interpreters, run_command, times, write_files
from tests.support.processes import run_in_fork

INDEX = "pack/index.sqlite"
FILES = [INDEX, "pack/fingerprints"]


def test_an_index_of_many_segments_gives_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = random_documents(1, 25)
    one = build_cache(tmp_path / "one", files)
    monkeypatch.setattr(index_writer, "SEGMENT_MAX_DOCUMENTS", 3)
    many = build_cache(tmp_path / "many", files)
    for question in ("deploy the cache", "getHttpResponse", "数据库", "rollback of folded tokens"):
        assert many.ask(question) == one.ask(question)
        assert many.resolve(question, 500) == one.resolve(question, 500)


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
        results.add(answer.stdout)
    assert len(results) == 1


@pytest.mark.parametrize("file", FILES)
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


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE terms SET documents = x'00'",
        "UPDATE terms SET sections = x'ffff', fields = x'01'",
        "UPDATE terms SET word = 7, counts = 'text'",
        "DELETE FROM documents",
        "DELETE FROM sections",
        "DELETE FROM segments",
        "UPDATE segments SET lengths = x'00', tokens = 'text'",
        "UPDATE sections SET headings = 5, start = -9, tokens = 'many'",
        "UPDATE words SET counts = x'00'",
        "DROP TABLE terms",
        "DROP TABLE words; CREATE VIEW words AS SELECT 0 AS segment, '' AS first_word, randomblob(99) AS counts",
    ],
)
def test_an_index_with_wrong_values_and_a_right_hash_causes_no_crash(change: str, tmp_path: Path) -> None:
    """It may be from an attacker, who can compute hashes."""
    cache = build_cache(tmp_path, random_documents(6, 12))
    expected = cache.resolve("deploy cache", 500)
    path = tmp_path / "cache" / INDEX
    with sqlite3.connect(path) as connection:
        connection.executescript(change)
    connection.close()
    record_path = tmp_path / "cache" / "pack" / "fingerprints"
    record = decode_record(record_path.read_bytes())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    record_path.write_bytes(record._replace(index_bytes=path.stat().st_size, index_sha256=digest).to_bytes())
    try:
        cache.ask("deploy cache", 500)
    except CacheInvalid:
        pass
    if "words" in change or "DROP" in change or "segments" in change:
        assert cache.resolve("deploy cache", 500) == expected


@pytest.mark.parametrize("file", FILES)
def test_verify_reports_a_damaged_derived_file_and_the_cache_stays_valid(file: str, tmp_path: Path, call: Call) -> None:
    cache = build_cache(tmp_path, random_documents(6, 5))
    assert not cache.verify().derived
    path = tmp_path / "cache" / file
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    assert [fault.file for fault in cache.verify().derived] == [file]
    ran = call("verify", "--cache", tmp_path / "cache")
    assert (ran.code, ran.out[:3]) == (0, b"ok:")
    assert ran.err.startswith(f"note: {file}: ")
    assert "only derived" in ran.err


def test_verify_reports_the_derived_files_of_another_cache(tmp_path: Path) -> None:
    for name, seed in (("a", 6), ("b", 7)):
        build_cache(tmp_path / name, random_documents(seed, 5))
    shutil.rmtree(tmp_path / "a" / "cache" / "pack")
    shutil.copytree(tmp_path / "b" / "cache" / "pack", tmp_path / "a" / "cache" / "pack")
    verification = open_cache(tmp_path / "a" / "cache").verify()
    assert not verification.faults
    assert {fault.file for fault in verification.derived} == {"pack/fingerprints"}


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
    for name in FILES:
        shutil.copy(tmp_path / "a" / "cache" / name, tmp_path / "b" / "cache" / name)
    with pytest.raises(CacheInvalid):
        other.ask("deploy", 100)


def test_without_the_index_ask_suggests_a_rebuild_and_resolve_works(tmp_path: Path) -> None:
    cache = build_cache(tmp_path, {"a.md": "deploy guide"})
    for name in FILES:
        (tmp_path / "cache" / name).unlink()
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


def test_a_selected_document_that_was_changed_in_place_is_an_error(tmp_path: Path) -> None:
    cache = build_cache(tmp_path, {"a.md": "# Deploy\n\nguide", "b.md": "# Other\n\ntext"})
    assert cache.ask("deploy", 100).documents
    for path in (tmp_path / "cache" / "documents").iterdir():
        path.write_bytes(path.read_bytes().replace(b"guide", b"guile"))
    with pytest.raises(CacheInvalid):
        cache.ask("deploy", 100)
    with pytest.raises(CacheInvalid):
        open_cache(tmp_path / "cache").get("a.md")


def test_a_warm_cache_notices_a_rebuild(tmp_path: Path) -> None:
    cache = build_cache(tmp_path, {"a.md": "deploy guide"})
    assert not cache.ask("rollback", 100).documents
    build_cache(tmp_path, {"a.md": "rollback guide"})
    assert cache.ask("rollback", 100).documents
