"""Servers as a client's configuration names them."""

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
    """A server that runs."""

    url: str
    headers: Mapping[str, str] = {}


Server = Command | Endpoint


def serving(root: Path) -> Command:
    return Command((str(COMMAND), "serve", "--stdio", "--cache-root", str(root)))


def with_a_frozen_worker(root: Path) -> Command:
    # Longer than a worker that is not frozen takes to begin, however busy this machine is.
    settings = {"CONTEXT_CACHE_ROOT": str(root), "CONTEXT_TOOL_TIMEOUT_SECS": "5"}
    return Command((sys.executable, str(Path(__file__).with_name("frozen_server.py"))), settings)
