"""Lowercase and words as Unicode 17 has them, whatever tables the interpreter carries.

Knows text, not documents. Words are kept as UTF-8 bytes: on those, `bytes.lower` and `bytes.split` touch ASCII alone
and do so by fixed rules, so only words with other characters need the pinned tables, and most documents have few.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

from contextfold.common.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CAPITAL_SIGMA, SMALL_SIGMA, FINAL_SIGMA = "Σ", "σ", "ς"

# The White_Space property beyond ASCII. U+001C to U+001F are not in it, although `str.split` thinks so.
_WIDE_SPACE = "[\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"


class _Tables(Record):
    lower: dict[str, str]
    cased: frozenset[str]
    case_ignorable: frozenset[str]


@cache
def _tables() -> _Tables:
    """Expanded on first use: most commands never meet a character that needs them."""
    from contextfold.common import unicode17

    lower = dict(unicode17.LOWER_SEVERAL)
    for first, last, step, delta in unicode17.LOWER:
        for code_point in range(first, last + 1, step):
            lower[chr(code_point)] = chr(code_point + delta)
    return _Tables(lower, _expand(unicode17.CASED), _expand(unicode17.CASE_IGNORABLE))


def _expand(ranges: tuple[tuple[int, int], ...]) -> frozenset[str]:
    return frozenset(chr(code_point) for first, last in ranges for code_point in range(first, last + 1))


def lowercase(text: str) -> str:
    """The full lowercase mapping of Unicode 17, the final sigma included."""
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
    """ς after a cased character and before none, looking past case-ignorable ones both ways."""
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
    """How often each lowercase word stands in the UTF-8 content."""
    counts: dict[bytes, int] = Counter(content.lower().split())
    if not content.isascii():
        wide = {word: counts.pop(word) for word in [word for word in counts if not word.isascii()]}
        for word, count in wide.items():
            for part in _lowered_parts(word):
                counts[part] = counts.get(part, 0) + count
    return counts


def count_terms(content: bytes, terms: Sequence[bytes]) -> tuple[int, int]:
    """How many words of the UTF-8 content equal any of the terms, each listed once; and how many words there are."""
    words = content.lower().split() if content.isascii() else list(_words(content))
    return sum(map(words.count, terms)), len(words)


def _words(content: bytes) -> Iterator[bytes]:
    for word in content.lower().split():
        if word.isascii():
            yield word
        else:
            yield from _lowered_parts(word)


def _lowered_parts(word: bytes) -> list[bytes]:
    """Split further on wide spaces, then lowercase.

    Lowercasing word by word equals lowercasing the whole text: no white space is cased or case-ignorable, so the final
    sigma rule never looks across one.
    """
    return [lowercase(part).encode() for part in re.split(_WIDE_SPACE, word.decode()) if part]
