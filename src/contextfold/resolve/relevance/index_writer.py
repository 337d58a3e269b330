"""Writes the relevance index of a cache, document by document in the order of ids, in bounded memory.

`index_format.py` knows the format, `document_terms.py` the documents. New documents are counted in runs; full runs are
written to temporary files and merged at the end. After the first few megabytes, child processes count. Unchanged
documents are copied from the previous index. The index has the same bytes in all cases.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

from contextfold.common.posix import delay_signals
from contextfold.resolve.cache_format import DERIVED_FOLDER, FRAME, HASH_PREFIX, Document
from contextfold.resolve.files import fingerprints, storage_failed, write_new
from contextfold.resolve.relevance.counting_processes import CountingProcesses
from contextfold.resolve.relevance.document_terms import TermCollector
from contextfold.resolve.relevance.index_entries import DocumentRow
from contextfold.resolve.relevance.index_format import (
    COLUMNS,
    CONTENTS_FILE,
    HEAD_FILE,
    RELEVANCE_FILES,
    RELEVANCE_INDEX_FILE,
    FileRecord,
    IndexHead,
    IndexView,
    RelevanceHead,
    RowColumns,
    encode_postings,
)
from contextfold.resolve.relevance.index_merge import (
    GONE,
    RUN_MAX_ENTRIES,
    PostingsMaker,
    Term,
    copy_terms,
    merge,
    read_run,
    runs_in,
    write_run,
)
from contextfold.resolve.word_counts import older_than

# For less text than this, starting processes takes longer than counting alone.
COUNTED_ALONE_BYTES = 2 << 20


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

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> FileRecord:
        self._file.close()
        return FileRecord(self.length, self._digest.hexdigest())

    def abandon(self) -> None:
        """Close the file after a failed build. An error while writing its last bytes is ignored."""
        with suppress(OSError):
            self._file.close()


class IndexWriter:
    """Writes the relevance index of a cache into the folder with the path `prefix`."""

    def __init__(
        self,
        prefix: bytes,
        *,
        previous: IndexView | None = None,
        run_entries: int = RUN_MAX_ENTRIES,
        processes: int = 1,
    ) -> None:
        self._prefix = prefix
        self._previous = previous
        self._run_entries = run_entries
        self._processes = processes
        self._new_numbers = [GONE] * (previous.head.document_count if previous else 0)
        self._terms = TermCollector()
        self._rows = RowColumns()
        self._document_count = 0
        self._counting: CountingProcesses | None = None
        # Documents whose rows are added in `finish`: id, version, length and number in the previous index.
        self._added_later: list[tuple[str, bytes, int, int | None]] = []
        self._new_bytes = 0
        self._finished: tuple[IndexHead, FileRecord, FileRecord] | None = None
        self._folder = -1
        try:
            # It stays the same folder, also if another build replaces it.
            self._folder = os.open(self._path(DERIVED_FOLDER), os.O_RDONLY)
            self._contents = _HashedFile(self._path(CONTENTS_FILE))
        except OSError as problem:
            if self._folder >= 0:
                os.close(self._folder)
            raise storage_failed("cannot write", self._path(CONTENTS_FILE), problem) from problem

    def _path(self, file: str) -> bytes:
        return self._prefix + file.encode()

    def add(self, document: Document, *, reused: int | None = None) -> None:
        """Index the next document in the order of ids.

        `reused` is its number in the previous index, if it is there with the same id, source and content. These numbers
        are ascending, because both indexes are in the order of ids.
        """
        number, start, length = self._document_count, self._contents.length, len(document.content)
        self._document_count += 1
        version = bytes.fromhex(document.version.removeprefix(HASH_PREFIX))
        if reused is not None:
            self._new_numbers[reused] = number
        try:
            self._contents.write(document.content)
            if reused is None:
                self._start_processes_if_worthwhile(length)
            if self._counting is not None:
                self._added_later.append((document.id, version, length, reused))
                if reused is None:
                    self._counting.add(number, document.source, start, length)
                return
            if reused is not None:
                row = self._previous_row(reused)
            else:
                row = self._terms.add(number, document.source, document.content)
                if self._terms.entry_count >= self._run_entries:
                    write_run(self._folder, str(number), self._terms.take())
        except OSError as problem:
            raise storage_failed("cannot write", self._contents.path, problem) from problem
        self._rows.add(document.id, version, length, row)

    def _start_processes_if_worthwhile(self, length: int) -> None:
        """Start processes for a new document of this length, and for all that follow."""
        is_little = self._new_bytes < COUNTED_ALONE_BYTES
        self._new_bytes += length
        if is_little or self._processes == 1 or self._counting is not None:
            return
        try:
            # A signal between starting a child and noting it would leave the child behind.
            with delay_signals():
                self._counting = CountingProcesses(
                    self._contents.path,
                    self._folder,
                    self._processes,
                    # Smaller runs take less memory in each process; many more of them would take long to merge.
                    self._run_entries // 2,
                    self._contents.flush,
                )
        except OSError:
            # The system has no room for more processes.
            self._processes = 1

    def _previous_row(self, number: int) -> DocumentRow:
        assert self._previous is not None
        return self._previous.row(number)

    def abandon(self) -> None:
        """Close all files and end all processes after a failed build. After `finish` it has no effect."""
        self._contents.abandon()
        if self._counting is not None:
            self._counting.close()
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def finish(self) -> IndexHead:
        """Write the columns after all documents were added."""
        path = self._path(RELEVANCE_INDEX_FILE)
        try:
            self._add_later_rows()
            contents_record = self._contents.close()
            index = _HashedFile(path)
            try:
                self._write_postings(index)
                columns = {"postings": (0, index.length)}
                for name in list(COLUMNS)[1:]:
                    raw = self._rows.column(name)
                    columns[name] = (index.length, len(raw))
                    index.write(raw)
            finally:
                index_record = index.close()
            for run in runs_in(self._folder):
                os.unlink(run, dir_fd=self._folder)
        except OSError as problem:
            raise storage_failed("cannot write", path, problem) from problem
        head = IndexHead(
            self._document_count,
            len(self._rows.numbers["section_starts"]),
            len(self._rows.numbers["term_postings"]),
            sum(self._rows.numbers["document_words"]),
            self._rows.section_words,
            columns,
        )
        self._finished = (head, index_record, contents_record)
        return head

    def _add_later_rows(self) -> None:
        counted = self._counting.rows() if self._counting is not None else iter(())
        for name, version, length, reused in self._added_later:
            row = next(counted) if reused is None else self._previous_row(reused)
            self._rows.add(name, version, length, row)
        # The files of the rows are removed when there are no more rows.
        rest = next(counted, None)
        assert rest is None

    def _write_postings(self, index: _HashedFile) -> None:
        make = PostingsMaker(self._rows.numbers["document_words"])
        sources: list[Iterator[Term]] = [read_run(self._folder, name) for name in runs_in(self._folder)]
        sources.append(iter(self._terms.take()))
        if self._previous is not None:
            sources.append(copy_terms(self._previous, self._new_numbers, make.saturations.average))
        for postings in merge(sources, make):
            self._rows.add_term(postings.key, index.length)
            index.write(encode_postings(postings, self._document_count))

    def write_head(self, cache_version: str, recorded_at_ns: int) -> None:
        """Record the fingerprints of the finished files. Nothing may be written into the cache afterwards.

        `recorded_at_ns` is a time of the file system's clock. A file that is not older is always read before its use.
        """
        assert self._finished is not None
        seen = fingerprints(self._prefix, [*FRAME, *(name.encode() for name in RELEVANCE_FILES)])
        head = RelevanceHead(cache_version, *self._finished, tuple(older_than(recorded_at_ns, seen)))
        write_new(self._path(HEAD_FILE), head.to_bytes())
