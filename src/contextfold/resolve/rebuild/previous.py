"""The cache that a build is about to replace, as a store of finished work. Trusts nothing that it cannot check.

Whatever is missing, damaged or made by another version is not taken over, and so is made anew: the new cache has the
same bytes either way.
"""

from __future__ import annotations

import hashlib
import os
import stat
from functools import cached_property

from contextfold.common.canonical import Malformed, decode, encode, fields
from contextfold.common.record import Record
from contextfold.errors import ContextError
from contextfold.resolve.cache import CacheFolder, Fault
from contextfold.resolve.document import Document
from contextfold.resolve.documents.conversion import CONVERSION_VERSION
from contextfold.resolve.documents.rules import DocumentRules, rules_in
from contextfold.resolve.files import (
    INODE_MASK,
    FileAbsent,
    NotRegular,
    fingerprints,
    is_folder,
    read_part,
    read_regular,
)
from contextfold.resolve.layout import MANIFEST_FILE, PACK_FOLDER
from contextfold.resolve.manifest import Manifest, ManifestEntry, decode_manifest
from contextfold.resolve.pack import DIGEST_BYTES, POSTINGS_FILE, SEGMENTATION, Pack
from contextfold.resolve.relevance.index.index_file import RelevanceFiles
from contextfold.resolve.relevance.index.index_format import IndexView

# Of documents that differ from their files in more than the case of a path; with a checksum of the rest before it.
SOURCES_FILE = "pack/sources"

# A second name for a file changes its ctime, so the table of the packed index is written again afterwards, which needs
# a way to write into a folder wherever it has been moved to.
CAN_LINK = hasattr(os, "link") and {os.open, os.rename, os.unlink} <= os.supports_dir_fd

_UNREADABLE = (ContextError, OSError, FileAbsent, NotRegular, Malformed)


