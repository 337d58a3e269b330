"""Writes the relevance index of a cache, document by document in the order of ids, in bounded memory.

`index_format.py` knows the format, `document_terms.py` the documents. New documents are counted in runs; full runs are
written to temporary files and merged at the end. Unchanged documents are copied from the previous index. The index has
the same bytes in both cases.
"""

from __future__ import annotations

import hashlib
import os
from array import array

from contextfold.common.canonical import HASH_PREFIX
from contextfold.resolve.files import fingerprints, storage_failed, write_new
from contextfold.resolve.layout import FRAME
from contextfold.resolve.pack import older_than
from contextfold.resolve.relevance.document_terms import TermCollector
from contextfold.resolve.relevance.index.index_format import (
    COLUMNS,
    IndexHead,
    RowColumns,
    encode_postings,
)
from contextfold.resolve.relevance.index.index_head import (
    CONTENTS_FILE,
    HEAD_FILE,
    RELEVANCE_FILES,
    RELEVANCE_INDEX_FILE,
    FileRecord,
    RelevanceHead,
)
from contextfold.resolve.relevance.index.index_merge import ENTRY_BYTES, GONE, PostingsMaker, merge, taken_over

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from contextfold.resolve.document import Document
    from contextfold.resolve.relevance.index.index_format import IndexView
    from contextfold.resolve.relevance.index.index_merge import Term

# A run has at most this many entries, which bounds the memory of a build. Its file exists only during the build.
RUN_MAX_ENTRIES = 3_000_000
RUN_FILE = "pack/relevance-run-%d"
WRITTEN_TOGETHER = 1 << 20
KEY_LENGTH_BYTES = 4
ENTRY_COUNT_BYTES = 8


class _HashedFile:
    """A new file with the hash and the length of its content."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.length = 0
        self._digest = hashlib.sha256()
        self._file: BinaryIO = open(path, "xb", buffering=1 << 20)  # noqa: SIM115

    def write(self, raw: bytes) -> None:
        self._file.write(raw)
        self._digest.update(raw)
        self.length += len(raw)

    def close(self) -> FileRecord:
        self._file.close()
        return FileRecord(self.length, self._digest.hexdigest())

    def abandon(self) -> None:
        """Close the file after a failed build. An error while writing its last bytes is ignored."""
        try:
            self._file.close()
        except OSError:
            pass


class IndexWriter:
    """Writes the relevance index of a cache into the folder with the path `prefix`."""

    def __init__(self, prefix: bytes, *, previous: IndexView | None = None, run_entries: int = RUN_MAX_ENTRIES) -> None:
        self._prefix = prefix
        self._previous = previous
        self._run_entries = run_entries
        self._new_numbers = [GONE] * (previous.head.document_count if previous else 0)
        self._terms = TermCollector()
        self._rows = RowColumns()
        self._document_count = 0
        self._document_words: array[int] = array("Q")
        self._runs: list[bytes] = []
        self._index: FileRecord | None = None
        self._head: IndexHead | None = None
        try:
            self._contents = _HashedFile(self._path(CONTENTS_FILE))
        except OSError as problem:
            raise storage_failed("cannot write", self._path(CONTENTS_FILE), problem) from problem

    def _path(self, file: str) -> bytes:
        return self._prefix + file.encode()

    def add(self, document: Document, *, reused: int | None = None) -> None:
        """Index the next document in the order of ids.

        `reused` is its number in the previous index, if it is there with the same id, source and content. These numbers
        are ascending, because both indexes are in the order of ids.
        """
        number = self._document_count
        try:
            self._contents.write(document.content)
            if reused is not None and self._previous is not None:
                row = self._previous.row(reused)
                self._new_numbers[reused] = number
            else:
                row = self._terms.add(number, document.source, document.content)
                if self._terms.entry_count >= self._run_entries:
                    self._write_run()
        except OSError as problem:
            raise storage_failed("cannot write", self._contents.path, problem) from problem
        version = bytes.fromhex(document.version.removeprefix(HASH_PREFIX))
        self._rows.add(document.id, version, len(document.content), row)
        self._document_count += 1
        self._document_words.append(row.words)

    def abandon(self) -> None:
        """Close all files after a failed build. After `finish` it has no effect."""
        self._contents.abandon()

    def finish(self) -> IndexHead:
        """Write the columns after all documents were added."""
        path = self._path(RELEVANCE_INDEX_FILE)
        try:
            self._contents_record = self._contents.close()
            index = _HashedFile(path)
            try:
                columns = {"postings": (0, self._write_postings(index))}
                for name in list(COLUMNS)[1:]:
                    raw = self._rows.column(name)
                    columns[name] = (index.length, len(raw))
                    index.write(raw)
            finally:
                self._index = index.close()
            for run in self._runs:
                os.unlink(run)
        except OSError as problem:
            raise storage_failed("cannot write", path, problem) from problem
        self._head = IndexHead(
            self._document_count,
            len(self._rows.numbers["section_starts"]),
            len(self._rows.numbers["term_postings"]),
            sum(self._document_words),
            self._rows.section_words,
            columns,
        )
        return self._head

    def _write_postings(self, index: _HashedFile) -> int:
        make = PostingsMaker(self._document_words)
        sources: list[Iterator[Term]] = [_read_run(path) for path in self._runs]
        sources.append(iter(self._terms.take()))
        if self._previous is not None:
            sources.append(taken_over(self._previous, self._new_numbers, make.saturations.average))
        at, waiting, size = 0, [], 0
        for postings in merge(sources, make):
            raw = encode_postings(postings, self._document_count)
            self._rows.add_term(postings.key, at)
            waiting.append(raw)
            at += len(raw)
            size += len(raw)
            if size > WRITTEN_TOGETHER:
                index.write(b"".join(waiting))
                waiting, size = [], 0
        index.write(b"".join(waiting))
        return at

    def _write_run(self) -> None:
        path = self._path(RUN_FILE % len(self._runs))
        with open(path, "xb", buffering=1 << 20) as file:
            for key, entries in self._terms.take():
                file.write(len(key).to_bytes(KEY_LENGTH_BYTES, "little"))
                file.write(key)
                file.write(len(entries).to_bytes(ENTRY_COUNT_BYTES, "little"))
                entries.tofile(file)
        self._runs.append(path)

    def write_head(self, cache_version: str, recorded_at_ns: int) -> None:
        """Record the fingerprints of the finished files. Nothing may be written into the cache afterwards.

        `recorded_at_ns` is a time of the file system's clock. A file that is not older is always read before its use.
        """
        assert self._head is not None
        assert self._index is not None
        seen = fingerprints(self._prefix, [*FRAME, *(name.encode() for name in RELEVANCE_FILES)])
        head = RelevanceHead(
            cache_version, self._head, self._index, self._contents_record, tuple(older_than(recorded_at_ns, seen))
        )
        write_new(self._path(HEAD_FILE), head.to_bytes())


def _read_run(path: bytes) -> Iterator[Term]:
    with open(path, "rb", buffering=1 << 20) as file:
        while length := file.read(KEY_LENGTH_BYTES):
            key = file.read(int.from_bytes(length, "little"))
            entries: array[int] = array("Q")
            entries.frombytes(file.read(ENTRY_BYTES * int.from_bytes(file.read(ENTRY_COUNT_BYTES), "little")))
            yield key, entries
