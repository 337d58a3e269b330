"""`context resolve` prints a selection as JSON; `context inspect` and `context verify` tell what a cache is."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping

from contextfold.cli.caches.choosing import query_in
from contextfold.cli.output import ProgressLine, print_answer, print_error, print_note
from contextfold.errors import EXIT_CODES, EXIT_OK, BudgetInvalid, CacheInvalid
from contextfold.resolve.cache import rebuild_command
from contextfold.resolve.selection import BUDGET_MAX
from contextfold.resolve.service import Cache


def run_resolve(values: Mapping[str, str]) -> int:
    # A selection leaves no cycles, and the process ends with it.
    gc.disable()
    query, budget = query_in(values["query"]), budget_in(values["budget"])
    result = Cache(values["cache"], uses_processes=True).resolve(query, budget)
    print_answer(result.to_json(pretty=values["format"] == "pretty"))
    return EXIT_OK


def budget_in(argument: str) -> int:
    digits = argument.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        raise BudgetInvalid(f"{argument!r} is not a whole number; give a number of tokens such as 4000")
    significant = digits.lstrip("0") or "0"
    if len(significant) > len(str(BUDGET_MAX)) or int(significant) > BUDGET_MAX:
        raise BudgetInvalid(f"{argument} is more than {BUDGET_MAX}, the largest budget there is")
    return int(significant)


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
