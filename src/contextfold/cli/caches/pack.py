"""`context pack`: makes one file of a cache. Prints the file's hash and name, or with `-o -` the file itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from contextfold.cli.output import ProgressLine, plain, print_answer, print_on_terminal
from contextfold.common.descriptors import write_all
from contextfold.error_codes import EXIT_OK
from contextfold.errors import StorageFailed
from contextfold.resolve.sharing.transfer import BUNDLE_SUFFIX, pack, pack_to

STDOUT = "-"


def run(values: Mapping[str, str]) -> int:
    cache = values["cache"]
    with ProgressLine("packing") as progress:
        if values.get("o") == STDOUT:
            pack_to(cache, _write_to_stdout, progress=progress)
            return EXIT_OK
        packed = pack(cache, values.get("o") or default_file(cache), progress=progress)
    print_answer(f"{packed.sha256}  {plain(packed.file)}\n")
    print_on_terminal(f"packed {packed.document_count:,} documents, {packed.byte_count:,} bytes")
    return EXIT_OK


def default_file(cache: str) -> str:
    """The default file in the current folder. It has the name of the cache, or of a hidden cache's parent folder."""
    parent, name = os.path.split(os.path.abspath(cache))
    stem = name.removesuffix(".cache")
    if stem.startswith("."):
        stem = os.path.basename(parent) or "cache"
    return stem + BUNDLE_SUFFIX


def _write_to_stdout(raw: bytes) -> None:
    if sys.stdout is None:
        raise StorageFailed("cannot write the packed cache: stdout is closed; name a file with -o")
    try:
        descriptor = sys.stdout.fileno()
    except OSError:
        # A stream in memory has no descriptor.
        sys.stdout.buffer.write(raw)
        return
    try:
        write_all(descriptor, raw)
    except OSError as problem:
        raise StorageFailed(
            f"cannot write the packed cache to stdout: {problem.strerror}; it is not whole"
        ) from problem
