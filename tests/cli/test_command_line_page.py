"""Every command in docs/command-line.md gives the output that the page shows."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from contextfold.cli.main import main
from tests.support.machine import ROOT

PAGE = ROOT / "docs" / "command-line.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELLIPSIS = "…"


def documented_commands() -> list[tuple[str, str]]:
    """Each command of the page with its expected output, in order."""
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    steps = [step for block in blocks for step in re.split(r"^\$ ", block, flags=re.MULTILINE) if step]
    return [(command, expected) for command, _, expected in (step.partition("\n") for step in steps)]


def test_every_command_on_the_page_gives_the_output_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    shutil.copytree(ROOT / "examples" / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns(".context-cache"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "CONTEXT_STORE", "CONTEXT_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for command, expected in documented_commands():
        code = main(shlex.split(command)[1:])
        out, err = (text.decode() for text in capfdbinary.readouterr())
        output = out + err + (f"exit {code}\n" if code else "")
        pattern = ".*".join(map(re.escape, expected.split(ELLIPSIS)))
        assert re.fullmatch(pattern, output, re.DOTALL), f"{command}\n{output}"
