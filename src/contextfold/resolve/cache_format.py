"""What the files of a cache are named and what the frozen ones contain: documents, manifest and index. Pure.

manifest.json     version of the cache, and id, version and file of every document
index.json        the file of each id
documents/        a JSON file for each document
pack/             derived data: the index (`index.py`), and the record of files (`fingerprint_record.py`)
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from contextfold.common.canonical import Encodable, Malformed, decode, encode, fields
from contextfold.common.text import lowercase

HASH_PREFIX = "sha256:"
MANIFEST_FILE = "manifest.json"
INDEX_FILE = "index.json"
DOCUMENTS_FOLDER = "documents"
# Data derived from the documents. Without them, a cache is slower to read, or cannot be asked.
DERIVED_FOLDER = "pack"
# A cache inside its own source folder contains this file, so that git does not list the cache. It is not part of it.
HIDING_FILE = ".gitignore"
# `context build DIR` puts the cache at this name below the folder.
DEFAULT_CACHE = ".context-cache"

# The record also has the fingerprints of these. The folder's timestamps change when a file is added or removed.
FRAME = [MANIFEST_FILE.encode(), INDEX_FILE.encode(), DOCUMENTS_FOLDER.encode()]

# A file's fingerprint has four numbers: size, mtime, ctime and inode. No real file has a negative size, so these two
# values differ from every fingerprint and from each other. UNTRUSTED is recorded for a file that must always be read;
# ABSENT is the fingerprint of a file whose status cannot be read.
FINGERPRINT_FIELDS = 4
UNTRUSTED = (-1, 0, 0, 0)
ABSENT = (-2, 0, 0, 0)

INTEGER_RANGE = range(-(2**63), 2**63)
_DOCUMENT_FIELDS = {"id": str, "version": str, "source": str, "content": str, "metadata": dict}

BUILD_CONFIG = {"version": "1", "hash_algorithm": "sha256"}
# A document's file is named after this many hex digits of its version.
FILE_DIGITS = 12

_MANIFEST_FIELDS = {
    "cache_version": str,
    "build_config": dict,
    "created_at": str,
    "document_count": int,
    "documents": list,
}
_ENTRY_FIELDS = {"id": str, "version": str, "file": str}
_RFC_3339 = r"(\d{4})-(\d{2})-(\d{2})[Tt]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
FEBRUARY = 2
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def version_of(content: bytes) -> str:
    """The version of a content: `sha256:` and its hash."""
    return HASH_PREFIX + hashlib.sha256(content).hexdigest()


class Document(NamedTuple):
    """A document. `source` is the path of its file relative to the sources; `content` is UTF-8."""

    id: str
    version: str
    source: str
    content: bytes

    @classmethod
    def from_source(cls, source: str, content: bytes) -> Document:
        """Make a document of a file; compute its id and version."""
        return cls(document_id(source), version_of(content), source, content)

    def to_json(self) -> bytes:
        members: dict[str, Encodable] = self._asdict()
        return encode(members | {"content": self.content.decode(), "metadata": {}}).encode()


def document_id(source: str) -> str:
    path = source.replace("\\", "/")
    while path.startswith("./"):
        path = path.removeprefix("./")
    return lowercase(path)


def decode_document(raw: bytes) -> Document:
    """Decode a document's file. Raises Malformed if a field or the version is wrong."""
    members = fields(decode(raw), _DOCUMENT_FIELDS, "the document")
    metadata = members["metadata"]
    assert isinstance(metadata, dict)
    for name, value in metadata.items():
        if not (type(value) is str or (type(value) is int and value in INTEGER_RANGE)):
            raise Malformed(f"the document has a metadata value {name} that is neither a string nor a 64-bit integer")
    content = str(members["content"]).encode()
    document = Document(str(members["id"]), str(members["version"]), str(members["source"]), content)
    if document.version != version_of(content):
        raise Malformed("its content does not hash to its version")
    return document


class ManifestEntry(NamedTuple):
    """A document of the cache. `file` is relative to the cache."""

    id: str
    version: str
    file: str

    @property
    def digest(self) -> bytes:
        """The hash of the document's content."""
        return bytes.fromhex(self.version.removeprefix(HASH_PREFIX))


