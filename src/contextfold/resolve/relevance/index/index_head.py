"""The head of a relevance index: where its columns lie, and what the files looked like when build had written them.

Pure; turns values into bytes and back. The head is small and checksummed, and read by every question.
"""

from __future__ import annotations

import hashlib
from array import array

from contextfold.common.canonical import Malformed, decode, encode, fields
from contextfold.common.record import Record
from contextfold.resolve.pack import FINGERPRINT_FIELDS, FRAME
from contextfold.resolve.relevance.index.index_format import COLUMNS, FORMAT, IndexHead

HEAD_FILE = "pack/relevance-head"
RELEVANCE_INDEX_FILE = "pack/relevance-index"
CONTENTS_FILE = "pack/relevance-contents"
RELEVANCE_FILES = (RELEVANCE_INDEX_FILE, CONTENTS_FILE)
HEAD_MAX_BYTES = 1 << 16

_COUNTS = ("document_count", "section_count", "term_count", "document_words", "section_words")
_FIELDS = {
    "format": str,
    "cache_version": str,
    **dict.fromkeys(_COUNTS, int),
    "columns": dict,
    "index": dict,
    "contents": dict,
    "fingerprints": list,
}
_RECORD_FIELDS = {"bytes": int, "sha256": str}


class FileRecord(Record):
    length: int
    sha256: str


class OtherFormat(Malformed):
    """A whole head of another version of the format."""


class RelevanceHead(Record):
    cache_version: str
    index_head: IndexHead
    index_file: FileRecord
    contents: FileRecord
    fingerprints: array[int]  # of FRAME and RELEVANCE_FILES

    def to_bytes(self) -> bytes:
        head = self.index_head
        body = encode(
            {
                "format": FORMAT,
                "cache_version": self.cache_version,
                **{name: getattr(head, name) for name in _COUNTS},
                "columns": {name: list(place) for name, place in head.columns.items()},
                "index": {"bytes": self.index_file.length, "sha256": self.index_file.sha256},
                "contents": {"bytes": self.contents.length, "sha256": self.contents.sha256},
                "fingerprints": self.fingerprints.tolist(),
            }
        ).encode()
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def decode_head(raw: bytes) -> RelevanceHead:
    """The head in these bytes; Malformed if they are anything else, OtherFormat if they are of another version."""
    digest, _, body = raw.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise Malformed("is damaged")
    members = fields(decode(body), _FIELDS, "the head")
    if members["format"] != FORMAT:
        raise OtherFormat("is of another version")
    columns = members["columns"]
    assert isinstance(columns, dict)
    places: dict[str, tuple[int, int]] = {}
    for name in COLUMNS:
        place = columns.get(name)
        if not (isinstance(place, list) and list(map(type, place)) == [int, int] and min(place) >= 0):
            raise Malformed(f"says nothing usable of the column {name}")
        places[name] = (place[0], place[1])
    counts = [value for name in _COUNTS if isinstance(value := members[name], int)]
    if min(counts) < 0:
        raise Malformed("has a negative count")
    recorded = members["fingerprints"]
    assert isinstance(recorded, list)
    if len(recorded) != (len(FRAME) + len(RELEVANCE_FILES)) * FINGERPRINT_FIELDS or set(map(type, recorded)) != {int}:
        raise Malformed("has other fingerprints than it needs")
    try:
        seen = array("q", recorded)
    except OverflowError:
        raise Malformed("has a fingerprint out of range") from None
    documents, sections, terms, document_words, section_words = counts
    index_head = IndexHead(documents, sections, terms, document_words, section_words, places)
    return RelevanceHead(
        str(members["cache_version"]), index_head, _record(members["index"]), _record(members["contents"]), seen
    )


def _record(value: object) -> FileRecord:
    members = fields(value, _RECORD_FIELDS, "a file's record")
    length = members["bytes"]
    assert isinstance(length, int)
    return FileRecord(length, str(members["sha256"]))
