"""The text of an answer: passages, breadcrumbs, reasons, and the lines at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from contextfold import Cache
from contextfold.common.tokens import estimate
from tests.resolve.relevance.indexing import build_cache

STEPS = (
    "# Deploying\n\nHow we ship.\n\n## Roll back\n\nRun the rollback.\n\n## Canary\n\nTraffic.\n\n## Undo\n\nrollback\n"
)
DOCUMENTS = {"guides/deploy.md": STEPS, "other.md": "# Other\n\nA rollback of something else.\n"}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return build_cache(tmp_path, DOCUMENTS)


def test_a_passage_has_its_place_and_a_reason_and_says_nothing_twice(cache: Cache) -> None:
    text = cache.ask("rollback xyzzy", 1000).to_text()
    first, second = (
        "guides/deploy.md › Deploying (lines 5-8)\nwhy: rollback\n\n## Roll back\n\nRun the rollback.\n\n",
        "› (lines 13-15)\n\n## Undo\n\nrollback\n",
    )
    assert first + second in text
    assert "other.md (lines 1-3)\nwhy: rollback\n\n# Other\n" in text
    assert text.endswith("\n\n[not in the cache: xyzzy]\n")


def test_neighbouring_sections_are_one_passage_with_the_reasons_for_the_best(cache: Cache) -> None:
    asked = cache.ask("roll canary", 1000).to_text()
    assert asked.startswith(
        "guides/deploy.md › Deploying (lines 5-12)\nwhy: 1 of 1 heading word, canary\n\n## Roll back\n"
    )
    text = cache.get("guides/deploy.md").to_text()
    assert text == f"guides/deploy.md (lines 1-15)\n\n{STEPS}"
    part = cache.get("guides/deploy.md", section="Canary", around=1).to_text()
    assert part.startswith("guides/deploy.md › Deploying (lines 5-15)\n\n## Roll back\n")


def test_one_line_says_what_did_not_fit(cache: Cache) -> None:
    result = cache.ask("rollback", 60)
    note = result.notes[0]
    assert note.startswith(f"[{result.selection.sections_left_out} more section")
    assert result.to_text().endswith(note)
    assert estimate(result.to_text()) <= 60
    whole = cache.get("guides/deploy.md", 40)
    assert whole.document.sections
    assert whole.to_text().endswith(whole.notes[0])
    assert "not fit the budget" in whole.notes[0]
    assert estimate(whole.to_text()) <= 40


@pytest.mark.parametrize(
    ("question", "budget", "text"),
    [
        ("rollback", 5, "3 sections match, but none fits the budget.\n"),
        ("xyzzy", 100, "Nothing in the cache matches.\n[not in the cache: xyzzy]\n"),
        (
            "how is the",
            100,
            "The question has no words to search for; words such as `how` and `the` are not searched.\n",
        ),
    ],
)
def test_an_answer_without_sections_says_why(question: str, budget: int, text: str, cache: Cache) -> None:
    assert cache.ask(question, budget).to_text() == text


def test_the_same_budget_holds_more_in_a_text(cache: Cache) -> None:
    text, json = cache.ask("rollback", 250), cache.ask("rollback", 250, format="json")
    assert len(text.to_text()) > 0
    assert text.selection.sections_selected > json.selection.sections_selected
    assert estimate(json.to_json()) <= json.selection.tokens_used <= 250


def test_pieces_of_one_long_line_are_joined_only_if_their_lines_are_neighbours(tmp_path: Path) -> None:
    cache = build_cache(tmp_path, {"long.md": "# Long\n\n" + "rollback of a release " * 2000 + "\n"})
    result = cache.get("long.md", 100_000)
    lines = [section.lines for section in result.document.sections]
    assert lines == [(1, 2), *[(3, 3)] * (len(lines) - 1)]
    assert result.to_text().count("(lines ") == len(lines) - 1 > 1


@pytest.mark.parametrize("unit", ["section", "document"])
def test_a_page_with_the_same_text_as_another_is_named(unit: str, tmp_path: Path) -> None:
    twice = {f"{name}.md": "# Same\n\nThe rollback.\n" for name in ("one", "two")}
    cache = build_cache(tmp_path, {**twice, "other.md": "# Other\n\nAlso the rollback.\n"})
    for budget in (60, 1000):
        text, json = (cache.ask("rollback", budget, unit=unit, format=format) for format in ("text", "json"))
        assert "[the same text: two.md]\n" in text.to_text()
        assert estimate(text.to_text()) <= budget
        assert text.selection.copies == ("two.md",)
    assert json.selection.as_members()["copies"] == ("two.md",)
    assert "copies" not in cache.ask("other", 1000).selection.as_members()
