"""Reads the stored words of a document for a question. `documents` makes them and describes their form. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

FOLD, RESULT = "fold", "result"
FIELDS = {FOLD: ("description", "summary", "prompt", "operations"), RESULT: ("call", "", "", "text")}
# The weights of an occurrence in the first three fields.
FIELD_WEIGHTS = (5, 2, 1)
OPERATIONS = len(FIELD_WEIGHTS)
# The average length of documents in words, and the largest length that counts: a word in the prompt of the longest
# document still counts more than a word in its operations.
AVERAGE_WORDS, WORDS_MAX = 120, 240
# The lower bounds of the levels above 1, in 65536ths of tf / (tf + K).
LEVEL_BOUNDS = (32_768, 42_598, 52_428)
LEVELS = len(LEVEL_BOUNDS) + 2
_TIME = r"(?a)(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)Z"
PAIR_JOINT = " "
HEX = "0123456789abcdef"
# The number of low bits of a document's number with a hash; the high bits are its time.
HASH_BITS = 24
TIME_LENGTH = len("2026-01-31T00:00:00Z")


class _FieldBits(dict[str, int]):
    """The bits of those of four digits that are not 0. Each value is computed once."""

    def __missing__(self, digits: str) -> int:
        self[digits] = sum(1 << field for field, digit in enumerate(digits) if digit != "0")
        return self[digits]


class _StrongOccurrences(dict[str, int]):
    """The weighted occurrences for three digits. Each value is computed once."""

    def __missing__(self, digits: str) -> int:
        self[digits] = sum(weight * int(digit, 16) for weight, digit in zip(FIELD_WEIGHTS, digits, strict=True))
        return self[digits]


_FIELD_BITS = _FieldBits()
STRONG = _StrongOccurrences()


class TermCounts(NamedTuple):
    """The occurrences of a stem in a document.

    `strong` has the weighted occurrences in the first three fields, `typed` those of the words in the question, `weak`
    the occurrences in the fourth field. `fields` has a bit for each field.
    """

    strong: int
    typed: int
    weak: int
    fields: int


def term_counts(packed: str, stem: str, words: Sequence[str]) -> TermCounts | None:
    """Count a stem in a document; None if the document does not have it."""
    start = packed.find(f"\n{stem}\t")
    if start < 0:
        return None
    strong = typed = weak = fields = 0
    # The words of a stem are adjacent lines.
    while start >= 0:
        end = packed.index("\n", start + 1)
        digits = packed[end - OPERATIONS - 1 : end]
        occurrences = STRONG[digits[:OPERATIONS]]
        strong += occurrences
        if occurrences and (packed[start + len(stem) + 2 : end - OPERATIONS - 2] or stem) in words:
            typed += occurrences
        weak += HEX.index(digits[OPERATIONS])
        fields |= _FIELD_BITS[digits]
        start = end if packed.startswith(f"{stem}\t", end + 1) else -1
    return TermCounts(strong, typed, weak, fields)


def pair_count(packed: str, first: str, second: str) -> int:
    """The number of times that two stems are neighbours in the first field."""
    start = packed.find(f"\n{first}{PAIR_JOINT}{second}\t")
    return HEX.index(packed[packed.index("\n", start + 1) - OPERATIONS - 1]) if start >= 0 else 0


def first_number(at: str) -> int:
    """The smallest number of a document of this time. An invalid time is before all others."""
    if len(at) != TIME_LENGTH:
        return 0

    found = re.fullmatch(_TIME, at)
    if found is None:
        return 0
    year, month, day, hour, minute, second = map(int, found.groups())
    # The time in seconds, with 32 days in every month.
    return ((((year * 12 + month) * 32 + day) * 24 + hour) * 60 + minute) * 60 + second << HASH_BITS
