"""Tells whether a document in a cache is that of the file it was made of.

A cache may come from a repository and have been made of other documents than those beside it. Contents are compared,
because the timestamps of a clone say nothing. Only a default cache says where its documents are: beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice

from contextfold.common.canonical import Malformed
from contextfold.common.text import lowercase
from contextfold.errors import ContextError
from contextfold.resolve.cache_format import DEFAULT_CACHE, version_of
from contextfold.resolve.files import read_regular

# This many documents of an answer are compared with the files that they were made of.
COMPARED_MAX = 100


def find_outdated(cache: bytes, documents: Iterable[tuple[str, str]]) -> list[str]:
    """The ids of the documents, given with their versions, whose files have other contents."""
    return [found for found, version in islice(documents, COMPARED_MAX) if not is_current(cache, found, version)]


def is_current(cache: bytes, document_id: str, version: str) -> bool:
    """Whether the file of a document has its version. What cannot be read, such as a link, counts as current."""
    folder, name = os.path.split(os.path.abspath(cache))
    if name != DEFAULT_CACHE.encode():
        return True
    try:
        path = _find_source(folder, document_id)
        raw = b"" if path is None else read_regular(path)
    except (ContextError, Malformed, OSError):
        return True
    if path is None or version_of(raw) == version:
        return path is not None
    # Few documents are converted ones that are not current, and the parser of HTML takes long to import.
    from contextfold.resolve.conversion import NotText, is_converted, text_of

    try:
        return is_converted(path) and version_of(text_of(path, raw)) == version
    except NotText:
        return False


def _find_source(folder: bytes, found: str) -> bytes | None:
    """The path of a document's file, which may have capitals that its id has not; None if there is none."""
    path = folder
    for part in found.split("/"):
        exact = os.path.join(path, part.encode())
        if not os.path.lexists(exact):
            names = [name for name in os.listdir(path) if lowercase(os.fsdecode(name)) == part]
            if not names:
                return None
            exact = os.path.join(path, min(names))
        path = exact
    return path
