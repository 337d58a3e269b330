"""The relevance index as bytes: its columns, how a term's postings are laid out, and how both are read. Pure.

The index is one file of columns; a head, which `index_file.py` reads from a file of its own, says where each column
lies. All integers are little-endian and of fixed width. On a machine of the other byte order they are copied and
swapped when they are read. No offset is followed before it is compared with the bytes that are there: whatever does
not fit raises Malformed.

    term         key = stem, NUL, rest of the word; keys are sorted, so that the words of a stem are neighbours
    postings     three counts (documents, entries, documents of the stem), then five columns:
                 document numbers, impacts, entries per document, section numbers, packed counts
    impact       weighted occurrences of the word in the document (high byte), the document's length class (low byte)
    entry        a section of a document that has the word; section 0 is the document's title and path
"""

from __future__ import annotations

import sys
from array import array

from contextfold.common.canonical import Malformed
from contextfold.common.record import Record
from contextfold.common.relevance.term_scores import (
    CLASS_LENGTHS,
    CLASS_MASK,
    OCCURRENCES_SHIFT,
    average_length,
    saturation,
)
from contextfold.resolve.relevance.term_keys import (
    SECTION_DIGEST_BYTES,
    STEM_END,
    DocumentRow,
    SectionRow,
    stem_of_key,
    word_of_key,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Integers = Sequence[int]

FORMAT = "relevance-2"  # names the layout, the stemmer, the words and the weights that went into the postings
VERSION_BYTES = 32
POSTINGS_UNIT = 4  # postings begin at multiples of this
HEADER_FIELDS = 3
WIDTH_SHIFT = 30  # the two high bits of the entry count say how wide its section numbers are
COUNT_MASK = (1 << WIDTH_SHIFT) - 1
WIDTHS = ("B", "H", "I")
NARROW_DOCUMENTS = 1 << 16  # up to so many documents, their numbers take two bytes
SWAP = sys.byteorder == "big"
ITEM_BYTES = {"B": 1, "H": 2, "I": 4, "Q": 8}

# Each column with the type of its integers; "" for text and digests.
COLUMNS = {
    "postings": "",
    "term_keys": "",
    "term_key_ends": "I",
    "term_postings": "I",
    "document_ids": "",
    "document_id_ends": "I",
    "titles": "",
    "title_ends": "I",
    "document_versions": "",
    "document_ends": "Q",
    "document_words": "I",
    "document_section_ends": "I",
    "section_starts": "I",
    "section_lines": "I",
    "section_words": "H",
    "section_tokens": "H",
    "section_headings": "I",
    "section_digests": "",
    "heading_parents": "I",
    "heading_texts": "I",
    "texts": "",
    "text_ends": "I",
}


def integers(view: memoryview, code: str, *, swap: bool = SWAP) -> Integers:
    """The little-endian integers in these bytes, without a copy where the machine's order is the same."""
    if len(view) % ITEM_BYTES[code]:
        raise Malformed("a column of the index ends in the middle of a number")
    if not swap:
        return view.cast(code)  # type: ignore[call-overload, no-any-return]
    copied: array[int] = array(code)
    copied.frombytes(view)
    copied.byteswap()
    return copied


def to_bytes(code: str, numbers: Integers, *, swap: bool = SWAP) -> bytes:
    if code == "B":
        return bytes(numbers)
    made = array(code, numbers)
    if swap:
        made.byteswap()
    return made.tobytes()


class Postings(Record):
    """Where one word occurs. The columns are parallel: `section_numbers` and `counts` to each other, the rest too."""

    word: bytes
    stem_documents: int  # how many documents have any word of the stem
    documents: Integers
    impacts: Integers
    entry_counts: Integers
    section_numbers: Integers
    counts: Integers


def document_code(document_count: int) -> str:
    return "H" if document_count <= NARROW_DOCUMENTS else "I"


def encode_postings(postings: Postings, document_count: int, *, swap: bool = SWAP) -> bytes:
    widest = max(max(postings.section_numbers, default=0), max(postings.entry_counts, default=0))
    width = 0 if widest < 1 << 8 else 1 if widest < 1 << 16 else 2
    code = WIDTHS[width]
    header = (len(postings.documents), len(postings.counts) | width << WIDTH_SHIFT, postings.stem_documents)
    return b"".join(
        (
            to_bytes("I", header, swap=swap),
            to_bytes(document_code(document_count), postings.documents, swap=swap),
            to_bytes("H", postings.impacts, swap=swap),
            to_bytes(code, postings.entry_counts, swap=swap),
            to_bytes(code, postings.section_numbers, swap=swap),
            bytes(postings.counts),
        )
    )


class IndexHead(Record):
    """What must be known before a column can be read."""

    document_count: int
    section_count: int
    term_count: int
    document_words: int  # of all documents together
    section_words: int
    columns: Mapping[str, tuple[int, int]]  # offset and length


class Saturations(dict[int, int]):
    """What a posting's impact comes to, tf / (tf + K), in 65536ths; each computed when it is needed first."""

    def __init__(self, average: int) -> None:
        super().__init__()
        self._average = average

    def __missing__(self, impact: int) -> int:
        length = CLASS_LENGTHS[impact & CLASS_MASK]
        found = self[impact] = saturation(impact >> OCCURRENCES_SHIFT, length, self._average)
        return found


class IndexView:
    """A whole index, mapped or in memory."""

    def __init__(self, head: IndexHead, raw: memoryview, *, swap: bool = SWAP) -> None:
        self.head = head
        self._swap = swap
        self._raw = {name: self._column(raw, name) for name in COLUMNS}
        self._integers: dict[str, Integers] = {}
        self.saturations = Saturations(average_length(head.document_words, head.document_count))
        self._check_lengths()

    def _column(self, raw: memoryview, name: str) -> memoryview:
        offset, length = self.head.columns[name]
        if not 0 <= offset <= offset + length <= len(raw):
            raise Malformed(f"the column {name} lies outside the index")
        return raw[offset : offset + length]

    def column(self, name: str) -> Integers:
        found = self._integers.get(name)
        if found is None:
            found = self._integers[name] = integers(self._raw[name], COLUMNS[name], swap=self._swap)
        return found

    def _check_lengths(self) -> None:
        documents, sections, terms = self.head.document_count, self.head.section_count, self.head.term_count
        expected = {
            "document_id_ends": documents * 4,
            "title_ends": documents * 4,
            "document_versions": documents * VERSION_BYTES,
            "document_ends": documents * 8,
            "document_words": documents * 4,
            "document_section_ends": documents * 4,
            "section_starts": sections * 4,
            "section_lines": sections * 4,
            "section_words": sections * 2,
            "section_tokens": sections * 2,
            "section_headings": sections * 4,
            "section_digests": sections * SECTION_DIGEST_BYTES,
            "term_key_ends": terms * 4,
            "term_postings": terms * 4,
        }
        for name, length in expected.items():
            if len(self._raw[name]) != length:
                raise Malformed(f"the column {name} of the index has another length than the head says")

    def _text(self, name: str, ends: str, number: int) -> bytes:
        column = self.column(ends)
        if not 0 <= number < len(column):
            raise Malformed(f"the index has no entry {number} in {name}")
        start, end = (column[number - 1] if number else 0), column[number]
        if not start <= end <= len(self._raw[name]):
            raise Malformed(f"an offset in {ends} lies outside of {name}")
        return bytes(self._raw[name][start:end])

    def key(self, number: int) -> bytes:
        return self._text("term_keys", "term_key_ends", number)

    def words_of(self, stem: bytes) -> list[Postings]:
        """The postings of every word that has this stem."""
        wanted = stem + STEM_END
        number = self._first_from(wanted)
        found = []
        while number < self.head.term_count and self.key(number).startswith(wanted):
            found.append(self.postings(number))
            number += 1
        return found

    def _first_from(self, wanted: bytes) -> int:
        low, high = 0, self.head.term_count
        while low < high:
            middle = (low + high) // 2
            if self.key(middle) < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    def postings(self, number: int) -> Postings:
        raw = self._raw["postings"]
        at = self.column("term_postings")[number] * POSTINGS_UNIT
        body = at + HEADER_FIELDS * 4
        if body > len(raw):
            raise Malformed("the postings of a term lie outside the index")
        documents, packed, stem_documents = integers(raw[at:body], "I", swap=self._swap)
        entries, width = packed & COUNT_MASK, packed >> WIDTH_SHIFT
        if (
            width >= len(WIDTHS)
            or not documents <= entries
            or not documents <= stem_documents <= self.head.document_count
        ):
            raise Malformed("the postings of a term contradict themselves")
        code = document_code(self.head.document_count)
        columns = []
        kinds = ((code, documents), ("H", documents), (WIDTHS[width], documents), (WIDTHS[width], entries))
        for kind, length in kinds:
            end = body + length * ITEM_BYTES[kind]
            columns.append((kind, body, end))
            body = end
        if body + entries > len(raw):
            raise Malformed("the postings of a term lie outside the index")
        numbers, impacts, entry_counts, section_numbers = (
            integers(raw[start:end], kind, swap=self._swap) for kind, start, end in columns
        )
        counts = raw[body : body + entries]
        word = word_of_key(self.key(number))
        return Postings(word, stem_documents, numbers, impacts, entry_counts, section_numbers, counts)

    def document_id(self, number: int) -> str:
        return self._text("document_ids", "document_id_ends", number).decode()

    def title(self, number: int) -> str:
        return self._text("titles", "title_ends", number).decode()

    def version(self, number: int) -> bytes:
        return bytes(self._raw["document_versions"][number * VERSION_BYTES : (number + 1) * VERSION_BYTES])

    def document_number(self, name: bytes) -> int | None:
        """The number of the document with this id; ids are sorted by their bytes."""
        low, high = 0, self.head.document_count
        while low < high:
            middle = (low + high) // 2
            if self._text("document_ids", "document_id_ends", middle) < name:
                low = middle + 1
            else:
                high = middle
        if low < self.head.document_count and self._text("document_ids", "document_id_ends", low) == name:
            return low
        return None

    def content_range(self, document: int) -> tuple[int, int]:
        """Where a document lies in the file of contents."""
        ends = self.column("document_ends")
        return (ends[document - 1] if document else 0), ends[document]

    def sections_of(self, document: int) -> range:
        ends = self.column("document_section_ends")
        found = range(ends[document - 1] if document else 0, ends[document])
        if found.stop > self.head.section_count:
            raise Malformed("the sections of a document lie outside the index")
        return found

    def section_range(self, document: int, section: int) -> tuple[int, int]:
        """Where a section lies in the file of contents."""
        start, end = self.content_range(document)
        starts = self.column("section_starts")
        last = section + 1 >= self.sections_of(document).stop
        return start + starts[section], (end if last else start + starts[section + 1])

    def section_digest(self, section: int) -> bytes:
        return bytes(
            self._raw["section_digests"][section * SECTION_DIGEST_BYTES : (section + 1) * SECTION_DIGEST_BYTES]
        )

    def headings(self, section: int) -> tuple[str, ...]:
        """The headings above a section, the outermost first."""
        row = self.column("section_headings")[section]
        parents, texts = self.column("heading_parents"), self.column("heading_texts")
        found: list[str] = []
        while row:
            if row > len(parents) or row > len(texts) or parents[row - 1] >= row:
                raise Malformed("a heading of the index is above itself")
            found.append(self._text("texts", "text_ends", texts[row - 1]).decode())
            row = parents[row - 1]
        return tuple(reversed(found))

    def row(self, document: int) -> DocumentRow:
        """All that the index says of a document but its words; what a rebuild takes over."""
        words, lines = self.column("section_words"), self.column("section_lines")
        starts, tokens = self.column("section_starts"), self.column("section_tokens")
        sections = [
            SectionRow(
                self.headings(number),
                starts[number],
                lines[number],
                words[number],
                tokens[number],
                self.section_digest(number),
            )
            for number in self.sections_of(document)
        ]
        return DocumentRow(self.title(document), self.column("document_words")[document], sections)


class RowColumns:
    """The columns that describe documents and sections, growing by one document after another."""

    def __init__(self) -> None:
        self.numbers = {name: array(code) for name, code in COLUMNS.items() if code}
        self.bytes = {name: bytearray() for name, code in COLUMNS.items() if not code and name != "postings"}
        self._texts: dict[str, int] = {}
        self.section_words = 0

    def add(self, name: str, version: bytes, content_bytes: int, row: DocumentRow) -> None:
        numbers = self.numbers
        self._add_text("document_ids", "document_id_ends", name.encode())
        self._add_text("titles", "title_ends", row.title.encode())
        self.bytes["document_versions"] += version
        ends = numbers["document_ends"]
        ends.append((ends[-1] if ends else 0) + content_bytes)
        numbers["document_words"].append(row.words)
        rows_of: dict[tuple[str, ...], int] = {(): 0}
        for section in row.sections:
            numbers["section_starts"].append(section.start)
            numbers["section_lines"].append(section.first_line)
            numbers["section_words"].append(section.words)
            numbers["section_tokens"].append(section.tokens)
            numbers["section_headings"].append(self._heading_row(section.headings, rows_of))
            self.bytes["section_digests"] += section.digest
            self.section_words += section.words
        numbers["document_section_ends"].append(len(numbers["section_starts"]))

    def _heading_row(self, headings: tuple[str, ...], rows_of: dict[tuple[str, ...], int]) -> int:
        """The row of a breadcrumb, from 1; within a document equal breadcrumbs share it, texts are shared by all."""
        found = rows_of.get(headings)
        if found is not None:
            return found
        parent = self._heading_row(headings[:-1], rows_of)
        text = self._texts.get(headings[-1])
        if text is None:
            text = self._texts[headings[-1]] = len(self._texts)
            self._add_text("texts", "text_ends", headings[-1].encode())
        self.numbers["heading_parents"].append(parent)
        self.numbers["heading_texts"].append(text)
        rows_of[headings] = len(self.numbers["heading_texts"])
        return rows_of[headings]

    def _add_text(self, name: str, ends: str, text: bytes) -> None:
        self.bytes[name] += text
        self.numbers[ends].append(len(self.bytes[name]))

    def add_term(self, key: bytes, postings_at: int) -> None:
        self._add_text("term_keys", "term_key_ends", key)
        self.numbers["term_postings"].append(postings_at // POSTINGS_UNIT)

    def column(self, name: str, *, swap: bool = SWAP) -> bytes:
        if name in self.bytes:
            return bytes(self.bytes[name])
        return to_bytes(COLUMNS[name], self.numbers[name], swap=swap)


__all__ = [
    "COLUMNS",
    "FORMAT",
    "IndexHead",
    "IndexView",
    "Postings",
    "RowColumns",
    "encode_postings",
    "integers",
    "stem_of_key",
    "to_bytes",
]
