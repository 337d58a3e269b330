"""Lowercases text and splits it into words by the rules of Unicode 17, independently of the interpreter's tables.

Words are UTF-8 bytes. `bytes.lower` and `bytes.split` change only ASCII characters, by fixed rules. So only words with
other characters need the tables of this package, and most documents have few of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from contextfold.common import unicode17

CAPITAL_SIGMA, SMALL_SIGMA, FINAL_SIGMA = "Σ", "σ", "ς"

# The White_Space characters beyond ASCII. U+001C to U+001F do not have the property, although `str.split` uses them.
_WIDE_SPACE = "[\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"


class _Tables(NamedTuple):
    lower: dict[str, str]
    cased: frozenset[str]
    case_ignorable: frozenset[str]


@cache
def _tables() -> _Tables:
    """Expand the tables on first use. Most commands do not need them."""
    lower = dict(unicode17.LOWER_SEVERAL)
    for first, last, step, delta in unicode17.LOWER:
        for code_point in range(first, last + 1, step):
            lower[chr(code_point)] = chr(code_point + delta)
    return _Tables(lower, characters(unicode17.CASED), characters(unicode17.CASE_IGNORABLE))


def ranges(table: str) -> Iterator[tuple[int, int]]:
    """The first and the last code point of each range in a table of `unicode17.py`."""
    last = 0
    for written in table.split():
        distance, _, length = written.partition("+")
        first = last + int(distance)
        last = first + int(length or 0)
        yield first, last


def characters(table: str) -> frozenset[str]:
    return frozenset(chr(code_point) for first, last in ranges(table) for code_point in range(first, last + 1))


def lowercase(text: str) -> str:
    """The full lowercase mapping of Unicode 17, with the rule for the final sigma."""
    if text.isascii():
        return text.lower()
    tables = _tables()
    if CAPITAL_SIGMA in text:
        text = "".join(
            _small_sigma(text, at, tables) if character == CAPITAL_SIGMA else character
            for at, character in enumerate(text)
        )
    return "".join([tables.lower.get(character, character) for character in text])


def _small_sigma(text: str, at: int, tables: _Tables) -> str:
    """ς after a cased character and before none, else σ. Case-ignorable characters are skipped on both sides."""
    before = _next_is_cased(text, range(at - 1, -1, -1), tables)
    after = _next_is_cased(text, range(at + 1, len(text)), tables)
    return FINAL_SIGMA if before and not after else SMALL_SIGMA


def _next_is_cased(text: str, positions: range, tables: _Tables) -> bool:
    for position in positions:
        if text[position] not in tables.case_ignorable:
            return text[position] in tables.cased
    return False


def split_words(text: str) -> list[str]:
    """The lowercase words of a text, in order."""
    return [word.decode() for word in _words(text.encode())]


def count_words(content: bytes) -> dict[bytes, int]:
    """The number of occurrences of each lowercase word in UTF-8 content."""
    counts: dict[bytes, int] = Counter(content.lower().split())
    if not content.isascii():
        wide = {word: counts.pop(word) for word in [word for word in counts if not word.isascii()]}
        for word, count in wide.items():
            for part in _split_and_lower(word):
                counts[part] = counts.get(part, 0) + count
    return counts


def count_terms(content: bytes, terms: Sequence[bytes]) -> tuple[int, int]:
    """The number of words in UTF-8 content that equal one of the distinct terms, and the number of all words."""
    words = content.lower().split() if content.isascii() else list(_words(content))
    return sum(map(words.count, terms)), len(words)


def _words(content: bytes) -> Iterator[bytes]:
    for word in content.lower().split():
        if word.isascii():
            yield word
        else:
            yield from _split_and_lower(word)


def _split_and_lower(word: bytes) -> list[bytes]:
    """Split a word at spaces beyond ASCII, then lowercase the parts.

    Lowercasing single words gives the same result as lowercasing the whole text: no white space is cased or
    case-ignorable, so the rule for the final sigma never looks beyond one.
    """
    return [lowercase(part).encode() for part in re.split(_WIDE_SPACE, word.decode()) if part]
