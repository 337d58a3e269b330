"""How terms, entries and rows of the index are written: keys, shifts and shapes. Pure.

Questions and builds share this; it knows nothing of sections or of counting, so that a question does not load that.
"""

from __future__ import annotations

from contextfold.common.record import Record
from contextfold.common.relevance.words import stem_of
from contextfold.common.sha256 import sha256

SECTION_DIGEST_BYTES = 16
# An entry of a term while it is counted: the document's number, the section's, and the packed counts. The index keeps
# the lower half.
DOCUMENT_SHIFT = 32
ENTRY_SHIFT = 8
ENTRY_MASK = (1 << DOCUMENT_SHIFT) - 1
COUNTS_MASK = (1 << ENTRY_SHIFT) - 1
SECTIONS_MAX = (1 << DOCUMENT_SHIFT - ENTRY_SHIFT) - 2  # in one document

STEM_END = b"\0"  # between a stem and the rest of its word; in no word
WHOLE_WORD = b"\1"  # follows STEM_END where a word does not begin with its stem
PAIR_JOINT = " "  # in no stem
PAIR_MARK = PAIR_JOINT.encode()


class SectionRow(Record):
    """One section as the index describes it; offsets count bytes from the beginning of the document."""

    headings: tuple[str, ...]
    start: int
    first_line: int
    words: int
    tokens: int
    digest: bytes


class DocumentRow(Record):
    title: str
    words: int
    sections: list[SectionRow]


def section_digest(content: bytes) -> bytes:
    return sha256(content).digest()[:SECTION_DIGEST_BYTES]


def term_key(word: str) -> bytes:
    """What a word is sorted by: its stem, then the word itself."""
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
