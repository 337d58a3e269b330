"""Every line that docs/command-line.md types gives what the page shows."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from contextfold.cli.main import main
from tests.support.clauses import covers
from tests.support.machine import ROOT

PAGE = ROOT / "docs" / "command-line.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REST = "…"


def typed() -> list[tuple[str, str]]:
    """Each command of the page and the lines that follow it, in order."""
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    steps = [step for block in blocks for step in re.split(r"^\$ ", block, flags=re.MULTILINE) if step]
    return [(command, shown) for command, _, shown in (step.partition("\n") for step in steps)]


@covers("product.md#for-people")
def test_every_mistake_of_the_page_gives_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    shutil.copytree(ROOT / "examples" / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns(".context-cache"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "CONTEXT_STORE", "CONTEXT_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for command, shown in typed():
        code = main(shlex.split(command)[1:])
        out, err = (text.decode() for text in capfdbinary.readouterr())
        given = out + err + (f"exit {code}\n" if code else "")
        pattern = ".*".join(map(re.escape, shown.split(REST)))
        assert re.fullmatch(pattern, given, re.DOTALL), f"{command}\n{given}"
