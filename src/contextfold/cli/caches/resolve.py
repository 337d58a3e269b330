"""`context resolve`: prints the selection as JSON."""

from __future__ import annotations

import gc
from collections.abc import Mapping

from contextfold.cli.caches.choosing import query_in
from contextfold.cli.output import print_answer
from contextfold.errors import EXIT_OK, BudgetInvalid
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
