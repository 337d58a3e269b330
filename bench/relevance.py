"""The figures of relevance search: quality, passages, time and size, next to SQLite's FTS5 on the same sections.

They are measured on our own documentation and on a small set of short documents, with questions written for them. If
the public sets are in a folder next to the repository, they are measured too. Names of sets can be given as arguments.
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
from bench.figures import Figure, ms, peak_with_children_mb, report_progress, show
from contextfold.common.question import read_question
from contextfold.common.tokens import EXACT, counter_named, estimate
from contextfold.common.words import tokens
from contextfold.errors import CounterMissing
from contextfold.resolve.cache_format import Document, version_of
from contextfold.resolve.index import Index, IndexedSection
from contextfold.resolve.index_writer import IndexWriter
from contextfold.resolve.relevance.answer import LINE_BREAKS_TOKENS, breadcrumb
from contextfold.resolve.relevance.ranking import Ranking, rank
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
INDEX_SHARE = 1.0
BUILD_MB_PER_S = 1.5
WARM_S, WARM_P99_S = 0.030, 0.060
PEAK_MB = 400
REBUILD_SHARE = 0.3
# The median and the 95th percentile of a question as a command, less five starts of an interpreter, by the number of
# copies of MDN in the cache.
ONE_SHOT_S = {1: (0.030, 0.050), 7: (0.080, 0.120)}
ONE_SHOT_STARTS = 5
ONE_SHOT_TIMES = 40
WARM_TIMES = 200
PASSAGES = {1000: 0.44, 4000: 0.725, 8000: 0.80}
ESTIMATE_MEAN, ESTIMATE_P95 = 0.075, 0.20
ESTIMATED_SECTIONS = 700
ESTIMATED_LEAST_TOKENS = 20
P95, P99 = 0.95, 0.99


class LabelledQuestion(NamedTuple):
    text: str
    rel: Mapping[str, int]
    exclude: frozenset[str]
    # The passage is given by a document and one of its headings.
    passage: tuple[str, str] | None = None


class BuiltIndex(NamedTuple):
    reader: Index
    contents: Sequence[bytes]
    seconds: float
    index_bytes: int


Search = Callable[[str], list[str]]


def build_index(name: str, documents: Sequence[tuple[str, str]]) -> BuiltIndex:
    """Builds the index of these documents and measures the processor time that it takes."""
    folder = HERE / f"relevance-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    entries = [Document(path, version_of(text.encode()), path, text.encode()) for path, text in documents]
    entries.sort(key=lambda document: document.id.encode())
    # A build disables the garbage collector too.
    gc.disable()
    begin = time.process_time()
    path = bytes(folder / "index.sqlite")
    writer = IndexWriter(path)
    for document in entries:
        writer.add(document)
    writer.finish({})
    seconds = time.process_time() - begin
    gc.enable()
    return BuiltIndex(Index(path), [document.content for document in entries], seconds, os.path.getsize(path))


def ours(index: BuiltIndex) -> Search:
    def search(query: str) -> list[str]:
        documents = rank(read_question(query, 0), [index.reader]).documents
        return [index.reader.document(document.document).id for document in documents]

    return search


def fts5(index: BuiltIndex, operator: str) -> Search:
    """SQLite's full-text search over the same sections; a document ranks by its best section."""
    base = sqlite3.connect(":memory:")
    base.execute("CREATE VIRTUAL TABLE sections USING fts5(id UNINDEXED, heading, body, tokenize='porter unicode61')")
    base.executemany("INSERT INTO sections VALUES (?, ?, ?)", _sections(index))

    def search(query: str) -> list[str]:
        match = operator.join(f'"{token}"' for token in dict.fromkeys(tokens(query)))
        if not match:
            return []
        sql = "SELECT id FROM sections WHERE sections MATCH ? ORDER BY rank LIMIT 200"
        return list(dict.fromkeys(row[0] for row in base.execute(sql, (match,))))

    return search


