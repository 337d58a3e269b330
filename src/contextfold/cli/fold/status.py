"""`context fold status`: prints the figures of a project's session, or of all sessions of an owner."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from contextfold.cli.fold.session_access import (
    MAIN,
    add_session_options,
    open_store,
    session_address,
    session_not_found,
    write,
    write_json,
    write_live_sessions,
)
from contextfold.cli.parser import CommandParser
from contextfold.cli.terminal import Column, Line, Part, Screen, right_columns, stdout_screen
from contextfold.common.answer_format import TOKENS_WORTH, format_count, format_dollars
from contextfold.fold.policy import percent
from contextfold.fold.service.session_views import group_sessions
from contextfold.fold.service.stored_sessions import SessionView, StoredSessions
from contextfold.fold.session import STATUSES, State

SESSION_ID_SHOWN = len("sess_") + 6
BAR_WIDTH = 32
BAR_WIDTH_NARROW = 16
MAIN_CELL, BRANCH_CELL, FREE_CELL = "█", "▓", "░"
FULL_PERCENT = 100
# Of a fold in another session: before a fork, or before a session of the same conversation ended.
FOLDED_BEFORE = "before this session began"
HEALTH_STYLES = {"none": "green", "medium": "yellow", "high": "bold red"}
HEALTH_MARKS = {"none": "✓ ", "medium": "▲ ", "high": "▲ "}


def declare_status(parser: CommandParser) -> None:
    parser.describe(
        """
        Show a project's session: where work goes on, its tokens against the limit, what was folded and
        what that saved, its health, how many secrets were redacted. Works on the store itself, whether or
        not the daemon runs, as every `context fold` command does.
        """,
        "context fold status",
        "context fold status --all",
        "context fold status --project ~/work/app --json",
    )
    parser.add_switch("--all", "list every live session by project, subagents below their parents")
    add_session_options(parser)
    parser.set_defaults(run=run_status)


def run_status(args: argparse.Namespace) -> None:
    if args.all:
        write_live_sessions(args, StoredSessions.row, _table)
        return
    with open_store(args) as store:
        address = session_address(args)
        found, others = store.find_and_count(address)
        figures = store.sessions.row(found)
    if args.json:
        write_json(figures)
        return
    if not found.state.revision:
        raise session_not_found(address)
    hint = f"{format_count(others, 'other session')} of this project: context fold status --all"
    write(_status(stdout_screen(), found.state, figures, hint if others else ""))


def _table(screen: Screen, sessions: Sequence[SessionView]) -> str:
    numbers = right_columns("tokens", "", "open", "saved")
    columns = [Column("project", shrinks=True), Column("session"), *numbers, Column("health"), Column("last")]
    rows = [_cells(screen, session, is_below=is_below) for session, is_below in group_sessions(sessions)]
    return screen.table(columns, rows, when_narrow=(0, 3, 6))


def _cells(screen: Screen, session: SessionView, *, is_below: bool) -> list[Line]:
    warning, saved = session["context_health"]["warning"], session["savings"]
    return [
        [("└ " if is_below and screen.is_terminal else "", "dim"), *project_cell(session)],
        [(screen.short(session["session_id"], SESSION_ID_SHOWN), "dim")],
        [screen.figure(session["total_tokens"])],
        [f"{session['usage_percent']}%"],
        [str(session["branch_depth"])],
        [(saved_text(saved), "green" if saved and saved["cost_saved"] > 0 else "")],
        [((HEALTH_MARKS[warning] if screen.is_terminal else "") + session["health"], HEALTH_STYLES[warning])],
        [screen.moment(session["last_at"])],
    ]


def project_cell(session: SessionView) -> Line:
    """The project and, if it has one, the name of a session."""
    return [(session["project_path"] or "", "bold"), (f" · {session['name']}" if session["name"] else "", "dim")]


def saved_text(sums: SessionView | None) -> str:
    """The savings: in money if all prices are known, otherwise in input tokens' worth."""
    if sums is None:
        return "not measured"
    if money := sums["money"]:
        return format_dollars(money["saved_micros"])
    return f"{sums['cost_saved']:,.0f} {TOKENS_WORTH}"


