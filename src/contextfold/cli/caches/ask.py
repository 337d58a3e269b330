"""`context ask` prints the sections that answer a question; `context get` prints a document or a part of it.

Both print text on a terminal and JSON in a pipe, within a budget.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

from contextfold.cli.caches.choosing import cache_name, chosen_caches, query_in
from contextfold.cli.output import is_terminal, plain, plain_lines, print_answer, print_note
from contextfold.cli.parse import UsageError, Values, budget_for_people
from contextfold.common.relevance.question import (
    AROUND_MAX,
    ASK_BUDGET,
    GET_BUDGET,
    TERMS_MAX,
    parse_lines,
    read_question,
)
from contextfold.errors import EXIT_OK
from contextfold.resolve.relevance.answer import AskResult, GetResult, places_of
from contextfold.resolve.service import ask_many, get_first
from contextfold.settings import SettingsError, between


def run_ask(values: Values) -> int:
    # An answer leaves no cycles, and the process ends with it.
    gc.disable()
    query = query_in(" ".join(values.every("question")))
    question = read_question(query, budget_for_people(values.get("budget"), ASK_BUDGET))
    caches = chosen_caches(values)
    # Only a cache that was not named itself can be left out.
    optional = [name for name, _ in caches[len(list(values.every("cache"))) :]]
    result = ask_many(caches, question, unit=values["unit"], counter=values["counter"], optional=optional)
    is_text = is_read_by_a_person(values)
    if not is_text:
        print_answer(result.to_json())
    elif result.documents:
        print_answer(plain_lines(result.to_text()) + (explanation(result) if "why" in values else ""))
    for cache in result.selection.caches_left_out:
        print_note(f"the cache {plain(cache.cache)} was not asked: {cache.reason}")
    if not question.terms:
        print_note("the question has no words to search for; common words such as `how` and `the` are not searched")
    else:
        for note in _notes(result, is_text=is_text):
            print_note(note)
    return EXIT_OK


def is_read_by_a_person(values: Values) -> bool:
    """Whether the answer is printed as text: on a terminal, unless JSON is wanted."""
    return "json" not in values and is_terminal(sys.stdout)


def _notes(result: AskResult, *, is_text: bool) -> Iterator[str]:
    """What is not in the answer. JSON has most of it, so in a pipe only an empty answer is explained."""
    selection = result.selection
    left_out = selection.sections_left_out
    if not selection.sections_matched:
        yield "nothing in the cache matches"
    elif not result.documents:
        matching = counted(left_out, "section matches, but does not fit", "sections match, but none fits")
        yield f"{matching} the budget of {selection.budget:,} tokens; raise --budget"
    elif is_text and left_out:
        matching = counted(left_out, "more section matches and does not", "more sections match and do not")
        yield f"{matching} fit the budget; raise --budget, or ask a narrower question"
    if selection.query_cut:
        yield f"the question has more than {TERMS_MAX} terms; the rest was not searched"
    if is_text and selection.unmatched:
        yield f"not in the cache: {plain(', '.join(selection.unmatched))}"


def counted(number: int, one: str, several: str) -> str:
    """A number with what it counts."""
    return f"{number:,} {one if number == 1 else several}"


def explanation(result: AskResult) -> str:
    """The reasons for each section's score, term by term."""
    lines = ["\nWhy:\n"]
    for document in result.documents:
        for section in document.sections:
            where = " › ".join((document.id, *section.heading))
            terms = ", ".join(f"{term.term} {term.score} ({'+'.join(term.fields)})" for term in section.why)
            lines.append(f"  {section.score:>8}  {where}: {terms}\n")
    return plain_lines("".join(lines))


def run_get(values: Values) -> int:
    if "section" in values and "lines" in values:
        raise UsageError("--section and --lines exclude each other; give one of them")
    try:
        around = between(0, AROUND_MAX)("--around", values.get("around", "0"))
    except SettingsError as problem:
        raise UsageError(str(problem)) from None
    try:
        lines = parse_lines(values["lines"]) if "lines" in values else None
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
