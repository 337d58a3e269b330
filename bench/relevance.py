"""The figures of relevance search: quality, passages, time and size; beside SQLite's FTS5 on the same sections.

Everywhere on our own documentation with questions written for it; where the public sets lie beside the repository, on
those too, against the targets.
"""

from __future__ import annotations

import json
import lzma
import math
import shutil
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.corpora import HERE
from bench.figures import Figure, ms, show, tell
from contextfold.common.canonical import version_of
from contextfold.resolve.document import Document
from contextfold.resolve.relevance.index_format import IndexView
from contextfold.resolve.relevance.index_writer import IndexWriter
from contextfold.resolve.relevance.question import read_question
from contextfold.resolve.relevance.ranking import rank
from contextfold.resolve.relevance.words import tokens

ROOT = Path(__file__).resolve().parent.parent
PUBLIC = ROOT.parent / "shared" / "relevance"
OWN_TARGET = 0.6
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
WARM_S = 0.012


class Asked(NamedTuple):
    text: str
    rel: Mapping[str, int]
    exclude: frozenset[str]


class Indexed(NamedTuple):
    view: IndexView
    contents: bytes
    seconds: float
    index_bytes: int


Search = Callable[[str], list[str]]


def indexed(name: str, documents: Sequence[tuple[str, str]]) -> Indexed:
    """The index of these documents, made now, and the processor time that took."""
    folder = HERE / f"relevance-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "pack").mkdir(parents=True)
    made = [Document(path, version_of(text.encode()), path, text.encode()) for path, text in documents]
    made.sort(key=lambda document: document.id.encode())
    begin = time.process_time()
    writer = IndexWriter(bytes(folder) + b"/")
    for document in made:
        writer.add(document)
    head = writer.finish()
    seconds = time.process_time() - begin
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


def own_set() -> list[Figure]:
    folder = ROOT / "docs"
    documents = [(str(path.relative_to(folder)), path.read_text("utf-8")) for path in sorted(folder.rglob("*.md"))]
    written = json.loads((Path(__file__).parent / "relevance_questions.json").read_text("utf-8"))
    questions = [Asked(item["q"], dict.fromkeys(item["rel"], 1), frozenset()) for item in written]
    return figures_of("our documentation", indexed("own", documents), questions, OWN_TARGET)


def public_set(name: str, limit: int | None) -> list[Figure]:
    tell(f"relevance of {name}")
    described = json.loads((PUBLIC / f"{name}.json").read_text("utf-8"))
    questions = [Asked(q["q"], q["rel"], frozenset(q.get("exclude", ()))) for q in described["queries"]][:limit]
    documents = []
    with lzma.open(PUBLIC / described["corpus"], "rt", encoding="utf-8") as lines:
        for line in lines:
            document = json.loads(line)
            documents.append((document["id"], document["text"]))
    index = indexed(name, documents)
    figures = figures_of(name, index, questions, TARGETS[name])
    if name == "mdn-link":
        text = len(index.contents)
        share, speed = index.index_bytes / text, text / 1e6 / index.seconds
        _, seconds = measured(ours(index), questions)
        warm = statistics.median(seconds)
        figures += [
            Figure("index, MDN", f"{index.index_bytes / 1e6:.1f} MB", f"text {text / 1e6:.1f} MB", share, INDEX_SHARE),
            Figure("indexing, MDN", f"{speed:.2f} MB/s", f"{BUILD_MB_PER_S} MB/s", BUILD_MB_PER_S / speed, 1.0),
            Figure("ranking, MDN, p50 of processor time", ms(warm), ms(WARM_S), warm / WARM_S, 1.0),
        ]
    return figures


def main(names: Sequence[str] | None = None, limit: int | None = None) -> bool:
    figures = own_set()
    if PUBLIC.exists():
        for name in TARGETS if names is None else names:
            figures += public_set(name, limit)
    return show("Relevance search", figures)


if __name__ == "__main__":
    main()
