"""Opens the index of a cache after checking that it is the one that the build wrote. Writes nothing.

A file is trusted without reading it while its fingerprint is the one that the build recorded. Otherwise the index is
hashed completely. Before a question is answered from the index, the rest of the cache is checked in the same way, as
by a resolve. A difference is an error.

A copied cache has other fingerprints than those recorded. A process that asks it again and again hashes it once: it
remembers the fingerprints of the files that it has hashed, if a later change of any of them must change them.
"""

from __future__ import annotations

import hashlib
import os
import time
from array import array
from collections.abc import Callable
from shlex import quote
from typing import NamedTuple

from contextfold.common.canonical import Malformed, decode
from contextfold.errors import REBUILD_IT, CacheInvalid, ContextError, IndexMissing
from contextfold.resolve.cache_format import DEFAULT_CACHE, DERIVED_FOLDER, FINGERPRINT_FIELDS, FRAME, MANIFEST_FILE
from contextfold.resolve.files import (
    CTIME_SHOWS_CHANGES,
    READ_BYTES,
    FileAbsent,
    StorageErrors,
    fingerprints,
    format_path,
    is_folder,
    open_regular,
    read_regular,
    regular_size,
)
from contextfold.resolve.fingerprint_record import (
    DATABASE_FILE,
    RECORD_FILE,
    FingerprintRecord,
    OtherFormat,
    decode_record,
)
from contextfold.resolve.index import Index
from contextfold.resolve.kinds import ALL_TEXT

# A change of a file gets a new timestamp if the timestamps before it are at least this old. The coarsest timestamps
# have steps of two seconds; the rest is for a file server whose clock is behind.
SETTLED_AFTER_S = 10.0
NS_PER_S = 1_000_000_000

_DERIVED = [DERIVED_FOLDER.encode(), RECORD_FILE.encode(), DATABASE_FILE.encode()]


class OpenIndex(NamedTuple):
    """An index that is the one that the build wrote, with the build's record of files."""

    # Not `index`, which is a method of every tuple.
    reader: Index
    record: FingerprintRecord


