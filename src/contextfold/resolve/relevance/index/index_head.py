"""The head of a relevance index: the positions of its columns, and the fingerprints of the files. Pure.

The head is small, has a checksum, and is read for every question.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from contextfold.common.canonical import Malformed
from contextfold.resolve.layout import FINGERPRINT_FIELDS, FRAME
from contextfold.resolve.relevance.index.index_format import COLUMNS, FORMAT, IndexHead

HEAD_FILE = "pack/relevance-head"
RELEVANCE_INDEX_FILE = "pack/relevance-index"
CONTENTS_FILE = "pack/relevance-contents"
RELEVANCE_FILES = (RELEVANCE_INDEX_FILE, CONTENTS_FILE)
HEAD_MAX_BYTES = 1 << 16

# The lines of a head: format, version of the cache, counts, the two files, fingerprints, and then the columns.
_LINES = 6 + len(COLUMNS)
_COUNTS = 5
NUMBER_DIGITS = 20


class FileRecord(NamedTuple):
    length: int
    sha256: str


class OtherFormat(Malformed):
    """The head is valid but of another version of the format."""


class RelevanceHead(NamedTuple):
    """The decoded head. `fingerprints` are those of FRAME and RELEVANCE_FILES."""

    cache_version: str
    index_head: IndexHead
    index_file: FileRecord
    contents: FileRecord
    fingerprints: tuple[int, ...]

    def to_bytes(self) -> bytes:
        lines = [
            [FORMAT],
            [self.cache_version],
            self.index_head[:_COUNTS],
            self.index_file,
            self.contents,
            self.fingerprints,
            *([name, *place] for name, place in self.index_head.columns.items()),
        ]
        body = "".join(" ".join(map(str, line)) + "\n" for line in lines).encode()
        return sha256(body).hexdigest().encode() + b"\n" + body


def decode_head(raw: bytes) -> RelevanceHead:
    """Decode a head. Raises Malformed if it is invalid, OtherFormat if it is of another version."""
    digest, _, body = raw.partition(b"\n")
    if sha256(body).hexdigest().encode() != digest:
        raise Malformed("is damaged")
    if body.partition(b"\n")[0] != FORMAT.encode():
        raise OtherFormat("is of another version")
    lines = [line.split(" ") for line in body.decode("ascii", "replace").split("\n")]
    if len(lines) != _LINES + 1 or [line[0] for line in lines[-len(COLUMNS) - 1 : -1]] != list(COLUMNS):
        raise Malformed("has other lines than it needs")
    _, (cache_version, *_), counts, index_file, contents, fingerprints, *columns, _ = lines
    documents, sections, terms, document_words, section_words = _numbers(counts, _COUNTS)
    places: dict[str, tuple[int, int]] = {}
    for name, *place in columns:
        offset, length = _numbers(place, 2)
        places[name] = (offset, length)
    counted = IndexHead(documents, sections, terms, document_words, section_words, places)
    seen = _numbers(fingerprints, (len(FRAME) + len(RELEVANCE_FILES)) * FINGERPRINT_FIELDS, signed=True)
    return RelevanceHead(cache_version, counted, _record(index_file), _record(contents), tuple(seen))


def _numbers(words: list[str], count: int, *, signed: bool = False) -> list[int]:
    digits = [word.removeprefix("-") if signed else word for word in words]
    if len(words) != count or not all(word.isdigit() and len(word) <= NUMBER_DIGITS for word in digits):
        raise Malformed("has other numbers than it needs")
    return list(map(int, words))


def _record(words: list[str]) -> FileRecord:
    return FileRecord(_numbers(words[:1], 1)[0], words[-1])
