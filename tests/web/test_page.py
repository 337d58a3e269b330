"""The dashboard in a real browser: every scenario of the `*.test.mjs` files in this folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.node import NODE
from tests.support.machine import SOURCE
from tests.support.prerequisites import BROWSER, CHROMIUM, CLIENTS, NATS, Prerequisite, require
from tests.web.daemons import daemon_server

HERE = Path(__file__).parent
WEB = SOURCE / "contextfold" / "web"
# A bound on a hang, not a measure.
PATIENCE_S = 600
WITH_NATS = [HERE / "nats.test.mjs"]
SCRIPTS = [
    path
    for path in sorted(HERE.glob("*.test.mjs"))
    if path not in WITH_NATS and (path.name != "images.test.mjs" or os.environ.get("CONTEXTFOLD_SCREENSHOTS") == "1")
]
IMPORT_ALL = "for (const script of process.argv.slice(1)) await import(script)"


@pytest.fixture
def short_folder() -> Iterator[str]:
    """Chromium creates a socket in this folder, and the path of a socket is limited to about a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="cf-", ignore_cleanup_errors=True) as folder:
        yield folder


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize(("scripts", "needed"), [(SCRIPTS, ()), (WITH_NATS, (NATS,))], ids=["SQLite", "NATS"])
def test_every_scenario_of_the_page_passes(
    scripts: list[Path], needed: tuple[Prerequisite, ...], short_folder: str
) -> None:
    """All scenarios share one browser, because starting one takes longer than most scenarios."""
    scenarios = sum(len(re.findall(r"^scenario\(", path.read_text(encoding="utf-8"), re.MULTILINE)) for path in scripts)
    require(BROWSER, CLIENTS, *needed)
    env = {
        **os.environ,
        "HOME": short_folder,
        "TMPDIR": short_folder,
        "CONTEXTFOLD_BIN": str(Path(sys.executable).parent),
        "CONTEXTFOLD_CHROMIUM": CHROMIUM,
        "CONTEXTFOLD_DAEMONS": f"{short_folder}/daemons",
    }
    argv: list[str | Path] = [NODE, "--test-reporter=tap", "--input-type=module", "--eval", IMPORT_ALL, *scripts]
    with daemon_server(Path(short_folder) / "daemons"):
        ran = subprocess.run(argv, env=env, capture_output=True, encoding="utf-8", timeout=PATIENCE_S, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"\n# pass {scenarios}\n" in ran.stdout, ran.stdout


def test_the_page_parses_no_markup_and_has_no_other_address() -> None:
    parsers = r"innerHTML|outerHTML|insertAdjacentHTML|DOMParser|document\.write|\beval\(|new Function|setHTML|srcdoc"
    # The namespace of SVG is not an address.
    other_address = r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[a-z]"
    for path in sorted(WEB.iterdir()):
        text = path.read_text(encoding="utf-8")
        assert not re.search(parsers, text), path
        assert not re.search(f"[\"'(]{other_address}", text), path
        if path.suffix == ".html":
            assert not re.search(r"<style|style=|\son[a-z]+=|<script(?! type=\"module\" src=| src=)", text), path
