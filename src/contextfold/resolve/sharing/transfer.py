"""Packs a cache into one file and unpacks it. `bundle.py` knows the format."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator

from contextfold.cache_errors import BundleInvalid, CacheExists, CacheInvalid
from contextfold.common.record import Record
from contextfold.errors import StorageFailed
from contextfold.resolve.build import BuildReport, build_from
from contextfold.resolve.cache import CacheFolder, Examination, Progress, silent
from contextfold.resolve.document import Document
from contextfold.resolve.files import shown, storage_failed, sync
from contextfold.resolve.manifest import Manifest
from contextfold.resolve.service import Cache, Path
from contextfold.resolve.sharing.bundle import (
    BUNDLE_MAGIC,
    HEAD_MAX_BYTES,
    LINE_MAX_BYTES,
    BundleHead,
    LineHash,
    decode_head,
    decode_line,
    document_line,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

BUNDLE_SUFFIX = ".ctxpack"
TEMPORARY_SUFFIX = b".contextfold-packing"
HASH_BYTES_AT_ONCE = 1 << 20


class PackReport(Record):
    file: str
    # The hash of the whole file.
    sha256: str
    document_count: int
    byte_count: int


def pack(cache: Path, file: Path, *, progress: Progress = silent) -> PackReport:
    """Write a cache into a file. An existing file is replaced only if it is a packed cache too."""
    path = os.fsencode(file)
    _check_replaceable(path)
    temporary = path + TEMPORARY_SUFFIX
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            with open(descriptor, "wb", buffering=HASH_BYTES_AT_ONCE) as stream:
                report = pack_to(cache, stream.write, progress=progress)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        sync(os.path.dirname(path) or b".")
    except OSError as problem:
        raise storage_failed("cannot write", path, problem) from problem
    return report._replace(file=shown(path))


def pack_to(cache: Path, write: Callable[[bytes], object], *, progress: Progress = silent) -> PackReport:
    """Pass the bytes of a packed cache to `write`, part by part, after the manifest has been checked."""
    opened = Cache(cache)
    before = opened.identity()
    folder = CacheFolder(os.fsencode(cache))
    digest, lines, written = hashlib.sha256(), LineHash(), 0

    def put(raw: bytes) -> None:
        nonlocal written
        digest.update(raw)
        written += len(raw)
        write(raw)

    def put_document(document: Document) -> None:
        if examination.manifest is not None and not written:
            manifest = examination.manifest
            put(BUNDLE_MAGIC)
            put(lines.add(_head(manifest).to_line()))
        put(lines.add(document_line(document)))

    examination = Examination(folder, None, on_document=put_document, progress=progress)
    for fault in examination.faults():
        raise folder.invalid(fault)
    manifest = examination.manifest
    assert manifest is not None
    if not written:
        # The cache has no documents.
        put(BUNDLE_MAGIC)
        put(lines.add(_head(manifest).to_line()))
    put(lines.last_line())
    if opened.identity() != before:
        raise StorageFailed(f"{shown(os.fsencode(cache))} was replaced while it was packed; run this again")
    return PackReport("", "sha256:" + digest.hexdigest(), manifest.document_count, written)


def _head(manifest: Manifest) -> BundleHead:
    return BundleHead(manifest.cache_version, manifest.document_count, manifest.build_options)


def _check_replaceable(path: bytes) -> None:
    try:
        if not os.path.lexists(path):
            return
        if stat.S_ISREG(os.lstat(path).st_mode):
            with open(path, "rb") as stream:
                if stream.read(len(BUNDLE_MAGIC)) == BUNDLE_MAGIC:
                    return
    except OSError as problem:
        raise storage_failed("cannot look at", path, problem) from problem
    raise CacheExists(f"{shown(path)} is already there and is no packed cache; choose another file with -o")


def unpack(
    file: Path,
    cache: Path,
    *,
    force: bool = False,
    created_at: str | None = None,
    progress: Progress = silent,
    uses_processes: bool = False,
) -> BuildReport:
    """Make a cache of a packed file, atomically. `uses_processes` is for a process without threads."""
    path = os.fsencode(file)
    if not os.path.lexists(path):
        raise StorageFailed(f"there is no file {shown(path)}; give a file that `context pack` wrote")
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise StorageFailed(f"{shown(path)} is not a regular file; give a file that `context pack` wrote")
        with open(path, "rb") as stream:
            return unpack_from(
                stream,
                shown(path),
                cache,
                force=force,
                created_at=created_at,
                progress=progress,
                uses_processes=uses_processes,
            )
    except OSError as problem:
        raise storage_failed("cannot read", path, problem) from problem


def unpack_from(
    stream: BinaryIO,
    name: str,
    cache: Path,
    *,
    force: bool = False,
    created_at: str | None = None,
    progress: Progress = silent,
    uses_processes: bool = False,
) -> BuildReport:
    """Make a cache of the bytes of a packed file, atomically. `name` is for messages."""
    reader = _BundleReader(stream)

    def check(manifest: Manifest) -> None:
        reader.check_end()
        if manifest.cache_version != reader.head.cache_version:
            raise BundleInvalid("its documents do not give the version that its head says")

    try:
        reader.read_head()
        return build_from(
            reader.documents(),
            reader.head.document_count,
            cache,
            build_options=reader.head.build_options,
            check=check,
            force=force,
            created_at=created_at or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            progress=progress,
            uses_processes=uses_processes,
        )
    except CacheInvalid as problem:
        raise BundleInvalid(f"{name}: {problem.reason}; get the file again from where it came") from None


class _BundleReader:
    """Reads a packed file line by line. The length of each line is limited."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lines = LineHash()
        self.head = BundleHead("", 0, None)

    def read_head(self) -> None:
        if self._stream.read(len(BUNDLE_MAGIC)) != BUNDLE_MAGIC:
            raise BundleInvalid("this is not a file that `context pack` wrote, or it is of another version")
        self.head = decode_head(self._lines.add(self._line(HEAD_MAX_BYTES)))

    def documents(self) -> Iterator[Document]:
        after: bytes | None = None
        for _ in range(self.head.document_count):
            document = decode_line(self._lines.add(self._line(LINE_MAX_BYTES)), after)
            after = document.id.encode()
            yield document

    def check_end(self) -> None:
        expected = self._lines.last_line()
        if self._line(HEAD_MAX_BYTES) != expected or self._stream.read(1):
            raise BundleInvalid("its last line is not the hash of what comes before")

    def _line(self, limit: int) -> bytes:
        line = self._stream.readline(limit)
        if not line.endswith(b"\n"):
            raise BundleInvalid("it is truncated, or a line is longer than any document may be")
        return line