def _status(screen: Screen, state: State, figures: SessionView, others: str) -> str:
    """The state of a session; `figures` is its row in the `/v1` API, `others` says that the project has more."""
    if not screen.is_terminal:
        return screen.facts([*_facts(state, figures), ("others", [others])])
    text = screen.lines([(state.project_path, "bold")], "") + screen.facts(_draw_facts(screen, state, figures))
    return text + (screen.lines("", [(others, "dim")]) if others else "")


def headline(screen: Screen, state: State, limit: int) -> list[Line]:
    total = state.total_tokens
    where: list[Part] = [(state.project_path, "bold"), f" · {state.name}" if state.name else ""]
    used = (f"{screen.figure(total)} of {screen.figure(limit)} tokens ({percent(total, limit)}%)", "dim")
    return [where, [used]] if screen.is_narrow else [[*where, "  ", used]]


def bar(figures: SessionView, width: int) -> list[Part]:
    """A bar that shows the used part of the context: the main thread, then the open branches."""
    total, limit = figures["total_tokens"], figures["context_limit"]
    filled = min(width, _bar_cells(total, limit, width))
    main = filled - min(filled, _bar_cells(total - figures["main_thread_tokens"], limit, width))
    warning = figures["context_health"]["warning"] if figures["usage_percent"] <= FULL_PERCENT else "high"
    style = HEALTH_STYLES[warning]
    return [(MAIN_CELL * main, style), (BRANCH_CELL * (filled - main), style), (FREE_CELL * (width - filled), "dim")]


