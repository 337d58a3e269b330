"""The figures of relevance search: quality, passages, time and size, next to other searches over the same sections.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
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
from contextfold.resolve.relevance.ranking import rank
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
MEAN_TARGET = 0.65
# The right page is shown this much more often than before headings became a field, in the mean of sets and budgets.
PAGES_GAIN = 0.03
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
BUDGETS = (500, 1000, 2000, 4000, 8000)
_BUDGETS_TEXT = "500, 1k, 2k, 4k and 8k tokens"
PASSAGES = {1000: 0.50, 4000: 0.77, 8000: 0.85}
# What was found before headings became a field.
PAGES = {
    "ghdocs-intro": {1000: 0.566, 4000: 0.672, 8000: 0.722},
    "ghdocs-commit": {1000: 0.604, 4000: 0.716, 8000: 0.766},
    "k8s-commit": {1000: 0.558, 4000: 0.659, 8000: 0.712},
    "pingcapcn-sum": {1000: 0.883, 4000: 0.909, 8000: 0.940},
    "mdn-link": {1000: 0.710, 4000: 0.838, 8000: 0.879},
}
# A rival finds at most this many sections.
RIVAL_SECTIONS = 300
TANTIVY_HEAP = 128_000_000
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


# A section: its document and its position there.
Place = tuple[int, int]


class BuiltIndex(NamedTuple):
    reader: Index
    contents: Sequence[bytes]
    ids: Sequence[str]
    sections: Sequence[Sequence[IndexedSection]]
    # The tokens that a section costs, as far as it was asked for.
    costs: dict[Place, int]
    seconds: float
    index_bytes: int


class Hits(NamedTuple):
    """What a search finds, the best first: ids of documents, and sections, each by its document and its position."""

    documents: list[str]
    sections: list[Place]


Search = Callable[[str], Hits]


class Quality(NamedTuple):
    """`pages` and `passages` say how often the right page, and the complete passage, is within a budget."""

    ndcg: float
    pages: Mapping[int, float]
    passages: Mapping[int, float]
    seconds: float

    def describe(self) -> str:
        return f"{self.ndcg:.3f} in {ms(self.seconds)}"


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
    reader = Index(path)
    sections = [reader.sections_of(number) for number in range(reader.document_count)]
    ids = [document.id for document in reader.documents()]
    return BuiltIndex(
        reader, [document.content for document in entries], ids, sections, {}, seconds, os.path.getsize(path)
    )


def ours(index: BuiltIndex) -> Search:
    def search(query: str) -> Hits:
        ranking = rank(read_question(query, 0), [index.reader])
        return Hits(
            [index.ids[document.place.document] for document in ranking.documents],
            [(section.place.document, section.section) for section in ranking.sections],
        )

    return search


def rivals(index: BuiltIndex) -> Iterator[tuple[str, Search]]:
    """Other searches over the same sections; a document ranks by its best section.

    Those that are no dependency of the project are left out if they are not installed: `pip install bm25s PyStemmer
    tantivy`.
    """
    yield "FTS5 OR", fts5(index)
    for name, make in (("bm25s", bm25s), ("tantivy", tantivy)):
        try:
            yield name, make(index)
        except ModuleNotFoundError:
            report_progress(f"{name} is not installed")


def fts5(index: BuiltIndex) -> Search:
    """SQLite's full-text search for any of the words."""
    places, base = [], sqlite3.connect(":memory:")
    base.execute("CREATE VIRTUAL TABLE sections USING fts5(heading, body, tokenize='porter unicode61')")
    for number, (place, heading, body) in enumerate(_sections(index)):
        places.append(place)
        base.execute("INSERT INTO sections (rowid, heading, body) VALUES (?, ?, ?)", (number, heading, body))

    def search(query: str) -> Hits:
        match = " OR ".join(f'"{token}"' for token in dict.fromkeys(tokens(query)))
        if not match:
            return Hits([], [])
        sql = "SELECT rowid FROM sections WHERE sections MATCH ? ORDER BY rank LIMIT ?"
        return _hits(index, (places[row[0]] for row in base.execute(sql, (match, RIVAL_SECTIONS))))

    return search


def bm25s(index: BuiltIndex) -> Search:
    library, stemmer = import_module("bm25s"), import_module("Stemmer").Stemmer("english")
    places = [place for place, _, _ in _sections(index)]
    texts = [f"{heading}\n{body}" for _, heading, body in _sections(index)]
    options = {"stemmer": stemmer, "show_progress": False}
    retriever = library.BM25()
    retriever.index(library.tokenize(texts, **options), show_progress=False)

    def search(query: str) -> Hits:
        asked = library.tokenize([query], **options)
        count = min(RIVAL_SECTIONS, len(places))
        found, scores = retriever.retrieve(asked, k=count, show_progress=False)
        return _hits(index, (places[number] for number, score in zip(found[0], scores[0], strict=True) if score > 0))

    return search


