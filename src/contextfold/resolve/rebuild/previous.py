"""Reuses parts of the cache that a build is about to replace. Checks everything that it reuses.

A part that is missing, damaged or made by another version is made again. The new cache has the same bytes either way.
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

# The records of renamed and converted documents, after a line with their checksum.
SOURCES_FILE = "pack/sources"

# A link changes a file's ctime, so the table of the packed index is written again after linking. The folder may have
# been moved by then, so that needs calls that take the descriptor of a folder.
CAN_LINK = hasattr(os, "link") and {os.open, os.rename, os.unlink} <= os.supports_dir_fd

_UNREADABLE = (ContextError, OSError, FileAbsent, NotRegular, Malformed)


class PreviousCache:
    """The previous cache. Its manifest is valid; all other files are checked before they are used."""

    def __init__(self, path: bytes, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._folder = CacheFolder(path)

    @property
    def rules(self) -> DocumentRules | None:
        """The rules that chose its documents; None if they cannot be decoded."""
        return rules_in(self.manifest.build_options)

    @cached_property
    def relevance(self) -> IndexView | None:
        """Its relevance index, checked; None if it is missing or unusable."""
        try:
            return RelevanceFiles(self.path, lambda: self.manifest.cache_version).mapped().view
        except _UNREADABLE:
            return None

    def relevance_number(self, entry: ManifestEntry, source: str) -> int | None:
        """The number of an unchanged document in its relevance index; None if the document or its path differs."""
        if self.relevance is None or self._sources is None:
            return None
        before = self._entries.get(entry.id)
        if before is None or before.version != entry.version:
            return None
        if self._sources.renamed.get(entry.id, entry.id) != source:
            return None
        return self.relevance.document_number(entry.id.encode())

    def is_untouched(self) -> bool:
        """Whether it is complete and no file has changed since its build."""
        return self.pack is not None and self._folder.is_as_built(self.pack) and self.relevance is not None

    def converted(self, name: str, raw_version: str) -> bytes | None:
        """The converted text of a document; None unless it was made of a file with this hash."""
        entry = self._entries.get(name)
        if entry is None or self._sources is None or self._sources.converted.get(name) != raw_version:
            return None
        document = self.document(entry)
        return document.content if document else None

    def has_file(self, entry: ManifestEntry, source: str) -> bool:
        """Whether it has the same document in an unchanged file of the same name."""
        if self._sources is None or entry.file not in self._untouched_files or self._entries.get(entry.id) != entry:
            return False
        return self._sources.renamed.get(entry.id, entry.id) == source

    def link(self, file: str, target: bytes) -> bool:
        """Link a document's file to `target`; False if that fails or the file has changed."""
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
        """Read and check a document; None if anything is wrong with it."""
        try:
            document = self._folder.document_or_fault(entry)
        except ContextError:
            return None
        return None if isinstance(document, Fault) else document

    def segment_at(self, number: int, ids: list[bytes], versions: bytes) -> int | None:
        """The segment that has exactly the new cache's documents that start at `number`; None if there is none.

        `versions` is the concatenation of all documents' digests.
        """
        pack = self.pack
        if pack is None:
            return None
        segment = self._segment_of_first.get((ids[number], versions[_digests(number, number + 1)]))
        if segment is None:
            return None
        first, length = pack.segments[segment].first_document, pack.segment_length(segment)
        # The last segment ended because there were no more documents. The new list must end there, too.
        if segment == len(pack.segments) - 1 and number + length != len(ids):
            return None
        same_ids = pack.ids.all()[first : first + length] == ids[number : number + length]
        same = pack.versions[_digests(first, first + length)] == versions[_digests(number, number + length)]
        return segment if same_ids and same else None

    def read_postings(self, offset: int, length: int) -> bytes:
        return read_part(os.path.join(self.path, POSTINGS_FILE.encode()), offset, length)

    @cached_property
    def _entries(self) -> dict[str, ManifestEntry]:
        return {entry.id: entry for entry in self.manifest.entries}

    @cached_property
    def pack(self) -> Pack | None:
        """Its packed index; None if segments cannot be copied from it."""
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
                firsts[pack.ids.all()[at], pack.versions[_digests(at, at + 1)]] = number
        return firsts

    @cached_property
    def _untouched_files(self) -> dict[str, tuple[int, int, int]]:
        """Size, mtime and inode of each document's file that has not changed since the build."""
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
    """Facts about source files that the documents do not contain, by document id.

    `renamed` has the path of each file whose path is not the document's id. `converted` has the hash of the original
    bytes of each file that was converted to another text.
    """

    renamed: dict[str, str]
    converted: dict[str, str]

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


def _digests(first: int, end: int) -> slice:
    return slice(first * DIGEST_BYTES, end * DIGEST_BYTES)


def previous_cache(path: bytes) -> PreviousCache | None:
    """The cache at a path; None if there is none with a readable manifest."""
    try:
        manifest = decode_manifest(read_regular(os.path.join(path, MANIFEST_FILE.encode())))
        return PreviousCache(path, manifest)
    except _UNREADABLE:
        return None
