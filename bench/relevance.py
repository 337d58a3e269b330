"""The figures of relevance search: quality, passages, time and size; beside SQLite's FTS5 on the same sections.

Everywhere on our own documentation and on a small set of short documents, with questions written for them. Where the
public sets lie beside the repository, on those too, against the targets. Names of sets can be given as arguments.
"""

from __future__ import annotations

import gc
import json
import lzma
import math
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.commands import PROGRAM
from bench.corpora import HERE
from bench.figures import Figure, ms, peak_mb, show, tell
from contextfold.common.canonical import version_of
from contextfold.common.relevance.question import read_question
from contextfold.common.relevance.token_estimate import EXACT, counter_named, estimate
from contextfold.common.relevance.words import tokens
from contextfold.errors import CounterMissing
from contextfold.resolve.document import Document
from contextfold.resolve.relevance.answer import LINE_BREAKS_TOKENS, breadcrumb
from contextfold.resolve.relevance.index.index_format import IndexView
from contextfold.resolve.relevance.index.index_writer import IndexWriter
from contextfold.resolve.relevance.ranking import RankedSection, rank
from contextfold.resolve.relevance.sections import clean_heading

ROOT = Path(__file__).resolve().parent.parent
PUBLIC = ROOT.parent / "shared" / "relevance"
OWN_TARGET = 0.6
SMALL_TARGET = 0.9
TARGETS = {
    "scifact-train": 0.69,
    "vaswani": 0.43,
    "ghdocs-intro": 0.56,
    "ghdocs-commit": 0.62,
    "k8s-commit": 0.56,
    "angular-code": 0.52,
    "pingcapcn-sum": 0.835,
    "mdn-link": 0.66,
}
INDEX_SHARE = 0.75
BUILD_MB_PER_S = 2.5
WARM_S, WARM_P99_S = 0.012, 0.030
PEAK_MB = 400
REBUILD_SHARE = 0.3
# The median and the 95th percentile of a question as a command, by the number of copies of MDN that are asked.
ONE_SHOT_S = {1: (0.035, 0.050), 7: (0.060, 0.090)}
ONE_SHOT_TIMES = 40
WARM_TIMES = 200
PASSAGES = {1000: 0.44, 4000: 0.725, 8000: 0.80}
ESTIMATE_MEAN, ESTIMATE_P95 = 0.075, 0.20
ESTIMATED_SECTIONS = 700
ESTIMATED_LEAST_TOKENS = 20
P95, P99 = 0.95, 0.99


class Asked(NamedTuple):
    text: str
    rel: Mapping[str, int]
    exclude: frozenset[str]
    # The passage is given by a document and one of its headings.
    passage: tuple[str, str] | None = None


class Indexed(NamedTuple):
    view: IndexView
    contents: bytes
    seconds: float
    index_bytes: int


Search = Callable[[str], list[str]]


def indexed(name: str, documents: Sequence[tuple[str, str]]) -> Indexed:
    """Builds the index of these documents and measures the processor time that it takes."""
    folder = HERE / f"relevance-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "pack").mkdir(parents=True)
    made = [Document(path, version_of(text.encode()), path, text.encode()) for path, text in documents]
    made.sort(key=lambda document: document.id.encode())
    # A build disables the garbage collector too.
    gc.disable()
    begin = time.process_time()
    writer = IndexWriter(bytes(folder) + b"/")
    for document in made:
        writer.add(document)
    head = writer.finish()
    seconds = time.process_time() - begin
    gc.enable()
    raw = (folder / "pack" / "relevance-index").read_bytes()
    contents = (folder / "pack" / "relevance-contents").read_bytes()
    return Indexed(IndexView(head, memoryview(raw)), contents, seconds, len(raw))


def ours(index: Indexed) -> Search:
    def search(query: str) -> list[str]:
        found = rank(read_question(query, 0), [index.view]).documents
        return [index.view.document_id(document.document) for document in found]

    return search


def fts5(index: Indexed, joint: str) -> Search:
    """SQLite's full-text search over the same sections; a document ranks by its best section."""
    base = sqlite3.connect(":memory:")
    base.execute("CREATE VIRTUAL TABLE sections USING fts5(id UNINDEXED, heading, body, tokenize='porter unicode61')")
    base.executemany("INSERT INTO sections VALUES (?, ?, ?)", _sections(index))

    def search(query: str) -> list[str]:
        asked = joint.join(f'"{token}"' for token in dict.fromkeys(tokens(query)))
        if not asked:
            return []
        sql = "SELECT id FROM sections WHERE sections MATCH ? ORDER BY rank LIMIT 200"
        return list(dict.fromkeys(row[0] for row in base.execute(sql, (asked,))))

    return search


