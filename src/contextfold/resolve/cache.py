"""Reads a cache and checks every file before its contents are used. Writes nothing.

If the record of the build shows that no file has changed since then, words are looked up in the index. Otherwise the
changed documents are read and checked. Without a usable index, all documents are read, checked and counted. The result
is the same in all cases.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from contextfold.common.canonical import Malformed
from contextfold.common.text import count_terms
from contextfold.common.tokens import tokens_of
from contextfold.errors import CacheInvalid, StorageFailed
from contextfold.resolve.cache_format import (
    DOCUMENTS_FOLDER,
    FRAME,
    INDEX_FILE,
    MANIFEST_FILE,
    Document,
    Manifest,
    ManifestEntry,
    decode_document,
    decode_index,
    decode_manifest,
)
from contextfold.resolve.files import (
    StorageErrors,
    fingerprints,
    format_path,
    ignore_progress,
    is_folder,
    read_regular,
    regular_size,
)
from contextfold.resolve.fingerprint_record import FingerprintRecord
from contextfold.resolve.index_file import IndexFile, OpenIndex, read_claim, rebuild_command
from contextfold.resolve.selection import Measures

# Reports how many documents are done, and of how many.
Progress = Callable[[int, int], None]


class Fault(CacheInvalid):
    """One problem that makes a cache invalid. `file` is relative to the cache."""

    def __init__(self, reason: str, file: str, problem: str) -> None:
        super().__init__(reason)
        self.file = file
        self.problem = problem


class CacheFolder:
    """The files of one cache. The index stays open until its file changes."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self._prefix = os.path.join(path, b"")
        self._documents = self._prefix + DOCUMENTS_FOLDER.encode()
        self.index_file = IndexFile(path, self.checked_version)

    def select_documents(self, terms: Sequence[bytes], budget: int) -> tuple[Measures, dict[int, ManifestEntry]]:
        """Check every file, count the terms, and select documents. Raises CacheInvalid at the first fault.

        Returns the counts of all documents, and the selected ones by number.
        """
        opened = self.open_index()
        if opened:
            try:
                return self._select_with_index(opened, terms, budget)
            except (ValueError, TypeError, LookupError):
                # It is of another cache, or damaged in a way that its build did not record: do without it.
                pass
        manifest = self.manifest()
        tokens: list[int] = []
        total_words: list[int] = []
        term_matches: dict[int, int] = {}
        for number, document in enumerate(self.documents(manifest)):
            matches, words = count_terms(document.content, terms)
            if matches:
                term_matches[number] = matches
            tokens.append(tokens_of(len(document.content)))
            total_words.append(words)
        measures = Measures(tokens, total_words, term_matches)
        return measures, {number: manifest.entries[number] for number in measures.choose(budget)}

    def _select_with_index(
        self, opened: OpenIndex, terms: Sequence[bytes], budget: int
    ) -> tuple[Measures, dict[int, ManifestEntry]]:
        measures = opened.reader.measure(terms)
        if len(measures.tokens) != len(opened.record.files):
            raise Malformed("the index has other documents than the record")
        chosen = {number: self.entry(opened, number) for number in measures.choose(budget)}
        if not self.is_as_built(opened.record):
            # A document with another fingerprint is read again, and must still be the one that was indexed.
            for _ in self.documents(self.manifest(), opened.record):
                pass
        return measures, chosen

    def entry(self, opened: OpenIndex, number: int) -> ManifestEntry:
        """The entry of an indexed document in the manifest."""
        name, version, _ = opened.reader.document(number)
        return ManifestEntry(name, version, opened.record.files[number].decode())

    def faults(
        self, *, trusting_record: bool, progress: Progress = ignore_progress
    ) -> tuple[Manifest | None, list[Fault]]:
        """Every fault, and the manifest if it could be read."""
        try:
            manifest = self.manifest()
        except Fault as fault:
            return None, [fault]
        opened = self.open_index() if trusting_record else None
        trusted = opened.record if opened and opened.record.describes(manifest) else None
        found = self._check_files(manifest, trusted, progress)
        return manifest, [fault for fault in found if isinstance(fault, Fault)]

    def checked_version(self) -> str:
        """The version of the cache, after every file was checked. Raises CacheInvalid at the first fault."""
        manifest, faults = self.faults(trusting_record=True)
        if faults:
            raise faults[0]
        assert manifest is not None
        return manifest.cache_version

    def manifest(self) -> Manifest:
        """The manifest, whose fields may contradict each other. Raises CacheInvalid if it cannot be read."""
        try:
            return decode_manifest(self._read(MANIFEST_FILE))
        except Malformed as problem:
            raise self.fault(MANIFEST_FILE, str(problem)) from None

    def documents(
        self, manifest: Manifest, record: FingerprintRecord | None = None, *, progress: Progress = ignore_progress
    ) -> Iterator[Document]:
        """Check the whole cache; yield the documents that were read. Raises CacheInvalid at the first fault.

        All documents are read, or those that have changed since `record` was written. Raises Malformed if it is of
        another cache.
        """
        if record is not None and not record.describes(manifest):
            raise Malformed("the record is of another cache")
        for found in self._check_files(manifest, record, progress):
            if isinstance(found, Fault):
                raise found
            yield found

    def _check_files(
        self, manifest: Manifest, record: FingerprintRecord | None, progress: Progress
    ) -> Iterator[Document | Fault]:
        """Yield each fault and each document that was read. The faults of the manifest and the index come first."""
        for contradiction in manifest.contradictions():
            yield self.fault(MANIFEST_FILE, contradiction)
        yield from self._index_faults(manifest)
        if not self.documents_are_in_a_folder():
            yield self.fault(DOCUMENTS_FOLDER, "is not a folder")
            return
        total = len(manifest.entries)
        for number in range(total) if record is None else self.changed_documents(record):
            progress(number, total)
            try:
                document = self.document(manifest.entries[number])
            except Fault as fault:
                # Its traceback and context would keep the document in memory.
                fault.__context__ = None
                yield fault.with_traceback(None)
            else:
                yield document
        progress(total, total)
        for file in self._find_unlisted_files({os.path.normpath(entry.file).encode() for entry in manifest.entries}):
            yield self.fault(format_path(file), "is named by no entry of the manifest")

    def _index_faults(self, manifest: Manifest) -> Iterator[Fault]:
        try:
            index = decode_index(self._read(INDEX_FILE))
        except Malformed as problem:
            yield self.fault(INDEX_FILE, str(problem))
            return
        for entry in manifest.entries:
            if index.get(entry.id) != entry.file:
                yield self.fault(INDEX_FILE, f"says something else than the manifest of {entry.id}")
        for name in sorted(index.keys() - {entry.id for entry in manifest.entries}):
            yield self.fault(INDEX_FILE, f"lists {name}, which the manifest does not")

    def fault(self, file: str, problem: str) -> Fault:
        advice = f"`context verify` lists every fault, and {rebuild_command(self.path)} makes the cache anew"
        return Fault(f"{format_path(self._prefix)}{file}: {problem}; {advice}", file, problem)

    def document(self, entry: ManifestEntry) -> Document:
        """Read and check a document. Raises CacheInvalid if it is not what the manifest says."""
        if not self._stays_inside(entry.file):
            raise self.fault(MANIFEST_FILE, f"the file of {entry.id} leaves the cache: {entry.file}")
        try:
            document = decode_document(self._read(entry.file))
        except Malformed as problem:
            raise self.fault(entry.file, str(problem)) from None
        if document.id != entry.id:
            raise self.fault(entry.file, f"has another id than the manifest says, which is {entry.id}")
        if document.version != entry.version:
            raise self.fault(entry.file, "has another version than the manifest says")
        return document

    def _read(self, file: str) -> bytes:
        return read_regular(self._prefix + file.encode())

    def _stays_inside(self, file: str) -> bool:
        folder, _, name = file.rpartition("/")
        if not name or "\0" in file or os.path.isabs(file) or os.path.splitdrive(file)[0]:
            return False
        if folder == DOCUMENTS_FOLDER:
            # This is the usual case. It needs no call of `realpath` for each document.
            return not os.path.islink(self._documents)
        root = os.path.realpath(self.path)
        return os.path.commonpath([root, os.path.realpath(self._prefix + folder.encode())]) == root

    def documents_are_in_a_folder(self) -> bool:
        """Whether documents/ is a real folder or does not exist, as in a cache without documents."""
        return is_folder(self._documents) or not os.path.lexists(self._documents)

    def _find_unlisted_files(self, files: set[bytes]) -> Iterator[bytes]:
        """The files in documents/ that are not in `files`."""
        folders = [DOCUMENTS_FOLDER.encode()] if os.path.lexists(self._documents) else []
        while folders:
            folder = folders.pop()
            path = self._prefix + folder
            with StorageErrors("cannot list", path), os.scandir(path) as entries:
                listed = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
            for name, is_a_folder in listed:
                file = folder + b"/" + name
                if is_a_folder:
                    folders.append(file)
                elif file not in files:
                    yield file

    def claimed_version(self) -> str:
        """The `cache_version` in the manifest, which may otherwise be invalid; empty if there is none."""
        version = read_claim(self.path, "cache_version")
        return version if isinstance(version, str) else ""

    def direct_bytes(self) -> int:
        """The total size of the regular files directly in the cache's folder."""
        with StorageErrors("cannot list", self.path), os.scandir(self.path) as entries:
            return sum(regular_size(entry.path) for entry in entries)

    def size_of(self, entries: Sequence[ManifestEntry]) -> int:
        """The total size of the document files that exist."""
        files = [entry.file.encode() for entry in entries if self._stays_inside(entry.file)]
        return sum(regular_size(self._prefix + file) for file in files)

    def open_index(self) -> OpenIndex | None:
        """The index, or None if it is missing or damaged: a resolve does without it."""
        try:
            return self.index_file.open()
        except (CacheInvalid, StorageFailed):
            return None

    def is_as_built(self, record: FingerprintRecord) -> bool:
        """Whether no file of the cache has changed since the build."""
        return fingerprints(self._prefix, FRAME) == record.frame and not self.changed_documents(record)

    def changed_documents(self, record: FingerprintRecord) -> list[int]:
        return record.changed_since(fingerprints(self._prefix, record.files))
