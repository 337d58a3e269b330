"""Reuses parts of the cache that a build is about to replace. Checks everything that it reuses.

A part that is missing, damaged or made by another version is made again. The new cache has the same bytes either way.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from contextfold.common.canonical import Malformed, decode, encode, fields
from contextfold.errors import ContextError
from contextfold.resolve.cache import CacheFolder
from contextfold.resolve.cache_format import (
    BUILD_CONFIG,
    DERIVED_FOLDER,
    DOCUMENTS_FOLDER,
    HIDING_FILE,
    INDEX_FILE,
    MANIFEST_FILE,
    Manifest,
    ManifestEntry,
    decode_manifest,
)
from contextfold.resolve.conversion import CONVERSION_VERSION
from contextfold.resolve.files import FileAbsent, fingerprints, is_folder, read_regular
from contextfold.resolve.relevance.index_file import RelevanceFiles
from contextfold.resolve.relevance.index_format import IndexView
from contextfold.resolve.rules import DocumentRules, rules_in
from contextfold.resolve.word_counts import SEGMENTATION, WordCounts

# The records of renamed and converted documents, after a line with their checksum.
SOURCES_FILE = "pack/sources"

# A link changes a file's ctime, so the table of the word counts is written again after linking. The folder may have
# been moved by then, so that needs calls that take the descriptor of a folder.
CAN_LINK = hasattr(os, "link") and {os.open, os.rename, os.unlink} <= os.supports_dir_fd

_UNREADABLE = (ContextError, OSError, Malformed)


class PreviousCache:
    """The previous cache. Its manifest is valid; all other files are checked before they are used."""

    def __init__(self, path: bytes, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.folder = CacheFolder(path)

    @property
    def rules(self) -> DocumentRules | None:
        """The rules that chose its documents; None if they cannot be decoded."""
        return rules_in(self.manifest.build_options)

    @cached_property
    def relevance(self) -> IndexView | None:
        """Its relevance index, checked; None if it is missing or unusable."""
        try:
            return RelevanceFiles(self.path, lambda: self.manifest.cache_version).map().view
        except _UNREADABLE:
            return None

    def relevance_number(self, entry: ManifestEntry, source: str) -> int | None:
        """The number of an unchanged document in its relevance index; None if the document or its path differs."""
        if self.relevance is None or not self._has(entry, source):
            return None
        return self.relevance.document_number(entry.id.encode())

    def _has(self, entry: ManifestEntry, source: str) -> bool:
        """Whether it has the same document, made of a file at the same path."""
        before = self._entries.get(entry.id)
        if before is None or before.version != entry.version or self._sources is None:
            return False
        return self._sources.renamed.get(entry.id, entry.id) == source

    def is_untouched(self) -> bool:
        """Whether it is complete and no file has changed since its build."""
        return self.word_counts is not None and self.folder.is_as_built(self.word_counts) and self.relevance is not None

    def converted_text(self, name: str, raw_version: str) -> bytes | None:
        """The converted text of a document; None unless it was made of a file with this hash."""
        entry = self._entries.get(name)
        if entry is None or self._sources is None or self._sources.converted.get(name) != raw_version:
            return None
        try:
            return self.folder.document(entry).content
        except ContextError:
            return None

    def has_file(self, entry: ManifestEntry, source: str) -> bool:
        """Whether it has the same document in an unchanged file of the same name."""
        return self._has(entry, source) and self._entries[entry.id] == entry and entry.file in self._untouched_files

    def link(self, file: str, target: bytes) -> bool:
        """Link a document's file to `target`; False if that fails or the file has changed."""
        try:
            os.link(os.path.join(self.path, file.encode()), target, follow_symlinks=False)
        except (OSError, NotImplementedError):
            return False
        size, mtime_ns, _, inode = fingerprints(b"", [target])
        if (size, mtime_ns, inode) == self._untouched_files[file]:
            return True
        os.unlink(target)
        return False

    def segment_at(self, number: int, entries: Sequence[ManifestEntry]) -> int | None:
        """The segment that has exactly the new cache's documents that start at `number`; None if there is none."""
        segment = self._segment_of_first.get(entries[number])
        if self.word_counts is None or segment is None:
            return None
        documents, before = self.word_counts.documents_of(segment), self.manifest.entries
        end = number + len(documents)
        # The last segment ended because there were no more documents. The new list must end there, too.
        if documents.stop == len(before) and end != len(entries):
            return None
        return segment if before[documents.start : documents.stop] == tuple(entries[number:end]) else None

    @cached_property
    def _entries(self) -> dict[str, ManifestEntry]:
        return {entry.id: entry for entry in self.manifest.entries}

    @cached_property
    def word_counts(self) -> WordCounts | None:
        """Its word counts; None if segments cannot be copied from it."""
        counts = self.folder.word_counts()
        if counts is None or counts.segmentation != SEGMENTATION or not counts.describes(self.manifest.entries):
            return None
        return counts

    @cached_property
    def _segment_of_first(self) -> dict[ManifestEntry, int]:
        """The segments by their first documents. Only a cache without documents has an empty segment."""
        counts = self.word_counts
        if counts is None or not self.manifest.entries:
            return {}
        return {self.manifest.entries[segment.first_document]: at for at, segment in enumerate(counts.segments)}

    @cached_property
    def _untouched_files(self) -> dict[str, tuple[int, int, int]]:
        """Size, mtime and inode of each document's file that has not changed since the build."""
        if self.word_counts is None or not CAN_LINK or not self.folder.documents_are_in_a_folder():
            return {}
        seen = fingerprints(os.path.join(self.path, b""), self.word_counts.files)
        changed = set(self.word_counts.changed_since(seen))
        rows = zip(seen[0::4], seen[1::4], seen[3::4], strict=True)
        return {
            file.decode(): row
            for number, (file, row) in enumerate(zip(self.word_counts.files, rows, strict=True))
            if number not in changed
        }

    @cached_property
    def _sources(self) -> SourceRecords | None:
        path = os.path.join(self.path, SOURCES_FILE.encode())
        try:
            if not is_folder(os.path.join(self.path, DERIVED_FOLDER.encode())):
                return None
            return decode_source_records(read_regular(path))
        except FileAbsent:
            return SourceRecords({}, {})
        except _UNREADABLE:
            return None


