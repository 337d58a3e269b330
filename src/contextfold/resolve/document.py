"""One document: its id, its version and its JSON form in a cache. Pure; reads and writes no file."""

from __future__ import annotations

from typing import NamedTuple

from contextfold.common.canonical import Encodable, Malformed, decode, encode, fields, version_of
from contextfold.common.text import lowercase

INTEGER_RANGE = range(-(2**63), 2**63)
_FIELDS = {"id": str, "version": str, "source": str, "content": str, "metadata": dict}


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
    members = fields(decode(raw), _FIELDS, "the document")
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