class PreviousCache:
    """A cache whose manifest could be read."""

    def __init__(self, path: bytes, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._folder = CacheFolder(path)

    @property
    def rules(self) -> DocumentRules | None:
        """The rules that chose its documents; None if they cannot be understood."""
        return rules_in(self.manifest.build_options)

    @cached_property
    def relevance(self) -> IndexView | None:
        """Its relevance index, checked; None if it has none that can be used."""
        try:
            return RelevanceFiles(self.path, lambda: self.manifest.cache_version).mapped().view
        except _UNREADABLE:
            return None

    def relevance_number(self, entry: ManifestEntry, source: str) -> int | None:
        """The number of this very document, from a file of the same path, in its relevance index."""
        if self.relevance is None or self._sources is None:
            return None
        before = self._entries.get(entry.id)
        if before is None or before.version != entry.version:
            return None
        if self._sources.renamed.get(entry.id, entry.id) != source:
            return None
        return self.relevance.document_number(entry.id.encode())

    def is_untouched(self) -> bool:
        """Whether it is complete and every file is as its build wrote it."""
        return self.pack is not None and self._folder.is_as_built(self.pack) and self.relevance is not None

    def converted(self, name: str, raw_version: str) -> bytes | None:
        """The text that is stored of a file with these bytes, if it is this cache that stores it."""
        entry = self._entries.get(name)
        if entry is None or self._sources is None or self._sources.converted.get(name) != raw_version:
            return None
        document = self.document(entry)
        return document.content if document else None

    def has_file(self, entry: ManifestEntry, source: str) -> bool:
        """Whether it has this very document in a file of the same name, which nobody has touched."""
        if self._sources is None or entry.file not in self._untouched_files or self._entries.get(entry.id) != entry:
            return False
        return self._sources.renamed.get(entry.id, entry.id) == source

    def link(self, file: str, target: bytes) -> bool:
        """Give a file of its documents a second name; False if that cannot be done or the file has changed."""
        path = os.path.join(self.path, file.encode())
        try:
            os.link(path, target, follow_symlinks=False)
            status = os.lstat(target)
        except (OSError, NotImplementedError):
            return False
        size, mtime_ns, inode = self._untouched_files[file]
        if stat.S_ISREG(status.st_mode) and (size, mtime_ns, inode) == (
            status.st_size,
            status.st_mtime_ns,
            status.st_ino & INODE_MASK,
        ):
            return True
        os.unlink(target)
        return False

    def document(self, entry: ManifestEntry) -> Document | None:
        """A document as the cache has it, checked; None if anything is wrong with it."""
        try:
            found = self._folder.document_or_fault(entry)
        except ContextError:
            return None
        return None if isinstance(found, Fault) else found

    def segment_at(self, number: int, ids: list[bytes], versions: bytes) -> int | None:
        """The segment of its pack that has exactly the documents of the new cache from this number on.

        `versions` has the digests of all documents in a row.
        """
        pack = self.pack
        if pack is None:
            return None
        segment = self._segment_of_first.get((ids[number], versions[_digests(number, number + 1)]))
        if segment is None:
            return None
        first, length = pack.segments[segment].first_document, pack.segment_length(segment)
        # The last segment ended with the list of documents; it is whole only where the new list ends too.
        if segment == len(pack.segments) - 1 and number + length != len(ids):
            return None
        same_ids = pack.ids[first : first + length] == ids[number : number + length]
        same = pack.versions[_digests(first, first + length)] == versions[_digests(number, number + length)]
        return segment if same_ids and same else None

    def read_postings(self, offset: int, length: int) -> bytes:
        return read_part(os.path.join(self.path, POSTINGS_FILE.encode()), offset, length)

    @cached_property
    def _entries(self) -> dict[str, ManifestEntry]:
        return {entry.id: entry for entry in self.manifest.entries}

    @cached_property
    def pack(self) -> Pack | None:
        """Its packed index, if segments can be taken over from it."""
        pack = self._folder.pack()
        if pack is None or pack.segmentation != SEGMENTATION or not pack.describes(self.manifest.entries):
            return None
        return pack

    @cached_property
    def _segment_of_first(self) -> dict[tuple[bytes, bytes], int]:
        pack = self.pack
        if pack is None:
            return {}
        firsts = {}
        for number in range(len(pack.segments)):
            if pack.segment_length(number) > 0:
                at = pack.segments[number].first_document
                firsts[pack.ids[at], pack.versions[_digests(at, at + 1)]] = number
        return firsts

    @cached_property
    def _untouched_files(self) -> dict[str, tuple[int, int, int]]:
        """Size, mtime and inode of each document's file that is as its build wrote it."""
        if self.pack is None or not CAN_LINK or not self._folder.documents_are_in_a_folder():
            return {}
        seen = fingerprints(os.path.join(self.path, b""), self.pack.files)
        changed = set(self.pack.changed_since(seen))
        sizes, mtimes, inodes = seen[0::4], seen[1::4], seen[3::4]
        return {
            file.decode(): (sizes[number], mtimes[number], inodes[number])
            for number, file in enumerate(self.pack.files)
            if number not in changed
        }

    @cached_property
    def _sources(self) -> SourceRecords | None:
        path = os.path.join(self.path, SOURCES_FILE.encode())
        try:
            if not is_folder(os.path.join(self.path, PACK_FOLDER.encode())):
                return None
            return decode_source_records(read_regular(path))
        except FileAbsent:
            return SourceRecords({}, {})
        except _UNREADABLE:
            return None


class SourceRecords(Record):
    """What a cache's documents do not say of the files that they were made of."""

    renamed: dict[str, str]  # id -> the path as it was, where it is not the id
    converted: dict[str, str]  # id -> the version of the file's own bytes, where another text is stored

    def to_bytes(self) -> bytes:
        body = encode({"conversion": CONVERSION_VERSION, **self._asdict()}).encode()
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def decode_source_records(raw: bytes) -> SourceRecords:
    """Malformed if the bytes are damaged, or made by another version of the conversion."""
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


def _digests(first: int, end: int) -> slice:
    return slice(first * DIGEST_BYTES, end * DIGEST_BYTES)


def previous_cache(path: bytes) -> PreviousCache | None:
    """The cache at a path; None where there is none that can be read."""
    try:
        manifest = decode_manifest(read_regular(os.path.join(path, MANIFEST_FILE.encode())))
        return PreviousCache(path, manifest)
    except _UNREADABLE:
        return None
