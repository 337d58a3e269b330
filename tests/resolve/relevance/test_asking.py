"""Ask and get: no answer exceeds its budget, scores are explained, and every input is handled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextfold import Cache, open_cache
from contextfold.common.answer_format import FORMATS
from contextfold.common.question import read_question
from contextfold.common.tokens import estimate
from contextfold.errors import (
    BudgetInvalid,
    CounterMissing,
    DocumentMissing,
    LinesMissing,
    QueryInvalid,
    SectionMissing,
)
from contextfold.resolve.relevance.answer import AskResult
from contextfold.resolve.relevance.asking import UNITS
from tests.resolve.relevance.indexing import WORDS, build_cache, random_documents
from tests.support.machine import run_command, times

DOCUMENTS = {
    "guides/deploy.md": "# Deploying\n\nHow we ship.\n\n## Roll back\n\nRun the rollback command.\n\n## Canary\n\n"
    + "Canary releases take a share of traffic.\n\n" * 60,
    "guides/other.md": "# Other\n\nNothing of interest.\n\n## Roll back\n\nRun the rollback command.\n\n",
    "guides/copy.md": "# Deploying\n\nHow we ship.\n\n## Roll back\n\nRun the rollback command.\n\n",
}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return build_cache(tmp_path, DOCUMENTS)


@pytest.fixture(scope="module")
def random_cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return build_cache(tmp_path_factory.mktemp("random"), random_documents(11, 25))


def test_the_answer_has_the_documented_shape(cache: Cache) -> None:
    answer = json.loads(cache.ask("canary rollback xyzzy", 400, format="json").to_json())
    assert list(answer) == ["documents", "selection"]
    document = answer["documents"][0]
    assert list(document) == ["id", "version", "title", "score", "sections", "left_out"]
    assert list(document["sections"][0]) == ["heading", "lines", "tokens", "score", "content", "why"]
    assert list(document["sections"][0]["why"][0]) == ["term", "in", "score"]
    selection = answer["selection"]
    assert selection["semantics"] == "v1"
    assert selection["unmatched"] == ["xyzzy"]
    assert selection["counter"] == "estimate-1"
    left_out = [entry for document in answer["documents"] for entry in document["left_out"]]
    assert {entry["reason"] for entry in left_out} <= {"budget", "duplicate"}


def test_without_a_match_the_answer_is_empty_and_names_the_terms(cache: Cache) -> None:
    result = cache.ask("xyzzy plugh", 4000)
    assert result.documents == ()
    assert result.selection.unmatched == ("xyzzy", "plugh")
    assert result.selection.tokens_used == 0
    assert "xyzzy" in result.to_text()


def test_whole_documents_can_be_requested(cache: Cache) -> None:
    result = cache.ask("rollback command", 100, unit="document")
    assert [document.sections[0].content for document in result.documents] == [
        DOCUMENTS[document.id] for document in result.documents
    ]
    assert result.documents
    with pytest.raises(QueryInvalid):
        cache.ask("rollback", 100, unit="word")


def check_budget(result: AskResult, budget: int, format: str) -> None:
    used = result.selection.tokens_used
    assert used <= budget
    if result.documents:
        assert estimate(result.to_json() if format == "json" else result.to_text()) <= used
    for document in result.documents:
        assert list(document.sections) == sorted(document.sections, key=lambda section: section.lines)
        for section in document.sections:
            assert sum(term.score for term in section.why) == section.score > 0


@given(
    st.lists(st.sampled_from([*WORDS, "xyzzy"]), max_size=6),
    st.integers(0, 3000),
    st.sampled_from(FORMATS),
    st.sampled_from(UNITS),
)
def test_no_answer_exceeds_its_budget(
    random_cache: Cache, words: list[str], budget: int, format: str, unit: str
) -> None:
    check_budget(random_cache.ask(" ".join(words), budget, unit=unit, format=format), budget, format)


@given(st.text(max_size=60), st.sampled_from([0, 1, 40, 10**6]))
def test_any_text_is_answered_or_refused_as_invalid(random_cache: Cache, query: str, budget: int) -> None:
    try:
        query.encode()
    except UnicodeEncodeError:
        with pytest.raises(QueryInvalid):
            read_question(query, budget)
    else:
        check_budget(random_cache.ask(query, budget), budget, "text")


@pytest.mark.parametrize(
    "query",
    [
        "the of and to",
        "how do i",
        "word " * times(40_000, 200_000),
        " ".join(f"w{number}" for number in range(times(20_000, 100_000))),
        "x" * times(200_000, 1_000_000),
        "\0\x01\x1b[31m\x7f",
        "\u202edeploy\u202c שלום العربية",
        "e\u0301\u0301\u0301 ก็ " + "\u0301" * 5000,
        "数据库" * 1000,
    ],
)
def test_unusual_questions_are_answered(random_cache: Cache, query: str) -> None:
    check_budget(random_cache.ask(query, 300), 300, "text")


def test_invalid_arguments_are_typed_errors(cache: Cache) -> None:
    with pytest.raises(QueryInvalid):
        cache.ask("\ud800", 5)
    for budget in (-1, 2**63, True, 1.5, None):
        with pytest.raises(BudgetInvalid):
            cache.ask("deploy", budget)  # type: ignore[arg-type]
    with pytest.raises(CounterMissing):
        cache.ask("deploy", 5, counter="abacus")


def test_the_budget_holds_with_an_exact_counter(cache: Cache) -> None:
    encoding = pytest.importorskip("bpe_openai").get_encoding("o200k_base")
    result = cache.ask("rollback command", 60, counter="o200k")
    assert result.documents
    assert result.selection.counter == "o200k"
    assert len(encoding.encode_ordinary(result.to_text())) <= result.selection.tokens_used <= 60


def test_an_empty_cache_gives_an_empty_answer(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    assert run_command("build", "--sources", tmp_path / "nothing", "--cache", tmp_path / "none").code == 0
    assert open_cache(tmp_path / "none").ask("anything", 100).documents == ()
    assert build_cache(tmp_path, {"empty.md": ""}).ask("empty", 100).documents == ()


class TestGet:
    def test_a_whole_document_is_returned(self, cache: Cache) -> None:
        result = cache.get("guides/copy.md", 1000)
        assert "".join(section.content for section in result.document.sections) == DOCUMENTS["guides/copy.md"]

    def test_lines_select_their_sections_and_neighbours(self, cache: Cache) -> None:
        (section,) = cache.get("guides/deploy.md", 1000, lines=(6, 6)).document.sections
        assert section.lines == (5, 8)
        assert len(cache.get("guides/copy.md", 1000, lines=(6, 6), around=1).document.sections) == 2

    def test_a_missing_document_section_or_line_is_a_typed_error(self, cache: Cache) -> None:
        with pytest.raises(DocumentMissing):
            cache.get("nowhere.md", 10)
        with pytest.raises(SectionMissing):
            cache.get("guides/deploy.md", 10, section="nothing")
        with pytest.raises(LinesMissing):
            cache.get("guides/deploy.md", 10, lines=(9000, 9001))
