"""`context fold report`: prints a live or ended session as a document, for example for a pull request.

Descriptions, summaries and names are untrusted texts. In Markdown they are in code spans or in fences longer than any
fence in the text, so they cannot contain links, images, HTML, mentions or references to issues. In HTML they are
escaped, and the page cannot load or run anything. Control and bidirectional characters are escaped in both formats.
"""

from __future__ import annotations

import argparse
import html
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from contextfold import __version__
from contextfold.app import make_scrubber
from contextfold.cli.fold.list import guides
from contextfold.cli.fold.session_access import (
    OpenStore,
    add_session_options,
    open_store,
    session_address,
    session_not_found,
    write,
    write_json,
)
from contextfold.cli.fold.status import folded_before_text, left_out_text
from contextfold.cli.output import escape, escape_lines
from contextfold.cli.parser import CommandParser
from contextfold.cli.setting_options import read_setting_options
from contextfold.common.answer_format import TOKENS_WORTH, format_count, format_dollars, format_share
from contextfold.fold.service.session_views import BranchRow, FoundSession, tree
from contextfold.settings import FoldSettings, read_fold_settings

# The members that --json prints. `session` is the session's row in the `/v1` API; `tree` has the lines of its tree.
SessionReport = Mapping[str, Any]

FENCE_MIN = 3
NO_FOLDS = "\nNothing was folded in this session.\n"
STYLE = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;"
    "padding:0 1rem}pre{white-space:pre-wrap;overflow-wrap:anywhere;padding:.75rem 1rem;border:1px solid #8884;"
    "border-radius:.5rem}dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1.5rem}dd{margin:0;"
    "overflow-wrap:anywhere}dt,footer,.muted{opacity:.8}"
)
NOTHING_LOADS = "default-src 'none'; style-src 'unsafe-inline'"
# The report has only the last branches; a session may have 10,000.
FOLDS_MAX = 500


def declare_report(parser: CommandParser) -> None:
    parser.describe(
        """
        Write a session as Markdown or HTML on stdout: its branches as a tree, the summaries of folded
        work, what was sent and saved, how many secrets were redacted. It is the project's session, or the
        last one that ended, or the one with the given id. The document loads no other file, and quoted text
        cannot run as script or markup.
        """,
        "context fold report > report.md",
        "context fold report --format html > report.html",
        "context fold report sess_4c1d0a9be2f36170",
    )
    parser.add_argument(
        "id", nargs="?", metavar="SESSION", help="a session's whole id, as `context fold list --ended` shows it"
    )
    parser.add_choice("--format", ("md", "html"), "Markdown or HTML", default="md")
    add_session_options(parser)
    parser.set_defaults(run=run_report)


def run_report(args: argparse.Namespace) -> None:
    with open_store(args) as store:
        found = _find_session(store, args)
        report = _report(store, found, read_fold_settings(os.environ, read_setting_options(args)))
    if args.json:
        write_json(report)
    else:
        write(render_html(report) if args.format == "html" else render_markdown(report))


def _find_session(store: OpenStore, args: argparse.Namespace) -> FoundSession:
    """The session with the given id, else the project's live session, else its last session that ended."""
    address = session_address(args)
    if args.id is not None:
        return store.sessions.find(address.owner, args.id)
    found = store.find(address)
    if found.state.revision:
        return found
    for row in store.sessions.ended_rows(address.owner):
        if row["project_path"] == address.project.path and address.name in (None, row["name"]):
            return store.sessions.find(address.owner, row["session_id"])
    raise session_not_found(address)


