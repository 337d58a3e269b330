"""`context fold rollback`: it shows what would be discarded, and does it only after confirmation."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.fold.folds import PROJECT, StoreAgent, Terminal, on_terminal, without_colours
from tests.support.daemon import Daemon, HttpAgent
from tests.support.machine import COMMAND, Call, Ran


class RollbackStore(NamedTuple):
    store: Path
    find: str
    look: str
    fix: str


@pytest.fixture
def filled(tmp_path: Path) -> RollbackStore:
    """The main thread with 1,000 tokens; Find, which is folded and contains Look; then Fix, which is open."""
    agent = StoreAgent(tmp_path / "state.db")
    agent.record("Read", tokens=1_000)
    find = agent.branch("Find")
    agent.record("Bash", tokens=500)
    look = agent.branch("Look")
    agent.fold("seen")
    agent.fold("found")
    fix = agent.branch("Fix")
    agent.record("Edit", tokens=3_000)
    return RollbackStore(tmp_path / "state.db", find, look, fix)


def argv(filled: RollbackStore, *words: str) -> list[object]:
    return ["fold", "rollback", *words, "--project", PROJECT, "--store", filled.store]


def statuses(call: Call, filled: RollbackStore) -> dict[str, str]:
    result = json.loads(call("fold", "list", "--project", PROJECT, "--store", filled.store, "--json").out)
    return {branch["description"]: branch["status"] for branch in result["branches"]}


UNCHANGED = {"Find": "folded", "Look": "folded", "Fix": "active"}
ROLLED_BACK = {"Find": "active", "Look": "discarded", "Fix": "discarded"}


def test_it_lists_what_it_discards_and_asks_for_confirmation(call: Call, filled: RollbackStore) -> None:
    terminal = Terminal(*argv(filled, filled.find))
    question = without_colours(terminal.until("Roll back? [y/N] ")).replace("\r\n", "\n")
    assert "Back to where" in question
    assert "everything since is undone" in question
    discarded, opened = question.split("open again")
    assert "discarded  2 branches" in discarded
    assert "Look" in discarded
    assert "Fix" in discarded
    assert "Find" in opened
    assert "tokens  4,006 → 1,004" in question
    assert statuses(call, filled) == UNCHANGED
    terminal.type("y\n")
    code, output = terminal.finish()
    assert code == 0
    assert "2 branches discarded, 3,002 tokens recovered, 1,004 left" in without_colours(output)
    assert statuses(call, filled) == ROLLED_BACK


INTERRUPT = "\x03"


@pytest.mark.parametrize("answer", ["n\n", "\n", "yes please\n", "\x04", INTERRUPT])
def test_any_answer_but_yes_changes_nothing(call: Call, filled: RollbackStore, answer: str) -> None:
    terminal = Terminal(*argv(filled, filled.find))
    terminal.until("[y/N] ")
    terminal.type(answer)
    code, output = terminal.finish()
    assert code == (130 if answer == INTERRUPT else 1)
    assert answer == INTERRUPT or "nothing was rolled back" in output
    assert "Traceback" not in output
    assert statuses(call, filled) == UNCHANGED


def test_a_session_that_changed_during_the_question_is_not_rolled_back(call: Call, filled: RollbackStore) -> None:
    terminal = Terminal(*argv(filled, filled.find))
    terminal.until("[y/N] ")
    StoreAgent(filled.store).branch("Meanwhile")
    terminal.type("y\n")
    code, output = terminal.finish()
    assert code == 8
    assert "the session went on meanwhile" in output
    assert statuses(call, filled) == {**UNCHANGED, "Meanwhile": "active"}


@pytest.mark.parametrize("stdin", [subprocess.DEVNULL, subprocess.PIPE])
def test_without_a_terminal_and_without_yes_nothing_is_rolled_back(
    call: Call, filled: RollbackStore, stdin: int
) -> None:
    words = [str(COMMAND), *map(str, argv(filled, filled.find))]
    process = subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(b"y\n" if stdin == subprocess.PIPE else None, timeout=60)
    assert (process.returncode, out) == (1, b"")
    assert b"--yes" in err
    assert statuses(call, filled) == UNCHANGED


def test_yes_skips_the_question(call: Call, filled: RollbackStore) -> None:
    ran = call(*argv(filled, filled.find, "--yes"))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.decode() == (f"back at {filled.find}: 2 branches discarded, 3002 tokens recovered, 1004 left\n")
    assert statuses(call, filled) == ROLLED_BACK


def test_keep_discards_only_later_branches(call: Call, filled: RollbackStore) -> None:
    result = json_of(call(*argv(filled, filled.find, "--yes", "--keep", "--json")))
    assert result["branches_discarded"] == [filled.look, filled.fix]
    # The branch's summary in the main thread and its own work are counted.
    assert result["context_state"]["total_tokens"] == 1_000 + 2 + 505
    assert statuses(call, filled) == ROLLED_BACK


def test_json_is_the_result_of_the_rollback_tool(call: Call, filled: RollbackStore) -> None:
    assert json_of(call(*argv(filled, filled.fix[:12], "--yes", "--json"))) == {
        "rolled_back_to": filled.fix,
        "branches_discarded": [],
        "tokens_recovered": 3_000,
        "context_state": {"active_branch_id": filled.fix, "branch_depth": 1, "total_tokens": 1_006},
    }


def test_a_dry_run_prints_the_plan_and_changes_nothing(call: Call, filled: RollbackStore) -> None:
    text = call(*argv(filled, filled.find, "--dry-run")).out.decode()
    assert f"Back to where {filled.find} began: Find\n" in text
    assert "tokens  4006 → 1004\n" in text
    assert "Roll back?" not in text
    result = json_of(call(*argv(filled, filled.find, "--dry-run", "--json")))
    assert [branch["id"] for branch in result["branches_discarded"]] == [filled.look, filled.fix]
    assert [branch["id"] for branch in result["reopened"]] == [filled.find]
    assert (result["tokens_recovered"], result["total_tokens_after"]) == (3_002, 1_004)
    assert statuses(call, filled) == UNCHANGED
    assert "[y/N]" not in on_terminal(*argv(filled, filled.find, "--dry-run"))


def test_rolling_back_to_a_nested_branch_reopens_its_parents(call: Call, filled: RollbackStore) -> None:
    text = call(*argv(filled, filled.look, "--dry-run")).out.decode()
    opened = text.split("open again")[1]
    assert opened.startswith("  2 branches\n")
    assert opened.index("Find") < opened.index("Look")


def test_a_missing_main_or_discarded_branch_is_refused(call: Call, filled: RollbackStore) -> None:
    assert call(*argv(filled, "br_none", "--yes")).code == 8
    assert call(*argv(filled, "main", "--yes")).code == 1
    assert call(*argv(filled, filled.find, "--yes")).code == 0
    ran = call(*argv(filled, filled.fix, "--yes"))
    assert (ran.code, ran.out) == (8, b"")
    assert "branch is discarded" in ran.err
    ran = call("fold", "rollback", filled.find, "--yes", "--project", "/nowhere", "--store", filled.store)
    assert ran.code == 8
    assert "Session not found: /nowhere" in ran.err


def test_a_running_daemon_continues_from_the_rolled_back_branch(call: Call, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    try:
        agent = HttpAgent(daemon.port)
        first_id = agent.call("context_branch", project_path=PROJECT, description="First", prompt="Begin")["branch_id"]
        agent.call("context_branch", project_path=PROJECT, description="Second", prompt="Begin")
        ran = call("fold", "rollback", first_id, "--yes", "--project", PROJECT, "--store", daemon.store)
        assert ran.code == 0, ran.err
        assert agent.call("context_branch_status", project_path=PROJECT)["branch_path"] == ["main", first_id]
        agent.close()
    finally:
        daemon.stop()


def json_of(ran: Ran) -> Any:
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_a_full_id_works_in_any_folder(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    branch_id = StoreAgent(tmp_path / "state.db").branch("Elsewhere")
    monkeypatch.chdir(tmp_path)
    ran = call("fold", "rollback", branch_id, "--dry-run", "--json", "--store", tmp_path / "state.db")
    assert (ran.code, json.loads(ran.out)["rolled_back_to"]) == (0, branch_id)
    assert call("fold", "rollback", "br_none", "--dry-run", "--store", tmp_path / "state.db").code == 8
