"""`context serve`: the engine for agents, over MCP; `contextd` is the daemon's own name."""

from __future__ import annotations

import os
from collections.abc import Mapping

from contextfold.cli.parse import UsageError
from contextfold.error_codes import EXIT_OK
from contextfold.settings import daemon_settings_from, settings_from

DAEMON_ONLY = ("host", "port", "token-file", "allow-host", "anthropic-upstream", "openai-upstream")


def run(values: Mapping[str, str]) -> int:
    if "stdio" in values:
        if given := [f"--{name}" for name in DAEMON_ONLY if name in values]:
            raise UsageError(f"{given[0]} is for the daemon and means nothing with --stdio; leave one of them out")
        from contextfold.serve.stdio import serve

        serve(settings_from(os.environ, values))
        return EXIT_OK
    settings = daemon_settings_from(os.environ, values)
    from contextfold.app import serve_daemon

    serve_daemon(settings, _tell)
    return EXIT_OK


def _tell(url: str) -> None:
    """For who started it, and for a program that asked for any free port."""
    from contextfold.cli.output import print_answer
    from contextfold.errors import StorageFailed

    try:
        print_answer(f"contextfold listens on {url}/mcp\n")
    except StorageFailed:
        pass  # nobody reads it; the log has it too