def _report(store: OpenStore, found: FoundSession, settings: FoldSettings) -> SessionReport:
    row: Any = store.sessions.row(found)
    rows = tree(found.state)
    latest = rows[-FOLDS_MAX:]
    folded = [row for row in latest if row.branch.status == "folded"]
    stored = store.sessions.summaries(found)
    summaries = [stored.get(row.branch.id, "") for row in folded]
    # Stored texts are already redacted. They are redacted again, because the rules may have improved since.
    texts = [
        _home_as_tilde(row["project_path"]),
        row["name"] or "",
        *(row.branch.description for row in latest),
        *summaries,
    ]
    scrubber = make_scrubber(settings)
    scrubbed = [scrubber.scrub(text) for text in texts]
    project, name, *clean = (one.text for one in scrubbed)
    descriptions = {row.branch.id: text for row, text in zip(latest, clean, strict=False)}
    return {
        "project": project,
        "name": name or None,
        "session": {**row, "project_path": project},
        "tree": [
            f"{guide}{row.branch.status:<9} {descriptions[row.branch.id]}{_figures(row)}"
            for row, guide in zip(latest, guides([row.depth for row in latest]), strict=True)
        ],
        "folds": [
            {
                "branch_id": row.branch.id,
                "description": descriptions[row.branch.id],
                "tokens": row.branch.tokens,
                "summary_tokens": row.branch.summary_tokens,
                "summary": text,
            }
            for row, text in zip(folded, clean[len(latest) :], strict=True)
        ],
        "branches_left_out": len(rows) - len(latest),
        "secrets_redacted": row["secrets_scrubbed"] + sum(len(one.rules) for one in scrubbed),
    }


def _figures(row: BranchRow) -> str:
    branch = row.branch
    folded = f" → {branch.summary_tokens:,}" if branch.status == "folded" else ""
    return f"  ({branch.tokens:,}{folded} tokens, {branch.operations:,} operations)"


def _home_as_tilde(path: str) -> str:
    """Replace the user's home folder at the beginning of a path by `~`, to hide the user's name."""
    home = os.path.expanduser("~").rstrip("/")
    return f"~{path.removeprefix(home)}" if home and path.startswith(home + "/") else path


# ---- the document


def render_markdown(report: SessionReport) -> str:
    facts = "".join(f"- {label}: {_quote(value)}\n" for label, value in _facts(report))
    folds = "".join(
        f"\n### {number}. {_quote(fold['description'])}\n\n{_fold_line(fold, _quote(fold['branch_id']))}\n\n"
        + _fence(fold["summary"])
        for number, fold in enumerate(report["folds"], 1)
    )
    return (
        f"# Session report\n\n{facts}\n## Sent and saved\n\n{_describe_savings(report)}\n\n## Branches\n\n"
        f"{_tree_note(report)}{_fence(_draw_tree(report))}\n"
        f"## Folded work\n{folds or NO_FOLDS}\n---\n\n{_footer(report)}\n"
    )


def render_html(report: SessionReport) -> str:
    facts = "".join(f"<dt>{label}</dt><dd>{_escape_html(value)}</dd>\n" for label, value in _facts(report))
    folds = "".join(
        f"<h3>{number}. {_escape_html(fold['description'])}</h3>\n"
        f'<p class="muted">{_fold_line(fold, _escape_html(fold["branch_id"]))}</p>\n{_format_html(fold["summary"])}'
        for number, fold in enumerate(report["folds"], 1)
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{NOTHING_LOADS}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Session report</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>Session report</h1>\n"
        f"<dl>\n{facts}</dl>\n<h2>Sent and saved</h2>\n<p>{_describe_savings(report)}</p>\n<h2>Branches</h2>\n"
        f"{f'<p>{_tree_note(report).strip()}</p>' if _tree_note(report) else ''}{_format_html(_draw_tree(report))}"
        f"<h2>Folded work</h2>\n{folds or f'<p>{NO_FOLDS.strip()}</p>'}</main>\n"
        f"<footer><p>{_footer(report)}</p></footer>\n"
        "</body>\n</html>\n"
    )


