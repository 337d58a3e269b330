"""`context statusline`: prints one line about the project's session, for a host's status bar.

A host runs it every few hundred milliseconds and shows its output, so it is fast, never fails and prints only the
line. Claude Code sends JSON on stdin, which names the project's folder; otherwise it is the current folder.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Mapping
from typing import Any

from contextfold.cli.daemon.client import DaemonSilent, add_daemon_options, client_from
from contextfold.cli.output import plain, print_answer
from contextfold.cli.parser import CommandParser
from contextfold.common.canonical import parse_json
from contextfold.errors import EXIT_OK

TIMEOUT_S = 0.5
INPUT_BYTES_MAX = 1 << 20
THOUSAND, TEN_THOUSAND, MILLION = 1_000, 10_000, 1_000_000


def declare_statusline(parser: CommandParser) -> None:
    parser.describe(
        """
        Print the tokens, the open branch and the saving of the project's session, in one line. Claude
        Code runs it with {"statusLine": {"type": "command", "command": "context statusline"}} in its
        settings.json.
        """,
        "context statusline",
        "context statusline --url http://localhost:9100",
    )
    add_daemon_options(parser)
    parser.set_defaults(run=run_statusline)


def run_statusline(args: argparse.Namespace) -> int:
    client = client_from(args, timeout_s=TIMEOUT_S)
    folder = _folder_on_stdin() or os.getcwd()
    try:
        sessions = client.get("/v1/sessions?limit=100")["sessions"]
        print_answer(plain(line_for(sessions, folder)) + "\n")
    except DaemonSilent:
        print_answer("contextfold: no daemon\n")
    except (KeyError, TypeError):
        print_answer("contextfold: daemon of another version\n")
    return EXIT_OK


def line_for(sessions: list[Mapping[str, Any]], folder: str) -> str:
    """Tokens, open branch and savings of the session whose project contains the folder."""
    holding = [session for session in sessions if _is_within(folder, session["project_path"])]
    if not holding:
        return "contextfold: nothing folded here yet"
    session = max(holding, key=lambda each: (len(each["project_path"]), each["last_at"]))
    parts = [f"{abbreviate(session['total_tokens'])} tokens ({session['usage_percent']}%)"]
    if session["branch_depth"]:
        parts.append(f"in a branch, depth {session['branch_depth']}")
    if session["tokens_saved"]:
        parts.append(f"{abbreviate(session['tokens_saved'])} folded away")
    return "contextfold: " + " · ".join(parts)


def abbreviate(tokens: int) -> str:
    if tokens >= MILLION:
        return f"{tokens / MILLION:.1f}M"
    return f"{tokens / THOUSAND:.{int(tokens < TEN_THOUSAND)}f}k" if tokens >= THOUSAND else str(tokens)


def _is_within(folder: str, project: str) -> bool:
    return folder == project or folder.startswith(project.rstrip("/") + "/")


def _folder_on_stdin() -> str:
    """The folder in the host's JSON on stdin, if there is any."""
    try:
        if sys.stdin is None or sys.stdin.isatty() or not select.select([sys.stdin], [], [], TIMEOUT_S)[0]:
            return ""
        received = os.read(sys.stdin.fileno(), INPUT_BYTES_MAX)
        if not received:
            return ""
        payload = parse_json(received)
        workspace = payload.get("workspace") or {}
        folder = workspace.get("project_dir") or payload.get("cwd") or ""
        return folder if isinstance(folder, str) else ""
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
