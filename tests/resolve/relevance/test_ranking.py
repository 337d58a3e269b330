"""Scores and order are the same as those of an independent oracle, and each score is explained."""

from __future__ import annotations

import json
import lzma
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextfold.common.question import read_question
from contextfold.common.term_scores import log2_fixed
from contextfold.resolve.index import Index
from contextfold.resolve.relevance.links import find_links, resolve_links
from contextfold.resolve.relevance.ranking import DOCUMENTS_MAX, Place, explain, rank
from tests.resolve.relevance import relevance_oracle
from tests.resolve.relevance.indexing import WORDS, random_documents, write_index
from tests.support.machine import SHARED, times

REAL = SHARED / "relevance"


def test_the_fixed_point_logarithm_is_exact() -> None:
    for number in [*range(1, 200), 2**16 - 1, 2**16, 29187, 10**9 + 7]:
        assert log2_fixed(number) == relevance_oracle.log2(number)


@pytest.mark.parametrize("seed", range(times(4, 60)))
def test_documents_and_sections_score_as_in_the_oracle(seed: int, tmp_path: Path) -> None:
    files = random_documents(seed, 12)
    check_scores(
        files,
        ["rollback of the deployment", "getHttpResponse cache", "数据库同步 café", "how do folding budgets fold"],
        tmp_path,
    )


def check_scores(files: dict[str, str], queries: list[str], folder: Path) -> None:
    index = write_index(folder / "index", files)
    for query in queries:
        ranking = rank(read_question(query, 1), [index])
        documents, sections = relevance_oracle.search(files, query)
        assert [(index.document(hit.place.document).id, hit.score) for hit in ranking.documents] == documents
        assert [(index.document(hit.place.document).id, hit.section, hit.score) for hit in ranking.sections] == sections


@pytest.mark.skipif(not REAL.exists(), reason="the real documents are not here")
def test_real_documents_score_as_in_the_oracle(tmp_path: Path) -> None:
    files = {}
    with lzma.open(REAL / "k8s.jsonl.xz", "rt", encoding="utf-8") as lines:
        for line in lines:
            document = json.loads(line)
            if len(document["text"]) < 4000:
                files[document["id"]] = document["text"]
            if len(files) == times(12, 60):
                break
    check_scores(files, ["control plane node communication", "Remove description of how kubeProxy differs"], tmp_path)


@given(st.integers(0, 3), st.lists(st.sampled_from(WORDS), min_size=1, max_size=6))
def test_the_scores_of_the_terms_add_up_to_the_score_of_the_section(seed: int, words: list[str]) -> None:
    index = INDEXES.index(seed)
    ranking = rank(read_question(" ".join(words), 1), [index])
    for section in ranking.sections:
        why = explain(ranking, [index], section)
        assert sum(term.score for term in why) == section.score
        assert all(term.fields for term in why)


def test_terms_have_the_same_weights_in_several_caches_as_in_one(tmp_path: Path) -> None:
    files = random_documents(7, 14)
    names = sorted(files)
    parts = [{name: files[name] for name in names[:9]}, {name: files[name] for name in names[9:]}]
    indexes = [write_index(tmp_path / str(number), part) for number, part in enumerate(parts)]
    ranking = rank(read_question("deploy the cache", 1), indexes)
    assert ranking.document_count == len(files)
    assert {hit.place.cache for hit in ranking.documents} == {0, 1}
    single = rank(read_question("deploy the cache", 1), [write_index(tmp_path / "all", files)])
    assert [term.stem_weight for term in ranking.terms] == [term.stem_weight for term in single.terms]