def _facts(report: SessionReport) -> Iterator[tuple[str, str]]:
    figures = report["session"]
    counts = ", ".join(f"{figures[f'{word}_branches']:,} {word}" for word in ("folded", "active", "discarded"))
    facts = {
        "project": report["project"],
        "name": report["name"],
        "session": figures["session_id"],
        "host": figures["host"],
        "model": figures["model"],
        "started": figures["started_at"],
        "last activity": figures["last_at"],
        "ended": figures.get("ended_at"),
        "branches": counts,
        "last request": f"{figures['context_tokens']:,} tokens{_host_part(figures)}" if figures["savings"] else "",
        "folded": _folded(figures),
        "left out": left_out_text(figures),
        "operations": f"{figures['operations']:,}, {figures['failed_operations']:,} failed",
        "secrets redacted": f"{report['secrets_redacted']:,}",
    }
    return ((label, value) for label, value in facts.items() if value)


def _folded(figures: Mapping[str, Any]) -> str:
    tokens = figures["folded_tokens"]
    return f"{tokens:,} tokens{folded_before_text(figures)}" if tokens or figures["folded_branches"] else ""


def _host_part(figures: Mapping[str, Any]) -> str:
    return f", of them {figures['host_tokens']:,} the host's prompt and tools" if figures["host_tokens"] else ""


def _describe_savings(report: SessionReport) -> str:
    """The savings: measured if requests went through the proxy, otherwise estimated from the folded tokens."""
    savings = report["session"]["savings"]
    if not savings:
        return (
            f"Not measured: no request went through the proxy. If folded, the branches leave"
            f" {report['session']['tokens_saved']:,} tokens out of later requests."
        )
    tokens, unfolded = f"{savings['tokens_sent']:,}", f"{savings['tokens_without']:,}"
    requests = format_count(savings["requests"], "request")
    sent = f"{requests} sent {tokens} tokens; without folding {unfolded}."
    if money := savings["money"]:
        saved, without = money["saved_micros"], money["without_micros"]
        cost = f"{format_dollars(money['sent_micros'])} instead of {format_dollars(without)} at list prices"
    else:
        saved, without = savings["cost_saved"], savings["cost_without"]
        cost = f"{savings['cost_sent']:,.0f} instead of {without:,.0f} {TOKENS_WORTH}"
    if savings["outcome"] == "no_saving":
        return f"{sent} Cost {cost}."
    return f"{sent} Cost {cost}: {format_share(abs(saved), without)} {'less' if saved > 0 else 'more'}."


def _tree_note(report: SessionReport) -> str:
    left_out = report["branches_left_out"]
    return f"{left_out:,} earlier branches are left out.\n\n" if left_out else ""


def _draw_tree(report: SessionReport) -> str:
    main = f"main thread  ({report['session']['main_thread_tokens']:,} tokens)"
    # A line break in a description would draw a branch that does not exist.
    return "\n".join([main, *map(escape, report["tree"])])


def _fold_line(fold: Mapping[str, Any], branch_id: str) -> str:
    return f"{branch_id}: {fold['tokens']:,} tokens folded to {fold['summary_tokens']:,}"


def _footer(report: SessionReport) -> str:
    return (
        f"Written by contextfold {__version__}. Texts are as the agent wrote them, with secrets redacted"
        f" ({report['secrets_redacted']:,}); token counts are estimates where no request went through the proxy."
    )


def _quote(text: str) -> str:
    """A code span of one line."""
    escaped = escape(text)
    ticks = "`" * (_longest_run(escaped) + 1)
    # A code span must not begin or end with a backtick, and Markdown removes a space from a span of spaces.
    return f"{ticks} {escaped} {ticks}" if escaped.strip("` ") != escaped or not escaped else f"{ticks}{escaped}{ticks}"


def _fence(text: str) -> str:
    escaped = escape_lines(text).strip("\n")
    fence = "`" * max(FENCE_MIN, _longest_run(escaped) + 1)
    return f"{fence}text\n{escaped}\n{fence}\n"


def _format_html(text: str) -> str:
    escaped = escape_lines(text).strip("\n")
    return f"<pre>{html.escape(escaped)}</pre>\n"


def _escape_html(text: str) -> str:
    return html.escape(escape(text))


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
