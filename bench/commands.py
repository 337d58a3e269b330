"""How much processor time commands take to start, against a bare interpreter. They are started as `uv` installs them.

python -m bench.commands
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Figure, show, tell

TURNS = 15
# For a command that needs no store.
LIMIT = 2.5
# A command on the store imports SQLite and the modules of folding, opens the file and checks it.
STORE_LIMIT = 5.0
# A question with a keyword of a rule also loads RE2, reads the rules and compiles those that it needs.
RULES_LIMIT = 9.0
LIMITS = {
    "context fold status": STORE_LIMIT,
    "context recall": STORE_LIMIT,
    "context recall, a keyword of the rules": RULES_LIMIT,
}
PROGRAM = "import sys; from contextfold.cli.main import run; run()"
DOCUMENT = "# Roll back\n\nReturn to the last release that worked.\n"
PYTHON = "python -I"


def processor_s(argv: Sequence[str], env: dict[str, str]) -> float:
    """Of one run, whatever its exit code."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(argv, env=env, cwd=env["HOME"], stdin=quiet, stdout=quiet, stderr=quiet)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def main(turns: int = TURNS) -> bool:
    tell("starts of commands")
    with tempfile.TemporaryDirectory() as home:
        env = {"HOME": home, "PATH": os.environ["PATH"]}
        Path(home, "docs").mkdir()
        Path(home, "docs", "a.md").write_text(DOCUMENT)
        context = [sys.executable, "-c", PROGRAM]
        subprocess.run([*context, "build", "docs"], env=env, cwd=home, check=True)
        daemon = subprocess.Popen(
            [*context, "serve", "--port", "0"], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            assert daemon.stdout
            url = daemon.stdout.readline().split()[-1].removesuffix("/mcp")
            commands = {
                PYTHON: [sys.executable, "-I", "-c", "pass"],
                "context --version": [*context, "--version"],
                "context ask, one document": [*context, "ask", "roll back", "--cache", "docs/.context-cache"],
                "context doctor, no daemon": [*context, "doctor", "--url", "http://127.0.0.1:9"],
                "context doctor": [*context, "doctor", "--url", url],
                "context statusline": [*context, "statusline", "--url", url],
                "context run true": [*context, "run", "--url", url, "true"],
                "context fold status": [*context, "fold", "status", "--all"],
                "context recall": [*context, "recall", "roll back"],
                "context recall, a keyword of the rules": [*context, "recall", "rotate the auth token"],
            }
            taken = {
                name: statistics.median(times)
                for name, times in zip(
                    commands,
                    zip(*([processor_s(argv, env) for argv in commands.values()] for _ in range(turns)), strict=True),
                    strict=True,
                )
            }
        finally:
            daemon.terminate()
            daemon.communicate()
    bare_s = taken.pop(PYTHON)
    return show(
        "starts of commands (processor time)",
        [
            Figure(
                name,
                f"{1000 * taken_s:.1f} ms",
                f"{PYTHON} {1000 * bare_s:.1f} ms",
                taken_s / bare_s,
                LIMITS.get(name, LIMIT),
            )
            for name, taken_s in taken.items()
        ],
    )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
