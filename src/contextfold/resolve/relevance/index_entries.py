"""What the index stores of a document: keys of terms, packed counts, length classes and rows, and their weights. Pure.

Builds and questions both use this module.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from contextfold.common.words import stem_of

SECTION_DIGEST_BYTES = 16
# An entry of a term is one integer: the document's number, the section's number, and the packed counts. The index
# stores only the lower half.
DOCUMENT_SHIFT = 32
ENTRY_SHIFT = 8
ENTRY_MASK = (1 << DOCUMENT_SHIFT) - 1
COUNTS_MASK = (1 << ENTRY_SHIFT) - 1
# A document has at most this many sections.
SECTIONS_MAX = (1 << DOCUMENT_SHIFT - ENTRY_SHIFT) - 2

# A key is a stem, STEM_END and the rest of the word. If the word does not begin with its stem, WHOLE_WORD and the whole
# word follow STEM_END. The key of a pair has PAIR_JOINT between its stems. No word contains any of these characters.
STEM_END = b"\0"
WHOLE_WORD = b"\1"
PAIR_JOINT = " "
PAIR_MARK = PAIR_JOINT.encode()


class SectionRow(NamedTuple):
    """The row of one section. Offsets count bytes from the beginning of the document."""

    headings: tuple[str, ...]
    start: int
    first_line: int
    words: int
    tokens: int
    digest: bytes


class DocumentRow(NamedTuple):
    title: str
    words: int
    sections: list[SectionRow]


def section_digest(content: bytes) -> bytes:
    return sha256(content).digest()[:SECTION_DIGEST_BYTES]


def term_key(word: str) -> bytes:
    """The key of a word: its stem, then the rest of the word."""
    whole, root = word.encode(), stem_of(word).encode()
    if whole.startswith(root):
        return root + STEM_END + whole[len(root) :]
    return root + STEM_END + WHOLE_WORD + whole


def word_of_key(key: bytes) -> bytes:
    root, _, rest = key.partition(STEM_END)
    return rest[1:] if rest.startswith(WHOLE_WORD) else root + rest


def stem_of_key(key: bytes) -> bytes:
    return key.partition(STEM_END)[0]


def pair_key(first_stem: str, second_stem: str) -> bytes:
    return f"{first_stem}{PAIR_JOINT}{second_stem}".encode() + STEM_END


# A term's occurrences in one section are stored as one byte with three counts, each with a maximum: in the body, in the
# heading, and as parts of identifiers. For the front of a document they are those in the title and in the path.
COUNT_MAX = 15
MARKED_MAX = 3
PARTS_MAX = 3
MARKED_SHIFT, PARTS_SHIFT = 4, 6


def pack_counts(count: int, marked: int, parts: int) -> int:
    return min(count, COUNT_MAX) | min(marked, MARKED_MAX) << MARKED_SHIFT | min(parts, PARTS_MAX) << PARTS_SHIFT


def _weigh_counts(count_weight: int, marked_weight: int, parts_weight: int) -> tuple[int, ...]:
    """The weight of each packed byte."""
    return tuple(
        count_weight * count + marked_weight * marked + parts_weight * parts
        for parts in range(PARTS_MAX + 1)
        for marked in range(MARKED_MAX + 1)
        for count in range(COUNT_MAX + 1)
    )


# The weights of the packed counts of a section, and of a document's front, in the score of the document.
SECTION_IN_DOCUMENT = _weigh_counts(1, 2, 1)
FRONT_IN_DOCUMENT = _weigh_counts(5, 3, 1)
# Their weights in the score of a section.
SECTION_IN_SECTION = _weigh_counts(1, 12, 1)
FRONT_IN_SECTION = _weigh_counts(3, 1, 1)


# A document's length is stored in a byte: exact below 32 words, then with five significant bits.
EXACT_LENGTHS = 32
MANTISSA_BITS = 5
LONGEST_CLASS = 255


def length_class(words: int) -> int:
    """The length class of a document, one byte. Classes grow with the length."""
    shift = max(words.bit_length() - MANTISSA_BITS, 0)
    return min((shift << MANTISSA_BITS - 1) + (words >> shift), LONGEST_CLASS)


def _class_length(number: int) -> int:
    """The length in the middle of a class."""
    if number < EXACT_LENGTHS:
        return number
    half = EXACT_LENGTHS // 2
    shift = number // half - 1
    return (half + number % half << shift) + (1 << shift >> 1)


CLASS_LENGTHS = tuple(map(_class_length, range(LONGEST_CLASS + 1)))
