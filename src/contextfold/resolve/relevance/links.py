"""Finds the links between documents: their texts say what other pages call the page that they lead to. Pure.

Documents are written for a site whose addresses the build does not know. So a path from the root of the site is that of
the first document whose path it ends with, without at most three folders at its beginning. File extensions do not
count, and a folder stands for its index.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from contextfold.common.text import lowercase

FOLDERS_DROPPED_MAX = 3
# Each document keeps the most frequent texts of links to it.
TEXTS_MAX = 8
_LINK = re.compile(r"(?<!!)\[([^\[\]\n]{1,200})\]\(<?([^()\s<>\0]{1,400})>?(?:[ \t]+\"[^\"\n]{0,200}\")?\)")
_EXTENSION = re.compile(r"\.(?:md|mdx|markdown|html?|xhtml|rst|txt|adoc|org|ipynb)$")
_INDEX = re.compile(r"(?:^|/)(?:_?index|readme)$")

# A link: the path of its target, from the root if it begins with a slash, and its text.
Link = tuple[str, str]


def page_of(path: str) -> str:
    """The path without what pages of one site write in several ways."""
    return _INDEX.sub("", _EXTENSION.sub("", path.strip("/")))


def find_links(document_id: str, text: str) -> Iterator[Link]:
    """The links of a document to other pages of its collection, in lowercase as ids are."""
    folder, page = posixpath.dirname(document_id), page_of(document_id)
    for found in _LINK.finditer(text):
        path = found[2].partition("#")[0].partition("?")[0]
        if not path or ":" in path.partition("/")[0]:
            continue
        path = lowercase(path)
        target = "/" + page_of(path) if path.startswith("/") else page_of(posixpath.normpath(f"{folder}/{path}"))
        if page not in _possible_pages(target):
            yield target, found[1]


def _possible_pages(target: str) -> Iterator[str]:
    """The pages that a target may be, the best first."""
    yield target.removeprefix("/")
    parts = target.split("/")[1:] if target.startswith("/") else []
    for dropped in range(1, min(FOLDERS_DROPPED_MAX + 1, len(parts))):
        yield "/".join(parts[dropped:])


def resolve_links(documents: Iterable[str], links: Mapping[Link, int]) -> dict[int, list[str]]:
    """The most frequent texts of the links to each document, by its number. `links` has the number of each."""
    pages: dict[str, int] = {}
    for number, document_id in enumerate(documents):
        pages.setdefault(page_of(document_id), number)
    texts: dict[int, Counter[str]] = {}
    for (target, text), count in links.items():
        found = next((page for page in _possible_pages(target) if page and page in pages), None)
        if found is not None:
            texts.setdefault(pages[found], Counter())[text] += count
    return {number: _most_frequent(counts) for number, counts in sorted(texts.items())}


def _most_frequent(counts: Counter[str]) -> list[str]:
    ordered = sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))
    return [text for text, _ in islice(ordered, TEXTS_MAX)]
