"""`context fold misses`: prints why the provider's prompt cache did not hold a part of a session's requests."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from contextfold.cli.fold.session_access import (
    add_session_options,
    open_store,
    session_address,
    session_not_found,
    write,
    write_json,
    write_live_sessions,
)
from contextfold.cli.fold.status import SESSION_ID_SHOWN, project_cell
from contextfold.cli.parser import CommandParser
from contextfold.cli.terminal import Column, Line, Screen, right_columns, stdout_screen
from contextfold.common.answer_format import TOKENS_WORTH, format_dollars
from contextfold.fold.service.session_views import FoundSession
from contextfold.fold.service.stored_sessions import SessionView, StoredSessions

# The misses of a session, in the format of the `/v1` API.
Misses = Mapping[str, Any]

# Only the latest are shown; --json has more.
MISSES_SHOWN = 20


def declare_misses(parser: CommandParser) -> None:
    parser.describe(
        """
        Say why the provider's prompt cache did not hold a part of a request that it had held before: what
        differs from the request before, whose doing that was, what the provider says it read, and what
        writing it again has cost. Seen are the requests that went through the daemon's proxy.
        """,
        "context fold misses",
        "context fold misses --all",
        "context fold misses --json | jq .causes",
    )
    parser.add_switch("--all", "list the sums of every live session, the latest activity first")
    add_session_options(parser)
    parser.set_defaults(run=run_misses)


def run_misses(args: argparse.Namespace) -> None:
    if args.all:
        write_live_sessions(args, _view, _table)
        return
    with open_store(args) as store:
        address = session_address(args)
        found = store.find(address)
        if not found.state.revision:
            raise session_not_found(address)
        misses = store.sessions.misses(found)
    if args.json:
        write_json(misses)
    else:
        write(_draw(stdout_screen(), misses))


def _view(sessions: StoredSessions, found: FoundSession) -> SessionView:
    return {"project_path": found.state.project_path, "name": found.state.name, **sessions.misses(found)}


def _draw(screen: Screen, misses: Misses) -> str:
    total, requests = misses["total"], misses["requests"]
    if not requests:
        return screen.lines("No request of this session has gone through the proxy, so nothing is known of its cache.")
    if not total["misses"]:
        return screen.lines(f"The provider's cache lost nothing before any of {requests:,} requests.")
    rows: Sequence[Misses] = misses["misses"]
    sentence = (
        f"Before {total['misses']:,} of {requests:,} requests the provider's cache had lost a part of the prompt: "
        f"{total['tokens_lost']:,} tokens were paid for again, which cost {cost_text(total)} more than reading them."
    )
    bugs = sum(row["is_bug"] for row in rows)
    bug = "A change of contextfold's own in what was already sent is a bug; please report it." if bugs else ""
    columns = [
        Column("when"),
        Column("why", shrinks=True),
        Column("whose"),
        *right_columns("sent", "read", "lost", "cost"),
    ]
    cells: list[list[Line]] = [
        [
            [(row["at"][:16].replace("T", " "), "dim")],
            [(row["why"], "bold red" if row["is_bug"] else "")],
            [(row["whose"], "yellow" if row["whose"] == "contextfold" else "")],
            [screen.figure(row["tokens_sent"])],
            [screen.figure(row["tokens_read"])],
            [screen.figure(row["tokens_lost"])],
            [(cost_text(row), "bold")],
        ]
        for row in rows[-MISSES_SHOWN:]
    ]
    left_out = total["misses"] - len(cells)
    return (
        screen.lines(sentence, "", wraps=True)
        + screen.table(columns, cells, when_narrow=(1, 5, 6))
        + (screen.lines([(f"{left_out:,} earlier ones, see --json", "dim")]) if left_out else "")
        + (screen.lines("", [(bug, "bold red")], wraps=True) if bug else "")
    )


def cost_text(sums: Misses) -> str:
    """The cost in money if the prices are known, otherwise in input tokens' worth."""
    if sums["micros"] is None:
        return f"{sums['cost']:,.0f} {TOKENS_WORTH}"
    return format_dollars(sums["micros"])


def _table(screen: Screen, sessions: Sequence[Misses]) -> str:
    columns = [
        Column("project", shrinks=True),
        Column("session"),
        *right_columns("requests", "misses", "lost", "cost"),
        Column("most often because of", shrinks=True),
    ]
    rows: list[list[Line]] = [
        [
            project_cell(row),
            [(screen.short(row["session_id"], SESSION_ID_SHOWN), "dim")],
            [screen.figure(row["requests"])],
            [screen.figure(row["total"]["misses"])],
            [screen.figure(row["total"]["tokens_lost"])],
            [(cost_text(row["total"]) if row["total"]["misses"] else "", "bold")],
            [max(row["causes"], key=lambda each: each["misses"])["cause"] if row["causes"] else ""],
        ]
        for row in sessions
    ]
    return screen.table(columns, rows, when_narrow=(0, 3, 5))
