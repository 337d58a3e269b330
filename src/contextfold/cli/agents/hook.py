"""`context hook`: sends a hook's JSON from stdin to the daemon and writes the daemon's answer to stdout.

A host runs this after every tool call and waits for it. Every failure ends without output and with exit code 0: the
agent must not notice that the daemon is down.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading

from contextfold.cli.daemon.client import add_daemon_options, daemon_address, request
from contextfold.cli.output import print_bytes
from contextfold.cli.parser import CommandParser
from contextfold.common.network_address import DAEMON_URL, Address
from contextfold.errors import EXIT_OK, StorageFailed

# The command ends after this time, whether it waits for input, a name, a connection or an answer.
WAIT_S = 2.0
INPUT_BYTES_MAX = 16 << 20
ANSWER_BYTES_MAX = 1 << 20
READ_BYTES = 1 << 16
# The first digit of a successful HTTP status.
SUCCESS = 2


def declare_hook(parser: CommandParser) -> None:
    parser.describe(
        """
        Read one hook's JSON from stdin, send it to the daemon, and print what the daemon wants the host to
        know, mostly nothing. `context install` writes this command where a host cannot call the daemon
        itself. A daemon that is down, slow or unwilling is no failure: the agent must not notice.
        """,
        "context hook cursor < hook.json",
        "context hook claude-code --url http://localhost:9100 < hook.json",
    )
    parser.add_choice("host", ("claude-code", "cursor", "vscode"), "the host whose hook this is")
    add_daemon_options(parser)
    parser.set_defaults(run=run_hook)


def run_hook(args: argparse.Namespace) -> int:
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
        return EXIT_OK
    thread.join(WAIT_S)
    if answers and _is_object_with_members(answers[0]):
        try:
            print_bytes(answers[0])
        except StorageFailed:
            # The host has closed the pipe.
            pass
    return EXIT_OK


def _ask_daemon(address: Address, host: str, token: str) -> bytes:
    content = _read_input()
    if not content.strip() or len(content) > INPUT_BYTES_MAX:
        return b""
    status, body = request(
        address, f"/hooks/{host}", token, content=content, timeout_s=WAIT_S, bytes_max=ANSWER_BYTES_MAX
    )
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
