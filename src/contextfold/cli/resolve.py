"""`context resolve` prints a selection as JSON; `context inspect` and `context verify` tell what a cache is."""

from __future__ import annotations

import argparse
import os

from contextfold.cli.output import ProgressLine, escape, print_answer, print_error, print_note
from contextfold.cli.parser import CommandParser
from contextfold.common.answer_format import name_first
from contextfold.errors import EXIT_CODES, EXIT_OK, BudgetInvalid, CacheInvalid, QueryInvalid
from contextfold.resolve.index_file import rebuild_command
from contextfold.resolve.outdated import find_outdated
from contextfold.resolve.relevance.answer import NAMED_MAX
from contextfold.resolve.selection import BUDGET_MAX
from contextfold.resolve.service import Cache


def declare_resolve(parser: CommandParser) -> None:
    parser.describe(
        """
        Print the documents that answer a query best and fit a token budget, as JSON, each with the reason
        for its score. The same cache, query and budget give the same bytes on every machine.
        """,
        'context resolve --cache docs.cache --query "deploy to production" --budget 4000',
        "context resolve --cache docs.cache --query rollback --budget 800 --format pretty",
    )
    _add_cache_option(parser)
    parser.add_argument(
        "--query",
        metavar="TEXT",
        required=True,
        help="what you want to know; whole words are matched, in any case. The option's name may be left out",
    )
    parser.add_argument(
        "--budget",
        metavar="N",
        required=True,
        help="the most tokens the documents may have together; a token is four bytes",
    )
    parser.add_choice("--format", ("json", "pretty"), "one line, or indented", default="json")
    parser.word_option = "--query"
    parser.when_incomplete = " (`context ask QUESTION` finds the nearest cache and has a default budget)"
    parser.set_defaults(run=run_resolve)


def _add_cache_option(parser: CommandParser) -> None:
    parser.add_argument("--cache", metavar="DIR", required=True, help="the cache folder")


def run_resolve(args: argparse.Namespace) -> None:
    query, budget = decode_query(args.query), parse_whole_budget(args.budget)
    result = Cache(args.cache).resolve(query, budget)
    print_answer(result.to_json(pretty=args.format == "pretty"))
    # The format of the answer is frozen, so a note says which documents are not those beside the cache.
    cache = os.fsencode(args.cache)
    outdated = find_outdated(cache, ((document.id, document.version) for document in result.documents))
    if outdated:
        named = name_first(outdated, NAMED_MAX)
        command = rebuild_command(cache)
        print_note(f"the cache is not of the documents beside it: {escape(named)} changed; {command} makes it anew")


def decode_query(argument: str) -> str:
    """The argument's own bytes read as UTF-8, whatever the locale made of them."""
    try:
        return os.fsencode(argument).decode("utf-8")
    except UnicodeError:
        raise QueryInvalid("the query is not UTF-8; check your terminal's encoding") from None


def parse_whole_budget(argument: str) -> int:
    digits = argument.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        raise BudgetInvalid(f"{argument!r} is not a whole number; give a number of tokens such as 4000")
    significant = digits.lstrip("0") or "0"
    if len(significant) > len(str(BUDGET_MAX)) or int(significant) > BUDGET_MAX:
        raise BudgetInvalid(f"{argument} is more than {BUDGET_MAX}, the largest budget there is")
    return int(significant)


def declare_inspect(parser: CommandParser) -> None:
    parser.describe(
        "Print a cache's version, number of documents, their size in bytes, and whether it is valid, as JSON.",
        "context inspect --cache docs.cache",
        "context inspect docs.cache",
    )
    _add_cache_option(parser)
    parser.word_option = "--cache"
    parser.set_defaults(run=run_inspect)


def run_inspect(args: argparse.Namespace) -> None:
    print_answer(Cache(args.cache).inspect().to_json())


def declare_verify(parser: CommandParser) -> None:
    parser.describe(
        "Read every file of a cache, trusting no timestamp, and list everything that is wrong with it.",
        "context verify --cache docs.cache",
        "context verify docs.cache",
    )
    _add_cache_option(parser)
    parser.word_option = "--cache"
    parser.set_defaults(run=run_verify)


def run_verify(args: argparse.Namespace) -> int:
    with ProgressLine("verifying") as progress:
        verification = Cache(args.cache).verify(progress)
    if verification.faults:
        count = len(verification.faults)
        print_error(
            f"{CacheInvalid.message}: {count} fault{'s' if count > 1 else ''}",
            *(f"{fault.file}: {fault.problem}" for fault in verification.faults),
            f"make it anew with {rebuild_command(os.fsencode(args.cache))}",
        )
        return EXIT_CODES[CacheInvalid.code]
    print_answer(f"ok: {verification.document_count} documents, {verification.cache_version}\n")
    for fault in verification.derived:
        command = rebuild_command(os.fsencode(args.cache))
        print_note(f"{fault.file}: {fault.problem}; it is only derived from the documents, and {command} makes it anew")
    if not verification.packed and not verification.derived:
        print_note("there is no index for these very files, so each resolve reads all of them; building anew makes one")
    return EXIT_OK