def _sections(index: BuiltIndex) -> Iterator[tuple[str, str, str]]:
    for number, document in enumerate(index.reader.documents()):
        for section in index.reader.sections_of(number):
            heading = " ".join((document.title, *section.headings))
            yield document.id, heading, index.contents[number][section.start : section.end].decode()


def ndcg_at_10(ranking: Sequence[str], rel: Mapping[str, int]) -> float:
    gain = sum(rel.get(name, 0) / math.log2(position + 2) for position, name in enumerate(ranking[:10]))
    ideal = sum(
        value / math.log2(position + 2) for position, value in enumerate(sorted(rel.values(), reverse=True)[:10])
    )
    return gain / ideal


def measured(search: Search, questions: Sequence[LabelledQuestion]) -> tuple[float, list[float]]:
    """The mean nDCG@10, and the processor time of each question."""
    quality, seconds = 0.0, []
    for question in questions:
        begin = time.process_time()
        hits = search(question.text)
        seconds.append(time.process_time() - begin)
        quality += ndcg_at_10([name for name in hits if name not in question.exclude], question.rel)
    return quality / len(questions), seconds


def figures_of(name: str, index: BuiltIndex, questions: Sequence[LabelledQuestion], target: float) -> list[Figure]:
    quality, seconds = measured(ours(index), questions)
    yardsticks = []
    for label, operator in (("AND", " "), ("OR", " OR ")):
        theirs, their_seconds = measured(fts5(index, operator), questions)
        yardsticks.append(f"FTS5 {label} {theirs:.3f} in {ms(statistics.median(their_seconds))}")
    own_s, their_s = statistics.median(seconds), statistics.median(their_seconds)
    measured_text = f"{quality:.3f} in {ms(own_s)}"
    figures = [Figure(f"nDCG@10, {name}", measured_text, "; ".join(yardsticks), target / max(quality, 1e-9), 1.0)]
    if name == "mdn-link":
        figures.append(Figure("ranking a question, MDN", ms(own_s), f"FTS5 OR {ms(their_s)}", own_s / their_s, 1.0))
    return figures


def passages(index: BuiltIndex, questions: Sequence[LabelledQuestion]) -> list[Figure]:
    """How often the answer has the complete passage, by budget."""
    reader = index.reader
    recalled = dict.fromkeys(PASSAGES, 0)
    for question in questions:
        assert question.passage is not None
        name, heading = question.passage
        number = reader.document_number(name)
        assert number is not None
        wanted = _pieces(number, reader.sections_of(number), heading)
        excluded = {reader.document_number(name) for name in question.exclude}
        ranking = rank(read_question(question.text, 0), [reader])
        sections = [section for section in ranking.sections if section.document not in excluded]
        for budget in PASSAGES:
            selected = _selected(reader, ranking._replace(sections=sections), budget)
            recalled[budget] += any(run <= selected for run in wanted)
    return [
        _at_least(f"passage recall at {budget:,} tokens, MDN", recalled[budget] / len(questions), least)
        for budget, least in PASSAGES.items()
    ]


def _at_least(name: str, measured: float, least: float) -> Figure:
    return Figure(name, f"{measured:.3f}", f"{least:.3f}", least / max(measured, 1e-9), 1.0)


def _pieces(document: int, sections: Sequence[IndexedSection], heading: str) -> list[set[tuple[int, int]]]:
    """The pieces of each section with that heading; if it has no text, the first section below it."""
    heading = clean_heading(heading)
    runs: list[set[tuple[int, int]]] = []
    for at, section in enumerate(sections):
        if section.headings[-1:] == (heading,):
            if runs and (document, at - 1) in runs[-1] and sections[at - 1].headings == section.headings:
                runs[-1].add((document, at))
            else:
                runs.append({(document, at)})
    return runs or [{(document, at)} for at, section in enumerate(sections) if heading in section.headings][:1]


