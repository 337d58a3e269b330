"""`context fold list`: a session's branches as a tree, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextfold.cli.fold.list import guides, id_length
from tests.cli.fold.folds import PROJECT, StoreAgent, on_terminal, without_colours
from tests.support.machine import Call

BRANCH = [
    "id", "parent_id", "depth", "description", "status", "tokens", "summary_tokens", "tokens_removed", "tokens_saved",
    "operations",
    "failed_operations", "secrets_scrubbed", "created_at", "closed_at",
]  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A main thread with three branches: Find (folded) with a child Look, Try (folded) with a discarded child Detour,
    and Fix (open) with an active child Test.
    """
    path = tmp_path_factory.mktemp("list") / "state.db"
    agent = StoreAgent(path)
    agent.record("Read", tokens=1_500)
    agent.branch("Find")
    agent.record("Bash", failed=True, tokens=8_496)
    agent.branch("Look")
    agent.fold("seen")
    agent.fold("found" * 10)
    back = agent.branch("Try")
    agent.branch("Detour")
    agent.rollback(back)
    agent.fold("a summary that is longer than all there was")
    agent.branch("Fix")
    agent.branch("Test")
    return path


def list_lines(call: Call, store: Path, *argv: str) -> list[str]:
    ran = call("fold", "list", "--project", PROJECT, "--store", store, *argv)
    assert (ran.code, ran.err) == (0, "")
    return ran.out.decode().splitlines()


def test_a_pipe_gets_one_line_per_branch_indented_by_depth(call: Call, store: Path) -> None:
    header, main, *rows = list_lines(call, store)
    assert header.split() == ["id", "status", "tokens", "if-folded", "description"]
    assert main.split() == ["main", "-", "1524", "0", "main", "thread"]
    assert [row[0:3] for row in rows] == ["br_"] * 6
    assert [row.split()[1:] for row in rows] == [
        ["folded", "8501", "8488", "Find"],
        ["folded", "4", "3", "Look"],
        ["folded", "4", "-7", "Try"],
        ["discarded", "4", "0", "Detour"],
        ["active", "4", "0", "Fix"],
        ["active", "4", "0", "Test"],
    ]
    assert rows[2].index("Try") == rows[0].index("Find") == rows[1].index("Look") - 2


def test_json_has_the_session_and_its_branches(call: Call, store: Path) -> None:
    (line,) = list_lines(call, store, "--json")
    printed = json.loads(line)
    assert list(printed) == ["session", "branches"]
    assert printed["session"]["total_branches"] == 6
    assert [(branch["description"], branch["depth"]) for branch in printed["branches"]] == [
        ("Find", 0), ("Look", 1), ("Try", 0), ("Detour", 1), ("Fix", 0), ("Test", 1),
    ]  # fmt: skip
    assert list(printed["branches"][0]) == BRANCH
    assert printed["branches"][1]["parent_id"] == printed["branches"][0]["id"]


def test_a_terminal_shows_the_tree_with_guides_status_marks_and_figures(store: Path) -> None:
    output = on_terminal("fold", "list", "--project", PROJECT, "--store", store)
    lines = without_colours(output).splitlines()
    names = [line.split("  br_")[0].rstrip() for line in lines if "  br_" in line]
    assert names == ["├─ ✓ Find", "│  └─ ✓ Look", "├─ ✓ Try", "│  └─ ✗ Detour", "└─ ○ Fix", "   └─ ● Test"]
    (find,) = [line for line in lines if "Find" in line]
    assert find.split()[4:] == ["folded", "1", "8,501", "8,488"]
    assert {len(line) for line in lines if "folded" in line and "br_" in line} == {80}
    assert "\x1b[1mTest" in output
    assert "\x1b[2;9mDetour" in output
    assert "● ○ 2 active   ✓ 3 folded   ✗ 1 discarded" in lines[-1]


def test_a_limit_shows_the_last_branches_and_counts_the_others(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    agent = StoreAgent(path)
    for number in range(5):
        agent.branch(f"Step {number}")
        agent.fold("done")
    first, _header, main, *rows = list_lines(call, path, "--limit", "2")
    assert first == "3 earlier branches are left out; --limit N shows more"
    assert main.startswith("main")
    assert [row.rsplit("  ", 1)[1].strip() for row in rows] == ["Step 3", "Step 4"]
    assert len(json.loads(list_lines(call, path, "--json")[0])["branches"]) == 5
    assert len(json.loads(list_lines(call, path, "--json", "--limit", "2")[0])["branches"]) == 2
    drawn = without_colours(on_terminal("fold", "list", "--limit", "2", "--project", PROJECT, "--store", path))
    assert "⋮  3 earlier; --limit N shows more" in drawn
    assert "Step 2" not in drawn


@pytest.mark.parametrize("limit", ["0", "10001", "x"])
def test_an_invalid_limit_is_an_error_that_names_the_range(call: Call, store: Path, limit: str) -> None:
    ran = call("fold", "list", "--limit", limit, "--store", store)
    assert (ran.code, ran.out) == (1, b"")
    assert "--limit must be a whole number from 1 to 10000" in ran.err


def test_a_session_without_branches_has_a_main_thread(call: Call, tmp_path: Path) -> None:
    StoreAgent(tmp_path / "state.db").record("Read", tokens=7)
    _header, main = list_lines(call, tmp_path / "state.db")
    assert main.split() == ["main", "-", "7", "0", "main", "thread"]
    assert "main thread" in on_terminal("fold", "list", "--project", PROJECT, "--store", tmp_path / "state.db")


def test_a_project_without_a_session_is_exit_8(call: Call, store: Path) -> None:
    argv = ("fold", "list", "--project", "/nowhere", "--store", store)
    ran = call(*argv)
    assert (ran.code, ran.out) == (8, b"")
    assert "Session not found: /nowhere" in ran.err
    printed = json.loads(call(*argv, "--json").out)
    assert (printed["session"]["session_id"], printed["branches"]) == (None, [])


@given(st.lists(st.integers(0, 5), min_size=1))
def test_every_guide_line_continues_in_the_row_below(depths: list[int]) -> None:
    """Holds for every part of a tree: a guide that goes down is continued by the row below."""
    for above, below in zip(guides(depths), [*guides(depths)[1:], ""], strict=True):
        for column, character in enumerate(above):
            if character in "├│":
                assert below[column : column + 1] in ("├", "│", "└")


@given(st.sets(st.text("0123456789abcdef", min_size=16, max_size=16), min_size=1))
def test_shortened_ids_are_unique(stems: set[str]) -> None:
    ids = {f"br_{stem}" for stem in stems}
    assert len({branch_id[: id_length(ids)] for branch_id in ids}) == len(ids)
    assert id_length(ids) >= 7
