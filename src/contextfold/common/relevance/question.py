"""A question as terms: checked text, stems with the words that were typed, and pairs of neighbours. Pure."""

from __future__ import annotations

from itertools import pairwise

from contextfold.common.record import Record
from contextfold.common.relevance.words import QUESTION_WORDS, read_token, stem_of, tokens
from contextfold.errors import BudgetInvalid, QueryInvalid

BUDGET_LIMIT = 2**63 - 1
TERMS_MAX = 128  # distinct stems of a question that are looked up; the first ones

# Digits of a line number.
LINE_DIGITS = 9


class QuestionTerm(Record):
    """All words of a question that share a stem."""

    stem: str
    words: tuple[str, ...]  # lowercase, as typed first


class Question(Record):
    text: str
    budget: int
    terms: tuple[QuestionTerm, ...]
    pairs: tuple[tuple[str, str], ...]  # of neighbouring stems


def read_question(text: object, budget: object) -> Question:
    """Check a question before anything is read for it."""
    if not isinstance(text, str):
        raise QueryInvalid("the query is not text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise QueryInvalid("the query is not valid UTF-8; pass text without stray bytes or lone surrogates") from None
    words: dict[str, dict[str, None]] = {}
    order: list[str] = []
    for token in tokens(text):
        read = read_token(token)
        asked = [word for word in read.words if word not in QUESTION_WORDS]
        for word in (*asked, *read.parts):
            words.setdefault(stem_of(word), {})[word] = None
        order += map(stem_of, asked)
        if len(words) > TERMS_MAX:
            break
    terms = tuple(QuestionTerm(root, tuple(forms)) for root, forms in words.items())[:TERMS_MAX]
    pairs = tuple(dict.fromkeys(pairwise(order)))
    return Question(text, checked_budget(budget), terms, pairs)


def checked_budget(budget: object) -> int:
    if type(budget) is not int or not 0 <= budget <= BUDGET_LIMIT:
        raise BudgetInvalid(f"the budget must be a whole number of tokens from 0 to {BUDGET_LIMIT}")
    return budget


def line_range(text: str) -> tuple[int, int]:
    """A range of lines, written as `40-58` or `40`; ValueError says what is wrong with it."""
    first, dash, last = text.partition("-")
    last = last if dash else first
    if not all(part.isascii() and part.isdigit() and 0 < len(part) <= LINE_DIGITS for part in (first, last)):
        raise ValueError(f"must be like 40-58, not {text!r}")
    if not 1 <= int(first) <= int(last):
        raise ValueError(f"must run from a line to a later one, not {text!r}")
    return int(first), int(last)
