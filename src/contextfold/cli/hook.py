"""The commands that an agent program runs itself: `context hook` and `context statusline`.

`context hook` sends a hook's JSON from stdin to the daemon and writes the daemon's answer to stdout. A host runs it
after every tool call and waits for it. Every failure ends without output and with exit code 0: the agent must not
notice that the daemon is down. Only at the start of a session is the user told, in one line.

`context statusline` prints one line about the project's session. A host runs it every few hundred milliseconds and
shows its output, so it is fast, never fails and prints only the line. Claude Code sends JSON on stdin, which names the
project's folder; otherwise it is the current folder.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import threading
from collections.abc import Mapping
from typing import Any

from contextfold.cli.daemon_client import (
    DaemonSilent,
    DaemonSlow,
    add_daemon_options,
    client_from,
    daemon_address,
    request,
)
from contextfold.cli.output import escape, print_answer, print_bytes
from contextfold.cli.parser import CommandParser
from contextfold.common.answer_format import TOKENS_WORTH, format_dollars
from contextfold.common.canonical import parse_json
from contextfold.common.network_address import DAEMON_URL, Address
from contextfold.errors import StorageFailed

# The command ends after this time, whether it waits for input, a name, a connection or an answer.
WAIT_S = 2.0
INPUT_BYTES_MAX = 16 << 20
ANSWER_BYTES_MAX = 1 << 20
READ_BYTES = 1 << 16
SESSION_START = "SessionStart"
NO_DAEMON = "contextfold: no daemon at {url}, so nothing is folded; `context service install` starts one for good"
# The first digit of a successful HTTP status.
SUCCESS = 2


def declare_hook(parser: CommandParser) -> None:
    parser.describe(
        """
        Read one hook's JSON from stdin, send it to the daemon, and print what the daemon wants the host to
        know, mostly nothing. `context install` writes this command where a host cannot call the daemon
        itself. A daemon that is down, slow or unwilling is no failure: the agent must not notice.
        """,
        "context hook claude-code < hook.json",
        "context hook claude-code --url http://localhost:9100 < hook.json",
    )
    parser.add_choice("host", ("claude-code",), "the host whose hook this is")
    add_daemon_options(parser)
    parser.set_defaults(run=run_hook)


def run_hook(args: argparse.Namespace) -> None:
    address = daemon_address(DAEMON_URL if args.url is None else args.url)
    token = os.environ.get(args.token_variable or "", "")
    answers: list[bytes] = []

    def ask() -> None:
        """Ask the daemon. It runs in a thread, because resolving a name and reading stdin have no timeout."""
        try:
            answers.append(_ask_daemon(address, args.host, token))
        except Exception:  # noqa: S110 - no failure may disturb the agent
            pass

    thread = threading.Thread(target=ask, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # The system cannot start another thread.
        return
    thread.join(WAIT_S)
    if answers and _is_object_with_members(answers[0]):
        try:
            print_bytes(answers[0])
        except StorageFailed:
            # The host has closed the pipe.
            pass


def _ask_daemon(address: Address, host: str, token: str) -> bytes:
    content = _read_input()
    if not content.strip() or len(content) > INPUT_BYTES_MAX:
        return b""
    try:
        status, body = request(
            address, f"/hooks/{host}", token, content=content, timeout_s=WAIT_S, bytes_max=ANSWER_BYTES_MAX
        )
    except ConnectionRefusedError:
        is_start = parse_json(content).get("hook_event_name") == SESSION_START
        return json.dumps({"systemMessage": NO_DAEMON.format(url=address.url)}).encode() if is_start else b""
    return body if status // 100 == SUCCESS else b""


def _read_input() -> bytes:
    """Read stdin, but little more than is allowed."""
    # Not by its buffer: a thread that waits in there would keep the process from ending.
    descriptor = sys.stdin.fileno()
    content = b""
    while len(content) <= INPUT_BYTES_MAX and (chunk := os.read(descriptor, READ_BYTES)):
        content += chunk
    return content


def _is_object_with_members(body: bytes) -> bool:
    """Whether an answer is a JSON object that is not empty. A host treats any other output as an error."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(answer, dict) and bool(answer)


