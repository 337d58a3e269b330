"""`context audit`: what agents cost, from their transcripts, and what the proxy would have saved. Changes nothing."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contextfold.audit.page import (
    EXPLANATION,
    PART_NAMES,
    RULE_NAMES,
    accuracy_text,
    count_text,
    dearer_text,
    dollars,
    draw_page,
    left_out_texts,
    percent,
    period,
    prices_text,
    result_name,
    saving_text,
)
from contextfold.audit.report import audit_transcripts, describe
from contextfold.audit.transcripts import find_transcripts, list_given
from contextfold.cli.output import ProgressLine, print_answer, print_note
from contextfold.cli.parser import CommandParser
from contextfold.cli.terminal import Column, Line, Screen, right_columns, screen
from contextfold.errors import StorageFailed
from contextfold.fold.model_catalog import MODELS

BAR_WIDTH = 24
ROWS_SHOWN = 5
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


def run_audit(args: argparse.Namespace) -> None:
    found = list_given(map(Path, args.paths)) if args.paths else find_transcripts(Path.home(), os.environ)
    with ProgressLine("reading transcripts:") as progress:
        report = audit_transcripts(
            found,
            MODELS,
            lambda done, total: progress.show(f"{done // MEGABYTE:,} of {total // MEGABYTE:,} MB"),
        )
    if args.html:
        _write_page(args.html, draw_page(describe(report, MODELS, with_names=args.names)))
        print_note(f"the page is {args.html}")
    if args.json:
        audit = describe(report, MODELS, with_names=args.names)
        print_answer(json.dumps(audit, indent=2, ensure_ascii=False) + "\n")
    elif not report.total.requests:
        print_note(_nothing_found(report.transcripts))
    elif not args.html:
        # The terminal of the person whose transcripts these are.
        print_answer(_draw(screen(), describe(report, MODELS, with_names=True)))


def _write_page(path: str, page: str) -> None:
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(page)
    except FileExistsError:
        raise StorageFailed(f"{path} exists already; remove it, or name another file") from None
    except OSError as problem:
        raise StorageFailed(f"cannot write {path}: {problem.strerror}") from None


def _nothing_found(transcripts: int) -> str:
    if transcripts:
        return f"{transcripts:,} transcripts have no request with a usage and a known price; see --json"
    return (
        "no transcripts were found in ~/.claude/projects and ~/.codex/sessions; set CLAUDE_CONFIG_DIR or CODEX_HOME, "
        "or give their folder: context audit FOLDER"
    )


def _draw(shown: Screen, audit: Mapping[str, Any]) -> str:
    proxy, spent = audit["with_proxy"], audit["spent_dollars"]
    style = "bold green" if proxy["saved_dollars"] >= 0 else "bold yellow"
    count = f"{count_text(audit)}, {period(audit)}"
    lives = "; ".join(f"{life} cache {each['saved_percent']:.1f} %" for life, each in audit["by_cache_life"].items())
    parts: list[str] = [
        shown.lines(["You spent ", (dollars(spent), "bold"), f" at list prices: {count}."], wraps=True),
        shown.lines(
            [
                "With contextfold's proxy: ",
                (saving_text(proxy), style),
                f", without any action of the model. {dearer_text(proxy)}",
            ],
            [(accuracy_text(audit["simulation"]), "dim")],
            [(f"If all of it had used one kind of cache, the proxy would have saved: {lives}.", "dim")],
            "",
            [(EXPLANATION, "dim")],
            wraps=True,
        ),
        shown.lines("", [("where the money went", "bold")]),
        shown.table([Column(), *right_columns("", ""), Column()], _part_rows(audit["parts_dollars"], spent)),
    ]
    rules: list[list[Line]] = [
        [
            [RULE_NAMES[each["rule"]]],
            [(dollars(each["saved_dollars"]), "green" if each["saved_dollars"] >= 0 else "yellow")],
            [f"{each['saved_percent']:.1f} %"],
        ]
        for each in audit["rules"]
    ]
    columns = [
        Column("what each rule of the proxy would have saved", shrinks=True),
        *right_columns("saved", "of the bill"),
    ]
    parts += [shown.lines(""), shown.table(columns, rules)]
    if audit["dearer_conversations"]:
        dearer: list[list[Line]] = [
            [
                [f"{each['project']}, {each['day']}"],
                [f"{each['requests']:,}"],
                [dollars(each["spent_dollars"])],
                [(f"{dollars(-each['saved_dollars'])} ({-each['saved_percent']:.1f} %)", "yellow")],
            ]
            for each in audit["dearer_conversations"][:ROWS_SHOWN]
        ]
        columns = [
            Column("conversations that would have cost more", shrinks=True),
            *right_columns("requests", "spent", "more"),
        ]
        parts += [shown.lines(""), shown.table(columns, dearer)]
    if audit["rewritten_while_alive"]:
        causes: list[list[Line]] = [
            [[each["likely_cause"]], [f"{each['events']:,}"], [f"{each['tokens']:,}"], [dollars(each["dollars"])]]
            for each in audit["rewritten_while_alive"]
        ]
        columns = [
            Column("sent in full again, although the cache was alive", shrinks=True),
            *right_columns("times", "tokens", "cost"),
        ]
        parts += [shown.lines(""), shown.table(columns, causes)]
    if audit["results"]:
        results: list[list[Line]] = [
            [[result_name(each)], [f"{each['tokens']:,}"], [f"{each['requests']:,}"], [dollars(each["dollars"])]]
            for each in audit["results"]
        ]
        columns = [Column("results that cost most", shrinks=True), *right_columns("tokens", "requests", "cost")]
        parts += [shown.lines(""), shown.table(columns, results)]
    for name in ("project", "model", "day"):
        parts += [shown.lines(""), shown.table(*_group(name, audit[f"{name}s"]))]
    conversations = [
        {**each, "conversation": f"{each['day']}, {each['project']}{', subagent' if each['subagent'] else ''}"}
        for each in audit["largest_conversations"]
    ]
    parts += [shown.lines(""), shown.table(*_group("conversation", conversations))]
    notes = [*left_out_texts(audit), prices_text(audit)]
    return "".join(parts) + shown.lines("", *([(note, "dim")] for note in notes if note), wraps=True)


def _part_rows(parts: Mapping[str, float], spent: float) -> list[list[Line]]:
    return [
        [
            [name],
            [percent(parts[part], spent)],
            [dollars(parts[part])],
            [("█" * round(BAR_WIDTH * parts[part] / spent) if spent else "", "cyan")],
        ]
        for part, name in PART_NAMES.items()
    ]


def _group(name: str, groups: Sequence[Mapping[str, Any]]) -> tuple[list[Column], list[list[Line]]]:
    """The largest of some groups; of days, the latest."""
    chosen = groups[-ROWS_SHOWN:] if name == "day" else groups[:ROWS_SHOWN]
    rows: list[list[Line]] = [
        [
            [each[name] or "unknown"],
            [f"{each['requests']:,}"],
            [dollars(each["spent_dollars"])],
            [(f"{dollars(each['saved_dollars'])} ({each['saved_percent']:.1f} %)", "green")],
        ]
        for each in chosen
    ]
    more = f" ({len(groups) - len(chosen):,} more in --json)" if len(groups) > len(chosen) else ""
    return [Column(f"{name}{more}", shrinks=True), *right_columns("requests", "spent", "saved with the proxy")], rows
