"""`context fold status`: the figures of a session, for people and for programs."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from contextfold.fold.project import Conversation
from tests.cli.fold.folds import PROJECT, StoreAgent, on_terminal, without_colours
from tests.support.machine import ROOT, Call, run_command

KNOWN_SECRET = "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"
ROW = [
    "session_id", "project_path", "name", "conversation", "agent", "started_at", "last_at", "revision", "host", "model",
    "active_branch_id", "branch_depth", "branch_path", "total_tokens", "main_thread_tokens", "host_tokens",
    "context_tokens", "folded_tokens", "folded_before_tokens", "tokens_saved", "left_out_results", "left_out_tokens",
    "context_limit", "usage_percent", "context_health", "health", "open_branch_operations", "operations",
    "failed_operations", "secrets_scrubbed", "total_branches", "active_branches", "folded_branches",
    "discarded_branches", "savings",
]  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("status") / "state.db"
    agent = StoreAgent(path)
    a_minute_ago = datetime.now(UTC) - timedelta(minutes=1)
    StoreAgent(path, session="second", clock=lambda: a_minute_ago).record("Read", tokens=10)
    agent.record("Read", tokens=20_000)
    agent.branch("Find the fault")
    agent.record("Bash", f"token={KNOWN_SECRET}", failed=True, tokens=496)
    agent.fold("x" * 400)
    agent.branch("Fix it")
    agent.record("Edit", tokens=996)
    StoreAgent(path, "/work/other").record("Read", tokens=30)
    StoreAgent(path, owner="alice").record("Read", tokens=77)
    return path


def figures(out: bytes) -> dict[str, str]:
    return {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in out.decode().splitlines()}


def test_a_pipe_gets_one_line_per_figure(call: Call, store: Path) -> None:
    ran = call("fold", "status", "--project", PROJECT, "--store", store)
    status = figures(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert status["project"] == PROJECT
    assert status["session"].startswith("sess_")
    assert status["path"].startswith("main br_")
    assert status["tokens"] == "21100 of 32768 (64%)"
    assert (status["main-thread"], status["folded"]) == ("20100", "500")
    # Without the proxy nothing was saved in a request.
    assert (status["if-folded"], "saved" in status) == ("400 fewer tokens", False)
    assert (status["health"], status["branches"]) == ("medium", "1 active, 1 folded, 0 discarded")
    assert (status["operations"], status["redactions"]) == ("3, 1 failed", "1")
    assert status["others"].startswith("1 other session of this project")


def test_json_is_the_row_of_the_session(call: Call, store: Path) -> None:
    row = json.loads(call("fold", "status", "--project", PROJECT, "--store", store, "--json").out)
    assert list(row) == ROW
    assert (row["total_tokens"], row["usage_percent"], row["tokens_saved"]) == (21_100, 64, 400)
    assert row["context_health"]["warning"] == "medium"


def test_the_current_folder_is_the_project_if_none_is_named(store: Path, tmp_path: Path) -> None:
    StoreAgent(store, str(tmp_path)).record("Read", tokens=5)
    ran = run_command("fold", "status", "--store", store, "--json", cwd=tmp_path)
    assert json.loads(ran.out)["total_tokens"] == 5


def test_session_name_and_owner_select_a_session_of_the_project(call: Call, store: Path) -> None:
    def tokens(*argv: str) -> int:
        ran = call("fold", "status", "--project", PROJECT, "--store", store, "--json", *argv)
        return int(json.loads(ran.out)["total_tokens"])

    assert tokens("--session", "second") == 10
    assert tokens("--owner", "alice") == 77
    assert tokens("--session", "third") == 0


def moment(number: int) -> datetime:
    """Moments in the future, ten seconds apart."""
    return datetime.now(UTC) + timedelta(seconds=10 * number)


def test_all_lists_every_live_session_of_the_owner_latest_first(call: Call, tmp_path: Path) -> None:
    path, two_days_ago = tmp_path / "state.db", datetime.now(UTC) - timedelta(days=2)
    for number, project in enumerate(["/a", "/b", "/c"]):
        StoreAgent(path, project, clock=partial(moment, number)).record("Read", tokens=number)
    StoreAgent(path, "/ended", clock=lambda: two_days_ago).record("Read", tokens=9)
    StoreAgent(path, "/d", owner="alice").record("Read", tokens=9)
    status = json.loads(call("fold", "status", "--all", "--store", path, "--json").out)
    assert [session["project_path"] for session in status["sessions"]] == ["/c", "/b", "/a"]
    assert list(status["sessions"][0]) == ROW
    lines = call("fold", "status", "--all", "--store", path).out.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["project", "/c", "/b", "/a"]


def test_a_project_without_a_session_is_exit_8(call: Call, store: Path) -> None:
    argv = ("fold", "status", "--project", "/nowhere", "--store", store)
    ran = call(*argv)
    assert (ran.code, ran.out) == (8, b"")
    assert "Session not found: /nowhere" in ran.err
    assert "--all" in ran.err
    assert json.loads(call(*argv, "--json").out)["session_id"] is None
    assert "no live session of nobody" in on_terminal("fold", "status", "--all", "--owner", "nobody", "--store", store)


def test_a_terminal_shows_the_use_of_the_context_as_a_bar(store: Path) -> None:
    output = on_terminal("fold", "status", "--project", PROJECT, "--store", store)
    assert "\x1b[" in output
    drawn = without_colours(output)
    bar = next(line.split()[1] for line in drawn.splitlines() if line.startswith("tokens"))
    assert [bar.count(cell) for cell in "█▓░"] == [20, 1, 11]
    other = without_colours(on_terminal("fold", "status", "--project", "/work/other", "--store", store))
    assert [other.split("main thread")[0].count(cell) for cell in "█▓░"] == [1, 0, 31]
    assert "main › Fix it" in drawn
    assert "▲ medium" in drawn
    assert "1 secret scrubbed" in drawn


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_color_and_dumb_terminals_switch_colours_off(store: Path, env: dict[str, str]) -> None:
    for command in (["status"], ["status", "--all"], ["list"], ["show", "main"]):
        argv = ["fold", *command, "--project", PROJECT, "--store", store]
        argv = [word for word in argv if not ("--all" in command and word in ("--project", PROJECT))]
        assert "\x1b" not in on_terminal(*argv, env=env)


@pytest.mark.parametrize("command", ["status", "list", "show", "rollback", "tail", "search"])
def test_without_a_store_every_command_names_the_command_that_creates_one(
    call: Call, tmp_path: Path, command: str
) -> None:
    words = {"show": ["main"], "search": ["x"], "rollback": ["br_1", "--yes"]}.get(command, [])
    ran = call("fold", command, *words, "--store", tmp_path / "absent.db")
    assert (ran.code, ran.out) == (5, b"")
    assert "`context serve` make it" in ran.err
    assert "context serve" in ran.err
    assert not (tmp_path / "absent.db").exists()


def test_reading_a_store_of_an_older_version_does_not_migrate_it(call: Call, tmp_path: Path) -> None:
    old_store = tmp_path / "state.db"
    old_store.write_bytes(gzip.decompress((ROOT / "tests" / "stores" / "sqlite" / "format-1.db.gz").read_bytes()))
    before = old_store.read_bytes()
    ran = call("fold", "status", "--store", old_store)
    assert (ran.code, ran.out) == (5, b"")
    assert "written by an older contextfold" in ran.err
    assert "context serve" in ran.err
    assert old_store.read_bytes() == before


def test_an_invalid_name_is_an_error_that_names_the_option(call: Call, store: Path) -> None:
    for argv, message in (
        (["--session", ""], "session must be a name"),
        (["--session", b"caf\xe9"], "--session must be UTF-8"),
        (["--owner", b"caf\xe9"], "--owner must be UTF-8"),
        (["--project", b"caf\xe9"], "--project must be UTF-8"),
    ):
        ran = call("fold", "status", "--store", store, *argv)
        assert (ran.code, ran.out) == (1, b"")
        assert message in ran.err


def test_a_folder_below_the_project_finds_its_session(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subfolder = tmp_path / "app" / "src" / "deep"
    subfolder.mkdir(parents=True)
    StoreAgent(tmp_path / "state.db", str(tmp_path / "app")).record("Read", tokens=7)
    monkeypatch.chdir(subfolder)
    ran = call("fold", "status", "--store", tmp_path / "state.db")
    assert ran.code == 0
    assert figures(ran.out)["project"] == str(tmp_path / "app")


def test_all_groups_sessions_by_project_with_subagents_below_their_parents(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    conversations = [
        ("/a", "one", ""),
        ("/b", "two", ""),
        ("/a", "three", ""),
        ("/b", "two", "agent"),
        ("/a", "one", ""),
    ]
    for number, (project, host_id, agent) in enumerate(conversations):
        StoreAgent(path, project, conversation=Conversation(host_id, agent), clock=partial(moment, number)).record(
            "Read", tokens=number
        )
    lines = call("fold", "status", "--all", "--store", path).out.decode().splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["/a", "/a", "/b", "/b"]
    drawn = without_colours(on_terminal("fold", "status", "--all", "--store", path)).splitlines()
    assert [line.lstrip().startswith("└ /b") for line in drawn[1:5]] == [False, False, False, True]
