"""Scores and order: the same as an independent slow scorer's, explained, and the same on every machine."""

from __future__ import annotations

import json
import lzma
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextfold.common.relevance.question import read_question
from contextfold.common.relevance.term_scores import log2_fixed
from contextfold.resolve.relevance.index.index_format import IndexView
from contextfold.resolve.relevance.ranking import explain, rank
from tests.resolve.relevance import relevance_oracle
from tests.resolve.relevance.indexing import WORDS, some_documents, written
from tests.support.machine import SHARED, times

REAL = SHARED / "relevance"


def test_the_logarithm_is_the_largest_that_fits() -> None:
    for number in [*range(1, 200), 2**16 - 1, 2**16, 29187, 10**9 + 7]:
        assert log2_fixed(number) == relevance_oracle.log2(number)


@pytest.mark.parametrize("seed", range(times(4, 60)))
def test_documents_and_sections_score_as_the_slow_scorer_says(seed: int, tmp_path: Path) -> None:
    files = some_documents(seed, 12)
    check(
        files,
        ["rollback of the deployment", "getHttpResponse cache", "数据库同步 café", "how do folding budgets fold"],
        tmp_path,
    )


def check(files: dict[str, str], queries: list[str], folder: Path) -> None:
    view = written(folder / "index", files).view
    for query in queries:
        ranking = rank(read_question(query, 1), [view])
        documents, sections = relevance_oracle.search(files, query)
        assert [(view.document_id(found.document), found.score) for found in ranking.documents] == documents
        assert [
            (view.document_id(found.document), found.section - view.sections_of(found.document).start, found.score)
            for found in ranking.sections
        ] == sections


@pytest.mark.skipif(not REAL.exists(), reason="the real documents are not here")
def test_real_documents_score_as_the_slow_scorer_says(tmp_path: Path) -> None:
    files = {}
    with lzma.open(REAL / "k8s.jsonl.xz", "rt", encoding="utf-8") as lines:
        for line in lines:
            document = json.loads(line)
            if len(document["text"]) < 4000:
                files[document["id"]] = document["text"]
            if len(files) == times(12, 60):
                break
    check(files, ["control plane node communication", "Remove description of how kubeProxy differs"], tmp_path)


@given(st.integers(0, 3), st.lists(st.sampled_from(WORDS), min_size=1, max_size=6))
def test_the_reasons_add_up_to_the_score(seed: int, words: list[str]) -> None:
    view = INDEXES.view(seed)
    ranking = rank(read_question(" ".join(words), 1), [view])
    for section in ranking.sections:
        why = explain(ranking, [view], section)
        assert sum(term.score for term in why) == section.score
        assert all(term.fields for term in why)


def test_caches_asked_together_score_as_one(tmp_path: Path) -> None:
    files = some_documents(7, 14)
    names = sorted(files)
    parts = [{name: files[name] for name in names[:9]}, {name: files[name] for name in names[9:]}]
    views = [written(tmp_path / str(number), part).view for number, part in enumerate(parts)]
    ranking = rank(read_question("deploy the cache", 1), views)
    assert ranking.document_count == len(files)
    assert {found.cache for found in ranking.documents} == {0, 1}
    alone = rank(read_question("deploy the cache", 1), [written(tmp_path / "all", files).view])
    assert [term.stem_weight for term in ranking.terms] == [term.stem_weight for term in alone.terms]


def test_common_terms_only_change_the_order_of_nominees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit that every term but the rarest exceeds, a document without the rarest term is not nominated."""
    files = {f"page-{number}.md": "common words here" for number in range(20)} | {"rare.md": "common rare"}
    view = written(tmp_path / "index", files).view
    monkeypatch.setattr("contextfold.resolve.relevance.ranking.POSTINGS_MAX", 5)
    ranking = rank(read_question("common rare", 1), [view])
    assert [view.document_id(found.document) for found in ranking.documents] == ["rare.md"]
    monkeypatch.undo()
    everything = rank(read_question("common rare", 1), [view])
    assert everything.documents[0].score == ranking.documents[0].score
    assert len(everything.documents) == 21


class _Indexes:
    """Indexes that many examples share."""

    def __init__(self) -> None:
        self._made: dict[int, IndexView] = {}

    def view(self, seed: int) -> IndexView:
        if seed not in self._made:
            folder = Path(tempfile.mkdtemp())
            self._made[seed] = written(folder / "index", some_documents(seed, 12)).view
        return self._made[seed]


INDEXES = _Indexes()
