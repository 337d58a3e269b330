"""The binary format of the relevance index: its columns and the postings of terms. Pure.

The index is one file of columns. A head, in a small file of its own that is read for every question, has the position
of each column, the fingerprints of the files and a checksum. All integers are little-endian and of fixed width. A
big-endian machine copies and swaps them when it reads them. Every offset is compared with the size of the file before
it is used; an invalid one raises Malformed.

    term         a word (key: stem, NUL, rest of the word), a pair of stems (key: both with a space between, NUL), or
                 what the words of a stem share (key: the stem); keys are sorted, so these are neighbours
    postings     three counts (documents, entries, documents of the stem), then four columns: document numbers, values,
                 entries up to each document's end, entries
    value        of a word: tf / (tf + K) in 65536ths; of a pair: how often it occurs; of a stem: by how much the values
                 of its words together exceed that of all their occurrences, in the documents that have several
    entry        a section of a document that has the word, above its packed counts; section 0 is the document's title
                 and path

A common word has the values of all documents: first the low byte of each, then the high byte. Adding these as one long
number is faster than a loop over the postings.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from hashlib import sha256
from struct import Struct
from typing import Any, NamedTuple

from contextfold.common.canonical import Malformed
from contextfold.resolve.cache_format import FINGERPRINT_FIELDS, FRAME
from contextfold.resolve.relevance.index_entries import (
    PAIR_MARK,
    SECTION_DIGEST_BYTES,
    STEM_END,
    DocumentRow,
    SectionRow,
)

# Postings that are being made have lists and tuples instead of columns; no lookup is done in them.
Integers = Any

# The version of the layout, the stemmer, the words and the weights in the postings.
FORMAT = "relevance-6"
VERSION_BYTES = 32
# Postings begin at multiples of this number of bytes.
POSTINGS_UNIT = 4
_HEADER = Struct("<3I")
_ONE_POSTING = Struct("<3IHHBHx")
# The two high bits of the entry count say whether the entries are wide, and whether the values are of all documents.
WIDE_SHIFT = 30
COMMON_SHIFT = 31
COUNT_MASK = (1 << WIDE_SHIFT) - 1
WIDTHS = ("B", "H", "I")
# With at most this many documents, a document's number has two bytes.
NARROW_DOCUMENTS = 1 << 16
# A word is common if at least one in this many documents has it.
COMMON_SHARE = 8
SWAP = sys.byteorder == "big"
ITEM_BYTES = {"B": 1, "H": 2, "I": 4, "Q": 8}

# The type of the integers in each column; empty for text and digests.
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
# The columns of the numbers in a SectionRow, in their order.
SECTION_NUMBERS = ("section_starts", "section_lines", "section_words", "section_tokens")
# What a column has an item of is the first word of its name. These columns have items of bytes.
_BYTES_OF_ITEMS = {"document_versions": VERSION_BYTES, "section_digests": SECTION_DIGEST_BYTES}


def integers(view: memoryview, code: str, *, swap: bool = SWAP) -> Integers:
    """The little-endian integers in these bytes, without a copy on a little-endian machine."""
    if len(view) % ITEM_BYTES[code]:
        raise Malformed("a column of the index ends in the middle of a number")
    if not swap:
        return view.cast(code)  # type: ignore[call-overload]

    copied: array[int] = array(code)
    copied.frombytes(view)
    copied.byteswap()
    return copied


def to_bytes(code: str, numbers: Sequence[int], *, swap: bool = SWAP) -> bytes:
    if code == "B":
        return bytes(numbers)

    made = array(code, numbers)
    if swap:
        made.byteswap()
    return made.tobytes()


class Postings(NamedTuple):
    """The occurrences of one term. `documents`, `values` and `ends` are parallel columns.

    `stem_documents` is the number of documents that have any word of the stem. `ends` has the ends of each document's
    entries; it is empty for the postings that the words of a stem share. A common term has `all_values` instead of
    `values`.
    """

    key: bytes
    stem_documents: int
    documents: Integers
    values: Integers
    ends: Integers
    entries: Integers
    all_values: memoryview | None = None

    def value(self, at: int) -> int:
        """The value of a document, given by its position in `documents`."""
        if self.all_values is None:
            return int(self.values[at])
        document: int = self.documents[at]
        return self.all_values[document] | self.all_values[document + len(self.all_values) // 2] << 8


def width_of(highest: int) -> str:
    return WIDTHS[0 if highest < 1 << 8 else 1 if highest < 1 << 16 else 2]


def document_code(document_count: int) -> str:
    return "H" if document_count <= NARROW_DOCUMENTS else "I"


def value_code(key: bytes) -> str:
    return "H" if STEM_END in key else "I"


def encode_postings(postings: Postings, document_count: int, *, swap: bool = SWAP) -> bytes:
    documents, values, entries = postings.documents, postings.values, postings.entries
    if (
        len(entries) == 1
        and COMMON_SHARE < document_count <= NARROW_DOCUMENTS
        and swap is SWAP
        and entries[0] < 1 << 16
    ):
        # Half of all words occur once.
        return _ONE_POSTING.pack(1, 1, postings.stem_documents, documents[0], values[0], 1, entries[0])
    if postings.all_values is not None:
        values = [postings.value(at) for at in range(len(documents))]
    is_word = STEM_END in postings.key and PAIR_MARK not in postings.key
    is_common = is_word and COMMON_SHARE * len(documents) >= document_count
    if is_common:
        raw_values = _of_all_documents(documents, values, document_count)
    else:
        raw_values = to_bytes(value_code(postings.key), values, swap=swap)
    is_wide = max(entries, default=0) >= 1 << 16
    flags = is_wide << WIDE_SHIFT | is_common << COMMON_SHIFT
    raw = b"".join(
        (
            _HEADER.pack(len(documents), len(entries) | flags, postings.stem_documents),
            to_bytes(document_code(document_count), documents, swap=swap),
            raw_values,
            to_bytes(width_of(len(entries)), postings.ends, swap=swap),
            to_bytes("I" if is_wide else "H", entries, swap=swap),
        )
    )
    return raw + b"\0" * (-len(raw) % POSTINGS_UNIT)


def _of_all_documents(documents: Sequence[int], values: Sequence[int], document_count: int) -> bytes:
    spread = [0] * document_count
    for document, value in zip(documents, values, strict=True):
        spread[document] = value
    raw = to_bytes("H", spread)
    return raw[0::2] + raw[1::2]


class IndexHead(NamedTuple):
    """The figures that are needed to read the columns.

    `document_words` and `section_words` are totals. `columns` has the offset and the length of each column.
    """

    document_count: int
    section_count: int
    term_count: int
    document_words: int
    section_words: int
    columns: Mapping[str, tuple[int, int]]


class IndexView:
    """An index, mapped or in memory."""

    def __init__(self, head: IndexHead, raw: memoryview, *, swap: bool = SWAP) -> None:
        self.head = head
        self._swap = swap
        self._raw = {name: self._column(raw, name) for name in COLUMNS}
        self._integers: dict[str, Integers] = {}
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
        documents, sections, terms = self.head[:3]
        counts = {"document": documents, "title": documents, "section": sections, "term": terms}
        for name, code in COLUMNS.items():
            count = counts.get(name.partition("_")[0])
            width = ITEM_BYTES.get(code) or _BYTES_OF_ITEMS.get(name)
            if count is not None and width and len(self._raw[name]) != count * width:
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

    def terms_of(self, stem: bytes) -> list[Postings]:
        """The postings of a stem's words, after those that several words share; or the postings of a pair."""
        number, word = self._first_from("term_keys", "term_key_ends", stem), stem + STEM_END
        found = []
        while number < self.head.term_count:
            key = self.key(number)
            if key != stem and not key.startswith(word):
                break
            found.append(self.postings(number, key))
            number += 1
        return found

    def _first_from(self, name: str, ends: str, wanted: bytes) -> int:
        """The number of the first text in a sorted column that is not less than `wanted`."""
        texts, column = self._raw[name], self.column(ends)

        # A wrong end leads to another text or to none; the result is read again and checked.
        def text(number: int) -> bytes:
            return texts[column[number - 1] if number else 0 : column[number]].tobytes()

        return bisect_left(range(len(column)), wanted, key=text)

    def postings(self, number: int, key: bytes) -> Postings:
        """The postings of a term by its number, with its key."""
        raw, count = self._raw["postings"], self.head.document_count
        at = self.column("term_postings")[number] * POSTINGS_UNIT
        body = at + _HEADER.size
        if body > len(raw):
            raise Malformed("the postings of a term lie outside the index")
        documents, packed, stem_documents = _HEADER.unpack_from(raw, at)
        entries, is_wide, is_common = packed & COUNT_MASK, packed >> WIDE_SHIFT & 1, packed >> COMMON_SHIFT
        has_entries = STEM_END in key
        if not documents <= stem_documents <= count or (documents > entries if has_entries else entries):
            raise Malformed("the postings of a term contradict themselves")
        document_kind, end_kind, entry_kind = document_code(count), width_of(entries), "I" if is_wide else "H"
        values_at = body + documents * ITEM_BYTES[document_kind]
        ends_at = values_at + (2 * count if is_common else documents * ITEM_BYTES[value_code(key)])
        entries_at = ends_at + (documents * ITEM_BYTES[end_kind] if has_entries else 0)
        end = entries_at + entries * ITEM_BYTES[entry_kind]
        if end > len(raw):
            raise Malformed("the postings of a term lie outside the index")
        swap = self._swap
        return Postings._make(
            (
                key,
                stem_documents,
                integers(raw[body:values_at], document_kind, swap=swap),
                () if is_common else integers(raw[values_at:ends_at], value_code(key), swap=swap),
                integers(raw[ends_at:entries_at], end_kind, swap=swap),
                integers(raw[entries_at:end], entry_kind, swap=swap),
                raw[values_at:ends_at] if is_common else None,
            )
        )

    def document_id(self, number: int) -> str:
        return self._text("document_ids", "document_id_ends", number).decode()

    def title(self, number: int) -> str:
        return self._text("titles", "title_ends", number).decode()

    def version(self, number: int) -> bytes:
        return bytes(self._raw["document_versions"][number * VERSION_BYTES : (number + 1) * VERSION_BYTES])

    def document_number(self, name: bytes) -> int | None:
        """The number of the document with this id; ids are sorted by their bytes."""
        number = self._first_from("document_ids", "document_id_ends", name)
        is_found = number < self.head.document_count and self._text("document_ids", "document_id_ends", number) == name
        return number if is_found else None

    def content_range(self, document: int) -> tuple[int, int]:
        """The position of a document in the file of contents."""
        ends = self.column("document_ends")
        return (ends[document - 1] if document else 0), ends[document]

    def sections_of(self, document: int) -> range:
        ends = self.column("document_section_ends")
        found = range(ends[document - 1] if document else 0, ends[document])
        if not found.start <= found.stop <= self.head.section_count:
            raise Malformed("the sections of a document lie outside the index")
        return found

    def section_range(self, document: int, section: int) -> tuple[int, int]:
        """The position of a section in the file of contents."""
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
        """The row of a document: everything except its words. A rebuild copies it."""
        columns = [self.column(name) for name in SECTION_NUMBERS]
        sections = [
            SectionRow._make((self.headings(at), *[column[at] for column in columns], self.section_digest(at)))
            for at in self.sections_of(document)
        ]
        return DocumentRow(self.title(document), self.column("document_words")[document], sections)


