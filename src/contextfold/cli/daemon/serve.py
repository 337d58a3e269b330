"""`context serve` runs the daemon or the stdio server; `context token` makes a token for the daemon.

`contextd` is another name for the daemon.
"""

from __future__ import annotations

import argparse
import os
import sys

from contextfold.app import make_fold_service
from contextfold.cli.output import is_terminal, plain, print_answer, print_note
from contextfold.cli.parser import CommandParser, UsageError
from contextfold.cli.setting_options import add_config_option, add_setting, read_setting_options
from contextfold.errors import EXIT_OK, StorageFailed
from contextfold.settings import NATS, read_daemon_settings, read_settings

# The settings that the help of `context serve` lists; `context help settings` has all of them.
SETTINGS_SHOWN = (
    "host",
    "port",
    "cache-root",
    "store",
    "tools",
    "branch-reminder",
    "recall-at-start",
    "token-file",
    "allow-host",
    "anthropic-upstream",
    "openai-upstream",
    "gemini-upstream",
    "fold-results",
)
DAEMON_ONLY = ("host", "port", "token-file", "allow-host", "anthropic-upstream", "openai-upstream", "gemini-upstream")


def declare_serve(parser: CommandParser) -> None:
    parser.describe(
        """
        Without --stdio: the daemon, at http://localhost:9090. It has the folding and resolve tools (/mcp),
        the proxy (/proxy), hooks, and a page to look at (/). `contextd` is the same.
        With --stdio: one agent's server on stdin and stdout, which its host starts; `mcp-context-server`
        is the same.
        """,
        "context serve",
        "context serve --port 9100 --cache-root caches",
        "context serve --host 0.0.0.0 --token-file tokens --allow-host ctx.example.org",
        "context serve --store nats://n1:4222,nats://n2:4222 --nats-creds daemon.creds --nats-replicas 3",
        "context serve --stdio --cache-root caches",
        more="""
        Every setting can also be a variable or a line of the --config file, and those of NATS can be
        options here: `context help settings` lists them.
        """,
    )
    parser.add_switch("--stdio", "speak on stdin and stdout instead of HTTP")
    for name in SETTINGS_SHOWN:
        add_setting(parser, name)
    for name in ("prompt-cache-s", *NATS):
        add_setting(parser, name, is_advanced=True)
    add_config_option(parser)
    parser.set_defaults(run=run_serve)


def run_serve(args: argparse.Namespace) -> int:
    options = read_setting_options(args)
    if args.stdio:
        if given := [f"--{name}" for name in DAEMON_ONLY if name in options]:
            raise UsageError(f"{given[0]} is for the daemon and means nothing with --stdio; leave one of them out")
        from contextfold.serve.stdio import serve

        serve(read_settings(os.environ, options), make_fold_service)
        return EXIT_OK
    from contextfold.daemon import serve_daemon

    serve_daemon(read_daemon_settings(os.environ, options), _announce)
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


def declare_token(parser: CommandParser) -> None:
    parser.describe(
        """
        Make a bearer token for an owner, print it, and add its hash to the file that `context serve` is
        given. The token itself is not stored, so it is shown only now. A running daemon takes the file's
        new state at once: a new line grants access, a removed line revokes it.
        """,
        "context token alice --token-file tokens",
        "context token build-robot --token-file /etc/contextfold/tokens > robot.token",
    )
    parser.add_argument(
        "owner", metavar="OWNER", help="the owner whose sessions the token opens: letters, digits and . _ @ -"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        required=True,
        help="the file of owners and token hashes; created if it is missing",
    )
    parser.set_defaults(run=run_token)


def run_token(args: argparse.Namespace) -> int:
    from contextfold.serve.http.bearer_tokens import add_token

    path = args.token_file
    token = add_token(path, args.owner)
    print_answer(token + "\n")
    print_note(f"this token is shown once: {plain(path)} keeps its hash alone; remove that line to revoke it")
    return EXIT_OK
