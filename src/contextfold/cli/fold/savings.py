"""`context fold savings`: prints what folding saved or cost, for one session or all sessions of an owner."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from contextfold.cli.fold.list import id_length
from contextfold.cli.fold.session_access import (
    add_session_options,
    open_store,
    owner_of,
    session_address,
    session_not_found,
    write,
    write_json,
    write_live_sessions,
)
from contextfold.cli.fold.status import (
    BAR_WIDTH,
    BAR_WIDTH_NARROW,
    FOLDED_BEFORE,
    FREE_CELL,
    MAIN_CELL,
    SESSION_ID_SHOWN,
    project_cell,
    saved_text,
)
from contextfold.cli.output import print_note
from contextfold.cli.parser import CommandParser
from contextfold.cli.terminal import Column, Line, Part, Screen, right_columns, stdout_screen
from contextfold.common.answer_format import TOKENS_WORTH, format_dollars, format_share
from contextfold.fold.service.session_views import FoundSession
from contextfold.fold.service.stored_sessions import SessionView, StoredSessions
from contextfold.fold.session import State

# The savings in the format of the `/v1` API.
Savings = Mapping[str, Any]

# Only the latest folds are shown; --json has more.
FOLDS_SHOWN = 20
PERCENT = 100


def declare_savings(parser: CommandParser) -> None:
    parser.describe(
        """
        Compare what the session's requests cost with what they would have cost if nothing had ever been
        folded: tokens, their price with the provider's prompt cache in mind, money where the model's price
        is known, and which folds cost more than they saved. Counted are the requests that went through the
        daemon's proxy. `context help settings` lists the prices for models that are not known.
        """,
        "context fold savings",
        "context fold savings --all",
        "context fold savings --by day",
        "context fold savings --json | jq .cost_saved",
    )
    parser.add_switch("--all", "list every live session, the latest activity first")
    parser.add_choice(
        "--by", ("day", "project", "model", "session"), "print totals of all live and ended sessions by this"
    )
    add_session_options(parser)
    parser.set_defaults(run=run_savings)


def run_savings(args: argparse.Namespace) -> None:
    if args.by is not None:
        _run_totals(args, args.by)
        return
    if args.all:
        write_live_sessions(args, _view, _table)
        return
    with open_store(args) as store:
        address = session_address(args)
        found = store.find(address)
        state = found.state
        savings = {**store.sessions.savings(found), "session_id": state.session_id}
    if args.json:
        write_json(savings)
    elif not state.revision:
        raise session_not_found(address)
    else:
        screen = stdout_screen()
        write(_draw(screen, state, savings) if screen.is_terminal else _format_plain(screen, state, savings))


def _view(sessions: StoredSessions, found: FoundSession) -> SessionView:
    return {"project_path": found.state.project_path, "name": found.state.name, **sessions.savings(found)}


def _run_totals(args: argparse.Namespace, group: str) -> None:
    owner = owner_of(args)
    with open_store(args) as store:
        totals: Any = store.sessions.savings_by(owner, group)
    rows = [row for row in totals["groups"] if row["requests"]]
    if args.json:
        write_json(totals)
    elif rows:
        screen = stdout_screen()
        write(
            _totals_table(screen, group, rows, totals["total"])
            + screen.lines("", totals["total"]["verdict"], wraps=True)
        )
    else:
        print_note("no request has gone through the proxy, so there is nothing to add up")


def _totals_table(screen: Screen, group: str, rows: Sequence[Savings], total: Savings) -> str:
    columns = [Column(group, shrinks=True), *right_columns("requests", "sent", "unfolded", "saved")]
    cells: list[list[Line]] = [
        [
            [(str(row[group]) or "unknown", "bold")],
            [screen.figure(row["requests"])],
            [screen.figure(row["tokens_sent"])],
            [screen.figure(row["tokens_without"])],
            [(saved_text(row), "green" if row["cost_saved"] > 0 else "bold yellow" if row["cost_saved"] < 0 else "")],
        ]
        # The days are ordered from the oldest; the newest is the most interesting.
        for row in [*(reversed(rows) if group == "day" else rows), {**total, group: "all"}]
    ]
    return screen.table(columns, cells)


# ---- Output in a pipe


def _format_plain(screen: Screen, state: State, savings: Savings) -> str:
    facts: list[tuple[str, str]] = [
        ("project", state.project_path),
        ("session", savings["session_id"]),
        ("name", state.name or ""),
        ("requests", str(savings["requests"])),
        ("estimated", str(savings["estimated_requests"])),
        *((name.replace("_", "-"), str(savings[name])) for name in ("tokens_sent", "tokens_without", "tokens_saved")),
        *((name.replace("_", "-"), repr(savings[name])) for name in ("cost_sent", "cost_without", "cost_saved")),
        ("extra-requests", str(savings["extra_requests"])),
        ("warm-requests", str(savings["warm_requests"] or "")),
        *((f"money-{name.replace('_', '-')}", str(value)) for name, value in (savings["money"] or {}).items()),
        ("output-tokens", str(savings["output_tokens"])),
        *(("price", _prices_text(prices)) for prices in savings["prices"]),
        ("not-folded", ", ".join(f"{reason} {count}" for reason, count in savings["failed_open"].items())),
        *(("fold", _fold_text(fold)) for fold in savings["folds"]),
        ("costly-folds", " ".join(savings["costly_folds"])),
        ("verdict", savings["verdict"]),
    ]
    return screen.facts([(label, [value]) for label, value in facts])


def _fold_text(fold: Savings) -> str:
    saved = f"{fold['cost_saved']!r} {TOKENS_WORTH} saved"
    figures = f"{fold['tokens_dropped']} dropped, {fold['requests']} requests, {saved}"
    return f"{fold['branch_id']} {figures}, {fold['description'] or FOLDED_BEFORE}"


# ---- Output on a terminal


def _draw(screen: Screen, state: State, savings: Savings) -> str:
    figure = screen.figure
    reasons = " · ".join(f"{reason} {count:,}" for reason, count in savings["failed_open"].items())
    estimated = savings["estimated_requests"]
    rows: list[tuple[str, Line]] = [
        ("session", [savings["session_id"], *([f" · {state.name}"] if state.name else [])]),
        ("requests", [figure(savings["requests"]), (f" · {estimated:,} estimated" if estimated else "", "yellow")]),
        ("", [" "]),
        *_bars(screen, savings),
        ("", [" "]),
        ("cost", _cost(savings)),
        ("prices", [("; ".join(map(_prices_text, savings["prices"])), "dim")] if savings["prices"] else []),
        ("output", [(f"{figure(savings['output_tokens'])} tokens", "dim")]),
        ("not folded", [(reasons, "yellow")] if reasons else []),
    ]
    style = "green" if savings["cost_saved"] > 0 else "yellow" if savings["cost_saved"] < 0 else ""
    return (
        screen.lines([(state.project_path, "bold")], "")
        + screen.facts(rows)
        + _folds(screen, state, savings)
        + screen.lines("", [(savings["verdict"], style)], wraps=True)
    )


def _bars(screen: Screen, savings: Savings) -> list[tuple[str, Line]]:
    """Two bars that compare the tokens with and without folding; the one without folding has the full width."""
    width = BAR_WIDTH_NARROW if screen.is_narrow else BAR_WIDTH
    sent, without = savings["tokens_sent"], savings["tokens_without"]
    cells = -(-width * sent // without) if without else 0
    bar: list[Part] = [(MAIN_CELL * cells, "cyan"), (FREE_CELL * (width - cells), "dim")]
    return [
        ("tokens sent", [*bar, (f"  {screen.figure(sent)}", "bold")]),
        ("unfolded", [(MAIN_CELL * (width if without else 0), "dim"), f"  {screen.figure(without)}"]),
    ]


def _prices_text(prices: Savings) -> str:
    unit = "dollars for a million tokens" if prices["currency"] else "input tokens"
    unit += f", read on {prices['read_on']}" if prices.get("read_on") else ""
    named = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
    figures = ", ".join(f"{name.replace('_', ' ')} {prices[name]}" for name in named)
    return f"{prices['model']}: {figures} ({unit})"


def _cost(savings: Savings) -> list[Part]:
    """The cost: in money if the prices of all models are known, otherwise in input tokens' worth."""
    if money := savings["money"]:
        sent, without, saved = (money[f"{name}_micros"] for name in ("sent", "without", "saved"))
        parts: list[Part] = [(format_dollars(sent), "bold"), f" instead of {format_dollars(without)}"]
    else:
        saved, without = savings["cost_saved"], savings["cost_without"]
        parts = [(f"{savings['cost_sent']:,.0f}", "bold"), f" instead of {without:,.0f} {TOKENS_WORTH}"]
    if saved and without:
        word, style = ("cheaper", "green") if saved > 0 else ("dearer", "bold yellow")
        parts.append((f" · {format_share(abs(saved), without)} {word}", style))
    return parts


