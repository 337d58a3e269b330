"""`context fold now` folds by hand what an agent has done, for a model that does not fold by itself.

Behind the proxy, the next requests leave it out (`fold.messages.by_hand`). Where that is not possible, the fold is in
the records alone, and the command says so.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from contextfold.cli.daemon_client import DaemonClient, DaemonSilent, add_daemon_options, client_from
from contextfold.cli.fold.session_access import project_of, write
from contextfold.cli.output import print_answer, print_error, print_note
from contextfold.cli.parser import CommandParser, UsageError
from contextfold.cli.terminal import stdout_screen
from contextfold.common.canonical import parse_json
from contextfold.errors import EXIT_CODES, EXIT_OK, BranchStateInvalid
from contextfold.fold.project import project_at

HTTP_OK = 200
# A fold waits until what the agent did before it is written.
FOLD_TIMEOUT_S = 30.0
SESSIONS_READ = 100


def declare_now(parser: CommandParser) -> None:
    parser.describe(
        """
        Fold the finished work of the agent that runs in this folder: what it has done since the user's
        last words, or since the last fold, gets your summary, by which `context recall` finds it, and
        stays readable (`context fold expand`). If the agent's requests pass through the proxy, the next
        ones have the summary instead; the command says whether they can. The daemon must be running.
        Inside an agent that `context run` has started it finds the daemon of that run; in Claude Code,
        type it after an exclamation mark.
        """,
        'context fold now "Logins fail because tokens expire after one minute: src/auth.py:41. Not fixed."',
        "context fold now --project ~/work/app 'The tests of the parser pass.'",
    )
    parser.add_argument("summary", nargs="+", metavar="SUMMARY", help="all that is still needed of the work")
    parser.add_argument("--project", metavar="DIR", help="the project's folder (default: the current one)")
    parser.add_argument("--session", metavar="ID", help="a session's id (default: the project's session active last)")
    add_daemon_options(parser)
    parser.add_switch("--json", "print JSON, for programs")
    parser.set_defaults(run=run_now)


def run_now(args: argparse.Namespace) -> int:
    client = client_from(args, timeout_s=FOLD_TIMEOUT_S)
    try:
        session_id = args.session or _running_session(client, args)
        status, body = client.post(f"/v1/sessions/{session_id}/fold", {"message": " ".join(args.summary)})
    except DaemonSilent as problem:
        raise UsageError(
            f"{problem}; an agent that `context run` has started has a daemon of its own: call this inside it, "
            "in Claude Code as `! context fold now …`; for any other, start `context serve` first"
        ) from None
    answer = parse_json(body)
    if status != HTTP_OK:
        print_error(answer.get("error", {}).get("message", f"the daemon refused it (HTTP {status})"))
        return EXIT_CODES[BranchStateInvalid.code]
    if args.json:
        print_answer(f"{body.decode()}\n")
    else:
        screen, summary = stdout_screen(), answer["summary"]
        write(screen.lines(f"folded {screen.figure(summary['tokens_folded'])} tokens as {answer['branch_id']}"))
        print_note(_describe_requests(answer["requests"]))
    return EXIT_OK


def _describe_requests(left_out: dict[str, Any] | None) -> str:
    if left_out is None:
        return (
            "requests still have this work: only the records have the fold. Requests can leave out what ends the last "
            "one that passed through the daemon's proxy, from two turns with tools on (docs/proxy.md)"
        )
    when = "your next message" if left_out["may_wait"] else "the next request"
    return f"from {when} on, requests leave these tokens out and have the summary instead"


def _running_session(client: DaemonClient, args: argparse.Namespace) -> str:
    """The session of the project that was active last; without --project also that of the nearest folder above."""
    rows = client.get(f"/v1/sessions?limit={SESSIONS_READ}")["sessions"]
    # The latest activity comes first. A subagent is not the conversation that a person sees.
    latest = {row["project_path"]: row["session_id"] for row in reversed(rows) if not row.get("agent")}
    at = project_of(args)
    while at.path not in latest:
        if args.project is not None or at.path == "/":
            raise UsageError(f"no agent is known to have worked in {project_of(args).path}; --project names its folder")
        at = project_at(os.path.dirname(at.path))
    return str(latest[at.path])
