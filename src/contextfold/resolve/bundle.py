"""A cache as one file, for sharing: the format of the file, packing and unpacking.

    contextfold bundle 1
    {"cache_version":…,"document_count":…,"build_options":…}
    {"id":…,"version":…,"source":…,"content":…,"metadata":{}}     a line for each document, by id
    {"sha256":…}                                                  of all bytes before this line

Every line is the canonical JSON of its value, so the same documents give the same bytes. The file has no absolute path,
no time, and no compressed data, so unpacking cannot write much more than it reads. The indexes of a cache are not in
the file; unpacking makes them again from the documents.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import BinaryIO, NamedTuple

from contextfold.common.canonical import HASH_PREFIX, Encodable, Malformed, decode, encode, fields
from contextfold.errors import BundleInvalid, CacheExists, CacheInvalid, StorageFailed
from contextfold.resolve.build import BuildReport
from contextfold.resolve.cache import CacheFolder, Progress
from contextfold.resolve.cache_writer import CacheWriter
from contextfold.resolve.document import Document, decode_document, document_id
from contextfold.resolve.documents.rules import rules_in
from contextfold.resolve.files import StorageErrors, shown, silent, sync
from contextfold.resolve.rebuild.replace import Staging
from contextfold.resolve.service import Cache, Path

BUNDLE_SUFFIX = ".ctxpack"
TEMPORARY_SUFFIX = b".contextfold-packing"
BUNDLE_MAGIC = b"contextfold bundle 1\n"
HEAD_MAX_BYTES = 64 << 20
# The line of a document has at most this many bytes.
LINE_MAX_BYTES = 1 << 30
DOCUMENTS_MAX = 100_000_000
PATH_MAX_BYTES = 1 << 16
WRITTEN_TOGETHER = 1 << 20


class PackReport(NamedTuple):
    file: str
    # The hash of the whole file.
    sha256: str
    document_count: int
    byte_count: int


class BundleHead(NamedTuple):
    cache_version: str
    document_count: int
    build_options: Mapping[str, Encodable] | None

    def to_line(self) -> bytes:
        return encode(self._asdict()).encode() + b"\n"


def last_line(digest: hashlib._Hash) -> bytes:
    """The last line, for the hash of all lines before it."""
    return encode({"sha256": digest.hexdigest()}).encode() + b"\n"


def pack(cache: Path, file: Path, *, progress: Progress = silent) -> PackReport:
    """Write a cache into a file. An existing file is replaced only if it is a packed cache too."""
    path = os.fsencode(file)
    _check_replaceable(path)
    temporary = path + TEMPORARY_SUFFIX
    with StorageErrors("cannot write", path):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            with open(descriptor, "wb", buffering=WRITTEN_TOGETHER) as stream:
                report = pack_to(cache, stream.write, progress=progress)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        sync(os.path.dirname(path) or b".")
    return report._replace(file=shown(path))


def pack_to(cache: Path, write: Callable[[bytes], object], *, progress: Progress = silent) -> PackReport:
    """Pass the bytes of a packed cache to `write`, part by part, after the manifest has been checked."""
    opened = Cache(cache)
    before = opened.identity()
    folder = CacheFolder(opened.path)
    manifest = folder.manifest()
    digest, written = hashlib.sha256(), 0

    def put(raw: bytes) -> None:
        nonlocal written
        digest.update(raw)
        written += len(raw)
        write(raw)

    documents = folder.documents(manifest, progress=progress)
    # The manifest and the index are checked before the first document is read.
    first = list(islice(documents, 1))
    put(BUNDLE_MAGIC)
    put(BundleHead(manifest.cache_version, manifest.document_count, manifest.build_options).to_line())
    for document in chain(first, documents):
        _check_paths(document)
        put(document.to_json() + b"\n")
    put(last_line(digest))
    if opened.identity() != before:
        raise StorageFailed(f"{shown(opened.path)} was replaced while it was packed; run this again")
    return PackReport("", HASH_PREFIX + digest.hexdigest(), manifest.document_count, written)


def _check_replaceable(path: bytes) -> None:
    with StorageErrors("cannot look at", path):
        if not os.path.lexists(path):
            return
        if stat.S_ISREG(os.lstat(path).st_mode):
            with open(path, "rb") as stream:
                if stream.read(len(BUNDLE_MAGIC)) == BUNDLE_MAGIC:
                    return
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
    with StorageErrors("cannot read", path):
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


def unpack_from(
    stream: BinaryIO,
    name: str,
    cache: Path,
    *,
    force: bool,
    created_at: str | None = None,
    progress: Progress,
    uses_processes: bool,
) -> BuildReport:
    """Make a cache of the bytes of a packed file, atomically. `name` is for messages."""
    try:
        reader = _BundleReader(stream)
        head = reader.head
        with Staging(os.fsencode(cache), force=force) as staging:
            work = CacheWriter(staging.path, None, head.build_options, uses_processes=uses_processes)
            work.write_documents(reader.documents(), head.document_count, progress)
            manifest = work.write_manifest(created_at)
            if manifest.cache_version != head.cache_version:
                raise BundleInvalid("its documents do not give the version that its head says")
            work.put_in_place(manifest, staging)
        count, content_bytes = manifest.document_count, work.content_bytes
        return BuildReport(shown(os.fsencode(cache)), manifest.cache_version, count, content_bytes)
    except CacheInvalid as problem:
        raise BundleInvalid(f"{name}: {problem.reason}; get the file again from where it came") from None


class _BundleReader:
    """Reads and checks a packed file line by line. The length of each line is limited."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256(BUNDLE_MAGIC)
        if stream.read(len(BUNDLE_MAGIC)) != BUNDLE_MAGIC:
            raise BundleInvalid("this is not a file that `context pack` wrote, or it is of another version")
        self.head = _decode_head(self._line(HEAD_MAX_BYTES))

    def documents(self) -> Iterator[Document]:
        """Yield the documents, then check the end of the file."""
        after: bytes | None = None
        for _ in range(self.head.document_count):
            document = _decode_document_line(self._line(LINE_MAX_BYTES), after)
            after = document.id.encode()
            yield document
        expected = last_line(self._digest)
        if self._line(HEAD_MAX_BYTES) != expected or self._stream.read(1):
            raise BundleInvalid("its last line is not the hash of what comes before")

    def _line(self, limit: int) -> bytes:
        line = self._stream.readline(limit)
        if not line.endswith(b"\n"):
            raise BundleInvalid("it is truncated, or a line is longer than any document may be")
        self._digest.update(line)
        return line


