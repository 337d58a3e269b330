"""`context serve` runs the daemon or the stdio server; `context token` makes a token for the daemon.

`contextd` is another name for the daemon.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from contextfold.app import serve_daemon, serve_stdio
from contextfold.cli.output import is_terminal, plain, print_answer, print_note
from contextfold.cli.parse import UsageError
from contextfold.errors import EXIT_OK, StorageFailed
from contextfold.settings import read_daemon_settings, read_settings

DAEMON_ONLY = ("host", "port", "token-file", "allow-host", "anthropic-upstream", "openai-upstream", "gemini-upstream")


def run_serve(values: Mapping[str, str]) -> int:
    if "stdio" in values:
        if given := [f"--{name}" for name in DAEMON_ONLY if name in values]:
            raise UsageError(f"{given[0]} is for the daemon and means nothing with --stdio; leave one of them out")
        serve_stdio(read_settings(os.environ, values))
        return EXIT_OK
    serve_daemon(read_daemon_settings(os.environ, values), _announce)
    return EXIT_OK


def _announce(url: str) -> None:
    """Print the address: that of the page on a terminal, or one fixed line in a pipe."""
    line = f"contextfold listens on {url}/mcp\n"
    if is_terminal(sys.stdout):
        line = (
            f"contextfold: {url}/\n"
            f"  MCP at {url}/mcp, the proxy below {url}/proxy/. Ctrl-C stops the daemon.\n"
            "  In another terminal: `context run claude` starts Claude Code behind it, `context doctor` checks it.\n"
        )
    try:
        print_answer(line)
    except StorageFailed:
        # Stdout is closed. The log has the address, too.
        pass


def run_token(values: Mapping[str, str]) -> int:
    from contextfold.serve.http.bearer_tokens import add_token

    path = values["token-file"]
    token = add_token(path, values["owner"])
    print_answer(token + "\n")
    print_note(f"this token is shown once: {plain(path)} keeps its hash alone; remove that line to revoke it")
    return EXIT_OK
