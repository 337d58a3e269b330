"""Makes a document of a folded branch or a left-out result: its fields, its words, and their stored form. Pure.

A document has four fields. The first three were written for later reading; words of the fourth count less:

    of a fold       description   summary   prompt   operations
    of a result     call (its stub)                  text

The words of a document are stored as lines of stem, word and four hexadecimal counts. The level of each stem follows
from them, from 0 (only in the fourth field) to 4. An index has a list of documents for each stem and level, so that a
question finds the best documents without reading all of them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple

from contextfold.common.relevance.term_scores import saturation
from contextfold.common.relevance.words import read_token, stem_of, tokens
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.recall.packed_terms import (
    AVERAGE_WORDS,
    HASH_BITS,
    HEX,
    LEVEL_BOUNDS,
    OPERATIONS,
    PAIR_JOINT,
    STRONG,
    WORDS_MAX,
    first_number,
)

COUNT_MAX = 15

# Of a long text only its beginning, where commands and paths are, and lines that look like errors are read.
HEAD_CHARACTERS = 2_000
ERROR_LINES, ERROR_LINE_CHARACTERS = 40, 240
# At most this many characters of all operations of a branch are read.
OPERATION_CHARACTERS = 1 << 18
OPERATION_WORDS = 800
# A longer word of an operation is data and is ignored.
OPERATION_WORD_CHARACTERS = 40
# At most this many characters of a prompt or summary are read.
STRONG_CHARACTERS = 1 << 16

# Patterns are compiled when they are first needed.
_ERROR_LINE = (
    r"(?im)^.*(?:error|exception|fail|fatal|panic|refused|denied|cannot|not found|timed out|traceback|\bE[A-Z]{3,}).*$"
)
TOKENS_CACHED = 1 << 15


@dataclass(frozen=True, slots=True)
class DocumentTerms:
    """The stored form of a document. `words` is the length of its first three fields."""

    number: int
    words: int
    packed: str


def fold_fields(
    description: str, summary: str, entries: Iterable[ArchiveEntry], *, undone: bool
) -> tuple[str, str, str, str]:
    """The fields of a folded branch. Undone operations count only if the branch itself was undone."""
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
    for found in re.compile(_ERROR_LINE).finditer(text, HEAD_CHARACTERS):
        lines[found[0][:ERROR_LINE_CHARACTERS]] = None
        if len(lines) == ERROR_LINES:
            break
    return "\n".join((text[:HEAD_CHARACTERS], *lines))


def document_terms(number: int, fields: Sequence[str]) -> DocumentTerms:
    counts: dict[tuple[str, str], list[int]] = {}
    length = 0
    for field, text in enumerate(fields[:OPERATIONS]):
        for token, times in Counter(tokens(text)).items():
            read = _read(token)
            length += times * read.length
            for key in read.keys:
                counts.setdefault(key, [0, 0, 0, 0])[field] += times
    for key, times in _operation_words(fields[OPERATIONS]).items():
        counts.setdefault(key, [0, 0, 0, 0])[OPERATIONS] = times
    described = [stem for token in tokens(fields[0]) for stem, _ in _read(token).keys[: _read(token).length]]
    for pair, times in Counter(pairwise(described)).items():
        counts[PAIR_JOINT.join(pair), ""] = [times, 0, 0, 0]
    lines = []
    for (stem, word), found in sorted(counts.items()):
        digits = "".join([HEX[count] if count < COUNT_MAX else HEX[COUNT_MAX] for count in found])
        lines.append(f"{stem}\t{word if word != stem else ''}\t{digits}")
    return DocumentTerms(number, min(length, WORDS_MAX), "\n" + "\n".join(lines) + "\n")


def _operation_words(text: str) -> dict[tuple[str, str], int]:
    words: dict[tuple[str, str], int] = {}
    for token, times in Counter(tokens(text)).items():
        if len(token) <= OPERATION_WORD_CHARACTERS:
            for key in _read(token).keys:
                words[key] = words.get(key, 0) + times
        if len(words) >= OPERATION_WORDS:
            break
    return words


class _ReadToken(NamedTuple):
    """The stems and words of a token. The first `length` of them are words, the others are parts of an identifier."""

    length: int
    keys: tuple[tuple[str, str], ...]


# Most tokens occur many times in a store, so they are cached.
@lru_cache(TOKENS_CACHED)
def _read(token: str) -> _ReadToken:
    read = read_token(token)
    return _ReadToken(len(read.words), tuple((stem_of(word), word) for word in (*read.words, *read.parts)))


def level_of(strong: int, words: int) -> int:
    if not strong:
        return 0
    return 1 + bisect_right(LEVEL_BOUNDS, saturation(strong, words, AVERAGE_WORDS))


def leveled_stems(terms: DocumentTerms) -> Iterator[tuple[str, int]]:
    """Each stem of a document with its level."""
    strong: dict[str, int] = {}
    for line in terms.packed.split("\n")[1:-1]:
        stem, _, counts = line.split("\t")
        strong[stem] = strong.get(stem, 0) + STRONG[counts[:OPERATIONS]]
    levels = {occurrences: level_of(occurrences, terms.words) for occurrences in set(strong.values())}
    return ((stem, levels[occurrences]) for stem, occurrences in strong.items() if PAIR_JOINT not in stem)


def document_number(at: str, *key: str) -> int:
    """A number for a document that is the same in every store. Later documents have larger numbers."""
    digest = sha256("\0".join(key).encode("utf-8", "surrogatepass")).digest()
    return first_number(at) | int.from_bytes(digest[: HASH_BITS // 8], "big")