def _sections(index: Indexed) -> Iterator[tuple[str, str, str]]:
    view = index.view
    for document in range(view.head.document_count):
        for section in view.sections_of(document):
            start, end = view.section_range(document, section)
            heading = " ".join((view.title(document), *view.headings(section)))
            yield view.document_id(document), heading, index.contents[start:end].decode()


def ndcg_at_10(ranking: Sequence[str], rel: Mapping[str, int]) -> float:
    gain = sum(rel.get(name, 0) / math.log2(place + 2) for place, name in enumerate(ranking[:10]))
    ideal = sum(value / math.log2(place + 2) for place, value in enumerate(sorted(rel.values(), reverse=True)[:10]))
    return gain / ideal


def measured(search: Search, questions: Sequence[Asked]) -> tuple[float, list[float]]:
    """The mean nDCG@10, and the processor time of each question."""
    quality, seconds = 0.0, []
    for question in questions:
        begin = time.process_time()
        found = search(question.text)
        seconds.append(time.process_time() - begin)
        quality += ndcg_at_10([name for name in found if name not in question.exclude], question.rel)
    return quality / len(questions), seconds


def figures_of(name: str, index: Indexed, questions: Sequence[Asked], target: float) -> list[Figure]:
    quality, seconds = measured(ours(index), questions)
    beside = []
    for label, joint in (("AND", " "), ("OR", " OR ")):
        theirs, their_seconds = measured(fts5(index, joint), questions)
        beside.append(f"FTS5 {label} {theirs:.3f} in {ms(statistics.median(their_seconds))}")
    measured_text = f"{quality:.3f} in {ms(statistics.median(seconds))}"
    return [Figure(f"nDCG@10, {name}", measured_text, "; ".join(beside), target / max(quality, 1e-9), 1.0)]


def passages(index: Indexed, questions: Sequence[Asked]) -> list[Figure]:
    """How often the whole passage that is asked for, all pieces of it, is in the answer, by budget."""
    view = index.view
    found = dict.fromkeys(PASSAGES, 0)
    for question in questions:
        assert question.passage is not None
        wanted = _pieces(view, *question.passage)
        excluded = {view.document_number(name.encode()) for name in question.exclude}
        ranking = rank(read_question(question.text, 0), [view])
        sections = [section for section in ranking.sections if section.document not in excluded]
        for budget in PASSAGES:
            selected = _selected(view, sections, budget)
            found[budget] += any(run <= selected for run in wanted)
    return [
        _at_least(f"passage recall at {budget:,} tokens, MDN", found[budget] / len(questions), least)
        for budget, least in PASSAGES.items()
    ]


def _at_least(name: str, measured: float, least: float) -> Figure:
    return Figure(name, f"{measured:.3f}", f"{least:.3f}", least / max(measured, 1e-9), 1.0)


def _pieces(view: IndexView, name: str, heading: str) -> list[set[int]]:
    """The pieces of each section with that heading; where it has no text of its own, the first section below it."""
    document = view.document_number(name.encode())
    assert document is not None
    heading = clean_heading(heading)
    headings = {section: view.headings(section) for section in view.sections_of(document)}
    runs: list[set[int]] = []
    for section, crumbs in headings.items():
        if crumbs[-1:] == (heading,):
            if runs and section - 1 in runs[-1] and headings[section - 1] == crumbs:
                runs[-1].add(section)
            else:
                runs.append({section})
    return runs or [{section} for section, crumbs in headings.items() if heading in crumbs][:1]


def _selected(view: IndexView, sections: Sequence[RankedSection], budget: int) -> set[int]:
    """What the answer selects: in order, skipping what does not fit, breadcrumbs counted."""
    tokens_of, lines = view.column("section_tokens"), view.column("section_lines")
    selected: set[int] = set()
    seen: set[bytes] = set()
    for found in sections:
        section, digest = found.section, view.section_digest(found.section)
        if digest in seen:
            selected.add(section)
        elif tokens_of[section] < budget:
            first = lines[section]
            crumb = breadcrumb(view.document_id(found.document), view.headings(section), (first, first + 40))
            cost = tokens_of[section] + estimate(crumb) + LINE_BREAKS_TOKENS
            if cost <= budget:
                budget -= cost
                selected.add(section)
                seen.add(digest)
    return selected


