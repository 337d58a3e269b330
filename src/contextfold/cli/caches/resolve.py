"""`context resolve`: prints the selection as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping

from contextfold.cli.output import print_answer
from contextfold.error_codes import EXIT_OK
from contextfold.errors import BudgetInvalid, QueryInvalid
from contextfold.resolve.selection import BUDGET_MAX
from contextfold.resolve.service import Cache


def run(values: Mapping[str, str]) -> int:
    query, budget = query_in(values["query"]), budget_in(values["budget"])
    result = Cache(values["cache"]).resolve(query, budget)
    print_answer(result.to_json(pretty=values["format"] == "pretty"))
    return EXIT_OK


def query_in(argument: str) -> str:
    """Decode the original bytes of an argument as UTF-8, independently of the locale."""
    try:
        return os.fsencode(argument).decode("utf-8")
    except UnicodeError:
        raise QueryInvalid("the query is not UTF-8; check your terminal's encoding") from None


def budget_in(argument: str) -> int:
    digits = argument.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        raise BudgetInvalid(f"{argument!r} is not a whole number; give a number of tokens such as 4000")
    significant = digits.lstrip("0") or "0"
    if len(significant) > len(str(BUDGET_MAX)) or int(significant) > BUDGET_MAX:
        raise BudgetInvalid(f"{argument} is more than {BUDGET_MAX}, the largest budget there is")
    return int(significant)
