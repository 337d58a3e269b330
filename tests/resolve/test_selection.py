"""The same cache and query give the same bytes in every environment, and each choice is explained exactly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextfold import open_cache
from contextfold.cli.main import main
from contextfold.resolve import index_writer, selection
from contextfold.resolve.cache_format import FileNames, document_id
from tests.support import oracle
from tests.support.machine import COMMAND, run_program, times, write_files

# Few letters in many forms, so that words recur and ties are common.
WORDS = st.sampled_from(
    ["guide", "Guide", "GUIDE", "a", "A", "Σ", "ΟΔΟΣ", "οδος", "é", "É", "İ", "guide.", "𐵐", "x\u001cy"]
)
SPACES = st.sampled_from([" ", "\n", "\t", "\r\n", "\u3000", "\u00a0", "  "])
CONTENTS = st.lists(st.tuples(WORDS, SPACES), max_size=25).map(lambda parts: "".join(w + s for w, s in parts).encode())
NAMES = st.lists(
    st.text(st.sampled_from('abABéÉΣσ ._-\\\n"😀0'), min_size=1, max_size=6).filter(
        lambda name: name not in (".", "..")
    ),
    min_size=1,
    max_size=3,
).map(lambda parts: "/".join(parts) + ".md")
QUERIES = st.lists(WORDS, max_size=4).map(" ".join) | st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=20
)
BUDGETS = st.sampled_from([0, 1, 2, 5, 40, 2**63 - 1]) | st.integers(0, 200)


def without_clashes(files: dict[str, bytes]) -> dict[str, bytes]:
    """Drops files that cannot be in one folder together, or that would have the same id."""
    chosen: dict[str, bytes] = {}
    ids: set[str] = set()
    for path, content in files.items():
        name = oracle.document_id(path)
        folders = {"/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 1)}
        used_folders = {
            "/".join(other.split("/")[:depth]) for other in chosen for depth in range(1, other.count("/") + 1)
        }
        if name not in ids and not folders & chosen.keys() and path not in used_folders and not path.endswith("/.md"):
            chosen[path] = content
            ids.add(name)
    return chosen


FOLDERS = st.dictionaries(NAMES, CONTENTS, max_size=8).map(without_clashes)


def build(files: dict[str, bytes], work: Path) -> Path:
    (work / "docs").mkdir()
    write_files(work / "docs", files)
    assert main(["build", "--sources", str(work / "docs"), "--cache", str(work / "cache")]) == 0
    return work / "cache"


@given(files=FOLDERS, query=QUERIES, budget=BUDGETS)
@settings(max_examples=times(30, 5000))
def test_the_answer_is_the_oracles_with_and_without_the_packed_index(
    files: dict[str, bytes], query: str, budget: int
) -> None:
    with tempfile.TemporaryDirectory() as work:
        cache = build(files, Path(work))
        expected = oracle.resolve(files, query, budget)
        assert open_cache(cache).resolve(query, budget).to_json() == expected
        shutil.rmtree(cache / "pack")
        assert open_cache(cache).resolve(query, budget).to_json() == expected


@given(files=FOLDERS, query=QUERIES, budget=BUDGETS)
def test_the_selection_fits_the_budget_and_explains_each_score(
    files: dict[str, bytes], query: str, budget: int
) -> None:
    with tempfile.TemporaryDirectory() as work:
        result = open_cache(build(files, Path(work))).resolve(query, budget)
    assert sum(document.tokens for document in result.documents) == result.selection.tokens_used <= budget
    assert len(result.documents) == result.selection.documents_selected
    for document in result.documents:
        all_words = oracle.words(document.content)
        assert list(document.why.query_terms) == oracle.words(query)
        assert document.why.total_words == len(all_words)
        assert document.why.term_matches == sum(word in oracle.words(query) for word in all_words)
        assert str(document.score) == oracle.score_text(document.why.term_matches, document.why.total_words)
        assert document.tokens == -(-len(document.content.encode()) // 4)


ENVIRONMENTS: list[dict[str, str]] = [
    {"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"},
    {"LC_ALL": "C", "PYTHONHASHSEED": "1"},
    {"LC_ALL": "POSIX", "PYTHONHASHSEED": "2", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.ISO-8859-9", "PYTHONHASHSEED": "3", "TZ": "Pacific/Kiritimati"},
    {"LC_ALL": "de_DE.ISO-8859-1", "PYTHONHASHSEED": "4", "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"},
]


@given(files=FOLDERS, query=QUERIES.filter(lambda text: "\0" not in text), data=st.data())
@settings(max_examples=times(2, 150))
def test_locale_hash_seed_folder_and_file_order_do_not_matter(
    files: dict[str, bytes], query: str, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(list(files)))
    expected = oracle.resolve(files, query, 60).encode()
    manifests = set()
    with tempfile.TemporaryDirectory() as work:
        for number, variables in enumerate(ENVIRONMENTS):
            env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **variables}
            folder = Path(work) / str(number)
            folder.mkdir()
            write_files(folder / "docs", {name: files[name] for name in (order if number % 2 else files)})
            (folder / "docs").mkdir(exist_ok=True)
            cwd, prefix = (folder, "") if number % 2 else (Path("/"), f"{folder}/")
            assert (
                run_program("build", "--sources", f"{prefix}docs", "--cache", f"{prefix}cache", env=env, cwd=cwd).code
                == 0
            )
            ran = run_program(
                "resolve", "--cache", f"{prefix}cache", "--query", query.encode(), "--budget", "60", env=env, cwd=cwd
            )
            assert (ran.code, ran.out) == (0, expected), ran.err
            manifest = json.loads((folder / "cache" / "manifest.json").read_bytes())
            manifests.add(manifest["cache_version"])
    assert len(manifests) == 1


def test_identical_contents_get_numbered_files_in_id_order(tmp_path: Path) -> None:
    cache = build(dict.fromkeys(("c.md", "a.md", "b.md"), b"same"), tmp_path)
    files = [entry["file"] for entry in json.loads((cache / "manifest.json").read_text())["documents"]]
    stem = files[0].removesuffix(".json")
    assert files == [f"{stem}.json", f"{stem}-2.json", f"{stem}-3.json"]


def test_a_word_is_counted_fully_even_beyond_the_range_of_a_posting(tmp_path: Path) -> None:
    files = {"many.md": b"needle " * 200_000 + b"hay", "few.md": b"needle hay", "none.md": b"hay"}
    cache = build(files, tmp_path)
    assert open_cache(cache).resolve("needle hay", 10**9).to_json() == oracle.resolve(files, "needle hay", 10**9)


def test_many_segments_give_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_writer, "SEGMENT_MAX_DOCUMENTS", 7)
    monkeypatch.setattr(index_writer, "BLOCK_TARGET_BYTES", 64)
    files = {f"{n:03}.md": f"w{n % 5} w{n % 11} shared w{n}".encode() for n in range(100)}
    cache = build(files, tmp_path)
    for query in ("shared", "w3", "w7 w99", "absent", "w1 w2 w3 shared"):
        assert open_cache(cache).resolve(query, 50).to_json() == oracle.resolve(files, query, 50)


def test_contents_whose_hashes_begin_alike_get_numbered_files() -> None:
    names = FileNames()
    versions = [f"sha256:{'a' * 12}{tail}" for tail in ("0", "1", "0")] + ["sha256:" + "b" * 64]
    assert [names.next_for(version) for version in versions] == [
        f"documents/{'a' * 12}.json",
        f"documents/{'a' * 12}-2.json",
        f"documents/{'a' * 12}-3.json",
        f"documents/{'b' * 12}.json",
    ]


@pytest.mark.parametrize(
    ("path", "name"), [("./a.md", "a.md"), (".\\A.md", "a.md"), ("././x/./b.md", "x/./b.md"), ("a/./b.md", "a/./b.md")]
)
def test_an_id_has_no_leading_dot_slash(path: str, name: str) -> None:
    assert document_id(path) == name


def test_a_document_full_of_brackets_needs_no_more_memory_than_another(tmp_path: Path) -> None:
    peaks = []
    for name, unit in (("plain", b"ab c "), ("links", b"[a](b) ")):
        (tmp_path / name).mkdir()
        cache = build({"big.md": unit * (4_000_000 // len(unit))}, tmp_path / name)
        shutil.rmtree(cache / "pack")
        argv: list[str | Path] = [COMMAND, "resolve", "--cache", cache, "--query", "x", "--budget", "1"]
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        peaks.append(usage.ru_maxrss)
    assert peaks[1] < 2 * peaks[0]


@given(
    counts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 3)), max_size=12),
    budget=st.integers(0, 40),
)
@settings(max_examples=times(200, 20_000))
def test_the_best_scores_that_fit_are_selected(counts: list[tuple[int, int, int]], budget: int) -> None:
    tokens = [size for size, _, _ in counts]
    total_words = [matches + others for _, matches, others in counts]
    matches = {number: matched for number, (_, matched, _) in enumerate(counts) if matched}
    measures = selection.Measures(tokens, total_words, matches)
    expected, left = [], budget
    for number in sorted(range(len(counts)), key=lambda number: (-measures.score(number), number)):
        if budget and tokens[number] <= left:
            expected.append(number)
            left -= tokens[number]
    assert measures.choose(budget) == expected
