"""Reuses parts of the cache that a build is about to replace. Checks everything that it reuses.

A part that is missing, damaged or made by another version is made again. The new cache has the same bytes either way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property

from contextfold.common.canonical import Malformed
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
from contextfold.resolve.files import fingerprints, read_regular
from contextfold.resolve.index import Segment
from contextfold.resolve.index_file import OpenIndex
from contextfold.resolve.rules import DocumentRules, rules_in

# A link changes a file's ctime, so the record of fingerprints is written again after linking. The folder may have been
# moved by then, so that needs calls that take the descriptor of a folder.
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
    def opened(self) -> OpenIndex | None:
        """Its index, checked; None if it is missing or unusable."""
        opened = self.folder.open_index()
        return opened if opened is not None and opened.record.describes(self.manifest) else None

    def _has(self, entry: ManifestEntry, source: str) -> bool:
        """Whether it has the same document, made of a file at the same path."""
        before = self._entries.get(entry.id)
        return before is not None and before.version == entry.version and self._source(entry.id) == source

    def _source(self, name: str) -> str | None:
        """The path of a document's file; None if that is not known."""
        return None if self.opened is None else self._sources.get(name, (None, None))[0] or name

    def is_untouched(self) -> bool:
        """Whether it is complete and no file has changed since its build."""
        return self.opened is not None and self.folder.is_as_built(self.opened.record)

    def converted_text(self, name: str, raw_version: str) -> bytes | None:
        """The converted text of a document; None unless it was made of a file with this hash."""
        entry = self._entries.get(name)
        if entry is None or self._sources.get(name, (None, None))[1] != conversion_key(raw_version):
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

    def segment_at(self, number: int, entries: Sequence[ManifestEntry], sources: Mapping[str, str]) -> Segment | None:
        """The segment that has exactly the new cache's documents that start at `number`; None if there is none.

        `sources` has the paths of the new cache's documents that are not their ids.
        """
        segment = self._segments.get(entries[number].id)
        if segment is None:
            return None
        start, end = segment.first_document, number + len(segment.lengths)
        # The last segment ended because there were no more documents. The new list must end there, too.
        if start + len(segment.lengths) == len(self.manifest.entries) and end != len(entries):
            return None
        before, after = self.manifest.entries[start : start + len(segment.lengths)], entries[number:end]
        is_same = len(before) == len(after) and all(
            old[:2] == new[:2] and self._source(old.id) == sources.get(new.id, new.id)
            for old, new in zip(before, after, strict=True)
        )
        return segment if is_same else None

    @cached_property
    def _segments(self) -> dict[str, Segment]:
        """The segments of the index by the id of the first document."""
        try:
            segments = self.opened.reader.segments if self.opened else []
            return {self.manifest.entries[segment.first_document].id: segment for segment in segments}
        except (ValueError, LookupError):
            return {}

    @cached_property
    def _entries(self) -> dict[str, ManifestEntry]:
        return {entry.id: entry for entry in self.manifest.entries}

    @cached_property
    def _untouched_files(self) -> dict[str, tuple[int, int, int]]:
        """Size, mtime and inode of each document's file that has not changed since the build."""
        if self.opened is None or not CAN_LINK or not self.folder.documents_are_in_a_folder():
            return {}
        files = self.opened.record.files
        seen = fingerprints(os.path.join(self.path, b""), files)
        changed = set(self.opened.record.changed_since(seen))
        rows = zip(seen[0::4], seen[1::4], seen[3::4], strict=True)
        return {
            file.decode(): row
            for number, (file, row) in enumerate(zip(files, rows, strict=True))
            if number not in changed
        }

    @cached_property
    def _sources(self) -> Mapping[str, tuple[str | None, str | None]]:
        try:
            return self.opened.reader.sources() if self.opened is not None else {}
        except ValueError:
            return {}


def conversion_key(raw_version: str) -> str:
    """What a converted text was made of: the version of the conversion, and the hash of the original bytes."""
    return f"{CONVERSION_VERSION} {raw_version}"


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
