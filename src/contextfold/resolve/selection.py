"""The result of a query: selects the documents that fit the budget and encodes them in the frozen format. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from contextfold.common.canonical import encode
from contextfold.common.float32 import Float32
from contextfold.common.record import Record
from contextfold.common.text import split_words
from contextfold.errors import BudgetInvalid, QueryInvalid

BUDGET_MAX = 2**63 - 1


class Query(Record):
    """A valid query: its text, its budget, and its terms in their original spelling."""

    text: str
    budget: int
    terms: tuple[str, ...]

    @property
    def distinct_terms(self) -> tuple[bytes, ...]:
        """The terms without repetitions."""
        return tuple(term.encode() for term in dict.fromkeys(self.terms))


class Why(Record):
    query_terms: tuple[str, ...]
    term_matches: int
    total_words: int


class SelectedDocument(Record):
    id: str
    version: str
    content: str
    score: Float32
    tokens: int
    why: Why


class Selection(Record):
    query: str
    budget: int
    tokens_used: int
    documents_considered: int
    documents_selected: int
    documents_excluded_by_budget: int


class SelectionResult(Record):
    documents: tuple[SelectedDocument, ...]
    selection: Selection

    def to_json(self, *, pretty: bool = False) -> str:
        """The output of `context resolve`, with its newline."""
        documents = [document._asdict() | {"why": document.why._asdict()} for document in self.documents]
        return encode({"documents": documents, "selection": self.selection._asdict()}, pretty=pretty) + "\n"


def ask(text: object, budget: object) -> Query:
    """Check a query and its budget. Raises QueryInvalid or BudgetInvalid."""
    if not isinstance(text, str):
        raise QueryInvalid("the query is not text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise QueryInvalid("the query is not valid UTF-8; pass text without stray bytes or lone surrogates") from None
    if type(budget) is not int or not 0 <= budget <= BUDGET_MAX:
        raise BudgetInvalid(f"the budget must be a whole number of tokens from 0 to {BUDGET_MAX}")
    return Query(text, budget, tuple(split_words(text)))


def choose(order: Iterable[int], tokens: Sequence[int], budget: int) -> list[int]:
    """Select documents in order. A document that does not fit the remaining budget is skipped."""
    if budget == 0:
        return []
    chosen, left = [], budget
    for number in order:
        if tokens[number] <= left:
            chosen.append(number)
            left -= tokens[number]
    return chosen