class RowColumns:
    """Builds the columns of documents and sections, one document after another."""

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
            for column, number in zip(SECTION_NUMBERS, section[1:-1], strict=True):
                numbers[column].append(number)
            numbers["section_headings"].append(self._heading_row(section.headings, rows_of))
            self.bytes["section_digests"] += section.digest
            self.section_words += section.words
        numbers["document_section_ends"].append(len(numbers["section_starts"]))

    def _heading_row(self, headings: tuple[str, ...], rows_of: dict[tuple[str, ...], int]) -> int:
        """The row of a breadcrumb, from 1. Equal breadcrumbs of a document share a row; equal texts are stored once."""
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

    def column(self, name: str) -> bytes:
        if name in self.bytes:
            return bytes(self.bytes[name])
        return to_bytes(COLUMNS[name], self.numbers[name])


HEAD_FILE = "pack/relevance-head"
RELEVANCE_INDEX_FILE = "pack/relevance-index"
CONTENTS_FILE = "pack/relevance-contents"
RELEVANCE_FILES = (RELEVANCE_INDEX_FILE, CONTENTS_FILE)
HEAD_MAX_BYTES = 1 << 16

# The lines of a head: format, version of the cache, counts, the two files, fingerprints, and then the columns.
_LINES = 6 + len(COLUMNS)
_COUNTS = 5
NUMBER_DIGITS = 20


