"""The cache that a build is about to replace, as a store of finished work. Trusts nothing that it cannot check.

Whatever is missing, damaged or made by another version is not taken over, and so is made anew: the new cache has the
same bytes either way.
"""

from __future__ import annotations

import os

from contextfold.canonical import Malformed, decode, encode
from contextfold.errors import ContextError
from contextfold.resolve.cache import CacheFolder, Fault
from contextfold.resolve.document import Document
from contextfold.resolve.documents.conversion import CONVERSION_VERSION
from contextfold.resolve.documents.rules import DocumentRules, rules_in
from contextfold.resolve.files import FileAbsent, NotRegular, is_folder, read_part, read_regular
from contextfold.resolve.manifest import MANIFEST_FILE, Entry, Manifest, decode_manifest
from contextfold.resolve.pack import DIGEST_BYTES, PACK_FOLDER, POSTINGS_FILE, SEGMENTATION, Pack

CONVERSIONS_FILE = "pack/conversions"  # of documents that are stored as another text than their files: id -> SHA-256

_UNREADABLE = (ContextError, OSError, FileAbsent, NotRegular, Malformed)


class PreviousCache:
    """A cache whose manifest could be read."""

    def __init__(self, path: bytes, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._folder = CacheFolder(path)
        self._entries = {entry.id: entry for entry in manifest.entries}
        self._pack = self._usable_pack()
        self._segment_of_first = self._segments()
        self._conversions = self._read_conversions()

    @property
    def rules(self) -> DocumentRules | None:
        """The rules that chose its documents; None if they cannot be understood."""
        return rules_in(self.manifest.build_options)

    @property
    def pack(self) -> Pack | None:
        return self._pack

    def is_untouched(self) -> bool:
        """Whether it is complete and every file is as its build wrote it."""
        return self._pack is not None and self._folder.is_as_built(self._pack)

    def converted(self, name: str, raw_version: str) -> bytes | None:
        """The text that is stored of a file with these bytes, if it is this cache that stores it."""
        entry = self._entries.get(name)
        if entry is None or self._conversions.get(name) != raw_version:
            return None
        document = self.document(entry)
        return document.content if document else None

    def document(self, entry: Entry) -> Document | None:
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
        pack = self._pack
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

    def _usable_pack(self) -> Pack | None:
        pack = self._folder.pack()
        if pack is None or pack.segmentation != SEGMENTATION or not pack.describes(self.manifest.entries):
            return None
        return pack

    def _segments(self) -> dict[tuple[bytes, bytes], int]:
        pack = self._pack
        if pack is None:
            return {}
        firsts = {}
        for number in range(len(pack.segments)):
            if pack.segment_length(number) > 0:
                at = pack.segments[number].first_document
                firsts[pack.ids[at], pack.versions[_digests(at, at + 1)]] = number
        return firsts

    def _read_conversions(self) -> dict[str, str]:
        path = os.path.join(self.path, CONVERSIONS_FILE.encode())
        try:
            if not is_folder(os.path.join(self.path, PACK_FOLDER.encode())):
                return {}
            found = decode(read_regular(path))
        except _UNREADABLE:
            return {}
        if not isinstance(found, dict) or found.get("conversion") != CONVERSION_VERSION:
            return {}
        files = found.get("files")
        if not isinstance(files, dict) or not all(isinstance(version, str) for version in files.values()):
            return {}
        return files


def _digests(first: int, end: int) -> slice:
    return slice(first * DIGEST_BYTES, end * DIGEST_BYTES)


def conversions_json(files: dict[str, str]) -> bytes:
    return encode({"conversion": CONVERSION_VERSION, "files": files}).encode()


def previous_cache(path: bytes) -> PreviousCache | None:
    """The cache at a path; None where there is none that can be read."""
    try:
        manifest = decode_manifest(read_regular(os.path.join(path, MANIFEST_FILE.encode())))
        return PreviousCache(path, manifest)
    except _UNREADABLE:
        return None
