"""`context get`: prints a document of a cache, a section or some lines, within a budget."""

from __future__ import annotations

import os

from contextfold.cli.caches.ask import counted, is_read_by_a_person
from contextfold.cli.caches.choosing import cache_name, chosen_caches
from contextfold.cli.output import plain_lines, print_answer, print_note
from contextfold.cli.parse import UsageError, Values, budget_for_people
from contextfold.common.relevance.defaults import AROUND_MAX, GET_BUDGET
from contextfold.common.relevance.question import line_range
from contextfold.errors import EXIT_OK
from contextfold.resolve.relevance.answer import GetResult, places_of
from contextfold.resolve.service import get_first
from contextfold.settings import SettingsError, between


def run_get(values: Values) -> int:
    if "section" in values and "lines" in values:
        raise UsageError("--section and --lines exclude each other; give one of them")
    try:
        around = between(0, AROUND_MAX)("--around", values.get("around", "0"))
    except SettingsError as problem:
        raise UsageError(str(problem)) from None
    try:
        lines = line_range(values["lines"]) if "lines" in values else None
    except ValueError as problem:
        raise UsageError(f"--lines {problem}") from None
    caches = {name or cache_name(os.fsdecode(cache.path)): cache for name, cache in chosen_caches(values)}
    places = places_of(values["id"], list(caches))
    if not places:
        raise UsageError("with several caches an id is CACHE:ID, as `context ask` prints it")
    budget, section = budget_for_people(values.get("budget"), GET_BUDGET), values.get("section")
    counter = values["counter"]

    def get(name: str, document_id: str) -> GetResult:
        return caches[name].get(
            document_id,
            budget,
            section=section,
            lines=lines,
            around=around,
            counter=counter,
            name=name if len(caches) > 1 else "",
        )

    result = get_first(places, get)
    if not is_read_by_a_person(values):
        print_answer(result.to_json())
        return EXIT_OK
    print_answer(plain_lines(result.to_text()))
    if result.sections_left_out:
        print_note(_left_out_note(result, is_part="section" in values or "lines" in values))
    return EXIT_OK


def _left_out_note(result: GetResult, *, is_part: bool) -> str:
    missing = counted(result.sections_left_out, "section does not", "sections do not")
    others = "" if is_part else ", or choose a part with --section or --lines"
    return f"{missing} fit the budget of {result.budget:,} tokens; raise --budget{others}"
