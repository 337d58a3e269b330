"""Scores documents for a query and ranks them. Pure; knows counts, not texts."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from operator import truediv

from contextfold.common.float32 import Float32, ratio
from contextfold.common.record import Record


class Measures(Record):
    """The counts of all documents, which are numbered in the byte order of their ids.

    `term_matches` has only the documents with a match.
    """

    tokens: Sequence[int]
    total_words: Sequence[int]
    term_matches: Mapping[int, int]

    def score(self, number: int) -> Float32:
        """The share of the document's words that are query terms."""
        return ratio(self.term_matches.get(number, 0), self.total_words[number])

    def ranked(self) -> Iterator[int]:
        """The numbers of all documents: the best score first, equal scores by id."""
        numbers = sorted(self.term_matches)
        parts = array("f", [self.term_matches[number] for number in numbers])
        wholes = array("f", [self.total_words[number] for number in numbers])
        # This is `float32.ratio` for many documents at once. The sort is stable, so equal scores stay ordered by id.
        scores = array("f", map(truediv, parts, wholes))
        best_first = sorted(range(len(numbers)), key=scores.__getitem__, reverse=True)
        yield from (numbers[position] for position in best_first)
        yield from (number for number in range(len(self.tokens)) if number not in self.term_matches)
