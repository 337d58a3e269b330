"""Reads the index of a cache: one SQLite file with what `resolve` and `ask` need to know of the documents.

    segments   successive documents that were indexed together. Arrays have a number for each document or section.
    documents  id, version and title of each document
    sections   headings, place and size of each section
    terms      the occurrences of a word in the documents and sections of a segment, for `ask`
    words      the number of occurrences of each word in each document, as `resolve` counts words, in compressed blocks
    linked     the stems in the texts of links to each document
    sources    what the documents do not say of the files they were made of, for the next build

A document has a number, its position in the order of ids. Within its segment it has an ordinal. The sections of a
segment are numbered, too. Before the sections of each document, one number stands for its title and path, its front.

Numbers within a segment do not change when other segments do, so a build copies the segments without a change.
"""

from __future__ import annotations

import sqlite3
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple

from contextfold.common.canonical import Malformed
from contextfold.common.term_scores import average_length
from contextfold.resolve.cache_format import HASH_PREFIX
from contextfold.resolve.relevance.links import Link
from contextfold.resolve.selection import Measures

SCHEMA = (
    """CREATE TABLE segments (
    number INTEGER PRIMARY KEY, document_count INTEGER,
    tokens BLOB, total_words BLOB, lengths BLOB, first_sections BLOB, section_lengths BLOB,
    heading_lengths BLOB, titled_lengths BLOB, links BLOB
)""",
    """CREATE TABLE documents (
    segment INTEGER, ordinal INTEGER, id TEXT, version BLOB, title TEXT, PRIMARY KEY (segment, ordinal)
) WITHOUT ROWID""",
    "CREATE INDEX document_ids ON documents (id)",
    """CREATE TABLE sections (
    segment INTEGER, number INTEGER, headings TEXT, start INTEGER, end INTEGER, first_line INTEGER, last_line INTEGER,
    tokens INTEGER, digest BLOB, PRIMARY KEY (segment, number)
) WITHOUT ROWID""",
    """CREATE TABLE terms (
    segment INTEGER, stem TEXT, word TEXT, stem_documents INTEGER,
    documents BLOB, counts BLOB, sections BLOB, fields BLOB
)""",
    "CREATE INDEX stems ON terms (segment, stem)",
    "CREATE TABLE words (segment INTEGER, first_word BLOB, counts BLOB)",
    "CREATE INDEX first_words ON words (segment, first_word)",
    "CREATE TABLE linked (document INTEGER PRIMARY KEY, texts TEXT)",
    "CREATE TABLE sources (id TEXT PRIMARY KEY, source TEXT, converted_from TEXT) WITHOUT ROWID",
)
# In this order a segment is copied.
SEGMENT_TABLES = {
    "segments": (
        "document_count, tokens, total_words, lengths, first_sections, section_lengths, heading_lengths,"
        " titled_lengths, links"
    ),
    "documents": "ordinal, id, version, title",
    "sections": "number, headings, start, end, first_line, last_line, tokens, digest",
    "terms": "stem, word, stem_documents, documents, counts, sections, fields",
    "words": "first_word, counts",
}
PAGE_CACHE_KB = 16_000
HEADING_END = LINE_END = "\n"
# A name that more files have says little.
SAME_NAME_MAX = 3


class Segment(NamedTuple):
    """`lengths` has the number of words in each document, `first_sections` the number of each document's front,
    `section_lengths` the number of words in each section, `heading_lengths` the number of different stems in its
    heading, `titled_lengths` that of its heading and the title together.
    """

    number: int
    first_document: int
    lengths: array[int]
    first_sections: array[int]
    section_lengths: array[int]
    heading_lengths: bytes
    titled_lengths: bytes

    def sections_of(self, ordinal: int) -> range:
        """The numbers of a document's front and sections."""
        is_last = ordinal + 1 == len(self.first_sections)
        end = len(self.section_lengths) if is_last else self.first_sections[ordinal + 1]
        return range(self.first_sections[ordinal], end)


class Postings(NamedTuple):
    """The occurrences of a word, or of a pair of stems, in a segment. All of them have the same stem.

    `documents` and `counts` are parallel: ordinals, and weighted occurrences in the document. So are `sections` and
    `fields`: numbers of sections, and packed counts. `stem_documents` is the number of documents with any word of the
    stem.
    """

    segment: int
    word: str
    stem_documents: int
    documents: array[int]
    counts: bytes
    sections: array[int]
    fields: bytes


class IndexedDocument(NamedTuple):
    id: str
    version: str
    title: str


class IndexedSection(NamedTuple):
    """A section. Its text is between `start` and `end` in the bytes of its document."""

    headings: tuple[str, ...]
    start: int
    end: int
    first_line: int
    last_line: int
    tokens: int
    digest: bytes
    words: int
    # The number of different stems in its heading, and in its heading and the title together.
    heading_length: int
    titled_length: int