def _selected(reader: Index, ranking: Ranking, budget: int) -> set[tuple[int, int]]:
    """The sections that an answer selects: in order, without those that do not fit; breadcrumbs count."""
    selected: set[tuple[int, int]] = set()
    seen: set[bytes] = set()
    for ranked in ranking.sections:
        place = (ranked.document, ranked.section)
        section = ranking.sections_of[ranked.cache, ranked.document][ranked.section]
        if section.digest in seen:
            selected.add(place)
        elif section.tokens < budget:
            lines = (section.first_line, section.last_line)
            crumb = breadcrumb(reader.document(ranked.document).id, section.headings, lines)
            cost = section.tokens + estimate(crumb) + LINE_BREAKS_TOKENS
            if cost <= budget:
                budget -= cost
                selected.add(place)
                seen.add(section.digest)
    return selected


def estimates(name: str, index: BuiltIndex) -> list[Figure]:
    """The errors of estimates compared with the exact counter, if its vocabulary is installed."""
    try:
        exact = counter_named(EXACT)
    except CounterMissing:
        report_progress(f"the token estimate of {name} is not measured: the extra {EXACT} is not installed")
        return []
    rng, errors = random.Random(1), []
    for _ in range(ESTIMATED_SECTIONS):
        document = rng.randrange(index.reader.document_count)
        sections = index.reader.sections_of(document)
        section = rng.choice(sections) if sections else None
        text = index.contents[document][section.start : section.end].decode() if section else ""
        counted = exact(text)
        if counted >= ESTIMATED_LEAST_TOKENS:
            errors.append(abs(estimate(text) - counted) / counted)
    errors.sort()
    mean, p95 = statistics.mean(errors), errors[int(len(errors) * P95)]
    limits = f"{ESTIMATE_MEAN:.1%}, p95 {ESTIMATE_P95:.0%}"
    ratio = max(mean / ESTIMATE_MEAN, p95 / ESTIMATE_P95)
    return [Figure(f"token estimate, {name}", f"{mean:.1%}, p95 {p95:.1%}", limits, ratio, 1.0)]


def commands(documents: Sequence[tuple[str, str]], questions: Sequence[LabelledQuestion]) -> list[Figure]:
    """Build, rebuild after one change, and ask as commands: processor time and memory."""
    context = [sys.executable, "-m", "contextfold"]
    sources, cache = write_documents("relevance-sources", documents, 1), HERE / "relevance-root" / "mdn"
    shutil.rmtree(cache, ignore_errors=True)
    build = [*context, "build", "--sources", str(sources), "--cache", str(cache), "--force"]
    full = processor_time(build)
    size = sum(len(text.encode()) for _, text in documents) / 1e6
    with (sources / documents[0][0]).open("a", encoding="utf-8") as changed:
        changed.write("\nOne more line.\n")
    rebuild = processor_time(build)
    shutil.rmtree(cache)
    peak = peak_with_children_mb(build)
    figures = [
        Figure(
            "`context build`, MDN",
            f"{size / full:.2f} MB/s",
            f"{BUILD_MB_PER_S} MB/s",
            BUILD_MB_PER_S * full / size,
            1.0,
        ),
        Figure("rebuild after one changed file", f"{rebuild:.1f} s", f"{full:.1f} s", rebuild / full, REBUILD_SHARE),
        Figure("peak memory of a build", f"{peak:.0f} MB", f"{PEAK_MB} MB", peak / PEAK_MB, 1.0),
        *one_shots(cache, len(documents), questions, ONE_SHOT_S[1]),
        *warm_over_stdio(cache, questions),
    ]
    copies = max(ONE_SHOT_S)
    report_progress(f"{copies} copies of MDN")
    large = HERE / "relevance-large"
    sources = write_documents("relevance-copies", documents, copies)
    processor_time([*context, "build", "--sources", str(sources), "--cache", str(large), "--force"])
    return figures + one_shots(large, copies * len(documents), questions, ONE_SHOT_S[copies])


