"""The format of the file that `context pack` writes, and its checks. Pure.

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
from collections.abc import Mapping

from contextfold.cache_errors import BundleInvalid
from contextfold.common.canonical import Encodable, Malformed, decode, encode, fields
from contextfold.common.record import Record
from contextfold.resolve.document import Document, decode_document, document_id
from contextfold.resolve.documents.rules import rules_in

BUNDLE_MAGIC = b"contextfold bundle 1\n"
HEAD_MAX_BYTES = 64 << 20
# The line of a document has at most this many bytes.
LINE_MAX_BYTES = 1 << 30
DOCUMENTS_MAX = 100_000_000
PATH_MAX_BYTES = 1 << 16


class BundleHead(Record):
    cache_version: str
    document_count: int
    build_options: Mapping[str, Encodable] | None

    def to_line(self) -> bytes:
        return encode(self._asdict()).encode() + b"\n"


class LineHash:
    """The SHA-256 of all lines so far."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256(BUNDLE_MAGIC)

    def add(self, line: bytes) -> bytes:
        self._digest.update(line)
        return line

    def last_line(self) -> bytes:
        return encode({"sha256": self._digest.hexdigest()}).encode() + b"\n"


def decode_head(line: bytes) -> BundleHead:
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


def document_line(document: Document) -> bytes:
    """The line of a document. Raises BundleInvalid if its path is unsafe."""
    check_paths(document)
    return document.to_json() + b"\n"


def decode_line(line: bytes, after: bytes | None) -> Document:
    """Decode the line of a document. Its id must come after `after`."""
    try:
        document = decode_document(line)
    except Malformed as problem:
        raise BundleInvalid(f"a document is damaged: {problem}") from None
    if line != document.to_json() + b"\n":
        raise BundleInvalid(f"the document {document.id} is not written as `context pack` writes it")
    if after is not None and document.id.encode() <= after:
        raise BundleInvalid(f"the document {document.id} is not in its place in the order of ids")
    check_paths(document)
    return document


def check_paths(document: Document) -> None:
    """Raise BundleInvalid unless a document's path is a safe relative path and yields its id."""
    for path in (document.id, document.source.replace("\\", "/")):
        parts = path.removeprefix("./").split("/")
        is_long = len(path.encode()) > PATH_MAX_BYTES
        if is_long or "\0" in path or any(part in ("", "..") for part in parts) or ":" in parts[0]:
            raise BundleInvalid(f"the path {path[:200]!r} of a document leads out of its folder, or is none")
    if document_id(document.source) != document.id:
        raise BundleInvalid(f"the document {document.id} has a source that gives another id")
