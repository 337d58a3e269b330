"""`context fold show`: what a branch was asked, what it did and what came of it."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.fold.folds import PROJECT, Agent, on_terminal, without_colours
from tests.support.clauses import covers
from tests.support.machine import COMMAND, Call, Ran


class Filled(NamedTuple):
    store: Path
    branches: dict[str, str]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    path = tmp_path_factory.mktemp("show") / "state.db"
    agent = Agent(path)
    agent.record("Read", "on the main thread")
    find = agent.branch("Find", "Find the fault.\n\tAnd say where.")
    agent.record("Bash", "\n".join(f"line {number}" for number in range(1, 8)))
    agent.record("Grep", "no such file", failed=True)
    look = agent.branch("Look")
    agent.fold("Seen all of it.")
    agent.fold("The fault is in line 12.\nIt is off by one.")
    back = agent.branch("Try")
    agent.record("Edit", "a wrong way")
    detour = agent.branch("Detour")
    agent.rollback(back)
    return Filled(path, {"Find": find, "Look": look, "Try": back, "Detour": detour})


def shown(call: Call, filled: Filled, *argv: str) -> Ran:
    return call("fold", "show", *argv, "--project", PROJECT, "--store", filled.store)


@covers("product.md#fold-commands")
def test_a_pipe_gets_prompt_operations_child_and_summary_in_order(call: Call, filled: Filled) -> None:
    ran = shown(call, filled, filled.branches["Find"])
    lines = ran.out.decode().splitlines()
    assert ran.code == 0
    assert lines[0].split() == [filled.branches["Find"], "folded"]
    assert lines[1:3] == ["Find", "in main"]
    heads = [line.split() for line in lines[6:-1] if line[:1].isalpha()]
    assert [head[0] for head in heads] == ["prompt", "operation", "operation", "child", "summary", "branches"]
    assert heads[1][-2:] == ["Bash", "hook"]
    assert "failed" in heads[2]
    assert heads[3][-1] == filled.branches["Look"]
    assert "  |     And say where." in lines
    assert "  | It is off by one." in lines
    assert lines[-1].split() == [filled.branches["Look"], "folded", "4", "Look"]


def test_of_a_long_text_the_first_lines_are_shown_and_all_with_full(call: Call, filled: Filled) -> None:
    short = shown(call, filled, filled.branches["Find"]).out.decode()
    assert "  | line 3\n  | … 4 more lines, see --full\n" in short
    assert "line 4" not in short
    whole = shown(call, filled, filled.branches["Find"], "--full").out.decode()
    assert "  | line 7\n" in whole
    assert "--full" not in whole


def test_programs_get_every_entry_whole(call: Call, filled: Filled) -> None:
    told = json.loads(shown(call, filled, filled.branches["Find"], "--json").out)
    assert list(told) == ["session_id", "branch_id", "branch", "entries"]
    assert told["branch"]["description"] == "Find"
    kinds = [entry["kind"] for entry in told["entries"]]
    assert kinds == ["prompt", "operation", "operation", "child", "summary"]
    assert told["entries"][1] == {
        "n": told["entries"][1]["n"],
        "at": told["entries"][1]["at"],
        "kind": "operation",
        "type": "Bash",
        "source": "hook",
        "failed": False,
        "tokens": 12,
        "text": "\n".join(f"line {number}" for number in range(1, 8)),
    }
    assert told["entries"][3]["branch_id"] == filled.branches["Look"]


def test_what_a_rollback_took_back_is_marked(call: Call, filled: Filled) -> None:
    told = json.loads(shown(call, filled, filled.branches["Try"], "--json").out)
    assert [(entry["kind"], entry.get("undone", False)) for entry in told["entries"]] == [
        ("prompt", False), ("operation", True), ("rollback", False),
    ]  # fmt: skip
    assert "undone" in shown(call, filled, filled.branches["Try"]).out.decode()
    assert shown(call, filled, filled.branches["Detour"]).out.decode().split()[1] == "discarded"


def test_main_is_the_main_thread(call: Call, filled: Filled) -> None:
    told = json.loads(shown(call, filled, "main", "--json").out)
    assert told["branch_id"] is told["branch"] is None
    assert told["session_id"].startswith("sess_")
    assert [entry["kind"] for entry in told["entries"]] == ["operation", "child", "rollback"]
    assert shown(call, filled, "main").out.decode().startswith("main thread\n")


def test_a_beginning_of_an_id_is_enough_if_it_is_the_only_one(call: Call, filled: Filled) -> None:
    wanted = filled.branches["Find"]
    for given in (wanted, wanted[:12], wanted.removeprefix("br_")[:9]):
        assert json.loads(shown(call, filled, given, "--json").out)["branch_id"] == wanted
    for given in ("br_", "br"):
        ran = shown(call, filled, given)
        assert (ran.code, ran.out) == (1 if given == "br_" else 8, b"")
    assert "is the prefix of several ids" in shown(call, filled, "br_").err


@pytest.mark.parametrize("given", ["br_none", "nothing", "br_\x1b[31m", "%", "'"])
def test_a_branch_that_is_not_there_is_exit_8_and_says_where_to_look(call: Call, filled: Filled, given: str) -> None:
    ran = shown(call, filled, given)
    assert (ran.code, ran.out) == (8, b"")
    assert "Branch not found" in ran.err
    assert "context fold list" in ran.err
    assert "\x1b" not in ran.err


def test_an_ended_session_s_branch_is_still_there_by_its_whole_id(call: Call, tmp_path: Path) -> None:
    path, long_ago = tmp_path / "state.db", datetime.now(UTC) - timedelta(days=2)
    past = Agent(path, clock=lambda: long_ago)
    branch_id = past.branch("Long ago")
    past.fold("It was so.")
    Agent(path).end_idle()
    ran = call("fold", "show", branch_id, "--project", PROJECT, "--store", path)
    assert ran.code == 0
    assert "  | It was so.\n" in ran.out.decode()
    told = json.loads(call("fold", "show", branch_id, "--project", PROJECT, "--store", path, "--json").out)
    assert (told["session_id"], told["branch"]) == (None, None)
    assert [entry["kind"] for entry in told["entries"]] == ["prompt", "summary"]
    assert call("fold", "show", branch_id[:9], "--project", PROJECT, "--store", path).code == 8
    assert call("fold", "show", branch_id, "--project", "/elsewhere", "--store", path).code == 8
    assert call("fold", "show", branch_id, "--owner", "alice", "--project", PROJECT, "--store", path).code == 8
    ran = call("fold", "show", "main", "--project", PROJECT, "--store", path)
    assert ran.code == 8
    assert "context fold status --all" in ran.err


def test_a_branch_of_many_pages_is_shown_to_its_end(call: Call, tmp_path: Path) -> None:
    agent = Agent(tmp_path / "state.db")
    branch_id = agent.branch("Long")
    for number in range(110):
        agent.record("Bash", f"number {number}.")
    told = json.loads(
        call("fold", "show", branch_id, "--project", PROJECT, "--store", tmp_path / "state.db", "--json").out
    )
    assert [entry["text"] for entry in told["entries"][1:]] == [f"number {number}." for number in range(110)]
    text = call("fold", "show", branch_id, "--project", PROJECT, "--store", tmp_path / "state.db").out.decode()
    assert text.count("  | number ") == 110


def test_a_terminal_shows_marks_and_cuts_what_does_not_fit(filled: Filled) -> None:
    argv = ("fold", "show", filled.branches["Find"], "--project", PROJECT, "--store", filled.store)
    drawn = without_colours(on_terminal(*argv, columns=40))
    assert max(map(len, drawn.splitlines())) <= 40
    assert "✓ folded" in drawn
    assert "› prompt" in drawn
    assert "· Bash" in drawn
    assert "✗ Grep" in drawn
    assert "✓ summary" in drawn


def test_a_reader_that_leaves_early_has_what_it_wanted(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "state.db")
    branch_id = agent.branch("Big")
    for _ in range(3):
        agent.record("Read", "word\n" * 100_000)
    show = f"{COMMAND} fold show {branch_id} --full --project {PROJECT} --store {tmp_path / 'state.db'}"
    script = f"{show} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


def test_a_whole_id_is_found_from_any_folder(
    call: Call, filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = filled.branches["Find"]
    ran = call("fold", "show", wanted, "--store", filled.store, "--json")
    assert json.loads(ran.out)["branch_id"] == wanted