class Index:
    """An open index. Raises Malformed if SQLite, or a value in a table, shows that it is damaged."""

    def __init__(self, path: bytes) -> None:
        # A user of the library may ask one cache from several threads, and a connection serves one at a time.
        self._lock = Lock()
        try:
            self._connection = sqlite3.connect(read_only(path), uri=True, check_same_thread=False)
            # The file may have come with a cache from somebody else.
            self._connection.executescript(
                f"PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA cache_size = -{PAGE_CACHE_KB};"
            )
        except sqlite3.Error as problem:
            raise Malformed(f"cannot be opened: {problem}") from problem
        written = self.rows("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid")
        if written != [(sql,) for sql in SCHEMA]:
            raise Malformed("has other tables than an index")

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as problem:
            raise Malformed(f"cannot be read: {problem}") from problem

    def __del__(self) -> None:
        # Others may still read from it when its cache is opened again, so its last user closes it.
        if hasattr(self, "_connection"):
            self._connection.close()

    @cached_property
    def segments(self) -> list[Segment]:
        segments, first = [], 0
        columns = "number, lengths, first_sections, section_lengths, heading_lengths, titled_lengths"
        for number, lengths, firsts, words, *stems in self.rows(f"SELECT {columns} FROM segments ORDER BY number"):  # noqa: S608
            arrays = array("I", lengths), array("H", firsts), array("H", words)
            segments.append(Segment(number, first, *arrays, *stems))
            first += len(segments[-1].lengths)
        return segments

    @cached_property
    def lengths(self) -> array[int]:
        """The number of words in each document."""
        return _join_arrays("I", (segment.lengths for segment in self.segments))

    @property
    def document_count(self) -> int:
        return len(self.lengths)

    @cached_property
    def average(self) -> int:
        """The average number of words in a document."""
        return average_length(sum(self.lengths), self.document_count)

    @cached_property
    def section_count(self) -> int:
        return sum(len(segment.section_lengths) for segment in self.segments) - self.document_count

    @property
    def heading_count(self) -> int:
        """The number of headings of sections and of titles."""
        return self.section_count + self.document_count

    @cached_property
    def section_average(self) -> int:
        """The average number of words in a section."""
        return average_length(sum(sum(segment.section_lengths) for segment in self.segments), self.section_count)

    @cached_property
    def heading_average(self) -> int:
        """The average number of different stems in the heading of a section."""
        return average_length(sum(sum(segment.heading_lengths) for segment in self.segments), self.section_count)

    @cached_property
    def titled_average(self) -> int:
        """The average number of different stems in the heading of a section and the title of its document."""
        return average_length(sum(sum(segment.titled_lengths) for segment in self.segments), self.section_count)

    def locate(self, document: int) -> tuple[Segment, int]:
        """The segment of a document, and its ordinal there."""
        segment = self.segments[bisect_right(self._firsts, document) - 1]
        return segment, document - segment.first_document

    @cached_property
    def _firsts(self) -> list[int]:
        return [segment.first_document for segment in self.segments]

    def document(self, number: int) -> IndexedDocument:
        segment, ordinal = self.locate(number)
        sql = "SELECT id, version, title FROM documents WHERE segment = ? AND ordinal = ?"
        ((name, version, title),) = self.rows(sql, (segment.number, ordinal))
        return IndexedDocument(name, HASH_PREFIX + version.hex(), title)

    def documents(self) -> list[IndexedDocument]:
        rows = self.rows("SELECT id, version, title FROM documents ORDER BY segment, ordinal")
        return [IndexedDocument(name, HASH_PREFIX + version.hex(), title) for name, version, title in rows]

    def document_number(self, name: str) -> int | None:
        """The number of the document with this id."""
        found = self.rows("SELECT segment, ordinal FROM documents WHERE id = ?", (name,))
        return self._first_documents[found[0][0]] + found[0][1] if found else None

    def documents_of_file(self, name: str) -> list[int]:
        """The document with this id, or else those whose ids end with this name after a slash."""
        exact = self.document_number(name)
        if exact is not None:
            return [exact]
        # Only the index of the table is read. Many files of a collection may have one name.
        sql = "SELECT segment, ordinal FROM documents WHERE substr(id, -?) = ? ORDER BY segment, ordinal LIMIT ?"
        rows = self.rows(sql, (len(name) + 1, f"/{name}", SAME_NAME_MAX + 1))
        return [self._first_documents[segment] + ordinal for segment, ordinal in rows]

    def sections_of(self, document: int) -> list[IndexedSection]:
        segment, ordinal = self.locate(document)
        numbers = segment.sections_of(ordinal)
        sql = (
            "SELECT headings, start, end, first_line, last_line, tokens, digest FROM sections"
            " WHERE segment = ? AND number BETWEEN ? AND ? ORDER BY number"
        )
        rows = self.rows(sql, (segment.number, numbers.start, numbers.stop - 1))
        here = slice(numbers.start + 1, numbers.stop)
        lengths = segment.section_lengths[here], segment.heading_lengths[here], segment.titled_lengths[here]
        return [
            IndexedSection._make((tuple(headings.split(HEADING_END)[:-1]), *rest, *of_section))
            for (headings, *rest), *of_section in zip(rows, *lengths, strict=True)
        ]

    def postings(self, stem: str) -> list[Postings]:
        """The postings of all words of a stem, or of a pair, in all segments."""
        # A cross join is not reordered: it looks the stem up once in each segment.
        sql = (
            "SELECT segment, word, stem_documents, documents, counts, sections, fields"
            " FROM segments CROSS JOIN terms ON segment = segments.number AND stem = ?"
        )
        return [
            Postings(segment, word, stem_documents, array("H", documents), counts, array("H", sections), fields)
            for segment, word, stem_documents, documents, counts, sections, fields in self.rows(sql, (stem,))
        ]

    def link_texts(self, document: int) -> list[list[str]]:
        """The stems in the texts of links to a document."""
        rows = self.rows("SELECT texts FROM linked WHERE document = ?", (document,))
        return [text.split(" ") for (texts,) in rows for text in texts.split(LINE_END)]

    def measure(self, terms: Iterable[bytes]) -> Measures:
        """Count the terms in every document as `resolve` does."""
        matches: dict[int, int] = {}
        sql = "SELECT counts FROM words WHERE segment = ? AND first_word <= ? ORDER BY first_word DESC LIMIT 1"
        for term in terms:
            for number, first in self._first_documents.items():
                for (block,) in self.rows(sql, (number, term)):
                    counts = counts_in(block, term)
                    for ordinal, count in zip(counts[0::2], counts[1::2], strict=True):
                        matches[first + ordinal] = matches.get(first + ordinal, 0) + count
        return Measures(self._tokens, self._total_words, matches)

    @cached_property
    def _first_documents(self) -> dict[int, int]:
        """The first document of each segment, by its number. `resolve` needs nothing else of the segments."""
        first_documents, first = {}, 0
        for number, count in self.rows("SELECT number, document_count FROM segments ORDER BY number"):
            first_documents[number] = first
            first += count
        return first_documents

    @cached_property
    def _tokens(self) -> array[int]:
        return _join_arrays("I", (row[0] for row in self.rows("SELECT tokens FROM segments ORDER BY number")))

    @cached_property
    def _total_words(self) -> array[int]:
        return _join_arrays("I", (row[0] for row in self.rows("SELECT total_words FROM segments ORDER BY number")))

    def sources(self) -> dict[str, tuple[str | None, str | None]]:
        """The path of each document's file if it is not the id, and what it was converted from if it was, by id."""
        return {name: (source, made_of) for name, source, made_of in self.rows("SELECT * FROM sources")}


