"""All `context fold` commands on a terminal: no stored text controls the terminal, and no line is too wide."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.cells import cell_len

from tests.cli.fold.folds import PROJECT, StoreAgent, Terminal, on_terminal, without_colours
from tests.support.machine import Call

# Characters that change the direction of text.
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"
HOSTILE = f"\x1b[2J\x1b]0;title\x07\x9b31m[bold red]:smile:\r\b{BIDI}日本語🙂 and on and on and on and on and on"
ESCAPED = ("\\x1b[2J", "\\x07", "\\x9b31m", "[bold red]:smile:", "\\u202e", "\\u2066")
# The escape character is allowed only as part of a colour.
ALLOWED = {"\n", "\r", "\x1b"}


class HostileStore(NamedTuple):
    store: Path
    branch_id: str


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> HostileStore:
    path = tmp_path_factory.mktemp("hostile") / "state.db"
    agent = StoreAgent(path)
    agent.branch(HOSTILE, HOSTILE)
    agent.record("Bash[red]", HOSTILE)
    agent.fold(f"needle {HOSTILE}")
    branch_id = agent.branch(HOSTILE, HOSTILE)
    agent.record("Bash[red]", HOSTILE, failed=True)
    return HostileStore(path, branch_id)


COMMANDS = {
    "status": ["status"],
    "all": ["status", "--all"],
    "list": ["list"],
    "show": ["show", "BRANCH"],
    "full": ["show", "BRANCH", "--full"],
    "main": ["show", "main"],
    "rollback": ["rollback", "BRANCH", "--dry-run"],
    "search": ["search", "needle"],
}


def arguments_of(name: str, hostile_store: HostileStore) -> list[object]:
    arguments = [hostile_store.branch_id if word == "BRANCH" else word for word in COMMANDS[name]]
    project = [] if name == "all" else ["--project", PROJECT]
    return ["fold", *arguments, *project, "--store", hostile_store.store]


def forbidden(text: str) -> set[str]:
    """Characters that control a terminal or change the direction of text."""
    return {c for c in text if (c < " " or "\x7f" <= c < "\xa0" or c in BIDI) and c not in ALLOWED}


@pytest.mark.parametrize("columns", [80, 40])
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_stored_text_controls_the_terminal(hostile: HostileStore, name: str, columns: int) -> None:
    output = on_terminal(*arguments_of(name, hostile), columns=columns)
    drawn = without_colours(output)
    assert forbidden(output) == set()
    assert "\x1b" not in drawn
    assert "\r" not in drawn
    assert max(cell_len(line) for line in drawn.splitlines()) <= columns
    if name not in ("all", "list") and columns == 80:
        assert any(escaped in drawn for escaped in ESCAPED)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_pipe_gets_plain_text(call: Call, hostile: HostileStore, name: str) -> None:
    ran = call(*arguments_of(name, hostile))
    text = ran.out.decode()
    assert ran.code == 0
    assert forbidden(text) == set()
    assert not set("\x1b\r├└│█░●○✓✗") & set(text)
    assert name in ("all", "status") or all(escaped in text for escaped in ESCAPED)


def test_tail_escapes_hostile_texts(hostile: HostileStore) -> None:
    argv = ["fold", "tail", "--since-start", "--all", "--store", hostile.store]
    terminal = Terminal(*argv, columns=200)
    terminal.until("✗ failed")
    terminal.process.send_signal(signal.SIGINT)
    code, output = terminal.finish()
    assert code == 0
    assert forbidden(output) == set()
    assert "\x1b" not in without_colours(output).replace("^C", "")
    assert "\\x1b[2J" in output


def test_search_highlights_the_words_of_the_query(hostile: HostileStore) -> None:
    output = on_terminal("fold", "search", "NEED", "--store", hostile.store)
    assert "\x1b[1;33mneedle\x1b[0m" in output
    assert "no summary has all of these words" in on_terminal("fold", "search", "nothing", "--store", hostile.store)