def tantivy(index: BuiltIndex) -> Search:
    library = import_module("tantivy")
    builder = library.SchemaBuilder()
    for field in ("heading", "body"):
        builder.add_text_field(field, tokenizer_name="en_stem")
    builder.add_integer_field("place", stored=True)
    engine, places = library.Index(builder.build()), []
    writer = engine.writer(heap_size=TANTIVY_HEAP, num_threads=1)
    for number, (place, heading, body) in enumerate(_sections(index)):
        places.append(place)
        writer.add_document(library.Document(heading=heading, body=body, place=number))
    writer.commit()
    engine.reload()

    def search(query: str) -> Hits:
        searcher = engine.searcher()
        asked = engine.parse_query(" ".join(f'"{token}"' for token in tokens(query)), ["heading", "body"])
        found = searcher.search(asked, RIVAL_SECTIONS).hits
        return _hits(index, (places[searcher.doc(address)["place"][0]] for _, address in found))

    return search


def _hits(index: BuiltIndex, found: Iterable[Place]) -> Hits:
    sections = list(found)
    return Hits(list(dict.fromkeys(index.ids[document] for document, _ in sections)), sections)


def _sections(index: BuiltIndex) -> Iterator[tuple[Place, str, str]]:
    for number, document in enumerate(index.reader.documents()):
        for position, section in enumerate(index.sections[number]):
            heading = " ".join((document.title, *section.headings))
            yield (number, position), heading, index.contents[number][section.start : section.end].decode()


def ndcg_at_10(ranking: Sequence[str], rel: Mapping[str, int]) -> float:
    gain = sum(rel.get(name, 0) / math.log2(position + 2) for position, name in enumerate(ranking[:10]))
    ideal = sum(
        value / math.log2(position + 2) for position, value in enumerate(sorted(rel.values(), reverse=True)[:10])
    )
    return gain / ideal


def measured(search: Search, index: BuiltIndex, questions: Sequence[LabelledQuestion]) -> Quality:
    """The quality of a search, and the median of the processor time of a question."""
    ndcg, seconds = 0.0, []
    pages, passages = dict.fromkeys(BUDGETS, 0), dict.fromkeys(BUDGETS, 0)
    for question in questions:
        begin = time.process_time()
        hits = search(question.text)
        seconds.append(time.process_time() - begin)
        ndcg += ndcg_at_10([name for name in hits.documents if name not in question.exclude], question.rel)
        places = [place for place in hits.sections if index.ids[place[0]] not in question.exclude]
        wanted = _wanted_passages(index, question)
        for budget in BUDGETS:
            selected, duplicates = _selected(index, places, budget)
            shown = {index.ids[document] for document, _ in selected}
            pages[budget] += any(name in shown for name in question.rel)
            passages[budget] += any(run <= selected | duplicates for run in wanted)
    count = len(questions)
    return Quality(
        ndcg / count,
        {budget: number / count for budget, number in pages.items()},
        {budget: number / count for budget, number in passages.items()},
        statistics.median(seconds),
    )


def figures_of(
    name: str, index: BuiltIndex, questions: Sequence[LabelledQuestion], found: Quality, target: float
) -> list[Figure]:
    """The figures of a search beside those of its rivals on the same sections."""
    theirs = {rival: measured(search, index, questions) for rival, search in rivals(index)}
    figures = [_beside(f"nDCG@10, {name}", found.describe(), theirs, Quality.describe, target / max(found.ndcg, 1e-9))]
    if name in PAGES:
        least = PAGES[name]
        ratio = max(least[budget] / max(found.pages[budget], 1e-9) for budget in least)
        figures.append(
            _beside(
                f"right page within {_BUDGETS_TEXT}, {name}",
                _by_budget(found.pages),
                theirs,
                lambda rival: _by_budget(rival.pages),
                ratio,
            )
        )
    if name == "mdn-link":
        ratio = max(PASSAGES[budget] / max(found.passages[budget], 1e-9) for budget in PASSAGES)
        figures.append(
            _beside(
                f"whole passage within {_BUDGETS_TEXT}, {name}",
                _by_budget(found.passages),
                theirs,
                lambda rival: _by_budget(rival.passages),
                ratio,
            )
        )
        fts5_s = theirs["FTS5 OR"].seconds
        figures.append(
            Figure("ranking a question, MDN", ms(found.seconds), f"FTS5 OR {ms(fts5_s)}", found.seconds / fts5_s, 1.0)
        )
    return figures