class FileRecord(NamedTuple):
    length: int
    sha256: str


class OtherFormat(Malformed):
    """The head is valid but of another version of the format."""


class RelevanceHead(NamedTuple):
    """The decoded head. `fingerprints` are those of FRAME and RELEVANCE_FILES."""

    cache_version: str
    index_head: IndexHead
    index_file: FileRecord
    contents: FileRecord
    fingerprints: tuple[int, ...]

    def to_bytes(self) -> bytes:
        lines = [
            [FORMAT],
            [self.cache_version],
            self.index_head[:_COUNTS],
            self.index_file,
            self.contents,
            self.fingerprints,
            *([name, *place] for name, place in self.index_head.columns.items()),
        ]
        body = "".join(" ".join(map(str, line)) + "\n" for line in lines).encode()
        return sha256(body).hexdigest().encode() + b"\n" + body


def decode_head(raw: bytes) -> RelevanceHead:
    """Decode a head. Raises Malformed if it is invalid, OtherFormat if it is of another version."""
    digest, _, body = raw.partition(b"\n")
    if sha256(body).hexdigest().encode() != digest:
        raise Malformed("is damaged")
    if body.partition(b"\n")[0] != FORMAT.encode():
        raise OtherFormat("is of another version")
    lines = [line.split(" ") for line in body.decode("ascii", "replace").split("\n")]
    if len(lines) != _LINES + 1 or [line[0] for line in lines[-len(COLUMNS) - 1 : -1]] != list(COLUMNS):
        raise Malformed("has other lines than it needs")
    _, (cache_version, *_), counts, index_file, contents, fingerprints, *columns, _ = lines
    documents, sections, terms, document_words, section_words = _numbers(counts, _COUNTS)
    places: dict[str, tuple[int, int]] = {}
    for name, *place in columns:
        offset, length = _numbers(place, 2)
        places[name] = (offset, length)
    counted = IndexHead(documents, sections, terms, document_words, section_words, places)
    seen = _numbers(fingerprints, (len(FRAME) + len(RELEVANCE_FILES)) * FINGERPRINT_FIELDS, signed=True)
    return RelevanceHead(cache_version, counted, _record(index_file), _record(contents), tuple(seen))


def _numbers(words: list[str], count: int, *, signed: bool = False) -> list[int]:
    digits = [word.removeprefix("-") if signed else word for word in words]
    if len(words) != count or not all(word.isdigit() and len(word) <= NUMBER_DIGITS for word in digits):
        raise Malformed("has other numbers than it needs")
    return list(map(int, words))


def _record(words: list[str]) -> FileRecord:
    return FileRecord(_numbers(words[:1], 1)[0], words[-1])
