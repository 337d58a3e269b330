"""Maps and checks the files of a relevance index. Writes nothing.

A file is trusted without reading it while its fingerprint is the one that the build recorded. Otherwise the index and
the contents are hashed completely, and the rest of the cache is checked as by a resolve. A difference is an error.
"""

from __future__ import annotations

import mmap
import os
import stat

from contextfold.cache_errors import CacheInvalid
from contextfold.common.canonical import Malformed
from contextfold.common.record import Record
from contextfold.resolve.files import (
    INODE_MASK,
    READ_FLAGS,
    FileAbsent,
    NotRegular,
    few_fingerprints,
    read_regular,
    regular_size,
    shown,
    storage_failed,
)
from contextfold.resolve.layout import FINGERPRINT_FIELDS, FRAME, MANIFEST_FILE, PACK_FOLDER
from contextfold.resolve.relevance.index.index_format import IndexView
from contextfold.resolve.relevance.index.index_head import (
    CONTENTS_FILE,
    HEAD_FILE,
    HEAD_MAX_BYTES,
    RELEVANCE_FILES,
    RELEVANCE_INDEX_FILE,
    FileRecord,
    OtherFormat,
    RelevanceHead,
    decode_head,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

REBUILD = "rebuild the cache with `context build --force`"
HASHED_TOGETHER = 1 << 22


class MappedIndex(Record):
    """A checked index with the contents of the documents."""

    view: IndexView
    contents: memoryview
    cache_version: str


class RelevanceFiles:
    """The relevance files of one cache. They stay mapped until the fingerprint of a file changes."""

    def __init__(self, path: bytes, examine: Callable[[], str]) -> None:
        """`examine` checks the rest of the cache and returns its version, or raises CacheInvalid."""
        self._prefix = os.path.join(path, b"")
        self._examine = examine
        self._watched = [*FRAME, PACK_FOLDER.encode(), HEAD_FILE.encode(), *(name.encode() for name in RELEVANCE_FILES)]
        self._state: tuple[int, ...] | None = None
        self._mapped: MappedIndex | None = None

    def mapped(self) -> MappedIndex:
        """The index, after all necessary checks."""
        state = few_fingerprints(self._prefix, self._watched)
        if self._mapped is None or state != self._state:
            self._mapped, self._state = None, None
            mapped, trusted = self._map()
            if not trusted:
                # The next call must read the files again.
                return mapped
            self._mapped, self._state = mapped, state
        return self._mapped

    def faults(self, cache_version: str) -> list[tuple[str, str]]:
        """Read every byte; return each damaged file with its problem. A cache without an index has none."""
        if not os.path.lexists(self._prefix + HEAD_FILE.encode()):
            return []
        try:
            head = decode_head(self._read(HEAD_FILE))
        except OtherFormat:
            return []
        except Malformed as problem:
            return [(HEAD_FILE, str(problem))]
        if head.cache_version != cache_version:
            return [(HEAD_FILE, "is of another cache")]
        found = []
        for file, record in ((RELEVANCE_INDEX_FILE, head.index_file), (CONTENTS_FILE, head.contents)):
            try:
                if _sha256(memoryview(self._read(file))) != record.sha256:
                    found.append((file, "is not what was built"))
            except Malformed as problem:
                found.append((file, str(problem)))
        return found

    def _read(self, file: str) -> bytes:
        try:
            return read_regular(self._prefix + file.encode())
        except FileAbsent:
            raise Malformed("is missing") from None
        except NotRegular:
            raise Malformed("is not a regular file") from None

    def _map(self) -> tuple[MappedIndex, bool]:
        head = self._head()
        seen = few_fingerprints(self._prefix, FRAME)
        frame_length = len(FRAME) * FINGERPRINT_FIELDS
        frame_trusted = seen == head.fingerprints[:frame_length]
        if not frame_trusted and self._examine() != head.cache_version:
            raise self._invalid(HEAD_FILE, "is of another cache")
        recorded = head.fingerprints[frame_length:]
        index, index_trusted = self._map_file(RELEVANCE_INDEX_FILE, head.index_file, recorded[:FINGERPRINT_FIELDS])
        contents, contents_trusted = self._map_file(CONTENTS_FILE, head.contents, recorded[FINGERPRINT_FIELDS:])
        try:
            view = IndexView(head.index_head, index)
        except Malformed as problem:
            raise self._invalid(RELEVANCE_INDEX_FILE, str(problem)) from problem
        mapped = MappedIndex(view, contents, head.cache_version)
        return mapped, frame_trusted and index_trusted and contents_trusted

    def _head(self) -> RelevanceHead:
        if regular_size(self._prefix + HEAD_FILE.encode()) > HEAD_MAX_BYTES:
            raise self._invalid(HEAD_FILE, "is longer than any head")
        try:
            return decode_head(read_regular(self._prefix + HEAD_FILE.encode()))
        except FileAbsent:
            if not os.path.lexists(self._prefix + MANIFEST_FILE.encode()):
                raise self._invalid(MANIFEST_FILE, "is missing") from None
            raise CacheInvalid(
                f"{shown(self._prefix)} has no relevance index: an older version or another program built it; {REBUILD}"
            ) from None
        except OtherFormat:
            raise CacheInvalid(
                f"{shown(self._prefix)} has a relevance index of another version of contextfold; {REBUILD}"
            ) from None
        except NotRegular:
            raise self._invalid(HEAD_FILE, "is not a regular file") from None
        except Malformed as problem:
            raise self._invalid(HEAD_FILE, str(problem)) from problem

    def _map_file(self, file: str, record: FileRecord, recorded: tuple[int, ...]) -> tuple[memoryview, bool]:
        """Map and check a file; return it, and whether its fingerprint was enough for the check."""
        path = self._prefix + file.encode()
        try:
            descriptor = os.open(path, READ_FLAGS)
        except OSError as problem:
            raise self._unreadable(file, problem) from problem
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise self._invalid(file, "is not a regular file")
            if status.st_size != record.length:
                raise self._invalid(file, "has another size than when it was built")
            raw = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if status.st_size else b"")
        except OSError as problem:
            raise storage_failed("cannot map", path, problem) from problem
        finally:
            os.close(descriptor)
        looks = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino & INODE_MASK)
        trusted = looks == recorded
        if not trusted and _sha256(raw) != record.sha256:
            raise self._invalid(file, "is not what was built")
        return raw, trusted

    def _unreadable(self, file: str, problem: OSError) -> Exception:
        if isinstance(problem, FileNotFoundError):
            return self._invalid(file, "is missing")
        if os.path.islink(self._prefix + file.encode()):
            return self._invalid(file, "is not a regular file")
        return storage_failed("cannot open", self._prefix + file.encode(), problem)

    def _invalid(self, file: str, problem: str) -> CacheInvalid:
        return CacheInvalid(f"{shown(self._prefix)}{file}: {problem}; {REBUILD}")


def _sha256(raw: memoryview) -> str:
    import hashlib

    digest = hashlib.sha256()
    for at in range(0, len(raw), HASHED_TOGETHER):
        digest.update(raw[at : at + HASHED_TOGETHER])
    return digest.hexdigest()
