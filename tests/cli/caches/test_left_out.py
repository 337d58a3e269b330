"""What is not in an answer is counted: in the JSON, and in the last line of the text."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from contextfold import open_cache
from tests.support.machine import COMMAND, Call, read_terminal, write_files

SECTIONS = 40
DOCS = {
    "long.md": "# Long\n\n"
    + "".join(f"## Step {n}\n\nThe deployment of part {n} takes a few words to explain.\n\n" for n in range(SECTIONS)),
    "windows.md": "# Windows\r\n\r\nEvery line ends with two characters.\r\n",
}


@pytest.fixture
def cache(tmp_path: Path, call: Call) -> Path:
    folder = write_files(tmp_path / "docs", DOCS)
    assert call("build", folder).code == 0
    return folder / ".context-cache"


def on_a_terminal(*argv: str | Path) -> tuple[str, str]:
    """What a command prints to a terminal, and what it prints to stderr."""
    terminal, stdout = pty.openpty()
    process = subprocess.Popen([COMMAND, *argv], stdout=stdout, stderr=subprocess.PIPE)
    os.close(stdout)
    seen = read_terminal(terminal)
    os.close(terminal)
    err = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 0, err
    return seen.replace("\r\n", "\n"), err


@pytest.mark.parametrize("budget", [0, 10, 100, 500, 100_000])
def test_get_counts_the_sections_that_do_not_fit(cache: Path, budget: int, call: Call) -> None:
    answer = json.loads(call("get", "--json", "long.md", "--cache", cache, "--budget", str(budget)).out)
    sections, left_out = answer["document"]["sections"], answer["document"]["left_out"]
    assert len(sections) + answer["sections_left_out"] == SECTIONS
    assert len(left_out) <= answer["sections_left_out"]
    assert answer["tokens_used"] <= budget


@pytest.mark.parametrize("unit", ["section", "document"])
@pytest.mark.parametrize("budget", [0, 30, 200, 100_000])
def test_ask_counts_the_matching_sections_that_do_not_fit(cache: Path, unit: str, budget: int) -> None:
    selection = open_cache(cache).ask("deployment", budget, unit=unit).selection
    if unit == "section":
        assert selection.sections_selected + selection.sections_left_out == selection.sections_matched == SECTIONS
    else:
        assert selection.sections_left_out == (0 if selection.sections_selected else SECTIONS)


def test_a_duplicate_of_a_selected_section_is_not_counted_as_left_out(tmp_path: Path, call: Call) -> None:
    docs = write_files(tmp_path / "twice", {f"{n}.md": "# Same\n\nThe deployment.\n" for n in range(3)})
    assert call("build", docs).code == 0
    for unit in ("section", "document"):
        selection = open_cache(docs / ".context-cache").ask("deployment", 1000, unit=unit).selection
        assert (selection.sections_selected, selection.sections_left_out) == (1, 0)


@pytest.mark.parametrize("counter", ["estimate-1", "o200k"])
def test_the_tokens_of_a_left_out_section_are_what_it_costs(cache: Path, counter: str) -> None:
    if counter == "o200k":
        pytest.importorskip("bpe_openai")
    opened = open_cache(cache)
    (missing,) = opened.get("long.md", 20, section="Step 7", counter=counter).document.left_out
    (section,) = opened.get("long.md", missing.tokens, section="Step 7", counter=counter).document.sections
    assert section.tokens == missing.tokens
    assert opened.get("long.md", missing.tokens - 1, section="Step 7", counter=counter).sections_left_out == 1


def test_a_terminal_shows_how_many_sections_do_not_fit(cache: Path) -> None:
    shown, _ = on_a_terminal("get", "long.md", "--cache", cache, "--budget", "10")
    assert shown.startswith(f"[{SECTIONS} more sections do not fit the budget")
    shown, note = on_a_terminal("ask", "deployment xyzzy", "--cache", cache, "--budget", "200")
    assert "The deployment of part" in shown
    last, first = shown.rstrip("\n").splitlines()[-2:]
    assert re.fullmatch(r"\[\d+ more sections do not fit the budget.*\]", first)
    assert last == "[not in the cache: xyzzy]"
    assert note == ""


def test_an_empty_answer_is_explained_once(cache: Path) -> None:
    shown, note = on_a_terminal("ask", "xyzzy", "--cache", cache)
    assert (shown.count("Nothing in the cache matches"), note) == (1, "")


def test_lines_that_end_with_two_characters_are_shown_without_the_first(cache: Path) -> None:
    shown, _ = on_a_terminal("get", "windows.md", "--cache", cache)
    assert "Every line ends with two characters.\n" in shown
    assert "\\x0d" not in shown
