"""`context audit`: what agents cost, from their transcripts, and what the proxy would have saved. Changes nothing."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contextfold.audit.page import draw_page
from contextfold.audit.report import audit_transcripts, describe
from contextfold.audit.tables import (
    EXPLANATION,
    NEXT_STEP,
    PARTS_IN_WORDS,
    accuracy_text,
    dearer_text,
    dollars,
    left_out_texts,
    list_tables,
    prices_text,
    saved_text,
    spent_text,
    unseen_text,
)
from contextfold.audit.transcripts import Skipped, Transcript, find_transcripts, list_given
from contextfold.cli.output import ProgressLine, print_answer, print_note
from contextfold.cli.parser import CommandParser
from contextfold.cli.terminal import Column, Line, Screen, right_columns, stdout_screen
from contextfold.common.answer_format import format_count, format_share
from contextfold.errors import StorageFailed
from contextfold.fold.model_catalog import MODELS

BAR_WIDTH = 24
# The page has more of both.
ROWS_SHOWN, COLUMNS_SHOWN = 5, 4
MEGABYTE = 1_000_000


def declare_audit(parser: CommandParser) -> None:
    parser.describe(
        """
        Read the transcripts that Claude Code and Codex keep anyway, and say what you spent at list prices,
        on what, and what the proxy would have saved or cost. Nothing is changed or sent, and no daemon is
        needed. Each conversation is replayed through the real folding and a simulated prompt cache. The
        answer also says how well that simulation reproduces the bill without the proxy.
        """,
        "context audit",
        "context audit ~/.claude/projects/-home-me-project",
        "context audit --html audit.html",
        "context audit --json | jq .with_proxy",
        more="""
        Transcripts are searched in ~/.claude/projects and ~/.codex/sessions, or where CLAUDE_CONFIG_DIR and
        CODEX_HOME say. Prices are those of the list in this version, not what a subscription costs.
        """,
    )
    parser.add_argument(
        "paths", metavar="PATH", nargs="*", default=[], help="transcripts or folders of them, instead of all"
    )
    parser.add_switch("--json", "print all figures as JSON, without names")
    parser.add_argument("--html", metavar="FILE", help="write a page with charts to this new file, without names")
    parser.add_switch("--names", "with --json and --html: include names of projects, files and tools")
    parser.set_defaults(run=run_audit)


def run_audit(args: argparse.Namespace) -> None:
    if args.html and os.path.lexists(args.html):
        raise StorageFailed(f"{args.html} exists already; remove it, or name another file")
    skipped = Skipped()
    given = [Path(path) for path in args.paths]
    found = list_given(given, skipped) if given else find_transcripts(Path.home(), os.environ, skipped)
    with ProgressLine("reading transcripts:") as progress:
        report = audit_transcripts(
            found,
            MODELS,
            lambda done, total: progress.show(f"{done // MEGABYTE:,} of {total // MEGABYTE:,} MB"),
            skipped,
        )
    audit = describe(report, MODELS, with_names=args.names)
    if args.json:
        print_answer(json.dumps(audit, indent=2, ensure_ascii=False) + "\n")
    if not report.total.requests:
        for note in (_nothing_found(found, args.paths), *left_out_texts(audit)):
            print_note(note)
    elif args.html:
        _write_page(args.html, draw_page(audit))
        print_note(f"the page is {args.html}")
    elif not args.json:
        # The terminal of the person whose transcripts these are.
        print_answer(_draw(stdout_screen(), describe(report, MODELS, with_names=True)))


def _write_page(path: str, page: str) -> None:
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(page)
    except OSError as problem:
        raise StorageFailed(f"cannot write {path}: {problem.strerror}") from None


def _nothing_found(found: Sequence[Transcript], paths: Sequence[str]) -> str:
    if found:
        return f"{format_count(len(found), 'transcript')} found, but no request with its usage and a known price"
    if paths:
        return f"no transcripts (*.jsonl) are in {', '.join(paths)}"
    return (
        "no transcripts were found in ~/.claude/projects and ~/.codex/sessions; set CLAUDE_CONFIG_DIR or CODEX_HOME, "
        "or give their folder: context audit FOLDER"
    )


def _draw(shown: Screen, audit: Mapping[str, Any]) -> str:
    proxy, spent = audit["with_proxy"], audit["spent_dollars"]
    style = "bold green" if proxy["saved_dollars"] >= 0 else "bold yellow"
    verdict: Line = [
        "You spent ",
        (dollars(spent), "bold"),
        "; with contextfold's proxy: ",
        (dollars(proxy["dollars"]), "bold"),
        ", ",
        (saved_text(proxy), style),
        ".",
    ]
    parts: list[list[Line]] = [
        [
            [name],
            [format_share(audit["parts_dollars"][part], spent)],
            [dollars(audit["parts_dollars"][part])],
            [("█" * round(BAR_WIDTH * audit["parts_dollars"][part] / spent) if spent else "", "cyan")],
        ]
        for part, (name, _) in PARTS_IN_WORDS.items()
    ]
    drawn = [
        shown.lines(
            verdict,
            f"That is {spent_text(audit)}. The model need not do anything for the saving. {dearer_text(proxy)}",
            "",
            [("Can you trust this? ", "bold"), accuracy_text(audit["simulation"])],
            [(unseen_text(audit["simulation"]), "dim")],
            "",
            [(EXPLANATION, "dim")],
            "",
            [("Where the money went", "bold")],
            wraps=True,
        ),
        shown.table(
            [Column(shrinks=shown.is_narrow), *right_columns("", ""), Column(shrinks=True)],
            parts,
            when_narrow=(0, 1, 2),
        ),
    ]
    for table in list_tables(audit, ROWS_SHOWN):
        first, *numbers = table.columns[:COLUMNS_SHOWN]
        more = f" ({table.more:,} more in --json)" if table.more else ""
        rows: list[list[Line]] = [[[cell] for cell in row[:COLUMNS_SHOWN]] for row in table.rows]
        drawn += [
            shown.lines("", [(table.title, "bold"), (more, "dim")]),
            shown.table([Column(first, shrinks=True), *right_columns(*numbers)], rows),
        ]
    notes = [*left_out_texts(audit), prices_text(audit)]
    drawn.append(shown.lines("", *([(note, "dim")] for note in notes if note), "", verdict, NEXT_STEP, wraps=True))
    return "".join(drawn)
