"""`context pack` makes one file of a cache, and prints its hash and name; `context unpack` makes a cache of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from contextfold.cli.output import ProgressLine, plain, print_answer, print_bytes, print_on_terminal
from contextfold.cli.parse import UsageError
from contextfold.errors import EXIT_OK, StorageFailed
from contextfold.resolve.build import BuildReport
from contextfold.resolve.bundle import BUNDLE_SUFFIX, pack, pack_to, unpack, unpack_from

CACHE_SUFFIX = ".cache"
# Stdin or stdout, in the place of a file.
STREAM = "-"


def run_pack(values: Mapping[str, str]) -> int:
    cache = values["cache"]
    with ProgressLine("packing") as progress:
        if values.get("o") == STREAM:
            pack_to(cache, print_bytes, progress=progress)
            return EXIT_OK
        packed = pack(cache, values.get("o") or default_file(cache), progress=progress)
    print_answer(f"{packed.sha256}  {plain(packed.file)}\n")
    print_on_terminal(f"packed {packed.document_count:,} documents, {packed.byte_count:,} bytes")
    return EXIT_OK


def run_unpack(values: Mapping[str, str]) -> int:
    file, force = values["file"], "force" in values
    if file == STREAM and not values.get("cache"):
        raise UsageError("a cache that comes from stdin needs a path: --cache DIR")
    cache = values.get("cache") or os.path.basename(file).removesuffix(BUNDLE_SUFFIX) + CACHE_SUFFIX
    with ProgressLine("unpacking") as progress:
        if file == STREAM:
            built = _unpack_stdin(cache, progress, force=force)
        else:
            built = unpack(file, cache, force=force, progress=progress, uses_processes=True)
    size = f"{built.document_count:,} documents, {built.content_bytes:,} bytes"
    print_on_terminal(f"unpacked {built.cache}: {size}, {built.cache_version}")
    return EXIT_OK


def default_file(cache: str) -> str:
    """The default file in the current folder. It has the name of the cache, or of a hidden cache's parent folder."""
    parent, name = os.path.split(os.path.abspath(cache))
    stem = name.removesuffix(CACHE_SUFFIX)
    if stem.startswith("."):
        stem = os.path.basename(parent) or "cache"
    return stem + BUNDLE_SUFFIX


def _unpack_stdin(cache: str, progress: ProgressLine, *, force: bool) -> BuildReport:
    if sys.stdin is None:
        raise StorageFailed("cannot read the packed cache: stdin is closed; name a file")
    try:
        return unpack_from(sys.stdin.buffer, "stdin", cache, force=force, progress=progress, uses_processes=True)
    except OSError as problem:
        raise StorageFailed(f"cannot read the packed cache from stdin: {problem.strerror}; run this again") from problem