def _beside(
    name: str, own: str, theirs: Mapping[str, Quality], describe: Callable[[Quality], str], ratio: float
) -> Figure:
    return Figure(name, own, "; ".join(f"{rival} {describe(found)}" for rival, found in theirs.items()), ratio, 1.0)


def _by_budget(shares: Mapping[int, float]) -> str:
    return " ".join(f"{share:.3f}" for share in shares.values())


def _wanted_passages(index: BuiltIndex, question: LabelledQuestion) -> list[set[Place]]:
    if question.passage is None:
        return []
    name, heading = question.passage
    number = index.ids.index(name)
    return _pieces(number, index.sections[number], heading)


def _pieces(document: int, sections: Sequence[IndexedSection], heading: str) -> list[set[Place]]:
    """The pieces of each section with that heading; if it has no text, the first section below it."""
    heading = clean_heading(heading)
    runs: list[set[Place]] = []
    for at, section in enumerate(sections):
        if section.headings[-1:] == (heading,):
            if runs and (document, at - 1) in runs[-1] and sections[at - 1].headings == section.headings:
                runs[-1].add((document, at))
            else:
                runs.append({(document, at)})
    return runs or [{(document, at)} for at, section in enumerate(sections) if heading in section.headings][:1]


def _selected(index: BuiltIndex, places: Sequence[Place], budget: int) -> tuple[set[Place], set[Place]]:
    """The sections that an answer selects: in order, without those that do not fit; breadcrumbs count.

    The second set has the sections with the same text as a selected one.
    """
    selected, duplicates = set[Place](), set[Place]()
    seen: set[bytes] = set()
    for place in places:
        digest = index.sections[place[0]][place[1]].digest
        if digest in seen:
            duplicates.add(place)
        elif _cost(index, place) <= budget:
            budget -= _cost(index, place)
            selected.add(place)
            seen.add(digest)
    return selected, duplicates


def _cost(index: BuiltIndex, place: Place) -> int:
    """The tokens of a section with its breadcrumb. It is asked for again and again."""
    if place not in index.costs:
        section = index.sections[place[0]][place[1]]
        crumb = breadcrumb(index.ids[place[0]], section.headings, (section.first_line, section.last_line))
        index.costs[place] = section.tokens + estimate(crumb) + LINE_BREAKS_TOKENS
    return index.costs[place]


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


def _at_least(name: str, measured: float, least: float) -> Figure:
    return Figure(name, f"{measured:.3f}", f"{least:.3f}", least / max(measured, 1e-9), 1.0)


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
    figures = []
    for name, of_set, questions, target in (
        ("our documentation", documents, _questions(own_questions), OWN_TARGET),
        ("short documents", list(small["documents"].items()), small_questions, SMALL_TARGET),
    ):
        index = build_index(name.split()[0], of_set)
        figures += figures_of(name, index, questions, measured(ours(index), index, questions), target)
    return figures


def _questions(items: Sequence[Mapping[str, Any]]) -> list[LabelledQuestion]:
    return [LabelledQuestion(item["q"], dict.fromkeys(item["rel"], 1), frozenset()) for item in items]


def public_set(name: str, limit: int | None, found: dict[str, Quality]) -> list[Figure]:
    """The figures of a public set. Its quality is added to those found."""
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
    quality = measured(ours(index), index, questions)
    found[name] = quality
    figures = figures_of(name, index, questions, quality, TARGETS[name]) + estimates(name, index)
    if name == "mdn-link":
        text = sum(map(len, index.contents))
        share, speed = index.index_bytes / text, text / 1e6 / index.seconds
        figures += [
            Figure("index, MDN", f"{index.index_bytes / 1e6:.1f} MB", f"text {text / 1e6:.1f} MB", share, INDEX_SHARE),
            Figure("indexing, MDN", f"{speed:.2f} MB/s", f"{BUILD_MB_PER_S} MB/s", BUILD_MB_PER_S / speed, 1.0),
        ]
        figures += commands(documents, questions)
    return figures


def main(names: Sequence[str] | None = None, limit: int | None = None) -> bool:
    figures = own_sets()
    if PUBLIC.exists():
        found: dict[str, Quality] = {}
        for name in TARGETS if names is None else names:
            figures += public_set(name, limit, found)
        if found.keys() == TARGETS.keys():
            mean = statistics.mean(quality.ndcg for quality in found.values())
            gains = [
                found[name].pages[budget] - share for name, before in PAGES.items() for budget, share in before.items()
            ]
            figures += [
                _at_least("nDCG@10, the mean of all public sets", mean, MEAN_TARGET),
                _at_least("right page more often than without headings as a field", statistics.mean(gains), PAGES_GAIN),
            ]
    return show("Relevance search", figures)


if __name__ == "__main__":
    main(sys.argv[1:] or None)