def _bar_cells(tokens: int, limit: int, width: int) -> int:
    """The width of a part of the bar. It is at least one cell if there are any tokens."""
    return -(-width * tokens // limit)


def path_parts(state: State) -> list[Part]:
    """The path from the main thread to the innermost open branch."""
    parts: list[Part] = [(MAIN, "" if state.path else "bold")]
    for open_id in state.path:
        is_last = open_id == state.path[-1]
        parts += [(" › ", "dim"), (state.branches[open_id].description, "bold" if is_last else "")]
    return parts


def _facts(state: State, figures: SessionView) -> list[tuple[str, Line]]:
    health = figures["context_health"]
    total, limit = figures["total_tokens"], figures["context_limit"]
    facts = [
        ("project", state.project_path),
        ("session", state.session_id or ""),
        ("name", state.name or ""),
        ("started", state.started_at),
        ("last", state.last_at),
        ("path", " ".join([MAIN, *state.path])),
        ("tokens", f"{total} of {limit} ({figures['usage_percent']}%)"),
        ("main-thread", str(figures["main_thread_tokens"])),
        ("host-prompt", "" if figures["host_tokens"] is None else str(figures["host_tokens"])),
        ("last-request", "" if figures["host_tokens"] is None else str(figures["context_tokens"])),
        ("folded", f"{figures['folded_tokens']}{folded_before_text(figures)}"),
        ("left-out", left_out_text(figures)),
        ("sent", sent_text(figures["savings"])),
        (difference_label(figures).replace(" ", "-"), saved_by_folding(figures)),
        ("health", figures["health"]),
        ("suggestion", health.get("suggestion", "")),
        ("failure-rate", repr(health["failure_rate"]) if "failure_rate" in health else ""),
        ("branches", ", ".join(f"{figures[f'{word}_branches']} {word}" for word in STATUSES)),
        ("operations", f"{figures['operations']}, {figures['failed_operations']} failed"),
        ("redactions", str(figures["secrets_scrubbed"])),
    ]
    return [(label, [value]) for label, value in facts]


def sent_text(savings: SessionView | None) -> str:
    """What the session's requests sent; empty if none went through the proxy."""
    if not savings:
        return ""
    sent = f"{format_count(savings['requests'], 'request')}, {savings['tokens_sent']:,} tokens"
    return f"{sent}; without folding {savings['tokens_without']:,}"


def difference_label(figures: SessionView) -> str:
    """The name of what `saved_by_folding` says, as on the page."""
    savings = figures["savings"]
    if not savings:
        return "if folded"
    return "folding cost" if savings["outcome"] == "cost_more" else "saved"


def saved_by_folding(figures: SessionView) -> str:
    """What was saved where requests were seen, otherwise the tokens that folding would leave out of them."""
    if savings := figures["savings"]:
        return saved_text(savings).lstrip("-")
    return f"{figures['tokens_saved']:,} fewer tokens" if figures["folded_branches"] else ""


def folded_before_text(figures: SessionView) -> str:
    """How much of the folded tokens another session has folded; empty if nothing."""
    tokens = figures["folded_before_tokens"]
    return f", {tokens:,} of them {FOLDED_BEFORE}" if tokens else ""


def left_out_text(figures: SessionView) -> str:
    """The results, edits and thinking that were left out without a fold; empty if there are none."""
    count = figures["left_out_results"]
    return f"{format_count(count, 'old text')}, {figures['left_out_tokens']:,} tokens" if count else ""


def _draw_facts(screen: Screen, state: State, figures: SessionView) -> list[tuple[str, Line]]:
    figure = screen.figure
    counts = " · ".join(f"{count:,} {word}" for word in STATUSES if (count := figures[f"{word}_branches"]))
    failed = (f" · {figures['failed_operations']:,} failed", "red") if figures["failed_operations"] else ""
    total, main, folded = (figures[name] for name in ("total_tokens", "main_thread_tokens", "folded_tokens"))
    savings = figures["savings"]
    saved_style = "green" if savings and savings["cost_saved"] > 0 else ""
    used = f"  {figure(total)} of {figure(figures['context_limit'])}  {figures['usage_percent']}%"
    secrets = figures["secrets_scrubbed"]
    return [
        ("session", [state.session_id or "", *([f" · {state.name}"] if state.name else [])]),
        ("last active", [screen.moment(state.last_at), (f" · begun {screen.moment(state.started_at)}", "dim")]),
        ("working in", path_parts(state)),
        ("", [" "]),
        (
            "tokens",
            [
                *bar(figures, BAR_WIDTH_NARROW if screen.is_narrow else BAR_WIDTH),
                ("" if screen.is_narrow else used, "bold"),
            ],
        ),
        ("", [(used.strip(), "bold")] if screen.is_narrow else []),
        ("main thread", [f"{MAIN_CELL} {figure(main)}"]),
        ("in branches", [f"{BRANCH_CELL} {figure(total - main)}"] if total != main else []),
        ("host's prompt and tools", [f"  {figure(figures['host_tokens'])}"] if figures["host_tokens"] else []),
        ("last request", [f"  {figure(figures['context_tokens'])}"] if figures["host_tokens"] is not None else []),
        ("folded", [f"  {figure(folded)}{folded_before_text(figures)}"] if folded else []),
        ("left out", [f"  {left_out_text(figures)}"] if figures["left_out_results"] else []),
        ("sent", [f"  {sent_text(savings)}"] if savings else []),
        (
            difference_label(figures),
            [(f"  {text}", saved_style)] if (text := saved_by_folding(figures)) else [],
        ),
        ("", [" "]),
        ("branches", [counts or "none"]),
        ("operations", [f"{figures['operations']:,}", failed]),
        ("redactions", [(format_count(secrets, "secret") + " scrubbed", "yellow")] if secrets else []),
        *_health_rows(figures["health"], figures["context_health"]),
    ]


def _health_rows(word: str, health: Mapping[str, Any]) -> list[tuple[str, Line]]:
    level = health["warning"]
    words: list[Part] = [(HEALTH_MARKS[level] + word, HEALTH_STYLES[level])]
    if "failure_rate" in health:
        words.append((f" · {health['failure_rate']:.0%} of this branch's operations failed", "red"))
    return [("health", words), ("", [(health["suggestion"], "italic")] if "suggestion" in health else [])]
