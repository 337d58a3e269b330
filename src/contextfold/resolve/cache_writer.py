"""Writes a new cache into a staging folder: documents, manifest, index. Knows nothing of the sources."""

from __future__ import annotations

import hashlib
import os
import time
from array import array
from collections.abc import Iterable, Mapping

from contextfold.common.canonical import Encodable
from contextfold.errors import StorageFailed
from contextfold.resolve.cache import CacheFolder, Fault, Progress
from contextfold.resolve.cache_format import (
    BUILD_CONFIG,
    DERIVED_FOLDER,
    DOCUMENTS_FOLDER,
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
    regular_size,
    write_new,
)
from contextfold.resolve.fingerprint_record import (
    DATABASE_FILE,
    FRAME_AND_DATABASE,
    RECORD_FILE,
    FingerprintRecord,
    older_than,
)
from contextfold.resolve.index_writer import IndexWriter
from contextfold.resolve.previous import PreviousCache, conversion_key
from contextfold.resolve.replace import Staging, delay_signals

# A build reads the file system's time from the timestamps of this file, then removes it.
CLOCK_FILE = "pack/clock"
# A build waits at most three seconds for the file system's clock: the coarsest timestamps have steps of two seconds.
CLOCK_TICK_S = 0.002
CLOCK_TICKS = 1500
# This time is older than any timestamp.
NEVER_NS = -(2**63)
HIDING_TEXT = b"*\n"

_RECORD = os.path.basename(RECORD_FILE).encode()
_NEW_RECORD = _RECORD + b".new"


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
        self.content_bytes = 0
        self.reused = 0
        # Whether the previous cache has the same documents and options, and is complete and unchanged.
        self.is_up_to_date = False
        if hidden:
            write_new(self._path(HIDING_FILE), HIDING_TEXT)
        for name in (DOCUMENTS_FOLDER, DERIVED_FOLDER):
            with StorageErrors("cannot make", self._path(name)):
                os.mkdir(self._path(name))
        previous_index = os.path.join(previous.path, DATABASE_FILE.encode()) if previous and previous.opened else None
        self._index = IndexWriter(self._path(DATABASE_FILE), previous_index)

    def _path(self, file: str) -> bytes:
        return self._prefix + file.encode()

    def write_documents(self, documents: Iterable[Document | None], total: int, progress: Progress) -> None:
        """Write every document, and index those that the previous cache does not have."""
        names = FileNames()
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
                self._index.add(document)
        self.is_up_to_date = not self._always_new and self._is_what_was_there()
        if self._previous is not None and not self.is_up_to_date:
            self._index_with(self._previous)
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

    def _index_with(self, previous: PreviousCache) -> None:
        """Index all documents: copy segments that did not change, count the words of other documents."""
        while (number := self._index.document_count) < len(self.entries):
            if self._index.is_between_segments:
                segment = previous.segment_at(number, self.entries, self._renamed)
                if segment is not None:
                    self._index.copy_segment(segment)
                    self.reused += len(segment.lengths)
                    continue
            self._index.add(self._read_back(self.entries[number]))

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
        the record of the previous cache no longer matches it. Removing the previous cache changes the ctime again, so
        the record is written a second time at the end. If the process is killed before that, the new cache is complete
        and correct, but slow to read until the next build.
        """
        converted = {name: conversion_key(version) for name, version in (raw_versions or {}).items()}
        self._index.finish(
            {name: (self._renamed.get(name), converted.get(name)) for name in {*self._renamed, *converted}}
        )
        self._link_documents()
        index_sha256 = self._hash_index()
        write_new(self._path(RECORD_FILE), self._record(manifest, index_sha256))
        files = [*self._written_files, DATABASE_FILE, RECORD_FILE, MANIFEST_FILE, INDEX_FILE]
        make_durable(self._prefix, [*files, DERIVED_FOLDER, DOCUMENTS_FOLDER])
        with Opened(self._path(DERIVED_FOLDER), os.O_RDONLY) as derived_folder, delay_signals():
            staging.commit()
            if self._to_link:
                self._prefix = os.path.join(staging.target, b"")
                self._record_files_again(manifest, index_sha256, derived_folder)

    def _hash_index(self) -> str:
        path = self._path(DATABASE_FILE)
        with StorageErrors("cannot read", path), open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _link_documents(self) -> None:
        """Link the files of unchanged documents; write a file that cannot be linked."""
        for file, entry in list(self._to_link.items()):
            assert self._previous is not None
            if not self._previous.link(file, self._path(file)):
                self._write_document(file, self._read_back(entry))
                del self._to_link[file]

    def _record_files_again(self, manifest: Manifest, index_sha256: str, derived_folder: int) -> None:
        """Replace the record. The folder is given by a descriptor: another build may have replaced the cache."""
        try:
            record = self._record(manifest, index_sha256)
            write_new(_NEW_RECORD, record, folder=derived_folder, synced=True)
            os.rename(_NEW_RECORD, _RECORD, src_dir_fd=derived_folder, dst_dir_fd=derived_folder)
        except (OSError, StorageFailed):
            # The cache is complete without a current record, only slower to read.
            pass

    def _record(self, manifest: Manifest, index_sha256: str) -> bytes:
        """The record of all files, which must have been written before."""
        files = [entry.file.encode() for entry in manifest.entries]
        recorded_at_ns = self._clock_after(fingerprints(self._prefix, [*FRAME_AND_DATABASE, *files]))
        seen = fingerprints(self._prefix, [*FRAME_AND_DATABASE, *files])
        index_bytes = regular_size(self._path(DATABASE_FILE))
        settled = older_than(recorded_at_ns, seen)
        return FingerprintRecord(manifest.cache_version, index_bytes, index_sha256, files, settled).to_bytes()

    def close(self) -> None:
        self._index.close()

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
