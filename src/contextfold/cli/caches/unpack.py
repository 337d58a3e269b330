"""`context unpack`: makes a cache of a packed file."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from contextfold.cli.output import ProgressLine, print_on_terminal
from contextfold.cli.parse import UsageError
from contextfold.error_codes import EXIT_OK
from contextfold.errors import StorageFailed
from contextfold.resolve.build import BuildReport
from contextfold.resolve.sharing.transfer import BUNDLE_SUFFIX, unpack, unpack_from

CACHE_SUFFIX = ".cache"
STDIN = "-"


def run(values: Mapping[str, str]) -> int:
    file, force = values["file"], "force" in values
    if file == STDIN and not values.get("cache"):
        raise UsageError("a cache that comes from stdin needs a path: --cache DIR")
    cache = values.get("cache") or os.path.basename(file).removesuffix(BUNDLE_SUFFIX) + CACHE_SUFFIX
    with ProgressLine("unpacking") as progress:
        if file == STDIN:
            built = _unpack_stdin(cache, progress, force=force)
        else:
            built = unpack(file, cache, force=force, progress=progress, uses_processes=True)
    size = f"{built.document_count:,} documents, {built.content_bytes:,} bytes"
    print_on_terminal(f"unpacked {built.cache}: {size}, {built.cache_version}")
    return EXIT_OK


def _unpack_stdin(cache: str, progress: ProgressLine, *, force: bool) -> BuildReport:
    if sys.stdin is None:
        raise StorageFailed("cannot read the packed cache: stdin is closed; name a file")
    try:
        return unpack_from(sys.stdin.buffer, "stdin", cache, force=force, progress=progress, uses_processes=True)
    except OSError as problem:
        raise StorageFailed(f"cannot read the packed cache from stdin: {problem.strerror}; run this again") from problem