def test_common_terms_only_change_the_order_of_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every term but the rarest exceeds the limit here, so a document without the rarest term is no candidate."""
    files = {f"page-{number}.md": "common words here" for number in range(20)} | {"rare.md": "common rare"}
    index = write_index(tmp_path / "index", files)
    monkeypatch.setattr("contextfold.resolve.relevance.ranking.POSTINGS_MAX", 5)
    ranking = rank(read_question("common rare", 1), [index])
    assert [index.document(hit.place.document).id for hit in ranking.documents] == ["rare.md"]
    monkeypatch.undo()
    complete = rank(read_question("common rare", 1), [index])
    assert complete.documents[0].score == ranking.documents[0].score
    assert len(complete.documents) == 21


def test_a_page_is_found_by_the_texts_of_links_to_it(tmp_path: Path) -> None:
    files = {
        "guide/scheduling.md": "# Scheduling\n\nHow pods land on nodes, by a config file.\n",
        "index.md": "# Start\n\n[placement profile](guide/scheduling.md#x), [config](https://example.org/scheduling)\n",
        "other.md": "# Other\n\nThe placement of a config.\n",
    }
    index = write_index(tmp_path / "index", files)
    ranking = rank(read_question("placement profile config", 1), [index])
    names = [index.document(found.place.document).id for found in ranking.documents]
    assert names.index("guide/scheduling.md") < names.index("other.md")
    whys = {section.place.document: explain(ranking, [index], section) for section in ranking.sections}
    linked = [document for document, why in whys.items() if why[0].term == "linked as placement profile"]
    assert [index.document(document).id for document in linked] == ["guide/scheduling.md"]


@pytest.mark.parametrize(
    ("target", "page"),
    [
        ("b.md", "a/b.md"),
        ("./b.html#part", "a/b.md"),
        ("../c/", "c/index.md"),
        ("/en/docs/a/b?x=1", "a/b.md"),
        ("/A/B", "a/b.md"),
        ("../../outside.md", None),
        ("x.md", None),
        ("#part", None),
        ("mailto:b.md", None),
        ("https://example.org/a/b.md", None),
    ],
)
def test_a_link_leads_to_a_page_of_the_collection_or_nowhere(target: str, page: str | None) -> None:
    ids = ["a/b.md", "a/x.md", "c/index.md"]
    links = Counter(find_links("a/x.md", f"Text [of it]({target}), ![no](b.md)."))
    assert resolve_links(ids, links) == ({ids.index(page): ["of it"]} if page else {})


def found_first(files: dict[str, str], query: str, folder: Path) -> str:
    index = write_index(folder / "index", files)
    ranking = rank(read_question(query, 1), [index])
    first, section = ranking.documents[0], ranking.sections[0]
    assert section.place == first.place
    return index.document(first.place.document).id


def test_a_file_named_in_the_question_is_first(tmp_path: Path) -> None:
    files = {
        "rollback.md": "# Update static pods\n\nUpdate static pods and roll back.\n",
        "a/static-pod.md": "Other text.\n",
    }
    assert found_first(files, "update static pods", tmp_path / "1") == "rollback.md"
    assert found_first(files, "Update Static-Pod.md's update of static pods", tmp_path / "2") == "a/static-pod.md"
    assert found_first(files, "update static pods in a/static-pod.md", tmp_path / "3") == "a/static-pod.md"


def test_a_name_that_many_files_have_says_nothing(tmp_path: Path) -> None:
    files = {f"{letter}/index.md": "Other text.\n" for letter in "abcd"} | {"e.md": "# Index of pods\n\nThe index.\n"}
    assert found_first(files, "index.md of pods", tmp_path) == "e.md"


def test_a_heading_that_the_question_names_completely_is_before_a_longer_one(tmp_path: Path) -> None:
    text = "We describe cache settings for each worker here.\n"
    files = {"a.md": f"# Guide\n\n## Rollback of deployments and other things\n\n{text}\n## Rollback\n\n{text}"}
    index = write_index(tmp_path, files)
    ranking = rank(read_question("rollback", 1), [index])
    sections = ranking.sections_of[Place(0, 0)]
    assert sections[ranking.sections[0].section].headings[-1] == "Rollback"
    why = {term.term: term.fields for term in explain(ranking, [index], ranking.sections[0])}
    assert why["1 of 1 heading word"] == ("heading",)


def test_a_further_document_is_before_more_sections_of_the_same(tmp_path: Path) -> None:
    long = "".join(f"## Part {number}\n\nRollback {'text ' * 20}\n\n" for number in range(6))
    files = {"a.md": f"# Guide\n\n{long}", "b.md": f"# Other\n\nRollback {'text ' * 16}"}
    index = write_index(tmp_path, files)
    found = [section.place.document for section in rank(read_question("rollback", 1), [index]).sections]
    assert found == [0, 1, 0, 0, 0, 0, 0]


class SharedIndexes:
    """Indexes that many examples share."""

    def __init__(self) -> None:
        self._indexes: dict[int, Index] = {}

    def index(self, seed: int) -> Index:
        if seed not in self._indexes:
            folder = Path(tempfile.mkdtemp())
            self._indexes[seed] = write_index(folder / "index", random_documents(seed, 12))
        return self._indexes[seed]


INDEXES = SharedIndexes()


def test_a_word_of_every_document_is_found(tmp_path: Path) -> None:
    """In fixed point its weight would be zero from 748 documents on, and a score of zero is no match."""
    index = write_index(tmp_path, {f"{number}.md": f"# Page {number}\n\nWalrusDB text.\n" for number in range(900)})
    ranking = rank(read_question("walrusdb", 100), [index])
    assert len(ranking.sections) == DOCUMENTS_MAX
    for section in ranking.sections:
        assert section.score == sum(why.score for why in explain(ranking, [index], section)) > 0