class IndexFile:
    """The index of one cache. It stays open until a fingerprint changes."""

    def __init__(
        self, path: bytes, check_cache: Callable[[], str], *, settled_after_s: float = SETTLED_AFTER_S
    ) -> None:
        """`check_cache` checks the rest of the cache and returns its version, or raises CacheInvalid.

        Timestamps of age `settled_after_s` are old enough to show every later change.
        """
        self._prefix = os.path.join(path, b"")
        self._check_cache = check_cache
        self._settled_after_ns = int(settled_after_s * NS_PER_S)
        self._open: OpenIndex | None = None
        self._open_state: array[int] | None = None
        self._checked_state: array[int] | None = None

    def open(self) -> OpenIndex:
        """The index, which may be of another cache than the manifest describes.

        Raises IndexMissing if there is none of this version, CacheInvalid if it is damaged.
        """
        state = fingerprints(self._prefix, _DERIVED)
        if self._open is not None and state == self._open_state:
            return self._open
        self._open, self._open_state, self._checked_state = None, None, None
        began_ns = time.time_ns()
        record = self._read_record()
        index, is_trusted = self._open_database(record)
        opened = OpenIndex(index, record)
        if is_trusted or self._is_settled(_DERIVED, state, record, began_ns):
            self._open, self._open_state = opened, state
        return opened

    def open_checked(self) -> OpenIndex:
        """The index, after checking that it is of this cache and that the rest of the cache is valid."""
        opened = self.open()
        record, state = opened.record, fingerprints(self._prefix, FRAME)
        if state in (record.frame, self._checked_state):
            return opened
        began_ns = time.time_ns()
        if self._check_cache() != record.cache_version:
            raise self._invalid(RECORD_FILE, "is of another cache")
        if self._open is opened and self._is_settled(FRAME, state, record, began_ns):
            self._checked_state = state
        return opened

    def _is_settled(self, files: list[bytes], state: array[int], record: FingerprintRecord, began_ns: int) -> bool:
        """Whether no file has changed since `began_ns`, and every later change will change the state.

        A file that has changed since then has a later timestamp than all those in the state, which are older.
        """
        times = (*state[1::FINGERPRINT_FIELDS], *state[2::FINGERPRINT_FIELDS])
        is_old = max(times) < began_ns - self._settled_after_ns
        return CTIME_SHOWS_CHANGES and record.is_reliable and is_old and fingerprints(self._prefix, files) == state

    def faults(self, cache_version: str) -> list[tuple[str, str]]:
        """Read every byte; return each derived file that is damaged or not of this cache, with its problem.

        A cache that has no index, or one of another version, has no fault.
        """
        if not os.path.lexists(self._prefix + RECORD_FILE.encode()):
            return []
        try:
            record = decode_record(read_regular(self._prefix + RECORD_FILE.encode()))
        except OtherFormat:
            return []
        except Malformed as problem:
            return [(RECORD_FILE, str(problem))]
        if record.cache_version != cache_version:
            return [(RECORD_FILE, "is of another cache")]
        try:
            self._check_hash(record)
            Index(self._prefix + DATABASE_FILE.encode())
        except Malformed as problem:
            return [(DATABASE_FILE, str(problem))]
        return []

    def _read_record(self) -> FingerprintRecord:
        if not is_folder(self._prefix + DERIVED_FOLDER.encode()):
            raise self._missing("no relevance index: an older version or another program built it")
        try:
            return decode_record(read_regular(self._prefix + RECORD_FILE.encode()))
        except FileAbsent:
            if not os.path.lexists(self._prefix + MANIFEST_FILE.encode()):
                raise self._invalid(MANIFEST_FILE, "is missing") from None
            raise self._missing("no relevance index: an older version or another program built it") from None
        except OtherFormat:
            raise self._missing("a relevance index of another version of contextfold") from None
        except Malformed as problem:
            raise self._invalid(RECORD_FILE, str(problem)) from problem

    def _open_database(self, record: FingerprintRecord) -> tuple[Index, bool]:
        """Open and check the index; return it, and whether its fingerprint was enough for the check."""
        path = self._prefix + DATABASE_FILE.encode()
        try:
            # SQLite would follow a link, wait for the writer of a pipe, and not say what is wrong.
            with open_regular(path):
                pass
            index = Index(path)
            # The fingerprint is from after the file was opened: it does not vouch for one that was replaced since then.
            is_trusted = fingerprints(b"", [path]) == record.database
            if not is_trusted:
                self._check_hash(record)
        except FileAbsent:
            raise self._missing("no relevance index: somebody removed it") from None
        except Malformed as problem:
            raise self._invalid(DATABASE_FILE, str(problem)) from problem
        return index, is_trusted

    def _check_hash(self, record: FingerprintRecord) -> None:
        path = self._prefix + DATABASE_FILE.encode()
        if regular_size(path) != record.index_bytes:
            raise Malformed("has another size than when it was built")
        digest = hashlib.sha256()
        opened = open_regular(path)
        with StorageErrors("cannot read", path), opened as descriptor:
            while raw := os.read(descriptor, READ_BYTES):
                digest.update(raw)
        if digest.hexdigest() != record.index_sha256:
            raise Malformed("is not what was built")

    def _invalid(self, file: str, problem: str) -> CacheInvalid:
        return CacheInvalid(
            f"{format_path(self._prefix)}{file}: {problem}; {rebuild_command(self._prefix)} makes the cache anew"
        )

    def _missing(self, instead: str) -> IndexMissing:
        """The error for a cache that has something else instead of an index of this version."""
        reason = f"{format_path(self._prefix)} has {instead}; {rebuild_command(self._prefix)} makes the cache anew"
        return IndexMissing(reason, f"it has {instead}; {REBUILD_IT}")


def read_claim(cache: bytes, member: str) -> object:
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
    options = read_claim(cache, "build_options")
    is_of_all_text = isinstance(options, dict) and options.get("kinds") == ALL_TEXT
    sources = "DIR" if is_of_all_text else "--sources DIR"
    if not os.path.lexists(os.path.join(cache, MANIFEST_FILE.encode())):
        # A build replaces no folder that may hold something else.
        return f"`context build {sources} --cache PATH` with a new path"
    return f"`context build {sources} --cache {quote(format_path(os.path.join(folder, name)))} --force`"
