"""`context ls` lists the documents of a cache, with their titles."""

from __future__ import annotations

import argparse
import sys

from contextfold.cli.ask import add_cache_options, choose_caches
from contextfold.cli.output import is_terminal, plain, print_answer
from contextfold.cli.parser import CommandParser
from contextfold.cli.terminal import Column, Line, stdout_screen
from contextfold.common.canonical import encode
from contextfold.resolve.relevance.answer import CACHE_JOINT


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
    shown = plain if is_terminal(sys.stdout) else str
    rows: list[list[Line]] = [[[shown(name)], [shown(title)]] for name, title in documents]
    print_answer(stdout_screen().table([Column("document"), Column("title", shrinks=True)], rows))
