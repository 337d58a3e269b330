"""The processor time of starting commands, compared with a bare interpreter. They are started as `uv` installs them.

python -m bench.commands
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Figure, report_progress, show
from contextfold.fold.project import Caller
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.store import LOCAL_OWNER
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.stores.sqlite.store import SqliteStore

TURNS = 15
# What a person types may take this many starts of a bare interpreter, and what a host runs as a hook this many.
LIMIT, HOOK_LIMIT = 5.0, 3.0
FOLDS = 20
HOOK = "context hook"
PROJECT = "/work/app"
PROGRAM = "import sys; from contextfold.cli.main import run; run()"
DOCUMENT = "# Roll back\n\nReturn to the last release that worked.\n"
PYTHON = "python -I"


def processor_s(argv: Sequence[str], env: dict[str, str]) -> float:
    """The processor time of one run, with any exit code."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(argv, env=env, cwd=env["HOME"], stdin=quiet, stdout=quiet, stderr=quiet)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


async def fill(path: Path) -> str:
    """A store with one session. Returns the id of its last branch."""
    service = FoldService(SqliteStore(path), standard_scrubber())
    caller, project = Caller(LOCAL_OWNER), {"project_path": PROJECT}
    for number in range(FOLDS):
        branch = {"description": f"Find fault {number} in the timer", "prompt": "Look into it."}
        opened = await service.open_branch(caller, {**project, **branch})
        done = {"type": "test", "content": "three tests fail\n" * 40}
        await service.record(caller, {**project, **done}, "hook")
        message = {"message": f"The clock was wrong in case {number}; the timer of module {number} was broken."}
        await service.return_branch(caller, {**project, **message})
    await service.close()
    branch_id: str = opened.answer["branch_id"]
    return branch_id


def main(turns: int = TURNS) -> bool:
    report_progress("starts of commands")
    with tempfile.TemporaryDirectory() as home:
        env = {"HOME": home, "PATH": os.environ["PATH"]}
        Path(home, "docs").mkdir()
        Path(home, "docs", "a.md").write_text(DOCUMENT)
        filled = Path(home, "filled.db")
        branch_id = asyncio.run(fill(filled))
        context = [sys.executable, "-c", PROGRAM]
        project_options = ["--project", PROJECT, "--store", str(filled)]
        subprocess.run([*context, "build", "docs"], env=env, cwd=home, check=True)
        # The first question builds the index of recall.
        recall_command = [*context, "recall", "who saw the broken timer", "--store", str(filled)]
        subprocess.run(recall_command, env=env, cwd=home, check=True, stdout=subprocess.DEVNULL)
        daemon = subprocess.Popen(
            [*context, "serve", "--port", "0"], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            assert daemon.stdout
            url = daemon.stdout.readline().split()[-1].removesuffix("/mcp")
            bare = [sys.executable, "-I", "-c", "pass"]
            commands = {
                "context --version": [*context, "--version"],
                "context ask, one document": [*context, "ask", "roll back", "--cache", "docs/.context-cache"],
                "context doctor, no daemon": [*context, "doctor", "--url", "http://127.0.0.1:9"],
                "context doctor": [*context, "doctor", "--url", url],
                HOOK: [*context, "hook", "claude-code", "--url", url],
                "context statusline": [*context, "statusline", "--url", url],
                "context run true": [*context, "run", "--url", url, "true"],
                "context fold status": [*context, "fold", "status", "--all"],
                "context recall": [*context, "recall", "roll back"],
                "context fold status, 20 folds": [*context, "fold", "status", *project_options],
                "context fold list, 20 folds": [*context, "fold", "list", *project_options],
                "context fold show, 20 folds": [*context, "fold", "show", "main", *project_options],
                "context fold search, 20 folds": [*context, "fold", "search", "clock", *project_options],
                "context fold savings, 20 folds": [*context, "fold", "savings", *project_options],
                "context fold expand, 20 folds": [*context, "fold", "expand", branch_id, *project_options],
                "context fold report, 20 folds": [*context, "fold", "report", *project_options],
                "context recall, 20 folds": recall_command,
            }
            # A bare interpreter before each command, because the machine's speed changes within a second.
            pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
            for _ in range(turns):
                for name, argv in commands.items():
                    pairs[name].append((processor_s(bare, env), processor_s(argv, env)))
        finally:
            daemon.terminate()
            daemon.communicate()
    return show(
        "starts of commands (processor time)",
        [
            Figure(
                name,
                f"{1000 * statistics.median(command_s for _, command_s in times):.1f} ms",
                f"{PYTHON} {1000 * statistics.median(bare_s for bare_s, _ in times):.1f} ms",
                statistics.median(command_s / bare_s for bare_s, command_s in times),
                HOOK_LIMIT if name == HOOK else LIMIT,
            )
            for name, times in pairs.items()
        ],
    )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
