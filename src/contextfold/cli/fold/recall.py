"""`context recall`: prints folded texts of all sessions that answer a question; as JSON in a pipe."""

from __future__ import annotations

import sys

from contextfold.cli.fold.session_access import open_store, owner_of, project_of, write, write_json
from contextfold.cli.output import is_terminal, print_note
from contextfold.cli.parse import Values, budget_for_people
from contextfold.cli.terminal import Line, Screen, screen, text_lines
from contextfold.common.relevance.defaults import ASK_BUDGET
from contextfold.errors import EXIT_OK
from contextfold.fold.recall.answer import RecallAnswer, RecalledFold
from contextfold.fold.tool_arguments import recall_request


def run_recall(values: Values) -> int:
    request = recall_request(
        {
            "query": " ".join(values.every("question")),
            "project_path": project_of(values).given if "project" in values else None,
            "budget": budget_for_people(values.get("budget"), ASK_BUDGET),
            "since": values.get("since"),
            "undone": "undone" in values,
        }
    )
    with open_store(values) as store:
        answer = store.run(store.reader.recalls.answer(owner_of(values), request))
    if "json" in values or not is_terminal(sys.stdout):
        write_json(answer.as_members())
    else:
        shown = screen()
        write("".join(_rendered(shown, fold) for fold in answer.folds))
    _report(answer)
    return EXIT_OK


def _report(answer: RecallAnswer) -> None:
    if answer.folds:
        return
    if answer.matched:
        print_note(f"{answer.matched} match, but none fits the budget of {answer.budget} tokens")
    else:
        print_note("nothing that was folded matches")


def _rendered(shown: Screen, fold: RecalledFold) -> str:
    where = [part for part in (fold.project_path, fold.session_id) if part]
    head: Line = [
        (shown.moment(fold.at), "dim"),
        "  ",
        ("  ".join(where), "cyan"),
        (f"  {fold.id}  {shown.figure(fold.tokens)} tokens", "dim"),
        ("  undone" if fold.undone else "", "yellow"),
    ]
    why = ", ".join(f"{reason.term} ({', '.join(reason.fields)})" for reason in fold.why)
    lines: list[Line] = [head, ["  ", (fold.description, "bold")], [("  found by: " + why, "dim")]]
    summary: list[Line] = [[line] for line in text_lines(fold.summary or "")]
    return (
        shown.lines(*lines)
        + shown.block(*summary, wraps=True)
        + shown.lines([(f"  context fold expand {fold.id}", "dim")], [""])
    )
