"""A query, the documents selected for it, and the result in the frozen format. Pure; knows counts, not files.

Scores are ratios in single precision. Python formats and parses floats by algorithms of its own, so their digits do not
depend on the C library or the locale.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import truediv
from typing import NamedTuple

from contextfold.common.canonical import WrittenFloat, encode
from contextfold.common.question import check_query_text
from contextfold.common.text import split_words
from contextfold.errors import BudgetInvalid

BUDGET_MAX = 2**63 - 1

# Nine significant digits distinguish any two float32 values.
MAX_DIGITS = 9
# Numbers from 0.000001 on are written without an exponent.
FIXED_POINT_FROM = -6


class Float32(WrittenFloat):
    """A float32 between 0 and 1. Its text is the shortest decimal that parses to the same value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return shortest_text(float(self))

    __str__ = __repr__


def round_to_float32(value: float) -> float:
    """Round to the nearest float32."""
    return array("f", (value,))[0]


def ratio(part: int, whole: int) -> Float32:
    """Divide two integers in float32 arithmetic; 0 if `whole` is 0.

    A double has more than twice the precision of a float32, so rounding the quotient of two float32 numbers once more
    gives exactly the float32 quotient.
    """
    return Float32(round_to_float32(round_to_float32(part) / round_to_float32(whole))) if whole else Float32(0.0)


def shortest_text(value: float) -> str:
    """The shortest decimal text of a float32 that is 0, or a quotient of counts: below 2^-64, it may be missed."""
    if value == 0.0:
        return "0.0"
    for decimals in range(MAX_DIGITS):
        text = f"{value:.{decimals}e}"
        if round_to_float32(float(text)) == value:
            break
    mantissa, _, exponent = text.partition("e")
    if int(exponent) >= FIXED_POINT_FROM:
        return f"{value:.{max(decimals - int(exponent), 1)}f}"
    return f"{mantissa}e{int(exponent)}"


class Query(NamedTuple):
    """A valid query: its text, its budget, and its terms in their original spelling."""

    text: str
    budget: int
    terms: tuple[str, ...]

    @property
    def distinct_terms(self) -> tuple[bytes, ...]:
        """The terms without repetitions."""
        return tuple(term.encode() for term in dict.fromkeys(self.terms))


class Measures(NamedTuple):
    """The counts of all documents, which are numbered in the byte order of their ids.

    `term_matches` has only the documents with a match.
    """

    tokens: Sequence[int]
    total_words: Sequence[int]
    term_matches: Mapping[int, int]

    def score(self, number: int) -> Float32:
        """The share of the document's words that are query terms."""
        return ratio(self.term_matches.get(number, 0), self.total_words[number])

    def choose(self, budget: int) -> list[int]:
        """The documents that fit a budget of tokens, best score first, equal scores by id.

        A document that does not fit what is left is skipped.
        """
        if budget == 0:
            # By the contract not even an empty document is selected, which would fit.
            return []
        matched = sorted(self.term_matches)
        # This is `ratio` for many documents at once.
        parts = array("f", map(self.term_matches.__getitem__, matched))
        wholes = array("f", map(self.total_words.__getitem__, matched))
        scores = dict(zip(matched, array("f", map(truediv, parts, wholes)), strict=True))
        # Sorting is stable, so equal scores stay ordered by id.
        ranked = sorted(matched, key=scores.__getitem__, reverse=True)
        unmatched = (number for number in range(len(self.tokens)) if number not in scores)
        chosen: list[int] = []
        least, left = min(self.tokens, default=0), budget
        for number in chain(ranked, unmatched):
            if left < least:
                break
            if self.tokens[number] <= left:
                chosen.append(number)
                left -= self.tokens[number]
        return chosen


class Why(NamedTuple):
    query_terms: tuple[str, ...]
    term_matches: int
    total_words: int


class SelectedDocument(NamedTuple):
    id: str
    version: str
    content: str
    score: Float32
    tokens: int
    why: Why


class Selection(NamedTuple):
    query: str
    budget: int
    tokens_used: int
    documents_considered: int
    documents_selected: int
    documents_excluded_by_budget: int


class SelectionResult(NamedTuple):
    documents: tuple[SelectedDocument, ...]
    selection: Selection

    def to_json(self, *, pretty: bool = False) -> str:
        """The output of `context resolve`, with its newline."""
        documents = [document._asdict() | {"why": document.why._asdict()} for document in self.documents]
        return encode({"documents": documents, "selection": self.selection._asdict()}, pretty=pretty) + "\n"


def parse_query(text: object, budget: object) -> Query:
    """Check a query and its budget. Raises QueryInvalid or BudgetInvalid."""
    text = check_query_text(text)
    if type(budget) is not int or not 0 <= budget <= BUDGET_MAX:
        raise BudgetInvalid(f"the budget must be a whole number of tokens from 0 to {BUDGET_MAX}")
    return Query(text, budget, tuple(split_words(text)))
