"""A question: its defaults and limits, its stems and words, pairs of neighbouring stems, and names of files. Pure."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from contextfold.common.words import QUESTION_WORDS, read_token, stem_of, tokens
from contextfold.errors import BudgetInvalid, QueryInvalid

# The default budgets of the commands and the tools, in tokens.
ASK_BUDGET = 4_000
GET_BUDGET = 8_000
# At most this many neighbouring sections are added on each side.
AROUND_MAX = 100
# One question goes to at most this many caches.
CACHES_MAX = 64

BUDGET_LIMIT = 2**63 - 1
# Only the first 128 distinct stems of a question are used.
TERMS_MAX = 128

# A line number has at most this many digits.
LINE_DIGITS = 9
# An error repeats at most this many characters of what a caller sent.
QUOTED_MAX = 60


# At most this many names of files are read from a question.
NAMES_MAX = 4
# A run of characters that may be a name or the end of a path, and an extension. Both match in time linear in the text.
_PATH = re.compile(r"[0-9A-Za-z_./-]+")
_EXTENSION = re.compile(r"[A-Za-z]{1,10}")
PATH_MAX = 400


class QuestionTerm(NamedTuple):
    """The words of a question with the same stem, in lowercase and in the order of the question."""

    stem: str
    words: tuple[str, ...]


class Question(NamedTuple):
    """A valid question. `pairs` has the pairs of neighbouring stems, `is_cut` says whether terms were left out.

    `files` has the names and the ends of paths that may be those of documents, in lowercase.
    """

    text: str
    budget: int
    terms: tuple[QuestionTerm, ...]
    pairs: tuple[tuple[str, str], ...]
    is_cut: bool
    files: tuple[str, ...] = ()


def check_query_text(text: object) -> str:
    """Return the query if it is text that UTF-8 can encode. Raises QueryInvalid otherwise."""
    if not isinstance(text, str):
        raise QueryInvalid("the query is not text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise QueryInvalid("the query is not valid UTF-8; pass text without stray bytes or lone surrogates") from None
    return text


def read_question(text: object, budget: object) -> Question:
    """Check and parse a question. Raises QueryInvalid or BudgetInvalid."""
    text = check_query_text(text)
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
    return Question(text, check_budget(budget), terms, pairs, len(words) > TERMS_MAX, _file_names(text))


def _file_names(text: str) -> tuple[str, ...]:
    """The names of files in a text: what has a dot and an extension, without those of one letter."""
    names = []
    for found in _PATH.findall(text):
        name = found[:PATH_MAX].strip("./-").lower()
        stem, _, extension = name.rpartition(".")
        if len(stem) > 1 and _EXTENSION.fullmatch(extension):
            names.append(name)
    return tuple(dict.fromkeys(names))[:NAMES_MAX]


def check_budget(budget: object) -> int:
    if type(budget) is not int or not 0 <= budget <= BUDGET_LIMIT:
        raise BudgetInvalid(f"the budget must be a whole number of tokens from 0 to {BUDGET_LIMIT}")
    return budget


def parse_lines(text: str) -> tuple[int, int]:
    """Parse a range of lines, written as `40-58` or `40`. Raises ValueError with the reason if it is invalid."""
    first, dash, last = text.partition("-")
    last = last if dash else first
    if not all(part.isascii() and part.isdigit() and 0 < len(part) <= LINE_DIGITS for part in (first, last)):
        raise ValueError(f"must be like 40-58, not {quote_briefly(text)}")
    if not 1 <= int(first) <= int(last):
        raise ValueError(f"must run from a line to a later one, not {quote_briefly(text)}")
    return int(first), int(last)


def parse_around(text: str) -> int:
    """Parse a number of neighbouring sections. Raises ValueError with the reason if it is invalid."""
    digits = text.lstrip("0") or "0"
    if not (text.isascii() and text.isdigit()) or len(digits) > len(str(AROUND_MAX)) or int(digits) > AROUND_MAX:
        raise ValueError(f"must be a whole number from 0 to {AROUND_MAX}, not {quote_briefly(text)}")
    return int(digits)


def quote_briefly(text: str) -> str:
    """The beginning of a text as an error repeats it: escaped, so that it is printable and valid UTF-8."""
    return repr(text if len(text) <= QUOTED_MAX else text[:QUOTED_MAX] + "…")
