"""`context fold show`: the prompt, the operations and the summary of a branch."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.fold.folds import PROJECT, StoreAgent, on_terminal, without_colours
from tests.support.machine import Call, Ran


class ShownStore(NamedTuple):
    store: Path
    branches: dict[str, str]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> ShownStore:
    path = tmp_path_factory.mktemp("show") / "state.db"
    agent = StoreAgent(path)
    agent.record("Read", "on the main thread")
    find = agent.branch("Find", "Find the fault.\n\tAnd say where.")
    agent.record("Bash", "\n".join(f"line {number}" for number in range(1, 8)))
    agent.record("Grep", "no such file", failed=True)
    look = agent.branch("Look")
    agent.fold("Seen all of it.")
    agent.fold("The fault is in line 12.\nIt is off by one.")
    try_id = agent.branch("Try")
    agent.record("Edit", "a wrong way")
    detour = agent.branch("Detour")
    agent.rollback(try_id)
    return ShownStore(path, {"Find": find, "Look": look, "Try": try_id, "Detour": detour})


def run_show(call: Call, filled: ShownStore, *argv: str) -> Ran:
    return call("fold", "show", *argv, "--project", PROJECT, "--store", filled.store)


def test_a_pipe_gets_prompt_operations_children_and_summary_in_order(call: Call, filled: ShownStore) -> None:
    ran = run_show(call, filled, filled.branches["Find"])
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


def test_a_long_text_is_cut_unless_full_is_given(call: Call, filled: ShownStore) -> None:
    short = run_show(call, filled, filled.branches["Find"]).out.decode()
    assert "  | line 3\n  | … 4 more lines, see --full\n" in short
    assert "line 4" not in short
    whole = run_show(call, filled, filled.branches["Find"], "--full").out.decode()
    assert "  | line 7\n" in whole
    assert "--full" not in whole


def test_json_has_every_entry_in_full(call: Call, filled: ShownStore) -> None:
    printed = json.loads(run_show(call, filled, filled.branches["Find"], "--json").out)
    assert list(printed) == ["session_id", "branch_id", "branch", "entries"]
    assert printed["branch"]["description"] == "Find"
    kinds = [entry["kind"] for entry in printed["entries"]]
    assert kinds == ["prompt", "operation", "operation", "child", "summary"]
    assert printed["entries"][1] == {
        "n": printed["entries"][1]["n"],
        "at": printed["entries"][1]["at"],
        "kind": "operation",
        "type": "Bash",
        "source": "hook",
        "failed": False,
        "tokens": 12,
        "text": "\n".join(f"line {number}" for number in range(1, 8)),
    }
    assert printed["entries"][3]["branch_id"] == filled.branches["Look"]


def test_undone_work_is_marked(call: Call, filled: ShownStore) -> None:
    printed = json.loads(run_show(call, filled, filled.branches["Try"], "--json").out)
    assert [(entry["kind"], entry.get("undone", False)) for entry in printed["entries"]] == [
        ("prompt", False), ("operation", True), ("rollback", False),
    ]  # fmt: skip
    assert "undone" in run_show(call, filled, filled.branches["Try"]).out.decode()
    assert run_show(call, filled, filled.branches["Detour"]).out.decode().split()[1] == "discarded"


def test_the_name_main_shows_the_main_thread(call: Call, filled: ShownStore) -> None:
    printed = json.loads(run_show(call, filled, "main", "--json").out)
    assert printed["branch_id"] is printed["branch"] is None
    assert printed["session_id"].startswith("sess_")
    assert [entry["kind"] for entry in printed["entries"]] == ["operation", "child", "rollback"]
    assert run_show(call, filled, "main").out.decode().startswith("main thread\n")


def test_a_unique_prefix_of_an_id_is_enough(call: Call, filled: ShownStore) -> None:
    wanted = filled.branches["Find"]
    for given in (wanted, wanted[:12], wanted.removeprefix("br_")[:9]):
        assert json.loads(run_show(call, filled, given, "--json").out)["branch_id"] == wanted
    for given in ("br_", "br"):
        ran = run_show(call, filled, given)
        assert (ran.code, ran.out) == (1 if given == "br_" else 8, b"")
    assert "is the prefix of several ids" in run_show(call, filled, "br_").err


@pytest.mark.parametrize("given", ["br_none", "nothing", "br_\x1b[31m", "%", "'"])
def test_a_missing_branch_is_exit_8_and_the_error_names_the_list_command(
    call: Call, filled: ShownStore, given: str
) -> None:
    ran = run_show(call, filled, given)
    assert (ran.code, ran.out) == (8, b"")
    assert "Branch not found" in ran.err
    assert "context fold list" in ran.err
    assert "\x1b" not in ran.err


def test_a_branch_of_an_ended_session_is_shown_by_its_full_id(call: Call, tmp_path: Path) -> None:
    path, two_days_ago = tmp_path / "state.db", datetime.now(UTC) - timedelta(days=2)
    past_agent = StoreAgent(path, clock=lambda: two_days_ago)
    branch_id = past_agent.branch("Long ago")
    past_agent.fold("It was so.")
    StoreAgent(path).end_idle()
    ran = call("fold", "show", branch_id, "--project", PROJECT, "--store", path)
    assert ran.code == 0
    assert "  | It was so.\n" in ran.out.decode()
    printed = json.loads(call("fold", "show", branch_id, "--project", PROJECT, "--store", path, "--json").out)
    assert (printed["session_id"], printed["branch"]) == (None, None)
    assert [entry["kind"] for entry in printed["entries"]] == ["prompt", "summary"]
    assert call("fold", "show", branch_id[:9], "--project", PROJECT, "--store", path).code == 8
    assert call("fold", "show", branch_id, "--project", "/elsewhere", "--store", path).code == 8
    assert call("fold", "show", branch_id, "--owner", "alice", "--project", PROJECT, "--store", path).code == 8
    ran = call("fold", "show", "main", "--project", PROJECT, "--store", path)
    assert ran.code == 8
    assert "context fold status --all" in ran.err


def test_a_branch_of_many_pages_is_shown_completely(call: Call, tmp_path: Path) -> None:
    agent = StoreAgent(tmp_path / "state.db")
    branch_id = agent.branch("Long")
    for number in range(110):
        agent.record("Bash", f"number {number}.")
    printed = json.loads(
        call("fold", "show", branch_id, "--project", PROJECT, "--store", tmp_path / "state.db", "--json").out
    )
    assert [entry["text"] for entry in printed["entries"][1:]] == [f"number {number}." for number in range(110)]
    text = call("fold", "show", branch_id, "--project", PROJECT, "--store", tmp_path / "state.db").out.decode()
    assert text.count("  | number ") == 110


def test_a_terminal_shows_marks_and_cuts_long_lines(filled: ShownStore) -> None:
    argv = ("fold", "show", filled.branches["Find"], "--project", PROJECT, "--store", filled.store)
    drawn = without_colours(on_terminal(*argv, columns=40))
    assert max(map(len, drawn.splitlines())) <= 40
    assert "✓ folded" in drawn
    assert "› prompt" in drawn
    assert "· Bash" in drawn
    assert "✗ Grep" in drawn
    assert "✓ summary" in drawn


def test_a_full_id_works_in_any_folder(
    call: Call, filled: ShownStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = filled.branches["Find"]
    ran = call("fold", "show", wanted, "--store", filled.store, "--json")
    assert json.loads(ran.out)["branch_id"] == wanted