class Manifest(NamedTuple):
    """The manifest of a cache; its entries are ordered by the UTF-8 bytes of their ids.

    `build_options` has the options that chose the documents, or None for those of the first version. Readers do not
    check anything against it.
    """

    cache_version: str
    build_config: Mapping[str, object]
    created_at: str
    document_count: int
    entries: tuple[ManifestEntry, ...]
    build_options: Mapping[str, Encodable] | None = None

    def to_json(self) -> bytes:
        members: dict[str, Encodable] = {
            "cache_version": self.cache_version,
            "build_config": BUILD_CONFIG,
            "created_at": self.created_at,
            "document_count": self.document_count,
            "documents": [entry._asdict() for entry in self.entries],
        }
        if self.build_options is not None:
            members["build_options"] = self.build_options
        return encode(members, pretty=True).encode()

    def index_json(self) -> bytes:
        return encode({entry.id: entry.file for entry in self.entries}, pretty=True).encode()

    def contradictions(self) -> Iterator[str]:
        """The errors in a decoded manifest that can be found without reading any other file."""
        if self.build_config != BUILD_CONFIG:
            yield "has a build_config that this version cannot read"
        if self.document_count != len(self.entries):
            yield f"has document_count {self.document_count} and {len(self.entries)} documents"
        if self.cache_version != cache_version_of(self.entries):
            yield "has a cache_version that does not follow from its documents"
        for name, count in Counter(entry.id for entry in self.entries).items():
            if count > 1:
                yield f"lists the id {name} {count} times"


def cache_version_of(entries: Iterable[ManifestEntry]) -> str:
    """The hash of the build configuration and every id:version, in order."""
    digest = hashlib.sha256(encode(BUILD_CONFIG).encode())
    for entry in entries:
        digest.update(f"{entry.id}:{entry.version}".encode())
    return HASH_PREFIX + digest.hexdigest()


def decode_manifest(raw: bytes) -> Manifest:
    members = fields(decode(raw), _MANIFEST_FIELDS, "the manifest")
    config = fields(members["build_config"], dict.fromkeys(BUILD_CONFIG, str), "build_config")
    documents, count = members["documents"], members["document_count"]
    assert isinstance(documents, list)
    assert isinstance(count, int)
    if count < 0:
        raise Malformed("the manifest has a negative document_count")
    created_at = str(members["created_at"])
    if not is_rfc_3339(created_at):
        raise Malformed("the manifest has a created_at that is not an RFC 3339 time")
    checked = [fields(item, _ENTRY_FIELDS, "a manifest entry") for item in documents]
    entries = [ManifestEntry(*(str(entry[name]) for name in _ENTRY_FIELDS)) for entry in checked]
    entries.sort(key=lambda entry: entry.id.encode())
    known_config = {name: config[name] for name in BUILD_CONFIG}
    options = members.get("build_options")
    return Manifest(
        str(members["cache_version"]),
        known_config,
        created_at,
        count,
        tuple(entries),
        options if isinstance(options, dict) else None,
    )


def decode_index(raw: bytes) -> dict[str, str]:
    index = decode(raw)
    if not isinstance(index, dict) or not all(isinstance(file, str) for file in index.values()):
        raise Malformed("is not an object of strings")
    return index


def is_rfc_3339(text: str) -> bool:
    match = re.fullmatch(_RFC_3339, text, re.ASCII)
    if not match:
        return False
    year, month, day = map(int, match.groups()[:3])
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 1 <= month <= len(_MONTH_DAYS) and 1 <= day <= _MONTH_DAYS[month - 1] + (leap and month == FEBRUARY)


class FileNames:
    """Names the files of documents, in id order: the first digits of the version, then -2, -3, … if they repeat."""

    def __init__(self) -> None:
        self._given: Counter[str] = Counter()

    def next_for(self, version: str) -> str:
        digits = version.removeprefix(HASH_PREFIX)[:FILE_DIGITS]
        self._given[digits] += 1
        suffix = f"-{self._given[digits]}" if self._given[digits] > 1 else ""
        return f"{DOCUMENTS_FOLDER}/{digits}{suffix}.json"
