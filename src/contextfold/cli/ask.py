"""`context ask` prints the sections that answer a question, `context get` a document or a part of it, within a budget:
what the tools `context.ask` and `context.get` answer, as text or JSON. `context ls` lists the documents.

The caches are the named ones, all below a root, or the nearest one.
"""

from __future__ import annotations

import argparse
import os
import sys

from contextfold.cli.output import escape, escape_lines, is_terminal, print_answer
from contextfold.cli.parser import CommandParser, UsageError, parse_budget
from contextfold.cli.resolve import decode_query
from contextfold.cli.terminal import Column, Line, stdout_screen
from contextfold.common.answer_format import JSON, TEXT
from contextfold.common.canonical import encode
from contextfold.common.question import (
    ASK_BUDGET,
    CACHES_MAX,
    GET_BUDGET,
    parse_around,
    parse_lines,
    read_question,
)
from contextfold.common.tokens import ASK_COUNTERS
from contextfold.errors import CacheMissing
from contextfold.resolve.cache_format import DEFAULT_CACHE
from contextfold.resolve.files import default_cache_of, nearest_caches
from contextfold.resolve.relevance.answer import CACHE_JOINT, CRUMB, AskResult, GetResult, places_of
from contextfold.resolve.relevance.asking import UNITS
from contextfold.resolve.service import Cache, CacheRoot, ask_many, get_first


def declare_ask(parser: CommandParser) -> None:
    parser.describe(
        """
        Print the passages that answer a question best and fit a token budget, each with its place and the
        words that it was chosen for. The nearest cache is asked: .context-cache in this folder, in its
        subfolders, or above. The same caches, question and budget give the same bytes on every machine.
        """,
        'context ask "roll back a deployment"',
        'context ask "how are tokens counted?" --budget 2k --why',
        'context ask "rate limits" --cache docs.cache --cache api.cache --json',
    )
    parser.add_argument("question", nargs="+", metavar="QUESTION", help="what you want to know")
    add_cache_options(parser)
    parser.add_argument("--budget", metavar="N", help="the most tokens the answer may have; 4k is 4000 (default: 4000)")
    parser.add_choice("--unit", UNITS, "what is selected: sections, or whole documents", default=UNITS[0])
    add_counter_option(parser)
    parser.add_switch("--why", "also print which terms each section was chosen for")
    parser.add_switch("--json", "print JSON, for programs")
    parser.set_defaults(run=run_ask)


def run_ask(args: argparse.Namespace) -> None:
    query = decode_query(" ".join(args.question))
    question = read_question(query, parse_budget(args.budget, ASK_BUDGET))
    caches = choose_caches(args)
    # Only a cache that was not named itself can be left out.
    optional = [name for name, _ in caches[len(args.cache) :]]
    format = JSON if args.json else TEXT
    result = ask_many(caches, question, unit=args.unit, counter=args.counter, format=format, optional=optional)
    _print_result(result, args)
    if args.why and not args.json:
        print_answer(explain(result))


def _print_result(result: AskResult | GetResult, args: argparse.Namespace) -> None:
    if args.json:
        print_answer(result.to_json())
    else:
        # The text of a document could control a terminal, but a pipe gets what the tool answers.
        print_answer(escape_lines(result.to_text()) if is_terminal(sys.stdout) else result.to_text())


def explain(result: AskResult) -> str:
    """The reasons for each section's score, term by term."""
    lines = ["\nWhy:\n"]
    for document in result.documents:
        for section in document.sections:
            where = CRUMB.join((document.id, *section.heading))
            terms = ", ".join(f"{term.term} {term.score} ({'+'.join(term.fields)})" for term in section.why)
            lines.append(f"  {section.score:>8}  {where}: {terms}\n")
    return escape_lines("".join(lines))


def declare_get(parser: CommandParser) -> None:
    parser.describe(
        """
        Print a document by its id or path, as `context ask` shows it: all of it, the section below a
        heading, or some lines, with neighbouring sections if wanted, within a token budget. The number of
        sections that do not fit is printed too.
        """,
        "context get guides/deployment.md",
        'context get guides/deployment.md --section "Roll back" --around 1',
        "context get guides/deployment.md --lines 40-58 --json",
    )
    parser.add_argument("id", metavar="ID", help="the document's id or path")
    add_cache_options(parser)
    parser.add_argument(
        "--section", metavar="HEADING", help="only the sections below this heading, or below a breadcrumb"
    )
    parser.add_argument("--lines", metavar="A-B", help="only the sections that have these lines")
    parser.add_argument(
        "--around", metavar="N", default="0", help="the number of neighbouring sections to add before and after"
    )
    parser.add_argument("--budget", metavar="N", help="the most tokens the answer may have; 4k is 4000 (default: 8000)")
    add_counter_option(parser)
    parser.add_switch("--json", "print JSON, for programs")
    parser.set_defaults(run=run_get)


