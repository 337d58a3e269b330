"""`context unpack`: makes a cache of a packed file."""

from __future__ import annotations

import os
from collections.abc import Mapping

from contextfold.cli.output import ProgressLine, print_on_terminal
from contextfold.error_codes import EXIT_OK
from contextfold.resolve.sharing.transfer import BUNDLE_SUFFIX, unpack

CACHE_SUFFIX = ".cache"


def run(values: Mapping[str, str]) -> int:
    file = values["file"]
    cache = values.get("cache") or os.path.basename(file).removesuffix(BUNDLE_SUFFIX) + CACHE_SUFFIX
    progress = ProgressLine("unpacking")
    try:
        built = unpack(file, cache, force="force" in values, progress=progress)
    finally:
        progress.clear()
    size = f"{built.document_count:,} documents, {built.content_bytes:,} bytes"
    print_on_terminal(f"unpacked {built.cache}: {size}, {built.cache_version}")
    return EXIT_OK
