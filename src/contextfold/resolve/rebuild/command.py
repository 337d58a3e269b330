"""The command that makes a cache anew, for messages about a damaged one. Reads the manifest, which may be damaged."""

from __future__ import annotations

import os
from shlex import quote

from contextfold.common.canonical import Malformed, decode
from contextfold.errors import StorageFailed
from contextfold.resolve.files import FileAbsent, NotRegular, read_regular, shown
from contextfold.resolve.layout import DEFAULT_CACHE, MANIFEST_FILE


def rebuild_command(cache: bytes) -> str:
    """The command for the cache at a path. Only of a cache at the default path the documents' folder is known."""
    folder, name = os.path.split(cache.rstrip(b"/") or b"/")
    if name == DEFAULT_CACHE.encode():
        return f"`context build {quote(shown(folder or b'.'))}`"
    sources = "DIR" if _is_of_all_text(cache) else "--sources DIR"
    if not os.path.lexists(os.path.join(cache, MANIFEST_FILE.encode())):
        # A build replaces no folder that may hold something else.
        return f"`context build {sources} --cache PATH` with a new path"
    return f"`context build {sources} --cache {quote(shown(os.path.join(folder, name)))} --force`"


def _is_of_all_text(cache: bytes) -> bool:
    """Whether `context build DIR` made the cache, as its manifest says."""
    from contextfold.resolve.documents.rules import ALL_TEXT

    try:
        manifest = decode(read_regular(os.path.join(cache, MANIFEST_FILE.encode())))
    except (FileAbsent, NotRegular, Malformed, StorageFailed):
        return False
    options = manifest.get("build_options") if isinstance(manifest, dict) else None
    return isinstance(options, dict) and options.get("kinds") == ALL_TEXT
