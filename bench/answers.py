"""What the budget of an answer is spent on: content, breadcrumbs, reasons and notes; and what JSON costs instead.

Measured on the public sets of documentation, if they are in a folder next to the repository, with exact tokens where
the extra `o200k` is installed. The budget itself is counted by `estimate-1`, as an agent's is.
"""

from __future__ import annotations

import json
import lzma
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path

from bench.corpora import HERE
from bench.figures import Figure, report_progress, show
from bench.relevance import PUBLIC, write_documents
from contextfold import Cache, build, open_cache
from contextfold.common.tokens import ESTIMATE, EXACT, CountTokens, counter_named
from contextfold.errors import CounterMissing
from contextfold.resolve.relevance.answer import AskResult, passages_of

SETS = ("k8s-commit", "ghdocs-intro", "mdn-link")
# The least share of each budget that is spent on content, in the mean of the sets.
LEAST_CONTENT = {500: 0.73, 1_000: 0.8, 2_000: 0.85, 4_000: 0.88, 8_000: 0.9}
QUESTIONS = 60


def built(name: str) -> tuple[Cache, list[str]]:
    description = json.loads((PUBLIC / f"{name}.json").read_text("utf-8"))
    with lzma.open(PUBLIC / description["corpus"], "rt", encoding="utf-8") as lines:
        documents = [(document["id"], document["text"]) for document in map(json.loads, lines)]
    # Some ids have no ending.
    documents = [(path if Path(path).suffix else f"{path}.md", text) for path, text in documents]
    sources = write_documents(f"answers-{name}", documents, 1)
    cache = HERE / f"answers-{name}.cache"
    shutil.rmtree(cache, ignore_errors=True)
    build(sources, cache, kinds="markdown")
    questions = [query["q"] for query in description["queries"]]
    return open_cache(cache), questions[:: max(len(questions) // QUESTIONS, 1)]


def spent(answer: AskResult, count: CountTokens) -> tuple[int, int, int, int]:
    """The tokens of content, breadcrumbs, reasons and notes."""
    content = crumbs = reasons = 0
    for document in answer.documents:
        above = None
        for passage in passages_of(document):
            crumb, *why = passage.header(above).splitlines(keepends=True)
            crumbs += count(crumb)
            reasons += count("".join(why))
            content += sum(count(section.content) for section in passage.sections)
            above = passage
    return content, crumbs, reasons, count("".join(answer.notes))


def shares(cache: Cache, questions: Sequence[str], budget: int, count: CountTokens) -> list[float]:
    """The mean shares of a budget: content, breadcrumbs, reasons, notes, the whole text, and the content of JSON."""
    rows = []
    for question in questions:
        answer = cache.ask(question, budget)
        if not answer.documents:
            continue
        as_json = cache.ask(question, budget, format="json")
        whole, of_json = count(answer.to_text()), spent(as_json, count)[0]
        rows.append([part / budget for part in (*spent(answer, count), whole, of_json)])
    return [statistics.mean(column) for column in zip(*rows, strict=True)]


def main() -> bool:
    if not PUBLIC.exists():
        report_progress("what a budget is spent on is not measured: the public sets are not here")
        return True
    counter = EXACT
    try:
        count = counter_named(EXACT)
    except CounterMissing:
        counter, count = ESTIMATE, counter_named(ESTIMATE)
    figures, measured = [], {}
    for name in SETS:
        report_progress(f"what a budget is spent on, {name}")
        cache, questions = built(name)
        for budget in LEAST_CONTENT:
            measured[name, budget] = shares(cache, questions, budget, count)
            content, crumbs, reasons, notes, whole, of_json = measured[name, budget]
            print(
                f"  {name}, {budget:,} tokens: content {content:.1%}, breadcrumbs {crumbs:.1%}, why {reasons:.1%}, "
                f"notes {notes:.1%}; all {whole:.1%}; content of JSON {of_json:.1%}",
                flush=True,
            )
    for budget, least in LEAST_CONTENT.items():
        content = statistics.mean(measured[name, budget][0] for name in SETS)
        figures.append(
            Figure(f"content of {budget:,} tokens ({counter})", f"{content:.3f}", f"{least}", least / content, 1.0)
        )
    return show("What the budget of an answer is spent on", figures)


if __name__ == "__main__":
    main()