def estimates(name: str, index: Indexed) -> list[Figure]:
    """How far estimates are from the exact counter, where its vocabulary is installed."""
    try:
        exact = counter_named(EXACT)
    except CounterMissing:
        tell(f"the token estimate of {name} is not measured: the extra {EXACT} is not installed")
        return []
    chance, errors = random.Random(1), []
    for _ in range(ESTIMATED_SECTIONS):
        document = chance.randrange(index.view.head.document_count)
        numbers = index.view.sections_of(document)
        start, end = index.view.section_range(document, chance.choice(numbers)) if numbers else (0, 0)
        text = index.contents[start:end].decode()
        counted = exact(text)
        if counted >= ESTIMATED_LEAST_TOKENS:
            errors.append(abs(estimate(text) - counted) / counted)
    errors.sort()
    mean, p95 = statistics.mean(errors), errors[int(len(errors) * P95)]
    limits = f"{ESTIMATE_MEAN:.1%}, p95 {ESTIMATE_P95:.0%}"
    ratio = max(mean / ESTIMATE_MEAN, p95 / ESTIMATE_P95)
    return [Figure(f"token estimate, {name}", f"{mean:.1%}, p95 {p95:.1%}", limits, ratio, 1.0)]


def commands(documents: Sequence[tuple[str, str]], questions: Sequence[Asked]) -> list[Figure]:
    """Building, rebuilding after one change, and asking, as commands: processor time and memory."""
    context = [sys.executable, "-m", "contextfold"]
    sources, cache = written("relevance-sources", documents, 1), HERE / "relevance-root" / "mdn"
    shutil.rmtree(cache, ignore_errors=True)
    build = [*context, "build", "--sources", str(sources), "--cache", str(cache), "--force"]
    full = processor_time(build)
    size = sum(len(text.encode()) for _, text in documents) / 1e6
    with (sources / documents[0][0]).open("a", encoding="utf-8") as changed:
        changed.write("\nOne more line.\n")
    again = processor_time(build)
    shutil.rmtree(cache)
    peak = peak_mb([context[0], *build[3:]])
    figures = [
        Figure(
            "`context build`, MDN",
            f"{size / full:.2f} MB/s",
            f"{BUILD_MB_PER_S} MB/s",
            BUILD_MB_PER_S * full / size,
            1.0,
        ),
        Figure("rebuild after one changed file", f"{again:.1f} s", f"{full:.1f} s", again / full, REBUILD_SHARE),
        Figure("peak memory of a build", f"{peak:.0f} MB", f"{PEAK_MB} MB", peak / PEAK_MB, 1.0),
        *one_shots(cache, len(documents), questions, ONE_SHOT_S[1]),
        *warm_over_stdio(cache, questions),
    ]
    copies = max(ONE_SHOT_S)
    tell(f"{copies} copies of MDN")
    large = HERE / "relevance-large"
    sources = written("relevance-copies", documents, copies)
    processor_time([*context, "build", "--sources", str(sources), "--cache", str(large), "--force"])
    return figures + one_shots(large, copies * len(documents), questions, ONE_SHOT_S[copies])


