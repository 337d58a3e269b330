"""`context fold rollback`: says what it discards, asks, and does it only then."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.fold.folds import PROJECT, Agent, Terminal, on_terminal, without_colours
from tests.support.clauses import covers
from tests.support.daemon import Daemon, HttpAgent
from tests.support.machine import COMMAND, Call, Ran


class Filled(NamedTuple):
    store: Path
    find: str
    look: str
    fix: str


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    """The main thread with 1,000 tokens; Find, which is folded and contains Look; then Fix, which is open."""
    agent = Agent(tmp_path / "state.db")
    agent.record("Read", tokens=1_000)
    find = agent.branch("Find")
    agent.record("Bash", tokens=500)
    look = agent.branch("Look")
    agent.fold("seen")
    agent.fold("found")
    fix = agent.branch("Fix")
    agent.record("Edit", tokens=3_000)
    return Filled(tmp_path / "state.db", find, look, fix)


def argv(filled: Filled, *words: str) -> list[object]:
    return ["fold", "rollback", *words, "--project", PROJECT, "--store", filled.store]


def statuses(call: Call, filled: Filled) -> dict[str, str]:
    told = json.loads(call("fold", "list", "--project", PROJECT, "--store", filled.store, "--json").out)
    return {branch["description"]: branch["status"] for branch in told["branches"]}


AS_IT_WAS = {"Find": "folded", "Look": "folded", "Fix": "active"}
ROLLED_BACK = {"Find": "active", "Look": "discarded", "Fix": "discarded"}


@covers("product.md#fold-commands")
def test_it_says_what_it_discards_and_asks(call: Call, filled: Filled) -> None:
    terminal = Terminal(*argv(filled, filled.find))
    asked = without_colours(terminal.until("Roll back? [y/N] ")).replace("\r\n", "\n")
    assert "Back to where" in asked
    assert "everything since is undone" in asked
    discarded, opened = asked.split("open again")
    assert "discarded  2 branches" in discarded
    assert "Look" in discarded
    assert "Fix" in discarded
    assert "Find" in opened
    assert "tokens  4,006 → 1,004" in asked
    assert statuses(call, filled) == AS_IT_WAS
    terminal.type("y\n")
    code, seen = terminal.finish()
    assert code == 0
    assert "2 branches discarded, 3,002 tokens recovered, 1,004 left" in without_colours(seen)
    assert statuses(call, filled) == ROLLED_BACK


@pytest.mark.parametrize("answer", ["n\n", "\n", "yes please\n", "\x04"])
def test_any_answer_but_yes_changes_nothing(call: Call, filled: Filled, answer: str) -> None:
    terminal = Terminal(*argv(filled, filled.find))
    terminal.until("[y/N] ")
    terminal.type(answer)
    code, seen = terminal.finish()
    assert code == 1
    assert "nothing was rolled back" in seen
    assert statuses(call, filled) == AS_IT_WAS


def test_an_interrupt_at_the_question_changes_nothing(call: Call, filled: Filled) -> None:
    terminal = Terminal(*argv(filled, filled.find))
    terminal.until("[y/N] ")
    terminal.type("\x03")
    code, seen = terminal.finish()
    assert code == 130
    assert "Traceback" not in seen
    assert statuses(call, filled) == AS_IT_WAS


def test_a_session_that_went_on_while_it_asked_is_left_alone(call: Call, filled: Filled) -> None:
    terminal = Terminal(*argv(filled, filled.find))
    terminal.until("[y/N] ")
    Agent(filled.store).branch("Meanwhile")
    terminal.type("y\n")
    code, seen = terminal.finish()
    assert code == 8
    assert "the session went on meanwhile" in seen
    assert statuses(call, filled) == {**AS_IT_WAS, "Meanwhile": "active"}


@pytest.mark.parametrize("stdin", [subprocess.DEVNULL, subprocess.PIPE])
def test_without_a_terminal_it_asks_nobody_and_does_nothing(call: Call, filled: Filled, stdin: int) -> None:
    words = [str(COMMAND), *map(str, argv(filled, filled.find))]
    process = subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(b"y\n" if stdin == subprocess.PIPE else None, timeout=60)
    assert (process.returncode, out) == (1, b"")
    assert b"--yes" in err
    assert statuses(call, filled) == AS_IT_WAS


def test_yes_does_not_ask(call: Call, filled: Filled) -> None:
    ran = call(*argv(filled, filled.find, "--yes"))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.decode() == (f"back at {filled.find}: 2 branches discarded, 3002 tokens recovered, 1004 left\n")
    assert statuses(call, filled) == ROLLED_BACK


def test_keep_discards_later_branches_alone(call: Call, filled: Filled) -> None:
    told = answered(call(*argv(filled, filled.find, "--yes", "--keep", "--json")))
    assert told["branches_discarded"] == [filled.look, filled.fix]
    # The branch's summary in the main thread and its own work are counted.
    assert told["context_state"]["total_tokens"] == 1_000 + 2 + 505
    assert statuses(call, filled) == ROLLED_BACK


def test_programs_get_the_answer_of_the_tool(call: Call, filled: Filled) -> None:
    assert answered(call(*argv(filled, filled.fix[:12], "--yes", "--json"))) == {
        "rolled_back_to": filled.fix,
        "branches_discarded": [],
        "tokens_recovered": 3_000,
        "context_state": {"active_branch_id": filled.fix, "branch_depth": 1, "total_tokens": 1_006},
    }


def test_a_dry_run_tells_and_changes_nothing(call: Call, filled: Filled) -> None:
    text = call(*argv(filled, filled.find, "--dry-run")).out.decode()
    assert f"Back to where {filled.find} began: Find\n" in text
    assert "tokens  4006 → 1004\n" in text
    assert "Roll back?" not in text
    told = answered(call(*argv(filled, filled.find, "--dry-run", "--json")))
    assert [branch["id"] for branch in told["branches_discarded"]] == [filled.look, filled.fix]
    assert [branch["id"] for branch in told["reopened"]] == [filled.find]
    assert (told["tokens_recovered"], told["total_tokens_after"]) == (3_002, 1_004)
    assert statuses(call, filled) == AS_IT_WAS
    assert "[y/N]" not in on_terminal(*argv(filled, filled.find, "--dry-run"))


def test_a_nested_branch_brings_those_around_it_back_too(call: Call, filled: Filled) -> None:
    text = call(*argv(filled, filled.look, "--dry-run")).out.decode()
    opened = text.split("open again")[1]
    assert opened.startswith("  2 branches\n")
    assert opened.index("Find") < opened.index("Look")


def test_what_cannot_be_rolled_back_to_is_refused(call: Call, filled: Filled) -> None:
    assert call(*argv(filled, "br_none", "--yes")).code == 8
    assert call(*argv(filled, "main", "--yes")).code == 1
    assert call(*argv(filled, filled.find, "--yes")).code == 0
    ran = call(*argv(filled, filled.fix, "--yes"))
    assert (ran.code, ran.out) == (8, b"")
    assert "branch is discarded" in ran.err
    ran = call("fold", "rollback", filled.find, "--yes", "--project", "/nowhere", "--store", filled.store)
    assert ran.code == 8
    assert "Session not found: /nowhere" in ran.err


def test_a_running_daemon_goes_on_from_there(call: Call, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    try:
        agent = HttpAgent(daemon.port)
        first = agent.call("context_branch", project_path=PROJECT, description="First", prompt="Begin")["branch_id"]
        agent.call("context_branch", project_path=PROJECT, description="Second", prompt="Begin")
        ran = call("fold", "rollback", first, "--yes", "--project", PROJECT, "--store", daemon.store)
        assert ran.code == 0, ran.err
        assert agent.call("context_branch_status", project_path=PROJECT)["branch_path"] == ["main", first]
        agent.close()
    finally:
        daemon.stop()


def answered(ran: Ran) -> Any:
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_a_whole_id_is_rolled_back_to_from_any_folder(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch_id = Agent(tmp_path / "state.db").branch("Elsewhere")
    monkeypatch.chdir(tmp_path)
    ran = call("fold", "rollback", branch_id, "--dry-run", "--json", "--store", tmp_path / "state.db")
    assert (ran.code, json.loads(ran.out)["rolled_back_to"]) == (0, branch_id)
    assert call("fold", "rollback", "br_none", "--dry-run", "--store", tmp_path / "state.db").code == 8
