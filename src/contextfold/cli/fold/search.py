"""`context fold search` finds summaries by their words; `context recall` finds folded work that answers a question."""

from __future__ import annotations

import argparse
import re
import sys

from contextfold.cli.fold.session_access import add_owner_option, open_store, owner_of, project_of, write, write_json
from contextfold.cli.output import escape_lines, is_terminal, print_answer, print_note
from contextfold.cli.parser import CommandParser, parse_budget
from contextfold.cli.setting_options import add_store_options
from contextfold.cli.terminal import Line, Part, Screen, stdout_screen, text_lines
from contextfold.common.answer_format import JSON, TEXT
from contextfold.common.question import ASK_BUDGET
from contextfold.fold.service.session_views import summary_view
from contextfold.fold.store import SEARCH_MAX, Summary
from contextfold.fold.tool_calls import parse_recall_request
from contextfold.settings import between

LIMIT = "20"
MATCH_STYLE = "bold yellow"


def declare_search(parser: CommandParser) -> None:
    parser.describe(
        """
        Search the summaries of folded branches, the best first. Every word must be there, in any case;
        the last may be the beginning of one. Works on the store itself, whether or not the daemon runs.
        """,
        'context fold search "auth error"',
        "context fold search timeout --project ~/work/app --json",
    )
    parser.add_argument("query", nargs="+", metavar="QUERY", help="the words to look for")
    parser.add_argument("--project", metavar="DIR", help="only summaries of this project (default: all projects)")
    parser.add_argument("--limit", metavar="N", default=LIMIT, help="the most results to print (default: %(default)s)")
    add_owner_option(parser)
    parser.add_switch("--json", "print JSON, for programs")
    add_store_options(parser)
    parser.set_defaults(run=run_search)


def run_search(args: argparse.Namespace) -> None:
    query = " ".join(args.query)
    limit = int(between(1, SEARCH_MAX)("--limit", args.limit))
    owner, project = owner_of(args), project_of(args) if args.project is not None else None
    with open_store(args) as store:
        summaries = store.sessions.store.search(owner, query, project.hash if project else None, limit)
    if args.json:
        write_json({"summaries": [summary_view(summary) for summary in summaries]})
        return
    screen = stdout_screen()
    # Only a terminal shows which words were found.
    words = _compile_words(query) if screen.is_terminal else None
    write("".join(_render_summary(screen, summary, words) for summary in summaries))
    if not summaries:
        print_note("no summary has all of these words")


def _compile_words(query: str) -> re.Pattern[str]:
    """A pattern for the words of a query. The last word may be a prefix."""
    words = [re.escape(word) for word in re.findall(r"\w+", query)] or [r"(?!)"]
    return re.compile("|".join([*(rf"\b{word}\b" for word in words[:-1]), rf"\b{words[-1]}\w*"]), re.IGNORECASE)


def _render_summary(screen: Screen, summary: Summary, words: re.Pattern[str] | None) -> str:
    head: Line = [
        (screen.moment(summary.folded_at), "dim"),
        "  ",
        (summary.project_path, "cyan"),
        (f"  {summary.branch_id}  {screen.figure(summary.tokens_folded)} tokens", "dim"),
    ]
    lines: list[Line] = [head, ["  ", *_mark_words(summary.description, words, "bold")]]
    rest: list[Line] = [_mark_words(line, words) for line in text_lines(summary.summary)]
    return screen.lines(*lines) + screen.block(*rest, wraps=True) + "\n"


def _mark_words(text: str, words: re.Pattern[str] | None, style: str = "") -> list[Part]:
    """A text with the words of the query highlighted."""
    if words is None:
        return [(text, style)]
    parts: list[Part] = []
    reached = 0
    for match in words.finditer(text):
        parts += [(text[reached : match.start()], style), (match.group(), MATCH_STYLE)]
        reached = match.end()
    return [*parts, (text[reached:], style)]


def declare_recall(parser: CommandParser) -> None:
    parser.describe(
        """
        Find folded branches and left-out tool results that answer a question, of every session that the
        store still has, best first, within a token budget. Words of descriptions, prompts and summaries
        count most, then those of what was done: commands, paths, errors. The same store and question give
        the same bytes.
        """,
        'context recall "where did we see ECONNRESET"',
        'context recall "login fails" --project . --since 7d --budget 1k',
    )
    parser.add_argument("question", nargs="+", metavar="QUESTION", help="what you want to know")
    parser.add_argument("--project", metavar="DIR", help="only folds of this project (default: all projects)")
    parser.add_argument(
        "--since", metavar="WHEN", help="only folds since a date like 2026-01-31, or within a duration like 12h, 7d, 4w"
    )
    parser.add_argument("--budget", metavar="N", help="the most tokens the answer may have; 4k is 4000 (default: 4000)")
    parser.add_switch("--undone", "also folds that a rollback has undone")
    add_owner_option(parser)
    parser.add_switch("--json", "print JSON, for programs")
    add_store_options(parser)
    parser.set_defaults(run=run_recall)


def run_recall(args: argparse.Namespace) -> None:
    request = parse_recall_request(
        {
            "query": " ".join(args.question),
            "project_path": project_of(args).given if args.project is not None else None,
            "budget": parse_budget(args.budget, ASK_BUDGET),
            "since": args.since,
            "undone": args.undone,
            "format": JSON if args.json else TEXT,
        }
    )
    with open_store(args) as store:
        answer = store.sessions.recall(owner_of(args), request)
    if args.json:
        write_json(answer.as_members())
    elif not is_terminal(sys.stdout):
        print_answer(answer.to_text())
    elif answer.folds:
        # A summary could control the terminal; a person reads in the note why there is none.
        print_answer(escape_lines(answer.to_text()))
    if not answer.folds:
        too_long = f"{answer.matched} match, but none fits the budget of {answer.budget} tokens"
        print_note(too_long if answer.matched else "nothing that was folded matches")