STATUS_WAIT_S = 0.5
STATUS_INPUT_BYTES_MAX = 1 << 20
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


def run_statusline(args: argparse.Namespace) -> None:
    client = client_from(args, timeout_s=STATUS_WAIT_S)
    payload = _payload_on_stdin()
    workspace = payload.get("workspace") or {}
    folder = (workspace.get("project_dir") if isinstance(workspace, dict) else "") or payload.get("cwd")
    conversation = payload.get("session_id")
    try:
        sessions = client.get("/v1/sessions?limit=100")["sessions"]
        print_answer(escape(line_for(sessions, str(folder or os.getcwd()), str(conversation or ""))) + "\n")
    except DaemonSlow:
        print_answer("contextfold: the daemon is busy\n")
    except DaemonSilent:
        print_answer("contextfold: no daemon\n")
    except (KeyError, TypeError):
        print_answer("contextfold: daemon of another version\n")


def line_for(sessions: list[Mapping[str, Any]], folder: str, conversation: str = "") -> str:
    """Tokens, open branch and savings of the host's conversation, or of the latest one in the folder's project.

    A conversation that has just begun has no session yet, and those of other conversations say nothing about it.
    """
    main = [session for session in sessions if not session["agent"]]
    holding = [session for session in main if conversation and session["conversation"] == conversation]
    holding = holding or [
        session
        for session in main
        if _is_within(folder, session["project_path"]) and not (conversation and session["conversation"])
    ]
    if not holding:
        return "contextfold: nothing folded here yet"
    session = max(holding, key=lambda each: (len(each["project_path"]), each["last_at"]))
    parts = [f"{abbreviate(session['total_tokens'])} tokens ({session['usage_percent']}%)"]
    if session["branch_depth"]:
        parts.append(f"in a branch, depth {session['branch_depth']}")
    if session["folded_tokens"]:
        # Without the proxy, requests are sent whole.
        word = "folded" if session["savings"] else "if folded"
        parts.append(f"{abbreviate(session['folded_tokens'])} {word}")
    if session["left_out_tokens"]:
        parts.append(f"{abbreviate(session['left_out_tokens'])} left out")
    savings = session["savings"]
    if savings and savings["outcome"] != "no_saving":
        parts.append(f"{'saved' if savings['outcome'] == 'saved' else 'cost'} {_difference(savings)}")
    return "contextfold: " + " · ".join(parts)


def _difference(savings: Mapping[str, Any]) -> str:
    """What folding has saved, or cost: in money if it is known."""
    more = "" if savings["outcome"] == "saved" else " more"
    if money := savings["money"]:
        return format_dollars(abs(money["saved_micros"])) + more
    return f"{abbreviate(round(abs(savings['cost_saved'])))} {TOKENS_WORTH}{more}"


def abbreviate(tokens: int) -> str:
    if tokens >= MILLION:
        return f"{tokens / MILLION:.1f}M"
    return f"{tokens / THOUSAND:.{int(tokens < TEN_THOUSAND)}f}k" if tokens >= THOUSAND else str(tokens)


def _is_within(folder: str, project: str) -> bool:
    return bool(project) and (folder == project or folder.startswith(project.rstrip("/") + "/"))


def _payload_on_stdin() -> dict[str, Any]:
    """The host's JSON on stdin; empty if there is none."""
    try:
        if sys.stdin is None or sys.stdin.isatty() or not select.select([sys.stdin], [], [], STATUS_WAIT_S)[0]:
            return {}
        payload = parse_json(os.read(sys.stdin.fileno(), STATUS_INPUT_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return {}
    return payload if isinstance(payload, dict) else {}
