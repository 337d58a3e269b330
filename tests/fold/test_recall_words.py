"""The words of a question to recall that do not say what it is about."""

from __future__ import annotations

from contextfold.common.relevance.words import stem_of
from contextfold.fold.recall.ranking import REMEMBERING

WORDS = ("see", "saw", "seen", "find", "found", "before", "earlier", "last", "time", "again")


def test_they_are_the_stems_of_these_words() -> None:
    assert frozenset(map(stem_of, WORDS)) == REMEMBERING
