"""`context ask`: prints the sections that answer a question, as text on a terminal and as JSON in a pipe."""

from __future__ import annotations

import gc
import sys

from contextfold.cli.caches.choosing import budget_for_people, chosen_caches, query_in
from contextfold.cli.output import plain_lines, print_answer, print_note
from contextfold.cli.parse import Values
from contextfold.common.relevance.defaults import ASK_BUDGET
from contextfold.common.relevance.question import read_question
from contextfold.error_codes import EXIT_OK
from contextfold.resolve.service import ask_many

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextfold.resolve.relevance.answer import AskResult


def run(values: Values) -> int:
    # An answer leaves no cycles, and the process ends with it.
    gc.disable()
    query, budget = query_in(values["question"]), budget_for_people(values.get("budget"), ASK_BUDGET)
    caches = chosen_caches(values)
    result = ask_many(caches, read_question(query, budget), unit=values["unit"], counter=values["counter"])
    if "json" in values or not is_read_by_a_person():
        print_answer(result.to_json())
    else:
        print_answer(plain_lines(result.to_text()) + (explanation(result) if "why" in values else ""))
    if not result.documents:
        print_note(
            "nothing in the cache matches" if not result.selection.sections_matched else "nothing fits the budget"
        )
    return EXIT_OK


def is_read_by_a_person() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def explanation(result: AskResult) -> str:
    """The reasons for each section's score, term by term."""
    lines = ["\nWhy:\n"]
    for document in result.documents:
        for section in document.sections:
            where = " › ".join((document.id, *section.heading))
            terms = ", ".join(f"{term.term} {term.score} ({'+'.join(term.fields)})" for term in section.why)
            lines.append(f"  {section.score:>8}  {where}: {terms}\n")
    return plain_lines("".join(lines))
