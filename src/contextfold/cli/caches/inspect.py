"""`context inspect` prints version, size and validity of a cache as JSON; `context verify` prints its faults."""

from __future__ import annotations

import os
from collections.abc import Mapping

from contextfold.cli.output import ProgressLine, print_answer, print_error, print_note
from contextfold.errors import EXIT_CODES, EXIT_OK, CacheInvalid
from contextfold.resolve.cache import rebuild_command
from contextfold.resolve.service import Cache


def run_inspect(values: Mapping[str, str]) -> int:
    print_answer(Cache(values["cache"]).inspect().to_json())
    return EXIT_OK


def run_verify(values: Mapping[str, str]) -> int:
    with ProgressLine("verifying") as progress:
        verification = Cache(values["cache"]).verify(progress)
    if verification.faults:
        count = len(verification.faults)
        print_error(
            f"{CacheInvalid.message}: {count} fault{'s' if count > 1 else ''}",
            *(f"{fault.file}: {fault.problem}" for fault in verification.faults),
            f"make it anew with {rebuild_command(os.fsencode(values['cache']))}",
        )
        return EXIT_CODES[CacheInvalid.code]
    print_answer(f"ok: {verification.document_count} documents, {verification.cache_version}\n")
    if not verification.packed:
        print_note(
            "there is no packed index for these very files, so each resolve reads all of them; building anew makes one"
        )
    return EXIT_OK
