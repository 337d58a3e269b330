"""Splits documents into sections and counts the words in each of them, for the index. Pure."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import groupby, pairwise
from typing import NamedTuple

from contextfold.common.term_scores import OCCURRENCES_MAX
from contextfold.common.tokens import ChunkUnits, estimate
from contextfold.common.words import chunks, read_token, stem_of, tokens, without_marks
from contextfold.resolve.cache_format import Document
from contextfold.resolve.index import IndexedSection
from contextfold.resolve.relevance.field_counts import FRONT_IN_DOCUMENT, SECTION_IN_DOCUMENT, pack_counts, pair_key
from contextfold.resolve.relevance.links import Link, find_links
from contextfold.resolve.relevance.sections import Section, outline

SECTION_WORDS_MAX = 65535
HEADING_LENGTH_MAX = 255
SECTION_DIGEST_BYTES = 16
# A document has at most this many sections; the last one has the rest of the text.
SECTIONS_MAX = 1 << 14
# An entry of a term is one integer: the document's ordinal, the section's number, and the packed counts.
DOCUMENT_SHIFT = 32
ENTRY_SHIFT = 8
SECTION_MASK = (1 << DOCUMENT_SHIFT - ENTRY_SHIFT) - 1
COUNTS_MASK = (1 << ENTRY_SHIFT) - 1
# While a section is counted, one integer carries the three counts of a word.
HEADING_UNIT = 1 << 20
PART_UNIT = 1 << 40
UNIT_MASK = HEADING_UNIT - 1
# The values in the vocabulary that are not numbers of terms.
STOP_WORD = -1
FIRST_EXPANSION = -2

# A word with its stem, or a pair of stems with an empty word.
Term = tuple[str, str]
# A row of the table of terms, without the segment.
TermRow = tuple[str, str, int, bytes, bytes, bytes, bytes]


class CountedDocument(NamedTuple):
    title: str
    words: int
    sections: list[IndexedSection]
    # The targets of its links, with the stems in their texts.
    links: set[Link]


class _Heading(NamedTuple):
    counts: dict[int, int]
    stems: frozenset[str]


NO_HEADING = _Heading({}, frozenset())


class _PackedCounts(dict[int, int]):
    """The packed counts of a word in a section, by the integer that carries them while it is counted. There are few."""

    def __missing__(self, count: int) -> int:
        packed = pack_counts(count & UNIT_MASK, count // HEADING_UNIT & UNIT_MASK, count // PART_UNIT)
        self[count] = packed
        return packed


class TermCollector:
    """Counts the words of a segment's documents in memory.

    `_numbers` has the numbers of terms, `_words` those of words, `_entries` the entries of each term, and `_headings`
    the counts of the words in a heading with its stems.
    """

    def __init__(self) -> None:
        self._numbers: dict[Term, int] = {}
        self._words: dict[str, int] = {}
        self._entries: list[array[int]] = []
        self._headings: dict[str, _Heading] = {}
        self._vocabulary = _Vocabulary(self._learn)
        self._expansions: list[tuple[tuple[int, int], ...]] = []
        self._stems: dict[str, tuple[str, ...]] = {}
        self._stems_by_text: dict[str, frozenset[str]] = {}
        self._units = ChunkUnits()
        self._packed = _PackedCounts()
        self._fronts: list[int] = []
        self.entry_count = 0

    def rows(self) -> Iterator[TermRow]:
        """The rows of all terms, in the order of stems and words."""
        numbered = sorted(self._numbers.items())
        for stem, words in groupby(numbered, key=lambda item: item[0][0]):
            rows = [(word, *self._columns(self._entries[number])) for (_, word), number in words]
            stem_documents = len(rows[0][1]) if len(rows) == 1 else len(set().union(*(row[1] for row in rows)))
            for word, documents, counts, sections, fields in rows:
                yield stem, word, stem_documents, documents.tobytes(), counts, sections.tobytes(), fields

    def _columns(self, entries: array[int]) -> tuple[array[int], bytes, array[int], bytes]:
        """The documents, the weighted occurrences in each, the sections, and the packed counts in each."""
        documents: array[int] = array("H")
        counts: list[int] = []
        sections: array[int] = array("H")
        fields = bytearray()
        fronts, last = self._fronts, -1
        for entry in entries:
            document, section, packed = (
                entry >> DOCUMENT_SHIFT,
                entry >> ENTRY_SHIFT & SECTION_MASK,
                entry & COUNTS_MASK,
            )
            weights = FRONT_IN_DOCUMENT if section == fronts[document] else SECTION_IN_DOCUMENT
            sections.append(section)
            fields.append(packed)
            if document == last:
                counts[-1] += weights[packed]
            else:
                documents.append(document)
                counts.append(weights[packed])
                last = document
        return documents, bytes(min(count, OCCURRENCES_MAX) for count in counts), sections, bytes(fields)

    def add(self, ordinal: int, front: int, document: Document) -> CountedDocument:
        """Count the words of a document, given with its ordinal and the number of its front."""
        source, content = document.source, document.content
        text = content.decode()
        title, outlined = outline(source, text)
        if len(outlined) > SECTIONS_MAX:
            del outlined[SECTIONS_MAX:]
            outlined[-1] = outlined[-1]._replace(end=len(text))
        ascii_only = len(content) == len(text)
        self._fronts.append(front)
        self._add_front(ordinal, front, title, source)
        title_stems = self._heading(title).stems
        sections: list[IndexedSection] = []
        start = document_words = 0
        headings: tuple[str, ...] = ()
        heading = NO_HEADING
        for number, section in enumerate(outlined, front + 1):
            part = text[section.start : section.end]
            raw = content[section.start : section.end] if ascii_only else part.encode()
            if section.headings != headings:
                headings = section.headings
                heading = self._heading(headings[-1]) if headings else NO_HEADING
            words, estimated = self._add_section(ordinal, number, part, heading.counts)
            document_words += words
            end = start + len(raw)
            sections.append(
                IndexedSection(
                    section.headings,
                    start,
                    end,
                    section.first_line,
                    _last_line(section, part),
                    estimated,
                    sha256(raw).digest()[:SECTION_DIGEST_BYTES],
                    min(words, SECTION_WORDS_MAX),
                    min(len(heading.stems), HEADING_LENGTH_MAX),
                    min(len(title_stems | heading.stems), HEADING_LENGTH_MAX),
                )
            )
            start = end
        links = ((target, self._stems_in(words)) for target, words in find_links(document.id, text))
        packed = {(target, " ".join(sorted(stems))) for target, stems in links if stems}
        return CountedDocument(title, document_words, sections, packed)

    def _add_section(self, ordinal: int, section: int, text: str, heading_counts: dict[int, int]) -> tuple[int, int]:
        """Count a section; return the numbers of its words and tokens. A build spends most of its time here."""
        plain = without_marks(text)
        if plain.isascii():
            written = chunks(plain)
            estimated = estimate(text, written, self._units)
        else:
            written = tokens(plain)
            estimated = estimate(text, known=self._units)
        counts = Counter(map(self._vocabulary.__getitem__, written))
        words = len(written) - counts.pop(STOP_WORD, 0)
        if counts and min(counts) < STOP_WORD:
            for code in [code for code in counts if code < STOP_WORD]:
                count = counts.pop(code)
                words -= count
                for term, unit in self._expansions[FIRST_EXPANSION - code]:
                    counts[term] = counts.get(term, 0) + count * unit
                    if unit == 1:
                        words += count
        for term, count in heading_counts.items():
            counts[term] = counts.get(term, 0) + count
        self._append(ordinal, section, counts)
        return words, estimated

    def _append(self, ordinal: int, section: int, counts: dict[int, int]) -> None:
        base = ordinal << DOCUMENT_SHIFT | section << ENTRY_SHIFT
        entries = self._entries
        packed = self._packed
        for term, count in counts.items():
            # Most words occur less than 16 times and only in the body; their packed counts are that number.
            entries[term].append(base | (count if count < 16 else packed[count]))  # noqa: PLR2004
        self.entry_count += len(counts)

    def _heading(self, text: str) -> _Heading:
        if text not in self._headings:
            counts: dict[int, int] = {}
            self._count(counts, text, HEADING_UNIT)
            self._headings[text] = _Heading(counts, self._stems_in(text))
        return self._headings[text]

    def _stems_in(self, text: str) -> frozenset[str]:
        """The stems of a heading or of the text of a link. Many are the same."""
        if text not in self._stems_by_text:
            read = map(read_token, tokens(text))
            self._stems_by_text[text] = frozenset(stem_of(word) for words, parts in read for word in (*words, *parts))
        return self._stems_by_text[text]

    def _add_front(self, ordinal: int, front: int, title: str, source: str) -> None:
        counts: dict[int, int] = {}
        self._count(counts, title, HEADING_UNIT)
        self._count(counts, source, 1, with_pairs=False)
        self._append(ordinal, front, counts)

    def _count(self, counts: dict[int, int], text: str, unit: int, *, with_pairs: bool = True) -> None:
        """Add the terms of a text: its words and pairs of neighbouring words in this unit.

        Parts of identifiers have their own unit, except in a heading.
        """
        written = tokens(text)
        for token in written:
            for term, own_unit in self._terms_of_token(token):
                is_part = own_unit == PART_UNIT and unit != HEADING_UNIT
                counts[term] = counts.get(term, 0) + (PART_UNIT if is_part else unit)
        if with_pairs:
            stems = [root for token in written for root in self._stems_of(token)]
            for first, second in pairwise(stems):
                term = self._term((pair_key(first, second), ""))
                counts[term] = counts.get(term, 0) + unit

    def _stems_of(self, token: str) -> tuple[str, ...]:
        if token not in self._stems:
            self._stems[token] = tuple(stem_of(word) for word in read_token(token).words)
        return self._stems[token]

    def _terms_of_token(self, token: str) -> tuple[tuple[int, int], ...]:
        """The terms of a token, each with its unit of counting."""
        code = self._vocabulary[token]
        if code >= 0:
            return ((code, 1),)
        return () if code == STOP_WORD else self._expansions[FIRST_EXPANSION - code]

    def _learn(self, token: str) -> int:
        """Add a token to the vocabulary. Terms are numbered in the order of occurrence."""
        if "'" in token and token.isascii():
            found = tokens(token)
            if found != [token]:
                self._expansions.append(tuple(known for one in found for known in self._terms_of_token(one)))
                return FIRST_EXPANSION - (len(self._expansions) - 1) if self._expansions[-1] else STOP_WORD
        words, parts = read_token(token)
        if len(words) == 1 and not parts:
            return self._word(words[0])
        if not words:
            return STOP_WORD
        expansion = [(self._word(word), 1) for word in words]
        expansion += [(self._word(part), PART_UNIT) for part in parts]
        self._expansions.append(tuple(expansion))
        return FIRST_EXPANSION - (len(self._expansions) - 1)

    def _word(self, word: str) -> int:
        """The term of a word. Stems are cached, because the parts of identifiers are often the same."""
        number = self._words.get(word)
        if number is None:
            number = self._words[word] = self._term((stem_of(word), word))
        return number

    def _term(self, term: Term) -> int:
        number = self._numbers.get(term)
        if number is None:
            number = self._numbers[term] = len(self._entries)
            self._entries.append(array("Q"))
        return number


def _last_line(section: Section, text: str) -> int:
    return section.first_line + max(text.count("\n") - text.endswith("\n"), 0)


class _Vocabulary(dict[str, int]):
    """The value of each token: the number of a term, STOP_WORD, or FIRST_EXPANSION minus an expansion's number."""

    def __init__(self, learn: Callable[[str], int]) -> None:
        super().__init__()
        self._learn = learn

    def __missing__(self, token: str) -> int:
        code = self[token] = self._learn(token)
        return code
