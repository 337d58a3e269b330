"""What the index keeps of one document: its sections, and how often each word occurs in each of them. Pure."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from itertools import pairwise

from contextfold.common.record import Record
from contextfold.resolve.relevance.sections import outline
from contextfold.resolve.relevance.term_scores import FRONT, pack_counts
from contextfold.resolve.relevance.token_estimate import estimate
from contextfold.resolve.relevance.words import read_token, stem_of, tokens

SECTION_DIGEST_BYTES = 16
SECTION_WORDS_MAX = 65535
# While a section is counted, one integer carries the three counts of a word.
HEADING_UNIT = 1 << 20
PART_UNIT = 1 << 40
UNIT_MASK = HEADING_UNIT - 1
# An entry of a term: the document's number, the section's, and the packed counts.
DOCUMENT_SHIFT = 32
ENTRY_SHIFT = 8
ENTRY_MASK = (1 << DOCUMENT_SHIFT - ENTRY_SHIFT) - 1
COUNTS_MASK = (1 << ENTRY_SHIFT) - 1
SECTIONS_MAX = ENTRY_MASK - 1  # in one document

STEM_END = b"\0"  # between a stem and the rest of its word; in no word
WHOLE_WORD = b"\1"  # follows STEM_END where a word does not begin with its stem
PAIR_JOINT = " "  # in no stem


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
    return hashlib.sha256(content).digest()[:SECTION_DIGEST_BYTES]


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


class TermCollector:
    """Counts the words of one document after another, in memory, until its owner takes what there is."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._numbers: dict[bytes, int] = {}  # of terms, by key
        self._entries: list[array[int]] = []  # of each term
        self._tokens: dict[str, tuple[tuple[int, int], ...]] = {}  # term number and unit of what a token stands for
        self._words: dict[str, int] = {}  # the term of a token that stands for one word, as most do
        self._stems: dict[str, tuple[str, ...]] = {}
        self.entry_count = 0

    def take(self) -> list[tuple[bytes, array[int]]]:
        """Every term with its entries, in the order of keys; the collector is empty again."""
        taken = [(key, self._entries[number]) for key, number in sorted(self._numbers.items())]
        self._begin()
        return taken

    def add(self, number: int, source: str, content: bytes) -> DocumentRow:
        """Read a document with this number, and with this path and UTF-8 content."""
        text = content.decode()
        title, sections = outline(source, text)
        del sections[SECTIONS_MAX:]
        ascii_only = len(content) == len(text)
        self._add_front(number, title, source)
        rows: list[SectionRow] = []
        start = document_words = 0
        heading: tuple[str, ...] = ()
        heading_counts: dict[int, int] = {}
        for ordinal, section in enumerate(sections, FRONT + 1):
            part = text[section.start : section.end]
            raw = content[section.start : section.end] if ascii_only else part.encode()
            if section.headings != heading or ordinal == FRONT + 1:
                heading = section.headings
                heading_counts = self._heading_counts(heading[-1]) if heading else {}
            words = self._add_section(number, ordinal, part, heading_counts)
            document_words += words
            rows.append(
                SectionRow(
                    section.headings,
                    start,
                    section.first_line,
                    min(words, SECTION_WORDS_MAX),
                    estimate(part),
                    section_digest(raw),
                )
            )
            start += len(raw)
        return DocumentRow(title, document_words, rows)

    def _add_section(self, number: int, ordinal: int, text: str, heading_counts: dict[int, int]) -> int:
        counts = dict(heading_counts)
        find, get = self._words.get, counts.get
        words = 0
        for token, count in Counter(tokens(text)).items():
            term = find(token)
            if term is not None:
                counts[term] = get(term, 0) + count
                words += count
                continue
            for other, unit in self._known(token):
                counts[other] = get(other, 0) + count * unit
                if unit == 1:
                    words += count
        self._append(number, ordinal, counts)
        return words

    def _append(self, number: int, ordinal: int, counts: dict[int, int]) -> None:
        base = number << DOCUMENT_SHIFT | ordinal << ENTRY_SHIFT
        entries = self._entries
        for term, count in counts.items():
            # Most words occur less than 16 times, in the body alone: their packed counts are that number.
            packed = (
                count
                if count < 16  # noqa: PLR2004
                else pack_counts(count & UNIT_MASK, count // HEADING_UNIT & UNIT_MASK, count // PART_UNIT)
            )
            entries[term].append(base | packed)
        self.entry_count += len(counts)

    def _heading_counts(self, heading: str) -> dict[int, int]:
        counts: dict[int, int] = {}
        written = tokens(heading)
        for token in written:
            for term, unit in self._known(token):
                counts[term] = counts.get(term, 0) + (HEADING_UNIT if unit == 1 else unit)
        for key in self._pair_keys(written):
            term = self._term(key)
            counts[term] = counts.get(term, 0) + HEADING_UNIT
        return counts

    def _add_front(self, number: int, title: str, source: str) -> None:
        counts: dict[int, int] = {}
        written = tokens(title)
        for token in written:
            for term, unit in self._known(token):
                counts[term] = counts.get(term, 0) + unit
        for token in tokens(source):
            for term, unit in self._known(token):
                counts[term] = counts.get(term, 0) + (HEADING_UNIT if unit == 1 else unit)
        for key in self._pair_keys(written):
            term = self._term(key)
            counts[term] = counts.get(term, 0) + 1
        self._append(number, FRONT, counts)

    def _pair_keys(self, written: list[str]) -> list[bytes]:
        stems = [root for token in written for root in self._stems_of(token)]
        return [pair_key(first, second) for first, second in pairwise(stems)]

    def _stems_of(self, token: str) -> tuple[str, ...]:
        if token not in self._stems:
            self._stems[token] = tuple(stem_of(word) for word in read_token(token).words)
        return self._stems[token]

    def _known(self, token: str) -> tuple[tuple[int, int], ...]:
        terms = self._tokens.get(token)
        return self._learn(token) if terms is None else terms

    def _learn(self, token: str) -> tuple[tuple[int, int], ...]:
        """Terms are numbered as they are met; the numbers live only until `take`."""
        words, parts = read_token(token)
        learned = tuple((self._term(term_key(word)), 1) for word in words)
        learned += tuple((self._term(term_key(part)), PART_UNIT) for part in parts)
        self._tokens[token] = learned
        if len(learned) == 1 and not parts:
            self._words[token] = learned[0][0]
        return learned

    def _term(self, key: bytes) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._entries)
            self._entries.append(array("Q"))
        return number
