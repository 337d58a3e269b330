"""How many tokens a text takes, estimated in integers, and the optional exact counter. Pure.

`estimate-1` adds up weights of 256ths of a token. They were fitted to a current byte-pair vocabulary on English and
Chinese documentation and source code. A number of the name changes with every change of a weight.
"""

from __future__ import annotations

import re
from collections import Counter

from contextfold.errors import CounterMissing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    CountTokens = Callable[[str], int]

ESTIMATE = "estimate-1"
EXACT = "o200k"
COUNTERS = (ESTIMATE, EXACT)
UNIT = 256

WORD = 241
LETTER_BEYOND_6 = 30
LETTER_BEYOND_12 = 48
DIGIT_GROUP = 406
PUNCTUATION_RUN = 200
LINE_BREAK = 302
CJK_CHARACTER = 196
OTHER_CHARACTER = 143
WIDE_MARK = 256  # of the CJK punctuation

# Every weight depends on a line at most, so that texts that are joined cost no more than their sum: budgets are hard.
# RULE begins the rule of a table drawn with characters; padding is what stands before a cell's end.
RULE = "+--"
RULE_CHARACTER = 12
LONG_RUN = 8
PADDING = 200

MIDDLE_WORD, LONG_WORD = 6, 12
GROUP_DIGITS = 3

_ASCII = [chr(code) for code in range(128)]
_LETTERS = {ord(c): " " for c in _ASCII if not c.isalpha()}
_DIGITS = {ord(c): " " for c in _ASCII if not c.isdigit()}
_PUNCTUATION = {ord(c): " " for c in _ASCII if c.isalnum() or c.isspace() or not c.isprintable()}
_BREAKS = re.compile("\\n\\s*")
_PADDING = re.compile(" {2,}\\|")
_ASCII_RUN = re.compile("[\\x00-\\x7f]+")
_WIDE_RUN = re.compile("[^\\x00-\\x7f]+")
_WIDE_MARKS = re.compile("[\u3000-\u303f\uff00-\uff20]")
_CJK_RUN = re.compile("[\u2e80-\u2fff\u3040-\ud7ff\U00020000-\U0003ffff]+")  # rough ranges are enough for an estimate


def estimate(text: str) -> int:
    """The estimated tokens of a text, begun ones included."""
    units = 0
    if not text.isascii():
        wide = _ASCII_RUN.sub("", text)
        cjk = sum(map(len, _CJK_RUN.findall(wide)))
        marks = len(_WIDE_MARKS.findall(wide))
        units = cjk * CJK_CHARACTER + marks * WIDE_MARK + (len(wide) - cjk - marks) * OTHER_CHARACTER
        text = _WIDE_RUN.sub(" ", text)
    for length, count in Counter(map(len, text.translate(_LETTERS).split())).items():
        weight = WORD + max(length - MIDDLE_WORD, 0) * LETTER_BEYOND_6 + max(length - LONG_WORD, 0) * LETTER_BEYOND_12
        units += weight * count
    for run in text.translate(_DIGITS).split():
        units += -(-len(run) // GROUP_DIGITS) * DIGIT_GROUP
    runs = text.translate(_PUNCTUATION).split()
    units += len(runs) * PUNCTUATION_RUN
    if RULE in text:
        # The rules of tables drawn with characters: a token for each cell, and more for wide ones.
        for run in runs:
            if len(run) > LONG_RUN and RULE in run:
                units += run.count("+") * PUNCTUATION_RUN + (len(run) - LONG_RUN) * RULE_CHARACTER
    units += len(_PADDING.findall(text)) * PADDING
    units += len(_BREAKS.findall(text)) * LINE_BREAK
    return -(-units // UNIT)


def counter_named(name: str) -> CountTokens:
    """The counter of that name; CounterMissing if the package that carries its vocabulary is not installed."""
    if name == ESTIMATE:
        return estimate
    if name != EXACT:
        raise CounterMissing(f"there is no counter {name!r}; choose one of {', '.join(COUNTERS)}")
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
