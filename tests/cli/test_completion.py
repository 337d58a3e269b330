"""Completion scripts work in each shell that is on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from argparse import SUPPRESS
from pathlib import Path

import pytest

from contextfold.cli.commands import COMMANDS
from tests.support.machine import Call

FIRST_WORDS = {command.name.split()[0] for command in COMMANDS}
FOLD_WORDS = {"status", "list", "misses", "now", "show", "expand", "savings", "report", "rollback", "search", "tail"}


def bash_completes(script: str, cwd: Path, *words: str) -> set[str]:
    words_quoted = " ".join(f"'{word}'" for word in words)
    probe = (
        f"{script}\nCOMP_WORDS=({words_quoted}); COMP_CWORD={len(words) - 1}; _shtab_context;"
        " printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", probe], capture_output=True, text=True, cwd=cwd, check=True)
    return set(done.stdout.split())


def test_bash_completes_commands_options_choices_and_folders(call: Call, tmp_path: Path) -> None:
    script = call("completion", "bash").out.decode()
    (tmp_path / "folder").mkdir()
    assert bash_completes(script, tmp_path, "context", "") == FIRST_WORDS
    assert bash_completes(script, tmp_path, "context", "--") == {"--help", "--version"}
    assert bash_completes(script, tmp_path, "context", "re") == {"recall", "resolve"}
    assert bash_completes(script, tmp_path, "context", "resolve", "--") == {
        "--cache",
        "--query",
        "--budget",
        "--format",
        "--help",
    }
    assert bash_completes(script, tmp_path, "context", "resolve", "--format", "") == {"json", "pretty"}
    assert bash_completes(script, tmp_path, "context", "build", "--sources", "fo") == {"folder"}
    assert bash_completes(script, tmp_path, "context", "completion", "z") == {"zsh"}
    assert bash_completes(script, tmp_path, "context", "fold", "") == FOLD_WORDS
    assert "--project" in bash_completes(script, tmp_path, "context", "fold", "search", "--")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_script_has_every_command_and_option(shell: str, call: Call) -> None:
    script = call("completion", shell).out.decode()
    for command in COMMANDS:
        assert all(word in script for word in command.name.split())
        for argument in command.parser().arguments:
            names = [name.lstrip("-") for name in argument.option_strings]
            assert argument.help == SUPPRESS or all(name in script for name in names)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_script_parses_in_its_shell(shell: str, call: Call) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not on this machine")
    script = call("completion", shell).out
    subprocess.run([shell, "-n"], input=script, check=True, capture_output=True)


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not on this machine")
def test_fish_completes_commands_and_choices(call: Call, tmp_path: Path) -> None:
    (tmp_path / "context.fish").write_bytes(call("completion", "fish").out)

    def completes(line: str) -> set[str]:
        script = f"source {tmp_path / 'context.fish'}; complete -C '{line}'"
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        done = subprocess.run(["fish", "-c", script], capture_output=True, text=True, env=env, check=True)
        return {row.partition("\t")[0] for row in done.stdout.splitlines()}

    assert completes("context re") == {"resolve"}
    assert completes("context resolve --format ") == {"json", "pretty"}
    assert completes("context fold ") == FOLD_WORDS
    assert completes("context fold search --pro") == {"--project"}
    assert completes("context install ") >= {"claude-code", "claude-desktop", "cursor", "vscode"}
