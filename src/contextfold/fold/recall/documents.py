"""A folded branch or a left-out result as a document: its fields, its words, and how an index stores them. Pure.

A document has four fields. The first three are what was written to be read again; words of the fourth count less:

    of a fold       description   summary   prompt   operations
    of a result     call (its stub)                  text

The words of a document are stored as lines of stem, word and four hexadecimal counts. From them follows the level of
each stem, from 0 (only in the fourth field) to 4: an index has a list of documents for each stem and level, so that a
question finds the documents worth reading without reading them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import pairwise

from contextfold.common.dataclass import dataclass
from contextfold.common.relevance.term_scores import saturation
from contextfold.common.relevance.words import read_token, stem_of, tokens
from contextfold.fold.archive import ArchiveEntry

FOLD, RESULT = "fold", "result"
FIELDS = {FOLD: ("description", "summary", "prompt", "operations"), RESULT: ("call", "", "", "text")}
# How much an occurrence in the first three fields counts.
FIELD_WEIGHTS = (5, 2, 1)
OPERATIONS = len(FIELD_WEIGHTS)
COUNT_MAX = 15
# The length in words that documents are compared with, and the greatest that counts: a word in the prompt of the
# longest document still counts more than one in its operations.
AVERAGE_WORDS, WORDS_MAX = 120, 240
# Where the levels above 1 begin, in 65536ths of tf / (tf + K).
LEVEL_BOUNDS = (32_768, 42_598, 52_428)
LEVELS = len(LEVEL_BOUNDS) + 2

# What is read of a long text: its beginning, where commands and paths are, then lines that look like errors.
HEAD_CHARACTERS = 2_000
ERROR_LINES, ERROR_LINE_CHARACTERS = 40, 240
# Of all operations of a branch together.
OPERATION_CHARACTERS = 1 << 18
OPERATION_WORDS = 800
# Longer ones are data.
OPERATION_WORD_CHARACTERS = 40
# Of a prompt or summary.
STRONG_CHARACTERS = 1 << 16

_ERROR_LINE = re.compile(
    r"^.*(?:error|exception|fail|fatal|panic|refused|denied|cannot|not found|timed out|traceback|\bE[A-Z]{3,}).*$",
    re.IGNORECASE | re.MULTILINE,
)
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)Z", re.ASCII)
_PAIR_JOINT = " "
# The last bits of a document's number; the others are its time.
HASH_BITS = 24


@dataclass(frozen=True, slots=True)
class DocumentTerms:
    """A document as an index stores it: see `packed` above. `words` is the length of its first three fields."""

    number: int
    words: int
    packed: str


def fold_fields(
    description: str, summary: str, entries: Iterable[ArchiveEntry], *, undone: bool
) -> tuple[str, str, str, str]:
    """The fields of a folded branch. Operations that were undone count for a branch that was undone itself."""
    prompt, parts, left = "", [], OPERATION_CHARACTERS
    for entry in entries:
        if entry.kind == "prompt":
            prompt = entry.text
        elif entry.kind == "operation" and left > 0 and (undone or not entry.undone):
            part = f"{entry.type}\n{notable(entry.text[:left])}"
            parts.append(part)
            left -= len(entry.text)
    return description, summary[:STRONG_CHARACTERS], prompt[:STRONG_CHARACTERS], "\n".join(parts)


def result_fields(stub: str, text: str) -> tuple[str, str, str, str]:
    return stub, "", "", notable(text[:OPERATION_CHARACTERS])


def notable(text: str) -> str:
    """The beginning of a text, and the lines after it that look like errors."""
    if len(text) <= HEAD_CHARACTERS:
        return text
    lines: dict[str, None] = {}
    for found in _ERROR_LINE.finditer(text, HEAD_CHARACTERS):
        lines[found[0][:ERROR_LINE_CHARACTERS]] = None
        if len(lines) == ERROR_LINES:
            break
    return "\n".join((text[:HEAD_CHARACTERS], *lines))


def document_terms(number: int, fields: Sequence[str]) -> DocumentTerms:
    counts: dict[str, list[int]] = {}
    length = 0
    for field, text in enumerate(fields[:OPERATIONS]):
        for token, times in Counter(tokens(text)).items():
            read = read_token(token)
            length += times * len(read.words)
            for word in (*read.words, *read.parts):
                counts.setdefault(word, [0, 0, 0, 0])[field] += times
    for word, times in _operation_words(fields[OPERATIONS]).items():
        counts.setdefault(word, [0, 0, 0, 0])[OPERATIONS] += times
    keys = {(stem_of(word), word): found for word, found in counts.items()}
    described = [stem_of(word) for token in tokens(fields[0]) for word in read_token(token).words]
    for pair, times in Counter(pairwise(described)).items():
        keys[_PAIR_JOINT.join(pair), ""] = [times, 0, 0, 0]
    lines = (
        f"{stem}\t{word if word != stem else ''}\t{''.join(f'{min(count, COUNT_MAX):x}' for count in found)}"
        for (stem, word), found in sorted(keys.items())
    )
    return DocumentTerms(number, min(length, WORDS_MAX), "\n" + "\n".join(lines) + "\n")


def _operation_words(text: str) -> dict[str, int]:
    words: dict[str, int] = {}
    for token, times in Counter(tokens(text)).items():
        if len(token) <= OPERATION_WORD_CHARACTERS:
            read = read_token(token)
            for word in (*read.words, *read.parts):
                words[word] = words.get(word, 0) + times
        if len(words) >= OPERATION_WORDS:
            break
    return words


@dataclass(frozen=True, slots=True)
class WordCounts:
    word: str
    counts: tuple[int, ...]

    @property
    def strong(self) -> int:
        """The weighted occurrences in the first three fields."""
        return sum(weight * count for weight, count in zip(FIELD_WEIGHTS, self.counts, strict=False))


def counts_of(packed: str, stem: str) -> list[WordCounts]:
    """The words of a stem in a document."""
    found = []
    start = packed.find(f"\n{stem}\t")
    while start >= 0:
        end = packed.index("\n", start + 1)
        _, word, counts = packed[start + 1 : end].split("\t")
        found.append(WordCounts(word or stem, tuple(int(digit, 16) for digit in counts)))
        start = end if packed.startswith(f"{stem}\t", end + 1) else -1
    return found


def pair_count(packed: str, first: str, second: str) -> int:
    """How often two stems are neighbours in the first field."""
    found = counts_of(packed, f"{first}{_PAIR_JOINT}{second}")
    return found[0].counts[0] if found else 0


def level_of(strong: int, words: int) -> int:
    if not strong:
        return 0
    return 1 + bisect_right(LEVEL_BOUNDS, saturation(strong, words, AVERAGE_WORDS))


def leveled_stems(terms: DocumentTerms) -> Iterator[tuple[str, int]]:
    """Each stem of a document with its level."""
    strong: dict[str, int] = {}
    for line in terms.packed.split("\n")[1:-1]:
        stem, word, counts = line.split("\t")
        if _PAIR_JOINT not in stem:
            found = WordCounts(word, tuple(int(digit, 16) for digit in counts))
            strong[stem] = strong.get(stem, 0) + found.strong
    return ((stem, level_of(occurrences, terms.words)) for stem, occurrences in strong.items())


def document_number(at: str, *key: str) -> int:
    """A number that is the same in every store, and greater for a later document."""
    digest = sha256("\0".join(key).encode("utf-8", "surrogatepass")).digest()
    return first_number(at) | int.from_bytes(digest[: HASH_BITS // 8], "big")


def first_number(at: str) -> int:
    """The least number of a document of this time. A time that cannot be read is before all others."""
    found = _TIME.fullmatch(at)
    if found is None:
        return 0
    year, month, day, hour, minute, second = map(int, found.groups())
    # In seconds, as if every month had as many days as the longest.
    return ((((year * 12 + month) * 32 + day) * 24 + hour) * 60 + minute) * 60 + second << HASH_BITS
