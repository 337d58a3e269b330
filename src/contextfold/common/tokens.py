"""Estimates the number of tokens in a text, in integers; also has the optional exact counter. Pure.

v0 and folding count bytes. `ask` and `get` have a better estimate, `estimate-1`, and a counter of exact tokens.

`estimate-1` adds weights in 256ths of a token. They were fitted to a current byte-pair vocabulary with English and
Chinese documentation and source code. The number in the name changes with every change of a weight.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from contextfold.common.words import without_marks
from contextfold.errors import CounterMissing

CountTokens = Callable[[str], int]

BYTES_PER_TOKEN = 4
BYTES_PER_DENSE_TOKEN = 3


def tokens_of(byte_count: int) -> int:
    """The v0 estimate: one token for every four UTF-8 bytes, rounded up."""
    return -(-byte_count // BYTES_PER_TOKEN)


# The counters of folding by the name in the setting. `dense` is for code, and for scripts that need more tokens.
FOLD_COUNTERS: Mapping[str, CountTokens] = {
    "v0": lambda text: tokens_of(len(text.encode("utf-8"))),
    "dense": lambda text: -(-len(text.encode("utf-8")) // BYTES_PER_DENSE_TOKEN),
}

ESTIMATE = "estimate-1"
EXACT = "o200k"
ASK_COUNTERS = (ESTIMATE, EXACT)
UNIT = 256

WORD = 241
LETTER_BEYOND_6 = 30
LETTER_BEYOND_12 = 48
DIGIT_GROUP = 406
PUNCTUATION_RUN = 204
LINE_BREAK = 302
CJK_CHARACTER = 184
OTHER_CHARACTER = 143
# The weight of CJK punctuation.
WIDE_MARK = 256

# No weight depends on more than one line, so joined texts never have more tokens than the sum of their parts. Budgets
# rely on this. RULE begins a rule of a table drawn with characters; padding is the space before the end of a cell.
RULE = "+--"
RULE_CHARACTER = 12
LONG_RUN = 8
PADDING = 200

# Remembered weights take about 100 bytes each. A document may consist of words that no other one has.
CHUNKS_MAX = 100_000

MIDDLE_WORD, LONG_WORD = 6, 12
GROUP_DIGITS = 3

_ASCII = [chr(code) for code in range(128)]
_LETTERS = {ord(c): " " for c in _ASCII if not c.isalpha()}
_DIGITS = {ord(c): " " for c in _ASCII if not c.isdigit()}
_CHUNKS = {ord(c): " " for c in _ASCII if not c.isalnum()}
_MARKS = bytes(b" ."[c.isprintable() and not c.isalnum() and not c.isspace()] for c in _ASCII)
_NOT_PUNCTUATION = {code: " " for code, mark in enumerate(_MARKS) if mark == ord(" ")}
_MARKS += bytes(256 - len(_MARKS))
_BLANKS = "".join(c for c in _ASCII if c.isspace() and c != "\n").encode()
_MARK = "\0"


class ChunkUnits(dict[str, int]):
    """The weights of runs of letters and digits. Each is computed once, until there are too many to remember."""

    def __missing__(self, chunk: str) -> int:
        if len(self) >= CHUNKS_MAX:
            self.clear()
        units = 0
        for word in _words(chunk):
            length = len(word)
            units += WORD
            if length > MIDDLE_WORD:
                units += (length - MIDDLE_WORD) * LETTER_BEYOND_6 + max(length - LONG_WORD, 0) * LETTER_BEYOND_12
        if not chunk.isalpha():
            for digits in chunk.translate(_DIGITS).split():
                units += -(-len(digits) // GROUP_DIGITS) * DIGIT_GROUP
        self[chunk] = units
        return units


# The words of breadcrumbs are often the same from one question to the next.
_UNITS = ChunkUnits()


def _words(chunk: str) -> list[str]:
    """The runs of letters in a run of letters and digits. A vocabulary has the words of camelCase, not the whole."""
    words = [chunk] if chunk.isalpha() else chunk.translate(_LETTERS).split()
    if chunk[1:].lower() == chunk[1:]:
        return words
    found = []
    for word in words:
        start = 0
        for at in range(1, len(word)):
            if word[at].isupper() and word[at - 1].islower():
                found.append(word[start:at])
                start = at
        found.append(word[start:])
    return found


def estimate(text: str, chunks: Iterable[str] | None = None, known: ChunkUnits | None = None) -> int:
    """The estimated tokens of a text, rounded up.

    A caller that has already split an ASCII text into runs of letters and digits can pass them, with known weights.
    """
    units = 0
    if not text.isascii():
        text, units = _without_wide(text)
    pieces = text.translate(_CHUNKS).split() if chunks is None else chunks
    units += sum(map((ChunkUnits() if known is None else known).__getitem__, pieces))
    raw = text.encode()
    marks = raw.translate(_MARKS)
    units += (marks.count(b" .") + marks.startswith(b".")) * PUNCTUATION_RUN
    if RULE in text:
        # The rules of tables drawn with characters: a token for each cell, and more for wide ones.
        for run in text.translate(_NOT_PUNCTUATION).split():
            if len(run) > LONG_RUN and RULE in run:
                units += run.count("+") * PUNCTUATION_RUN + (len(run) - LONG_RUN) * RULE_CHARACTER
    units += text.count("  |") * PADDING
    if "\n" in text:
        # Line breaks with nothing but blank lines between them are one.
        between = raw[raw.index(b"\n") : raw.rindex(b"\n")].translate(None, _BLANKS)
        units += (1 + len(between.split())) * LINE_BREAK
    return -(-units // UNIT)


def _without_wide(text: str) -> tuple[str, int]:
    """A text with a space instead of each run of non-ASCII characters, and the weight of these runs."""
    if _MARK not in text and (marked := without_marks(text, _MARK)).isascii() and 2 * _MARK not in marked:
        return marked.replace(_MARK, " "), marked.count(_MARK) * OTHER_CHARACTER

    wide = re.sub("[\\x00-\\x7f]+", "", text)
    # Rough ranges are enough for an estimate.
    cjk = sum(map(len, re.findall("[\u2e80-\u2fff\u3040-\ud7ff\U00020000-\U0003ffff]+", wide)))
    marks = len(re.findall("[\u3000-\u303f\uff00-\uff20]", wide))
    units = cjk * CJK_CHARACTER + marks * WIDE_MARK + (len(wide) - cjk - marks) * OTHER_CHARACTER
    return re.sub("[^\\x00-\\x7f]+", " ", text), units


def counter_named(name: str) -> CountTokens:
    """The counter of this name. Raises CounterMissing if the package with its vocabulary is not installed."""
    if name == ESTIMATE:
        return lambda text: estimate(text, known=_UNITS)
    if name != EXACT:
        raise CounterMissing(f"there is no counter {name!r}; choose one of {', '.join(ASK_COUNTERS)}")
    try:
        import bpe_openai  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise CounterMissing(
            f"the counter {EXACT} needs a vocabulary: install contextfold with the extra `o200k`, or use {ESTIMATE}"
        ) from None
    encoding = bpe_openai.get_encoding("o200k_base")

    def count(text: str) -> int:
        return len(encoding.encode_ordinary(text))

    return count
