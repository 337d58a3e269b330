"""`context get`: prints a document of a cache, a section or some lines, within a budget."""

from __future__ import annotations

from contextfold.cli.caches.ask import is_read_by_a_person
from contextfold.cli.caches.choosing import budget_for_people, chosen_caches
from contextfold.cli.output import plain_lines, print_answer
from contextfold.cli.parse import UsageError, Values
from contextfold.common.relevance.defaults import AROUND_MAX, GET_BUDGET
from contextfold.common.relevance.question import line_range
from contextfold.error_codes import EXIT_OK


def run(values: Values) -> int:
    if "section" in values and "lines" in values:
        raise UsageError("--section and --lines exclude each other; give one of them")
    around = values.get("around", "0")
    if not (around.isascii() and around.isdigit() and int(around[:4]) <= AROUND_MAX):
        raise UsageError(f"--around must be a whole number from 0 to {AROUND_MAX}, not {around!r}")
    try:
        lines = line_range(values["lines"]) if "lines" in values else None
    except ValueError as problem:
        raise UsageError(f"--lines {problem}") from None
    caches = chosen_caches(values)
    document_id = values["id"]
    if len(caches) > 1:
        name, _, document_id = document_id.partition(":")
        caches = [(known, cache) for known, cache in caches if known == name]
        if not caches:
            raise UsageError("with several caches an id is CACHE:ID, as `context ask` prints it")
    budget = budget_for_people(values.get("budget"), GET_BUDGET)
    result = caches[0][1].get(document_id, budget, section=values.get("section"), lines=lines, around=int(around))
    print_answer(plain_lines(result.to_text()) if is_read_by_a_person() and "json" not in values else result.to_json())
    return EXIT_OK