def write_documents(name: str, documents: Sequence[tuple[str, str]], copies: int) -> Path:
    """Writes the documents as files, this many times."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    for copy in range(copies):
        for path, text in documents:
            file = folder / (f"copy-{copy}" if copies > 1 else "") / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8", newline="")
    return folder


def one_shots(
    cache: Path, count: int, questions: Sequence[LabelledQuestion], limits: tuple[float, float]
) -> list[Figure]:
    """The time of a question as a command that `uv` installs, less five bare interpreters, measured in turns."""
    ask = [sys.executable, "-c", PROGRAM, "ask", "--cache", str(cache), "--json"]
    # The first question compiles the modules that it imports.
    processor_time([*ask, questions[0].text])
    shots = sorted(
        processor_time([*ask, question.text]) - ONE_SHOT_STARTS * processor_time([sys.executable, "-c", "pass"])
        for question in questions[:: max(len(questions) // ONE_SHOT_TIMES, 1)]
    )
    name = f"one-shot ask less {ONE_SHOT_STARTS} interpreters, {count:,} documents"
    return [
        _at_most(f"{name}, p50", statistics.median(shots), limits[0]),
        _at_most(f"{name}, p95", shots[int(len(shots) * P95)], limits[1]),
    ]


def warm_over_stdio(cache: Path, questions: Sequence[LabelledQuestion]) -> list[Figure]:
    """The processor time of a warm server and of its worker for a question."""
    if not os.path.exists("/proc/self/schedstat"):
        report_progress("warm questions are not measured: the system does not report processor times")
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
    """The processor time of a process and of its running children."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in (process, *children)) / 1e9


def _at_most(name: str, measured: float, limit_s: float) -> Figure:
    return Figure(name, ms(measured), ms(limit_s), measured / limit_s, 1.0)


def processor_time(command: Sequence[str]) -> float:
    """The processor time of a command whose modules are compiled, as those of an installed program."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(HERE / "compiled")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def own_sets() -> list[Figure]:
    """Figures of our documentation and of short documents on many subjects, with questions written for them."""
    folder, folder_of_bench = ROOT / "docs", Path(__file__).parent
    documents = [(str(path.relative_to(folder)), path.read_text("utf-8")) for path in sorted(folder.rglob("*.md"))]
    own_questions = json.loads((folder_of_bench / "relevance_questions.json").read_text("utf-8"))
    small = json.loads((folder_of_bench / "relevance_set.json").read_text("utf-8"))
    small_questions = _questions(small["questions"])
    return [
        *figures_of("our documentation", build_index("docs", documents), _questions(own_questions), OWN_TARGET),
        *figures_of(
            "short documents", build_index("own", list(small["documents"].items())), small_questions, SMALL_TARGET
        ),
    ]


def _questions(items: Sequence[Mapping[str, Any]]) -> list[LabelledQuestion]:
    return [LabelledQuestion(item["q"], dict.fromkeys(item["rel"], 1), frozenset()) for item in items]


def public_set(name: str, limit: int | None) -> list[Figure]:
    report_progress(f"relevance of {name}")
    description = json.loads((PUBLIC / f"{name}.json").read_text("utf-8"))
    questions = [
        LabelledQuestion(q["q"], q["rel"], frozenset(q.get("exclude", ())), tuple(q["sec"]) if "sec" in q else None)
        for q in description["queries"]
    ][:limit]
    documents = []
    with lzma.open(PUBLIC / description["corpus"], "rt", encoding="utf-8") as lines:
        for line in lines:
            document = json.loads(line)
            documents.append((document["id"], document["text"]))
    index = build_index(name, documents)
    figures = figures_of(name, index, questions, TARGETS[name]) + estimates(name, index)
    if name == "mdn-link":
        text = sum(map(len, index.contents))
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
