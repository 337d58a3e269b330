"""Writes the index of a cache, document by document in the order of ids, in one transaction and in bounded memory.

The words of a segment's documents are counted in memory and written when the segment ends. The version of a document
decides whether a segment ends after it. So a changed document changes only its own segment, and a build that replaces a
cache copies all others from its index.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from contextfold.common.text import count_words
from contextfold.common.tokens import tokens_of
from contextfold.errors import StorageFailed
from contextfold.resolve.cache_format import HASH_PREFIX, Document
from contextfold.resolve.files import format_path, storage_failed
from contextfold.resolve.index import (
    HEADING_END,
    LINE_END,
    SCHEMA,
    SEGMENT_TABLES,
    Segment,
    pack_links,
    pack_words,
    read_only,
    unpack_links,
)
from contextfold.resolve.relevance.document_terms import TermCollector
from contextfold.resolve.relevance.links import Link, resolve_links

# After its least number of documents, a segment ends after 2048 more on average. The largest numbers of documents,
# sections and entries bound the memory of a build.
SEGMENT_MIN_DOCUMENTS = 512
SEGMENT_ENDS_IN = 2048
SEGMENT_MAX_DOCUMENTS = 1 << 14
SEGMENT_MAX_SECTIONS = 1 << 15
SEGMENT_MAX_ENTRIES = 2_000_000
# Words are compressed in blocks. One is read to look a word up.
BLOCK_TARGET_BYTES = 32 * 1024
# A number in a block takes about this much.
NUMBER_BYTES = 3
PAGE_CACHE_KB = 8_000
# Half of the usual size: most rows are short, and of the last page of a long one half is empty.
PAGE_BYTES = 2048
FULL_DISK = {sqlite3.SQLITE_FULL: errno.ENOSPC}


class IndexWriter:
    """Writes the index into a new file. `previous` is the path of an index to copy segments from."""

    def __init__(self, path: bytes, previous: bytes | None = None) -> None:
        self._path = path
        self.document_count = 0
        self._segment_count = 0
        self._begin_segment()
        with self._errors():
            # A build syncs all of its files at the end, and removes them if it fails. So no journal is needed.
            uri = "file:" + "".join(f"%{byte:02x}" for byte in path)
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None)
            self._connection.executescript(
                f"PRAGMA page_size = {PAGE_BYTES}; PRAGMA cache_size = -{PAGE_CACHE_KB};"
                "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
            )
            if previous is not None:
                self._connection.execute("ATTACH ? AS previous", (read_only(previous),))
            self._connection.execute("BEGIN")
            for sql in SCHEMA:
                self._connection.execute(sql)

    def _begin_segment(self) -> None:
        self._terms = TermCollector()
        self._words: defaultdict[bytes, list[int]] = defaultdict(list)
        self._tokens: array[int] = array("I")
        self._total_words: array[int] = array("I")
        self._lengths: array[int] = array("I")
        self._first_sections: array[int] = array("H")
        self._section_lengths: array[int] = array("H")
        self._heading_lengths = bytearray()
        self._titled_lengths = bytearray()
        self._links: Counter[Link] = Counter()
        self._word_entries = 0

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as problem:
            number = FULL_DISK.get(problem.sqlite_errorcode, 0) if hasattr(problem, "sqlite_errorcode") else 0
            if number:
                full = OSError(number, os.strerror(number))
                raise storage_failed("cannot write", self._path, full) from problem
            raise StorageFailed(
                f"cannot write {format_path(self._path)}: {problem}; check the disk, then run this again"
            ) from problem

    @property
    def is_between_segments(self) -> bool:
        return not self._tokens

    def add(self, document: Document) -> None:
        """Index the next document in the order of ids."""
        ordinal = len(self._tokens)
        counted = count_words(document.content)
        for word, count in counted.items():
            self._words[word] += (ordinal, count)
        self._word_entries += len(counted)
        self._tokens.append(tokens_of(len(document.content)))
        self._total_words.append(sum(counted.values()))
        first = len(self._section_lengths)
        title, length, sections, links = self._terms.add(ordinal, first, document)
        self._links.update(links)
        self._lengths.append(length)
        self._first_sections.append(first)
        self._section_lengths.append(0)
        self._section_lengths.extend(section.words for section in sections)
        self._heading_lengths.append(0)
        self._heading_lengths.extend(section.heading_length for section in sections)
        self._titled_lengths.append(0)
        self._titled_lengths.extend(section.titled_length for section in sections)
        version = bytes.fromhex(document.version.removeprefix(HASH_PREFIX))
        with self._errors():
            self._insert("documents", [(ordinal, document.id, version, title)])
            self._insert(
                "sections",
                (
                    (number, "".join(heading + HEADING_END for heading in headings), *place, digest)
                    for number, (headings, *place, digest, _, _, _) in enumerate(sections, first + 1)
                ),
            )
        self.document_count += 1
        if (
            (ordinal + 1 >= SEGMENT_MIN_DOCUMENTS and ends_a_segment(version))
            or ordinal + 1 >= SEGMENT_MAX_DOCUMENTS
            or len(self._section_lengths) > SEGMENT_MAX_SECTIONS
            or self._terms.entry_count + self._word_entries >= SEGMENT_MAX_ENTRIES
        ):
            self._end_segment()

    def _insert(self, table: str, rows: Iterable[tuple[object, ...]]) -> None:
        places = ", ".join("?" * (2 + SEGMENT_TABLES[table].count(",")))
        segment = self._segment_count
        self._connection.executemany(f"INSERT INTO {table} VALUES ({places})", ((segment, *row) for row in rows))  # noqa: S608

    def _end_segment(self) -> None:
        arrays = (self._tokens, self._total_words, self._lengths, self._first_sections, self._section_lengths)
        stems = (bytes(self._heading_lengths), bytes(self._titled_lengths))
        links = pack_links(self._links)
        with self._errors():
            self._insert("segments", [(len(self._tokens), *(numbers.tobytes() for numbers in arrays), *stems, links)])
            self._insert("terms", self._terms.rows())
            self._insert("words", _blocks(self._words))
        self._segment_count += 1
        self._begin_segment()

    def copy_segment(self, segment: Segment) -> None:
        """Copy a segment of the previous index."""
        assert self.is_between_segments
        with self._errors():
            for table, columns in SEGMENT_TABLES.items():
                key = "number" if table == "segments" else "segment"
                self._connection.execute(
                    f"INSERT INTO {table} SELECT ?, {columns} FROM previous.{table} WHERE {key} = ?",  # noqa: S608
                    (self._segment_count, segment.number),
                )
        self._segment_count += 1
        self.document_count += len(segment.lengths)

    def finish(self, sources: Mapping[str, tuple[str | None, str | None]]) -> None:
        """Write the rest, after all documents were added. `sources` is what the next build needs to know of them."""
        if not self.is_between_segments:
            self._end_segment()
        with self._errors():
            self._connection.executemany("INSERT INTO linked VALUES (?, ?)", self._link_texts())
            rows = ((name, *of_file) for name, of_file in sorted(sources.items()))
            self._connection.executemany("INSERT INTO sources VALUES (?, ?, ?)", rows)
            self._connection.execute("COMMIT")
        self.close()

    def _link_texts(self) -> Iterator[tuple[int, str]]:
        """The texts of links to each document, which may be in any segment."""
        links: Counter[Link] = Counter()
        for (packed,) in self._connection.execute("SELECT links FROM segments"):
            # A segment that was copied from a damaged index loses its links.
            with suppress(ValueError, zlib.error):
                links.update(unpack_links(packed))
        ids = (row[0] for row in self._connection.execute("SELECT id FROM documents ORDER BY segment, ordinal"))
        for document, texts in resolve_links(ids, links).items():
            yield document, LINE_END.join(texts)

    def close(self) -> None:
        self._connection.close()


def ends_a_segment(version: bytes) -> bool:
    return int.from_bytes(version[:4], "little") % SEGMENT_ENDS_IN == 0


def _blocks(words: Mapping[bytes, list[int]]) -> Iterator[tuple[bytes, bytes]]:
    """The words of a segment with their counts, in blocks, each with its first word."""
    block: list[tuple[bytes, list[int]]] = []
    size = 0
    for word, counts in sorted(words.items()):
        block.append((word, counts))
        size += len(word) + NUMBER_BYTES * len(counts)
        if size >= BLOCK_TARGET_BYTES:
            yield block[0][0], pack_words(block)
            block, size = [], 0
    if block:
        yield block[0][0], pack_words(block)
