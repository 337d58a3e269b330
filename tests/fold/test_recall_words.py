"""Words of a recall question that do not say what it is about are ignored."""

from __future__ import annotations

from contextfold.common.relevance.words import stem_of
from contextfold.fold.recall.ranking import REMEMBERING

REMEMBERING_WORDS = ("see", "saw", "seen", "find", "found", "before", "earlier", "last", "time", "again")


def test_the_ignored_stems_are_those_of_these_words() -> None:
    assert frozenset(map(stem_of, REMEMBERING_WORDS)) == REMEMBERING