def read_only(path: bytes) -> str:
    """The URI that opens a file which nobody writes: without locks and without a look for a journal."""
    return f"file:{''.join(f'%{byte:02x}' for byte in path)}?immutable=1"


def _join_arrays(code: str, arrays: Iterable[bytes | array[int]]) -> array[int]:
    return array(code, b"".join(arrays))


def pack_words(counts: Iterable[tuple[bytes, list[int]]]) -> bytes:
    """A block of words: a line for each, with ordinals of documents and numbers of occurrences in turns."""
    lines = [b"%b %b" % (word, " ".join(map(str, numbers)).encode()) for word, numbers in counts]
    return zlib.compress(b"\n".join((b"", *lines, b"")))


def counts_in(block: bytes, word: bytes) -> list[int]:
    """The numbers of a word in a block; none if the block does not have it. No word contains a space."""
    try:
        lines = zlib.decompress(block)
    except zlib.error as problem:
        raise Malformed("has a damaged block of words") from problem
    _, _, rest = lines.partition(b"\n%b " % word)
    return list(map(int, rest.partition(b"\n")[0].split()))


def pack_links(links: Mapping[Link, int]) -> bytes:
    """The links of a segment with their numbers: a line for each."""
    lines = [f"{target}\t{stems}\t{count}" for (target, stems), count in sorted(links.items())]
    return zlib.compress(LINE_END.join(lines).encode())


def unpack_links(packed: bytes) -> dict[Link, int]:
    """The links of a segment. Raises ValueError or zlib.error if they are damaged."""
    rows = (line.split("\t") for line in zlib.decompress(packed).decode().split(LINE_END) if line)
    return {(target, stems): int(count) for target, stems, count in rows}