def _folds(screen: Screen, state: State, savings: Savings) -> str:
    folds: Sequence[Savings] = savings["folds"]
    if not folds:
        return ""
    length = id_length({*state.branches, *(fold["branch_id"] for fold in folds)})
    rows: list[Sequence[Line]] = [
        [
            [(screen.short(fold["branch_id"], length), "dim")],
            [screen.figure(fold["tokens_dropped"])],
            [screen.figure(fold["requests"])],
            [(f"{fold['cost_saved']:,.0f}", "green" if fold["cost_saved"] >= 0 else "bold yellow")],
            [fold["description"] or FOLDED_BEFORE],
        ]
        for fold in folds[-FOLDS_SHOWN:]
    ]
    columns = [Column("fold"), *right_columns("dropped", "requests", "saved"), Column(shrinks=True)]
    unit = screen.lines([(f"saved: in {TOKENS_WORTH}", "dim")])
    left_out = len(folds) - len(rows)
    earlier = screen.lines([(f"{left_out:,} earlier ones, see --json", "dim")]) if left_out else ""
    return screen.lines("") + screen.table(columns, rows, when_narrow=(0, 3, 4)) + unit + earlier


def _table(screen: Screen, all_savings: Sequence[Savings]) -> str:
    numbers = right_columns("requests", "sent", "unfolded", "saved", "costly")
    columns = [Column("project", shrinks=True), Column("session"), *numbers]
    rows = [_cells(screen, savings) for savings in all_savings]
    return screen.table(columns, rows, when_narrow=(0, 2, 5))


def _cells(screen: Screen, savings: Savings) -> list[Line]:
    saved, without = savings["cost_saved"], savings["cost_without"]
    percent = round(PERCENT * saved / without) if without else 0
    return [
        project_cell(savings),
        [(screen.short(savings["session_id"], SESSION_ID_SHOWN), "dim")],
        [screen.figure(savings["requests"])],
        [screen.figure(savings["tokens_sent"])],
        [screen.figure(savings["tokens_without"])],
        [(f"{percent}%", "green" if saved > 0 else "bold yellow" if saved < 0 else "")],
        [str(len(savings["costly_folds"]))],
    ]