class SourceRecords(NamedTuple):
    """Facts about source files that the documents do not contain, by document id.

    `renamed` has the path of each file whose path is not the document's id. `converted` has the hash of the original
    bytes of each file that was converted to another text.
    """

    renamed: Mapping[str, str]
    converted: Mapping[str, str]

    def to_bytes(self) -> bytes:
        body = encode({"conversion": CONVERSION_VERSION, **self._asdict()}).encode()
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def decode_source_records(raw: bytes) -> SourceRecords:
    """Decode the records. Raises Malformed if they are damaged or of another version of the conversion."""
    checksum, _, body = raw.partition(b"\n")
    if checksum != hashlib.sha256(body).hexdigest().encode():
        raise Malformed("the records of the sources are damaged")
    members = fields(decode(body), {"conversion": int, "renamed": dict, "converted": dict}, "the records")
    if members["conversion"] != CONVERSION_VERSION:
        raise Malformed("the records of the sources are of another version")
    return SourceRecords(_strings(members["renamed"]), _strings(members["converted"]))


def _strings(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise Malformed("the records of the sources are laid out otherwise")
    return value


def is_own_cache(folder: bytes) -> bool:
    """Whether this program made the folder, so that a build may replace it.

    Its manifest is ours and it has the documents. If the manifest is damaged, the folder must have all other parts of a
    cache and nothing else, so that a damaged cache can be built again.
    """
    names = set(os.listdir(folder))
    if not os.path.isdir(os.path.join(folder, DOCUMENTS_FOLDER.encode())):
        return False
    previous = previous_cache(folder)
    if previous is not None:
        return previous.manifest.build_config == BUILD_CONFIG
    own_names = {name.encode() for name in (MANIFEST_FILE, INDEX_FILE, DOCUMENTS_FOLDER, DERIVED_FOLDER)}
    return own_names <= names <= own_names | {HIDING_FILE.encode()}


def previous_cache(path: bytes) -> PreviousCache | None:
    """The cache at a path; None if there is none with a readable manifest."""
    try:
        manifest = decode_manifest(read_regular(os.path.join(path, MANIFEST_FILE.encode())))
        return PreviousCache(path, manifest)
    except _UNREADABLE:
        return None
