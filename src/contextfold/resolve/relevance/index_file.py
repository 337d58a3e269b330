"""Maps and checks the files of a relevance index. Writes nothing.

A file is trusted without reading it while its fingerprint is the one that the build recorded. Otherwise the index and
the contents are hashed completely, and the rest of the cache is checked as by a resolve. A difference is an error.

A copied cache has other fingerprints than those recorded. A process that asks it again and again hashes it once: it
remembers the fingerprints of the files that it has hashed, if a later change of any of them must change them.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from contextfold.common.canonical import Malformed
from contextfold.errors import REBUILD_IT, CacheInvalid, IndexMissing
from contextfold.resolve.cache import rebuild_command
from contextfold.resolve.cache_format import DERIVED_FOLDER, FINGERPRINT_FIELDS, FRAME, MANIFEST_FILE, UNTRUSTED
from contextfold.resolve.files import (
    CTIME_SHOWS_CHANGES,
    FileAbsent,
    fingerprints,
    format_path,
    map_regular,
    read_regular,
    regular_size,
)
from contextfold.resolve.relevance.index_format import (
    CONTENTS_FILE,
    HEAD_FILE,
    HEAD_MAX_BYTES,
    RELEVANCE_FILES,
    RELEVANCE_INDEX_FILE,
    FileRecord,
    IndexView,
    OtherFormat,
    RelevanceHead,
    decode_head,
)

Content = TypeVar("Content", bytes, memoryview)

# A change of a file gets a new timestamp if the timestamps before it are at least this old. The coarsest timestamps
# have steps of two seconds; the rest is for a file server whose clock is behind.
SETTLED_AFTER_S = 10.0
NS_PER_S = 1_000_000_000


class MappedIndex(NamedTuple):
    """A checked index with the contents of the documents."""

    view: IndexView
    contents: memoryview
    cache_version: str


class RelevanceFiles:
    """The relevance files of one cache. They stay mapped until the fingerprint of a file changes."""

    def __init__(self, path: bytes, examine: Callable[[], str], *, settled_after_s: float = SETTLED_AFTER_S) -> None:
        """`examine` checks the rest of the cache and returns its version, or raises CacheInvalid.

        Timestamps of this age are old enough to show every later change.
        """
        self._prefix = os.path.join(path, b"")
        self._examine = examine
        self._settled_after_ns = int(settled_after_s * NS_PER_S)
        self._watched = [
            *FRAME,
            DERIVED_FOLDER.encode(),
            HEAD_FILE.encode(),
            *(name.encode() for name in RELEVANCE_FILES),
        ]
        self._state: tuple[int, ...] | None = None
        self._mapped: MappedIndex | None = None

    def map(self) -> MappedIndex:
        """The index, after all necessary checks."""
        state = tuple(fingerprints(self._prefix, self._watched))
        if self._mapped is None or state != self._state:
            self._mapped, self._state = None, None
            began_ns = time.time_ns()
            mapped, trusted, may_be_remembered = self._map()
            if not trusted and not (may_be_remembered and self._is_settled(state, began_ns)):
                # The next call must read the files again.
                return mapped
            self._mapped, self._state = mapped, state
        return self._mapped

    def _is_settled(self, state: tuple[int, ...], began_ns: int) -> bool:
        """Whether no file has changed since `began_ns`, and every later change will change the state.

        A file that has changed since then has a later timestamp than all those in the state, which are older.
        """
        times = (*state[1::FINGERPRINT_FIELDS], *state[2::FINGERPRINT_FIELDS])
        is_old = max(times) < began_ns - self._settled_after_ns
        return CTIME_SHOWS_CHANGES and is_old and tuple(fingerprints(self._prefix, self._watched)) == state

    def faults(self, cache_version: str) -> list[tuple[str, str]]:
        """Read every byte; return each damaged file with its problem. A cache without an index has none."""
        if not os.path.lexists(self._prefix + HEAD_FILE.encode()):
            return []
        try:
            head = decode_head(read_regular(self._prefix + HEAD_FILE.encode()))
        except OtherFormat:
            return []
        except Malformed as problem:
            return [(HEAD_FILE, str(problem))]
        if head.cache_version != cache_version:
            return [(HEAD_FILE, "is of another cache")]
        found = []
        for file, record in ((RELEVANCE_INDEX_FILE, head.index_file), (CONTENTS_FILE, head.contents)):
            try:
                if _sha256(read_regular(self._prefix + file.encode())) != record.sha256:
                    found.append((file, "is not what was built"))
            except Malformed as problem:
                found.append((file, str(problem)))
        return found

    def _map(self) -> tuple[MappedIndex, bool, bool]:
        """The index; whether its recorded fingerprints were enough; whether fingerprints can be enough for it."""
        head = self._head()
        seen = tuple(fingerprints(self._prefix, FRAME))
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
        # A build on a file system whose timestamps do not show every change has recorded that.
        rows = range(0, len(head.fingerprints), FINGERPRINT_FIELDS)
        is_unreliable = any(head.fingerprints[at : at + FINGERPRINT_FIELDS] == UNTRUSTED for at in rows)
        return mapped, frame_trusted and index_trusted and contents_trusted, not is_unreliable

    def _head(self) -> RelevanceHead:
        path = self._prefix + HEAD_FILE.encode()
        if regular_size(path) > HEAD_MAX_BYTES:
            raise self._invalid(HEAD_FILE, "is longer than any head")
        try:
            return decode_head(read_regular(path))
        except FileAbsent:
            if not os.path.lexists(self._prefix + MANIFEST_FILE.encode()):
                raise self._invalid(MANIFEST_FILE, "is missing") from None
            raise self._index_missing("no relevance index: an older version or another program built it") from None
        except OtherFormat:
            raise self._index_missing("a relevance index of another version of contextfold") from None
        except Malformed as problem:
            raise self._invalid(HEAD_FILE, str(problem)) from problem

    def _map_file(self, file: str, record: FileRecord, recorded: tuple[int, ...]) -> tuple[memoryview, bool]:
        """Map and check a file; return it, and whether its fingerprint was enough for the check."""
        try:
            raw = map_regular(self._prefix + file.encode())
        except Malformed as problem:
            raise self._invalid(file, str(problem)) from problem
        if len(raw) != record.length:
            raise self._invalid(file, "has another size than when it was built")
        # The fingerprint is from after the file was opened: it does not vouch for a file that was replaced since then.
        trusted = tuple(fingerprints(self._prefix, [file.encode()])) == recorded
        if not trusted and _sha256(raw) != record.sha256:
            raise self._invalid(file, "is not what was built")
        return raw, trusted

    def _invalid(self, file: str, problem: str) -> CacheInvalid:
        return CacheInvalid(
            f"{format_path(self._prefix)}{file}: {problem}; {self._rebuild_command()} makes the cache anew"
        )

    def _index_missing(self, instead: str) -> IndexMissing:
        """The error for a cache that has something else instead of an index of this version."""
        reason = f"{format_path(self._prefix)} has {instead}; {self._rebuild_command()} makes the cache anew"
        return IndexMissing(reason, f"it has {instead}; {REBUILD_IT}")

    def _rebuild_command(self) -> str:
        return rebuild_command(self._prefix)


def _sha256(raw: bytes | memoryview) -> str:
    return hashlib.sha256(raw).hexdigest()