def run_get(args: argparse.Namespace) -> None:
    if args.section is not None and args.lines is not None:
        raise UsageError("--section and --lines exclude each other; give one of them")
    try:
        around = parse_around(args.around)
    except ValueError as problem:
        raise UsageError(f"--around {problem}") from None
    try:
        lines = parse_lines(args.lines) if args.lines is not None else None
    except ValueError as problem:
        raise UsageError(f"--lines {problem}") from None
    caches = {name or cache_name(os.fsdecode(cache.path)): cache for name, cache in choose_caches(args)}
    places = places_of(args.id, list(caches))
    if not places:
        raise UsageError("with several caches an id is CACHE:ID, as `context ask` prints it")
    budget = parse_budget(args.budget, GET_BUDGET)

    def get(name: str, document_id: str) -> GetResult:
        return caches[name].get(
            document_id,
            budget,
            section=args.section,
            lines=lines,
            around=around,
            counter=args.counter,
            format=JSON if args.json else TEXT,
            name=name if len(caches) > 1 else "",
        )

    _print_result(get_first(places, get), args)


def declare_ls(parser: CommandParser) -> None:
    parser.describe(
        """
        List the documents of a cache: the id of each, which `context get` takes, and its title. Without an
        option it is the cache that `context ask` asks.
        """,
        "context ls",
        "context ls --cache docs.cache --json",
    )
    add_cache_options(parser)
    parser.add_switch("--json", "print JSON, for programs")
    parser.set_defaults(run=run_ls)


def run_ls(args: argparse.Namespace) -> None:
    documents = [
        (f"{name}{CACHE_JOINT}{document.id}" if name else document.id, document.title)
        for name, cache in choose_caches(args)
        for document in cache.documents()
    ]
    if args.json:
        print_answer(encode({"documents": [{"id": name, "title": title} for name, title in documents]}) + "\n")
        return
    # A name could control the terminal.
    shown = escape if is_terminal(sys.stdout) else str
    rows: list[list[Line]] = [[[shown(name)], [shown(title)]] for name, title in documents]
    print_answer(stdout_screen().table([Column("document"), Column("title", shrinks=True)], rows))


def add_cache_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--cache",
        metavar="DIR",
        action="append",
        default=[],
        help="a cache; may be repeated (default: the nearest one)",
    )
    parser.add_argument("--cache-root", metavar="DIR", help="ask every cache in this folder")


def add_counter_option(parser: CommandParser) -> None:
    help = "how tokens are counted; o200k needs the extra of that name"
    parser.add_choice("--counter", ASK_COUNTERS, help, default=ASK_COUNTERS[0])


def choose_caches(args: argparse.Namespace) -> list[tuple[str, Cache]]:
    """The caches, each with the name that is the prefix of its ids. The name of a single cache is empty."""
    paths = [default_cache_of(path) for path in args.cache]
    if "" in args.cache:
        raise UsageError("--cache is empty; give a folder")
    if args.cache_root == "":
        raise UsageError("--cache-root is empty; give a folder")
    if args.cache_root is not None:
        # The same caches as the tools see: folders themselves, not what links lead to.
        root = args.cache_root
        if not os.path.isdir(root):
            raise CacheMissing(f"{root} is not a folder; give the folder that has the caches")
        found = [listed.path for listed in CacheRoot(os.fsencode(root)).list() if listed.has_manifest]
        if not found:
            raise CacheMissing(f"there is no cache in {root}; `context build DIR --cache {root}/NAME` makes one")
        paths += [os.path.join(root, name) for name in found]
    if not paths:
        paths = nearest_caches(os.getcwd())
    if len(paths) > CACHES_MAX:
        raise UsageError(f"at most {CACHES_MAX} caches can be asked at once")
    if len(paths) == 1:
        return [("", Cache(paths[0]))]
    names = [cache_name(path) for path in paths]
    if len(set(names)) != len(names):
        raise UsageError("two of the caches have the same name; ask them one by one")
    return [(name, Cache(path)) for name, path in zip(names, paths, strict=True)]


def cache_name(path: str) -> str:
    """The name of the cache's folder; for a default cache, the name of its parent folder."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.basename(folder) if name == DEFAULT_CACHE else name
