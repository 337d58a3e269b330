"""Asking and getting as a library: default budgets, several caches, and typed errors for wrong arguments."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import contextfold
from contextfold import AskResult, Cache, GetResult, ask_caches
from contextfold.common.question import ASK_BUDGET, CACHES_MAX, GET_BUDGET
from contextfold.errors import QueryInvalid, SourceInvalid
from tests.resolve.relevance.indexing import build_cache
from tests.support.machine import write_files

DOCUMENTS = {"Guide.md": "# Deploying\n\nShip it.\n\n## STRASSE\n\nRoll back.\n\n## Straße\n\nGo on.\n"}


UNUSABLE_PATTERNS = ("", " ", "!", "/", "a\nb", "\ud800", "x" * 5000, "./drafts/", "../drafts", "[", "a[b", "x\\", "[]")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return build_cache(tmp_path, DOCUMENTS)


def test_budgets_have_the_defaults_of_the_commands(cache: Cache) -> None:
    asked, got = cache.ask("roll back"), cache.get("guide.md")
    assert isinstance(asked, AskResult)
    assert isinstance(got, GetResult)
    assert (asked.selection.budget, got.budget) == (ASK_BUDGET, GET_BUDGET)
    assert inspect.signature(ask_caches).parameters["budget"].default == ASK_BUDGET


@pytest.mark.parametrize(
    "arguments",
    [
        {"lines": "1-2"},
        {"lines": (5, 3)},
        {"lines": (0, 3)},
        {"lines": (1, 2, 3)},
        {"lines": (1, True)},
        {"lines": 7},
        {"section": 5},
        {"section": b"Deploying"},
        {"section": "Deploying", "lines": (1, 2)},
        {"around": "x"},
        {"around": -1},
        {"around": True},
        {"around": 10**6},
        {"document_id": None},
        {"document_id": b"guide.md"},
    ],
)
def test_wrong_arguments_of_get_are_typed_errors(cache: Cache, arguments: dict[str, Any]) -> None:
    with pytest.raises(QueryInvalid) as raised:
        cache.get(**{"document_id": "guide.md", **arguments})
    assert raised.value.code == "invalid_query"


def test_headings_are_compared_in_lowercase_as_words_are(cache: Cache) -> None:
    (section,) = cache.get("guide.md", section="strasse").document.sections
    assert "Roll back" in section.content
    (section,) = cache.get("guide.md", section="STRAßE").document.sections
    assert "Go on" in section.content


def test_several_caches_are_asked_by_name_in_any_order(tmp_path: Path) -> None:
    one, two = (build_cache(tmp_path / name, {f"{name}.md": "deploy guide"}) for name in ("one", "two"))
    result = ask_caches({"one": one, "two": two}, "deploy")
    assert result == ask_caches({"two": two, "one": one}, "deploy")
    # The second has the same text as the first.
    assert [document.id for document in result.documents] == ["one:one.md"]


@pytest.mark.parametrize("caches", [{}, {"a": "path"}, {1: None}])
def test_wrong_caches_are_a_typed_error(caches: dict[Any, Any]) -> None:
    with pytest.raises(QueryInvalid):
        ask_caches(caches, "deploy")


def test_too_many_caches_are_a_typed_error(cache: Cache) -> None:
    with pytest.raises(QueryInvalid):
        ask_caches({str(number): cache for number in range(CACHES_MAX + 1)}, "deploy")


@pytest.mark.parametrize("patterns", ["*.md", [5], *([pattern] for pattern in UNUSABLE_PATTERNS)])
@pytest.mark.parametrize("option", ["include", "exclude"])
def test_patterns_that_can_match_nothing_are_typed_errors(option: str, patterns: Any, tmp_path: Path) -> None:
    write_files(tmp_path / "docs", {"a.md": "a"})
    with pytest.raises(SourceInvalid):
        contextfold.build(tmp_path / "docs", **{option: patterns})
