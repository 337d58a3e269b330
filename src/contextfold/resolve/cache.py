"""Reads a cache and checks every file before its contents are used. Writes nothing.

If the stored word counts show that no file has changed since the build, they are used. Otherwise the changed
documents are read and checked. Without usable word counts, all documents are read, checked and counted. The result
is the same in all cases.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from shlex import quote

from contextfold.common.canonical import Malformed, decode
from contextfold.common.text import count_terms
from contextfold.common.tokens import tokens_of
from contextfold.errors import CacheInvalid, ContextError, StorageFailed
from contextfold.resolve.cache_format import (
    DEFAULT_CACHE,
    DERIVED_FOLDER,
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
    map_regular,
    read_part,
    read_regular,
    regular_size,
)
from contextfold.resolve.kinds import ALL_TEXT
from contextfold.resolve.selection import Measures
from contextfold.resolve.word_counts import POSTINGS_FILE, TABLE_FILE, WordCounts, decode_word_counts

# The table of ten million documents has about this size.
TABLE_MAX_BYTES = 1 << 31

# Reports how many documents are done, and of how many.
Progress = Callable[[int, int], None]


class Fault(CacheInvalid):
    """One problem that makes a cache invalid. `file` is relative to the cache."""

    def __init__(self, reason: str, file: str, problem: str) -> None:
        super().__init__(reason)
        self.file = file
        self.problem = problem


class CacheFolder:
    """The files of one cache. The word counts stay in memory until their file changes."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self._prefix = os.path.join(path, b"")
        self._documents = self._prefix + DOCUMENTS_FOLDER.encode()
        self._word_counts: WordCounts | None = None
        self._counts_state: object = None

    def check(self, terms: Sequence[bytes], budget: int) -> tuple[Measures, dict[int, ManifestEntry]]:
        """Check every file, count the terms, and select documents. Raises CacheInvalid at the first fault.

        Returns the counts of all documents, and the selected ones by number.
        """
        counts = self.word_counts()
        if counts:
            try:
                return self._check_with(counts, terms, budget)
            except Malformed:
                # They belong to another cache, or the postings are damaged: count the terms without them.
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

    def _check_with(
        self, counts: WordCounts, terms: Sequence[bytes], budget: int
    ) -> tuple[Measures, dict[int, ManifestEntry]]:
        measures = counts.measure(terms, self.read_postings)
        chosen = {number: counts.entry(number) for number in measures.choose(budget)}
        if not self.is_as_built(counts):
            for _ in self.documents(self.manifest(), counts):
                pass
        return measures, chosen

    def faults(
        self, *, trusting_counts: bool, progress: Progress = ignore_progress
    ) -> tuple[Manifest | None, list[Fault]]:
        """Every fault, and the manifest if it could be read."""
        try:
            manifest = self.manifest()
        except Fault as fault:
            return None, [fault]
        counts = self.word_counts() if trusting_counts else None
        trusted = counts if counts and counts.describes(manifest.entries) else None
        found = self._examine(manifest, trusted, progress)
        return manifest, [fault for fault in found if isinstance(fault, Fault)]

    def checked_version(self) -> str:
        """The version of the cache, after every file was checked. Raises CacheInvalid at the first fault."""
        manifest, faults = self.faults(trusting_counts=True)
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
        self, manifest: Manifest, counts: WordCounts | None = None, *, progress: Progress = ignore_progress
    ) -> Iterator[Document]:
        """Check the whole cache; yield the documents that were read. Raises CacheInvalid at the first fault.

        All documents are read, or those that have changed since `counts` were written. Raises Malformed if those are of
        another cache.
        """
        if counts is not None and not counts.describes(manifest.entries):
            raise Malformed("the packed index is of another cache")
        for found in self._examine(manifest, counts, progress):
            if isinstance(found, Fault):
                raise found
            yield found

    def _examine(self, manifest: Manifest, counts: WordCounts | None, progress: Progress) -> Iterator[Document | Fault]:
        """Yield each fault and each document that was read. The faults of the manifest and the index come first."""
        for contradiction in manifest.contradictions():
            yield self.fault(MANIFEST_FILE, contradiction)
        yield from self._index_faults(manifest)
        if not self.documents_are_in_a_folder():
            yield self.fault(DOCUMENTS_FOLDER, "is not a folder")
            return
        total = len(manifest.entries)
        for number in range(total) if counts is None else self.changed_documents(counts):
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
        version = _read_claim(self.path, "cache_version")
        return version if isinstance(version, str) else ""

    def bytes_in_root(self) -> int:
        """The total size of the regular files directly in the cache's folder."""
        with StorageErrors("cannot list", self.path), os.scandir(self.path) as entries:
            return sum(regular_size(entry.path) for entry in entries)

    def size_of(self, entries: Sequence[ManifestEntry]) -> int:
        """The total size of the document files that exist."""
        files = [entry.file.encode() for entry in entries if self._stays_inside(entry.file)]
        return sum(regular_size(self._prefix + file) for file in files)

    def word_counts(self) -> WordCounts | None:
        """The stored word counts, or None if they are missing or damaged."""
        state = fingerprints(self._prefix, [DERIVED_FOLDER.encode(), TABLE_FILE.encode(), POSTINGS_FILE.encode()])
        if state != self._counts_state:
            self._counts_state, self._word_counts = state, self._read_word_counts()
        return self._word_counts

    def _read_word_counts(self) -> WordCounts | None:
        table = self._prefix + TABLE_FILE.encode()
        try:
            # A resolve reads a part of the table only, so mapping it is faster than reading it.
            if is_folder(self._prefix + DERIVED_FOLDER.encode()) and regular_size(table) <= TABLE_MAX_BYTES:
                return decode_word_counts(map_regular(table))
        except (StorageFailed, Malformed):
            # The counts are derived data; without them the cache is read from its documents.
            pass
        return None

    def is_as_built(self, counts: WordCounts) -> bool:
        """Whether no file of the cache has changed since the build."""
        return self._frame_is_as_built(counts) and not self.changed_documents(counts)

    def _frame_is_as_built(self, counts: WordCounts) -> bool:
        return fingerprints(self._prefix, FRAME) == counts.frame

    def changed_documents(self, counts: WordCounts) -> list[int]:
        return counts.changed_since(fingerprints(self._prefix, counts.files))

    def read_postings(self, offset: int, length: int) -> bytes:
        return read_part(self._prefix + POSTINGS_FILE.encode(), offset, length)


def _read_claim(cache: bytes, member: str) -> object:
    """A member of the manifest, which may otherwise be invalid; None if it cannot be read."""
    try:
        manifest = decode(read_regular(os.path.join(cache, MANIFEST_FILE.encode())))
    except (Malformed, ContextError):
        return None
    return manifest.get(member) if isinstance(manifest, dict) else None


def rebuild_command(cache: bytes) -> str:
    """The command that makes a cache anew, for messages. The documents' folder is known only of a default path."""
    folder, name = os.path.split(cache.rstrip(b"/") or b"/")
    if name == DEFAULT_CACHE.encode():
        return f"`context build {quote(format_path(folder or b'.'))}`"
    options = _read_claim(cache, "build_options")
    is_of_all_text = isinstance(options, dict) and options.get("kinds") == ALL_TEXT
    sources = "DIR" if is_of_all_text else "--sources DIR"
    if not os.path.lexists(os.path.join(cache, MANIFEST_FILE.encode())):
        # A build replaces no folder that may hold something else.
        return f"`context build {sources} --cache PATH` with a new path"
    return f"`context build {sources} --cache {quote(format_path(os.path.join(folder, name)))} --force`"
