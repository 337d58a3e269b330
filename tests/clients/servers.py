"""Servers, as they are in the configuration of a client."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.machine import COMMAND


class Command(NamedTuple):
    """A server that the client starts."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = {}


class Endpoint(NamedTuple):
    """A server that is running."""

    url: str
    headers: Mapping[str, str] = {}


Server = Command | Endpoint


def stdio_server(root: Path) -> Command:
    return Command((str(COMMAND), "serve", "--stdio", "--cache-root", str(root)))


def with_a_frozen_worker(root: Path) -> Command:
    # A worker that is not frozen must answer within this timeout on a busy machine, too.
    settings = {"CONTEXT_CACHE_ROOT": str(root), "CONTEXT_TOOL_TIMEOUT_SECS": "5"}
    return Command((sys.executable, str(Path(__file__).with_name("frozen_server.py"))), settings)
