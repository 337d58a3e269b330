"""The record of the files of a cache as the build left them: a fingerprint of each, and the hash of the index.

It is what decision 1 calls trust by fingerprint: a file that still has its recorded fingerprint is not read again. The
record is a file of its own, because it has the fingerprint of the index, and it is written a second time after the
files of unchanged documents were linked. Pure; reads no file.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from contextfold.common.canonical import Encodable, Malformed, decode, encode, fields
from contextfold.resolve.cache_format import FINGERPRINT_FIELDS, FRAME, UNTRUSTED, Manifest

RECORD_FILE = "pack/fingerprints"
DATABASE_FILE = "pack/index.sqlite"
# The version of the record, and of everything in the index: tables, words, stems, weights of fields.
FORMAT = "index-3"

# The files before the documents in a record. They must be unchanged for a question to be answered from the index.
FRAME_AND_DATABASE = [*FRAME, DATABASE_FILE.encode()]
_HEAD_FIELDS = {"format": str, "byte_order": str, "cache_version": str, "index_bytes": int, "index_sha256": str}
# No path contains a NUL.
SEPARATOR = b"\0"


class OtherFormat(Malformed):
    """The record is valid, but of another version or of a machine with another byte order."""


class FingerprintRecord(NamedTuple):
    """`files` are those of the documents, in the order of ids. `seen` has the fingerprints of FRAME_AND_DATABASE, then
    those of `files`.
    """

    cache_version: str
    index_bytes: int
    index_sha256: str
    files: list[bytes]
    seen: array[int]

    @property
    def frame(self) -> array[int]:
        return self.seen[: len(FRAME) * FINGERPRINT_FIELDS]

    @property
    def database(self) -> array[int]:
        return self.seen[len(FRAME) * FINGERPRINT_FIELDS : len(FRAME_AND_DATABASE) * FINGERPRINT_FIELDS]

    @property
    def documents(self) -> array[int]:
        return self.seen[len(FRAME_AND_DATABASE) * FINGERPRINT_FIELDS :]

    @property
    def is_reliable(self) -> bool:
        """Whether the timestamps of the build's file system show every change of the frame and the index."""
        frame = self.seen[: len(FRAME_AND_DATABASE) * FINGERPRINT_FIELDS]
        return UNTRUSTED[0] not in frame[::FINGERPRINT_FIELDS]

    def describes(self, manifest: Manifest) -> bool:
        """Whether it is the record of exactly these documents in these files."""
        return self.cache_version == manifest.cache_version and self.files == [
            entry.file.encode() for entry in manifest.entries
        ]

    def changed_since(self, seen: array[int]) -> list[int]:
        """The numbers of the documents whose current fingerprints differ from the recorded ones."""
        step, recorded = FINGERPRINT_FIELDS, self.documents
        if seen == recorded:
            return []
        return [at // step for at in range(0, len(seen), step) if seen[at : at + step] != recorded[at : at + step]]

    def to_bytes(self) -> bytes:
        head: Encodable = {
            "format": FORMAT,
            "byte_order": sys.byteorder,
            "cache_version": self.cache_version,
            "index_bytes": self.index_bytes,
            "index_sha256": self.index_sha256,
        }
        body = b"\n".join((encode(head).encode(), SEPARATOR.join(self.files), self.seen.tobytes()))
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def decode_record(raw: bytes) -> FingerprintRecord:
    """Decode a record. Raises Malformed if it is damaged, OtherFormat if this program cannot use it."""
    digest, _, body = raw.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise Malformed("is damaged")
    head_line, _, rest = body.partition(b"\n")
    head = fields(decode(head_line), _HEAD_FIELDS, "the record")
    if (head["format"], head["byte_order"]) != (FORMAT, sys.byteorder):
        raise OtherFormat("is of another version")
    # The names of document files have no newline: a build makes them from hashes.
    names, _, numbers = rest.partition(b"\n")
    files = names.split(SEPARATOR) if names else []
    if len(numbers) != (len(FRAME_AND_DATABASE) + len(files)) * FINGERPRINT_FIELDS * array("q").itemsize:
        raise Malformed("has another length than its files need")
    seen = array("q", numbers)
    index_bytes = head["index_bytes"]
    assert isinstance(index_bytes, int)
    return FingerprintRecord(str(head["cache_version"]), index_bytes, str(head["index_sha256"]), files, seen)


def older_than(moment_ns: int, seen: Sequence[int]) -> array[int]:
    """Replace the fingerprints of files that are not older than `moment_ns` by UNTRUSTED.

    Such a file could still change without a change of its timestamps.
    """
    trustworthy: array[int] = array("q")
    for at in range(0, len(seen), FINGERPRINT_FIELDS):
        row = seen[at : at + FINGERPRINT_FIELDS]
        size, mtime_ns, ctime_ns, _ = row
        older = max(mtime_ns, ctime_ns) < moment_ns
        trustworthy.extend(row if older and size >= 0 else UNTRUSTED)
    return trustworthy
