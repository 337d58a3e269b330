"""Writes a new cache into a staging folder: documents, manifest, indexes. Knows nothing of the sources."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping

from contextfold.common.canonical import Encodable, Malformed
from contextfold.common.posix import delay_signals
from contextfold.errors import StorageFailed
from contextfold.resolve.cache import CacheFolder, Fault, Progress
from contextfold.resolve.cache_format import (
    BUILD_CONFIG,
    DERIVED_FOLDER,
    DOCUMENTS_FOLDER,
    FRAME,
    HIDING_FILE,
    INDEX_FILE,
    MANIFEST_FILE,
    Document,
    FileNames,
    Manifest,
    ManifestEntry,
    cache_version_of,
)
from contextfold.resolve.files import (
    CTIME_SHOWS_CHANGES,
    Opened,
    StorageErrors,
    fingerprints,
    format_path,
    make_durable,
    write_new,
)
from contextfold.resolve.previous import SOURCES_FILE, PreviousCache, SourceRecords
from contextfold.resolve.relevance.counting_processes import keeps_exit_statuses, processors
from contextfold.resolve.relevance.index_format import HEAD_FILE, RELEVANCE_FILES
from contextfold.resolve.relevance.index_writer import IndexWriter
from contextfold.resolve.replace import Staging
from contextfold.resolve.word_counts import CLOCK_FILE, POSTINGS_FILE, TABLE_FILE, WordCountsBuilder, older_than

# A build waits at most three seconds for the file system's clock: the coarsest timestamps have steps of two seconds.
CLOCK_TICK_S = 0.002
CLOCK_TICKS = 1500
# Each process that counts words takes about 100 MB.
PROCESSES_MAX = 8
# This time is older than any timestamp.
NEVER_NS = -(2**63)
HIDING_TEXT = b"*\n"

_TABLE = os.path.basename(TABLE_FILE).encode()
_NEW_TABLE = _TABLE + b".new"


class CacheWriter:
    """Writes one cache into a folder, and finally replaces the previous cache with it.

    Files that the previous cache already has under the same name are not written but linked, at the end of the build.
    """

    def __init__(
        self,
        folder: bytes,
        previous: PreviousCache | None = None,
        build_options: Mapping[str, Encodable] | None = None,
        *,
        always_new: bool = True,
        hidden: bool = False,
        uses_processes: bool = False,
    ) -> None:
        self._always_new = always_new
        self._prefix = folder + b"/"
        self._previous = previous
        self._build_options = build_options
        self._written_files = [HIDING_FILE] if hidden else []
        self.entries: list[ManifestEntry] = []
        # The path of each document whose path is not its id, by id.
        self._renamed: dict[str, str] = {}
        # The entries whose files are linked from the previous cache, by file name.
        self._to_link: dict[str, ManifestEntry] = {}
        self._word_counts = WordCountsBuilder()
        self.content_bytes = 0
        self.reused = 0
        # Whether the previous cache has the same documents and options, and is complete and unchanged.
        self.is_up_to_date = False
        if hidden:
            write_new(self._path(HIDING_FILE), HIDING_TEXT)
        for name in (DOCUMENTS_FOLDER, DERIVED_FOLDER):
            with StorageErrors("cannot make", self._path(name)):
                os.mkdir(self._path(name))
        self._relevance = IndexWriter(
            self._prefix,
            previous=previous.relevance if previous else None,
            processes=min(processors(), PROCESSES_MAX) if uses_processes and keeps_exit_statuses() else 1,
        )

    def _path(self, file: str) -> bytes:
        return self._prefix + file.encode()

    def write_documents(self, documents: Iterable[Document | None], total: int, progress: Progress) -> None:
        """Write every document and its postings; copy the postings that the previous cache already has."""
        names = FileNames()
        postings_path = self._path(POSTINGS_FILE)
        try:
            with StorageErrors("cannot write", postings_path), open(postings_path, "xb") as postings:
                for number, document in enumerate(documents):
                    progress(number, total)
                    if document is None:
                        continue
                    entry = ManifestEntry(document.id, document.version, names.next_for(document.version))
                    self.entries.append(entry)
                    if document.source != document.id:
                        self._renamed[document.id] = document.source
                    if self._previous is not None and self._previous.has_file(entry, document.source):
                        self._to_link[entry.file] = entry
                    else:
                        self._write_document(entry.file, document)
                    self.content_bytes += len(document.content)
                    if self._previous is None:
                        postings.writelines(self._word_counts.add(entry, document.content))
                        self._relevance.add(document)
                    else:
                        self._relevance.add(document, reused=self._previous.relevance_number(entry, document.source))
                self.is_up_to_date = not self._always_new and self._is_what_was_there()
                if self._previous is not None and not self.is_up_to_date:
                    postings.writelines(self._postings_with(self._previous))
                postings.writelines(self._word_counts.finish())
            if not self.is_up_to_date:
                self._relevance.finish()
        finally:
            self._relevance.abandon()
        progress(total, total)

    def _write_document(self, file: str, document: Document) -> None:
        write_new(self._path(file), document.to_json())
        self._written_files.append(file)

    def _is_what_was_there(self) -> bool:
        previous = self._previous
        return (
            previous is not None
            and tuple(self.entries) == previous.manifest.entries
            and self._build_options == previous.manifest.build_options
            and previous.is_untouched()
        )

    def _postings_with(self, previous: PreviousCache) -> Iterator[bytes]:
        """The postings of all documents: unchanged segments are copied, the words of other documents are counted."""
        while (number := self._word_counts.document_count) < len(self.entries):
            segment = previous.segment_at(number, self.entries) if self._word_counts.is_between_segments else None
            if segment is not None and previous.word_counts is not None:
                try:
                    yield from self._word_counts.adopt(previous.word_counts, segment, previous.folder.read_postings)
                    self.reused += self._word_counts.document_count - number
                    continue
                except Malformed:
                    # A block is damaged, so the words are counted again.
                    pass
            entry = self.entries[number]
            yield from self._word_counts.add(entry, self._read_back(entry).content)

    def _read_back(self, entry: ManifestEntry) -> Document:
        """Read a document from its new file, or from the file in the previous cache that is to be linked."""
        is_linked = entry.file in self._to_link
        folder = self._previous.folder if self._previous and is_linked else CacheFolder(self._prefix)
        try:
            return folder.document(entry)
        except Fault:
            raise StorageFailed(
                f"{format_path(folder.path)} changed while the cache was built; run the build again"
            ) from None

    def write_manifest(self, created_at: str | None) -> Manifest:
        created_at = created_at or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        version, count = cache_version_of(self.entries), len(self.entries)
        manifest = Manifest(version, BUILD_CONFIG, created_at, count, tuple(self.entries), self._build_options)
        write_new(self._path(MANIFEST_FILE), manifest.to_json())
        write_new(self._path(INDEX_FILE), manifest.index_json())
        return manifest

    def put_in_place(self, manifest: Manifest, staging: Staging, raw_versions: Mapping[str, str] | None = None) -> None:
        """Finish the cache and replace the previous one with it.

        `raw_versions` has the hashes of the original bytes of converted files, by document id, for the next build.

        The files of unchanged documents are linked here, as late as possible, because a link changes a file's ctime and
        the word counts of the previous cache no longer match it. Removing the previous cache changes the ctime again,
        so the table is written a second time at the end. If the process is killed before that, the new cache is
        complete and correct, but slow to read until the next build.
        """
        if raw_versions or self._renamed:
            write_new(self._path(SOURCES_FILE), SourceRecords(self._renamed, raw_versions or {}).to_bytes())
            self._written_files.append(SOURCES_FILE)
        self._link_documents()
        table, recorded_at_ns = self._table(manifest)
        write_new(self._path(TABLE_FILE), table)
        self._relevance.write_head(manifest.cache_version, recorded_at_ns)
        derived = [POSTINGS_FILE, TABLE_FILE, *RELEVANCE_FILES, HEAD_FILE]
        files = [*self._written_files, *derived, MANIFEST_FILE, INDEX_FILE]
        make_durable(self._prefix, [*files, DERIVED_FOLDER, DOCUMENTS_FOLDER])
        with Opened(self._path(DERIVED_FOLDER), os.O_RDONLY) as derived_folder, delay_signals():
            staging.commit()
            if self._to_link:
                self._prefix = os.path.join(staging.target, b"")
                self._record_files_again(manifest, derived_folder)

    def _link_documents(self) -> None:
        """Link the files of unchanged documents; write a file that cannot be linked."""
        for file, entry in list(self._to_link.items()):
            assert self._previous is not None
            if not self._previous.link(file, self._path(file)):
                self._write_document(file, self._read_back(entry))
                del self._to_link[file]

    def _record_files_again(self, manifest: Manifest, derived_folder: int) -> None:
        """Replace the table. The folder is given by a descriptor, because another build may have replaced the cache."""
        try:
            table, _ = self._table(manifest)
            write_new(_NEW_TABLE, table, folder=derived_folder, synced=True)
            os.rename(_NEW_TABLE, _TABLE, src_dir_fd=derived_folder, dst_dir_fd=derived_folder)
        except (OSError, StorageFailed):
            # The cache is complete without a current table, only slower to read.
            pass

    def _table(self, manifest: Manifest) -> tuple[bytes, int]:
        """The table of the word counts, and the time it records. All other files must have been written before."""
        files = [entry.file.encode() for entry in manifest.entries]
        derived = [file.encode() for file in RELEVANCE_FILES]
        recorded_at_ns = self._clock_after(fingerprints(self._prefix, [*FRAME, *derived, *files]))
        settled = older_than(recorded_at_ns, fingerprints(self._prefix, [*FRAME, *files]))
        return self._word_counts.table(manifest.entries, settled).to_bytes(), recorded_at_ns

    def _clock_after(self, seen: array[int]) -> int:
        """The time of the file system's clock, after waiting until it is later than all timestamps in `seen`.

        A file that changes after this time gets a timestamp that differs from the recorded one. If ctime does not
        show changes on this file system, the result is NEVER_NS and no file is trusted.
        """
        newest = max(seen[1::4] + seen[2::4], default=0)
        probe = self._path(CLOCK_FILE)
        with StorageErrors("cannot write", probe):
            with open(probe, "xb"):
                pass
            for _ in range(CLOCK_TICKS):
                os.utime(probe)
                now_ns = os.lstat(probe).st_mtime_ns
                if now_ns > newest:
                    break
                time.sleep(CLOCK_TICK_S)
            is_reliable = CTIME_SHOWS_CHANGES and _ctime_stays(probe)
            os.unlink(probe)
        return now_ns if is_reliable else NEVER_NS


def _ctime_stays(probe: bytes) -> bool:
    """Whether the system alone sets ctime. On some file systems it copies the mtime that a program may set."""
    before_ns = os.lstat(probe).st_ctime_ns
    os.utime(probe, ns=(0, 0))
    return os.lstat(probe).st_ctime_ns >= before_ns
