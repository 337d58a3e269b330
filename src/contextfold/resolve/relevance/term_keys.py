"""The keys of terms, and the formats of entries and rows of the index. Pure.

Both questions and builds use this module. It does not import the code that splits and counts, which a question does
not need.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from contextfold.common.relevance.words import stem_of

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
