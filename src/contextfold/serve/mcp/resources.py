"""Caches and their documents as MCP resources: one resource for each cache, one template for the documents of all.

Resources are read like tools are called: the transport runs a reader, and the protocol core encodes the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote_to_bytes

from contextfold.common.canonical import Encodable, encode
from contextfold.errors import ContextError, NoCacheNamed
from contextfold.resolve.root import CacheRoot, check_name
from contextfold.serve.mcp.tools import ResourceReader

Arguments = Mapping[str, object]

SCHEME = "context://caches/"
JSON_TYPE, MARKDOWN_TYPE, PLAIN_TYPE = "application/json", "text/markdown", "text/plain"
MARKDOWN_ENDINGS = (".md", ".mdx", ".markdown")
DOCUMENTS_LISTED_MAX = 1_000
TEMPLATES: list[dict[str, Encodable]] = [
    {
        "uriTemplate": SCHEME + "{cache}/{+id}",
        "name": "document",
        "title": "A document of a cache",
        "description": "The whole text of a document, by the cache's name and the document's id",
    }
]


def _list(root: CacheRoot, _arguments: Arguments) -> Mapping[str, Encodable]:
    names = [listed.path for listed in root.list() if listed.has_manifest]
    resources = [
        {
            "uri": SCHEME + quote(name, safe=""),
            "name": name,
            "description": "A cache of documents: its version, and the ids and titles of its documents",
            "mimeType": JSON_TYPE,
        }
        for name in names
    ]
    return {"resources": resources}


def _read(root: CacheRoot, arguments: Arguments) -> Mapping[str, Encodable]:
    uri = arguments.get("uri")
    if not isinstance(uri, str) or not uri.startswith(SCHEME):
        raise NoCacheNamed(f"a resource's address begins with {SCHEME}")
    written_name, _, written_id = uri.removeprefix(SCHEME).partition("/")
    try:
        name, document_id = (unquote_to_bytes(part).decode() for part in (written_name, written_id))
    except UnicodeError:
        raise NoCacheNamed("the address is not UTF-8") from None
    try:
        cache = root.cache(check_name(name))
        if document_id:
            kind = MARKDOWN_TYPE if document_id.lower().endswith(MARKDOWN_ENDINGS) else PLAIN_TYPE
            text = cache.document_text(document_id)
        else:
            kind, text = JSON_TYPE, encode(cache.table_of_contents(DOCUMENTS_LISTED_MAX))
    except ContextError as problem:
        problem.cache = name
        raise
    return {"contents": [{"uri": uri, "mimeType": kind, "text": text}]}


def _list_templates(_root: CacheRoot, _arguments: Arguments) -> Mapping[str, Encodable]:
    return {"resourceTemplates": TEMPLATES}


# The readers by method.
RESOURCE_READERS = {
    reader.name: reader
    for reader in (
        ResourceReader("resources/list", _list),
        ResourceReader("resources/read", _read),
        ResourceReader("resources/templates/list", _list_templates),
    )
}