def written(name: str, documents: Sequence[tuple[str, str]], copies: int) -> Path:
    """The documents as files, so many times."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    for copy in range(copies):
        for path, text in documents:
            file = folder / (f"copy-{copy}" if copies > 1 else "") / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8", newline="")
    return folder


def one_shots(cache: Path, count: int, questions: Sequence[Asked], limits: tuple[float, float]) -> list[Figure]:
    """A question as a command that `uv` installs, less a bare interpreter, taken in turns."""
    ask = [sys.executable, "-c", PROGRAM, "ask", "--cache", str(cache), "--json"]
    # The first question compiles what it imports.
    processor_time([*ask, questions[0].text])
    shots = sorted(
        processor_time([*ask, question.text]) - processor_time([sys.executable, "-c", "pass"])
        for question in questions[:: max(len(questions) // ONE_SHOT_TIMES, 1)]
    )
    name = f"one-shot ask less an interpreter, {count:,} documents"
    return [
        _at_most(f"{name}, p50", statistics.median(shots), limits[0]),
        _at_most(f"{name}, p95", shots[int(len(shots) * P95)], limits[1]),
    ]


def warm_over_stdio(cache: Path, questions: Sequence[Asked]) -> list[Figure]:
    """A question to a server that has answered before: the processor time of the server and of its worker."""
    if not os.path.exists("/proc/self/schedstat"):
        tell("warm questions are not measured: the system does not tell processor times")
        return []
    argv = [sys.executable, "-m", "contextfold", "serve", "--stdio", "--cache-root", str(cache.parent)]
    server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin
    assert server.stdout
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    seconds = []
    for question in [questions[0], *questions[:WARM_TIMES]]:
        arguments = {"cache": cache.name, "query": question.text, "budget": 4000}
        params = {"name": "context.ask", "arguments": arguments, "_meta": meta}
        before = _run_seconds(server.pid)
        server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode())
        server.stdin.write(b"\n")
        server.stdin.flush()
        assert not json.loads(server.stdout.readline())["result"]["isError"]
        seconds.append(_run_seconds(server.pid) - before)
    server.stdin.close()
    server.wait()
    warm = sorted(seconds[1:])
    return [
        _at_most("warm over stdio, MDN, p50 of processor time", statistics.median(warm), WARM_S),
        _at_most("warm over stdio, MDN, p99 of processor time", warm[int(len(warm) * P99)], WARM_P99_S),
    ]


def _run_seconds(process: int) -> float:
    """The processor time of a process and of its children that are running."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return sum(int(Path(f"/proc/{each}/schedstat").read_text().split()[0]) for each in (process, *children)) / 1e9


def _at_most(name: str, measured: float, most: float) -> Figure:
    return Figure(name, ms(measured), ms(most), measured / most, 1.0)


def processor_time(command: Sequence[str]) -> float:
    """The processor time of a command that finds its modules compiled, as an installed program does."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(HERE / "compiled")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def own_sets() -> list[Figure]:
    """Our documentation, and short documents on many subjects, each with questions written for the purpose."""
    folder, beside = ROOT / "docs", Path(__file__).parent
    documents = [(str(path.relative_to(folder)), path.read_text("utf-8")) for path in sorted(folder.rglob("*.md"))]
    written = json.loads((beside / "relevance_questions.json").read_text("utf-8"))
    small = json.loads((beside / "relevance_set.json").read_text("utf-8"))
    asked = _questions(small["questions"])
    return [
        *figures_of("our documentation", indexed("docs", documents), _questions(written), OWN_TARGET),
        *figures_of("short documents", indexed("own", list(small["documents"].items())), asked, SMALL_TARGET),
    ]


def _questions(written: Sequence[Mapping[str, Any]]) -> list[Asked]:
    return [Asked(item["q"], dict.fromkeys(item["rel"], 1), frozenset()) for item in written]


def public_set(name: str, limit: int | None) -> list[Figure]:
    tell(f"relevance of {name}")
    described = json.loads((PUBLIC / f"{name}.json").read_text("utf-8"))
    questions = [
        Asked(q["q"], q["rel"], frozenset(q.get("exclude", ())), tuple(q["sec"]) if "sec" in q else None)
        for q in described["queries"]
    ][:limit]
    documents = []
    with lzma.open(PUBLIC / described["corpus"], "rt", encoding="utf-8") as lines:
        for line in lines:
            document = json.loads(line)
            documents.append((document["id"], document["text"]))
    index = indexed(name, documents)
    figures = figures_of(name, index, questions, TARGETS[name]) + estimates(name, index)
    if name == "mdn-link":
        text = len(index.contents)
        share, speed = index.index_bytes / text, text / 1e6 / index.seconds
        figures += [
            Figure("index, MDN", f"{index.index_bytes / 1e6:.1f} MB", f"text {text / 1e6:.1f} MB", share, INDEX_SHARE),
            Figure("indexing, MDN", f"{speed:.2f} MB/s", f"{BUILD_MB_PER_S} MB/s", BUILD_MB_PER_S / speed, 1.0),
        ]
        figures += passages(index, questions) + commands(documents, questions)
    return figures


def main(names: Sequence[str] | None = None, limit: int | None = None) -> bool:
    figures = own_sets()
    if PUBLIC.exists():
        for name in TARGETS if names is None else names:
            figures += public_set(name, limit)
    return show("Relevance search", figures)


if __name__ == "__main__":
    main(sys.argv[1:] or None)