def _decode_head(line: bytes) -> BundleHead:
    try:
        members = fields(decode(line), {"cache_version": str, "document_count": int}, "its head")
    except Malformed as problem:
        raise BundleInvalid(f"the second line is damaged: {problem}") from None
    count, options = members["document_count"], members.get("build_options")
    assert isinstance(count, int)
    if not 0 <= count <= DOCUMENTS_MAX:
        raise BundleInvalid(f"it claims to have {count} documents")
    if rules_in(options) is None:
        raise BundleInvalid("the second line has options that no build has")
    return BundleHead(str(members["cache_version"]), count, options if isinstance(options, dict) else None)


def _decode_document_line(line: bytes, after: bytes | None) -> Document:
    """Decode the line of a document. Its id must come after `after`."""
    try:
        document = decode_document(line)
    except Malformed as problem:
        raise BundleInvalid(f"a document is damaged: {problem}") from None
    if line != document.to_json() + b"\n":
        raise BundleInvalid(f"the document {document.id} is not written as `context pack` writes it")
    if after is not None and document.id.encode() <= after:
        raise BundleInvalid(f"the document {document.id} is not in its place in the order of ids")
    _check_paths(document)
    return document


def _check_paths(document: Document) -> None:
    """Raise BundleInvalid unless a document's path is a safe relative path and yields its id."""
    for path in (document.id, document.source.replace("\\", "/")):
        parts = path.removeprefix("./").split("/")
        is_long = len(path.encode()) > PATH_MAX_BYTES
        if is_long or "\0" in path or any(part in ("", "..") for part in parts) or ":" in parts[0]:
            raise BundleInvalid(f"the path {path[:200]!r} of a document leads out of its folder, or is none")
    if document_id(document.source) != document.id:
        raise BundleInvalid(f"the document {document.id} has a source that gives another id")
