"""`context fold status`: what people and programs get to see of a session's figures."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.cli.fold.folds import PROJECT, Agent, on_terminal, without_colours
from tests.support.clauses import covers
from tests.support.machine import ROOT, Call, context

KNOWN_SECRET = "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"
ROW = [
    "session_id", "project_path", "name", "started_at", "last_at", "revision", "host", "model", "active_branch_id",
    "branch_depth", "branch_path", "total_tokens", "main_thread_tokens", "folded_tokens", "tokens_saved",
    "context_limit", "usage_percent", "context_health", "open_branch_operations", "operations", "failed_operations",
    "secrets_scrubbed", "total_branches", "active_branches", "folded_branches", "discarded_branches",
]  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("status") / "state.db"
    agent = Agent(path)
    agent.record("Read", tokens=20_000)
    agent.branch("Find the fault")
    agent.record("Bash", f"token={KNOWN_SECRET}", failed=True, tokens=496)
    agent.fold("x" * 400)
    agent.branch("Fix it")
    agent.record("Edit", tokens=996)
    Agent(path, session="second").record("Read", tokens=10)
    Agent(path, "/work/other").record("Read", tokens=30)
    Agent(path, owner="alice").record("Read", tokens=77)
    return path


def facts(out: bytes) -> dict[str, str]:
    return {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in out.decode().splitlines()}


def test_a_pipe_gets_a_line_for_each_figure(call: Call, store: Path) -> None:
    ran = call("fold", "status", "--project", PROJECT, "--store", store)
    told = facts(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert told["project"] == PROJECT
    assert told["session"].startswith("sess_")
    assert told["path"].startswith("main br_")
    assert told["tokens"] == "21100 of 32768 (64%)"
    assert (told["main-thread"], told["folded"], told["saved"]) == ("20100", "500", "400")
    assert (told["health"], told["branches"]) == ("medium", "1 active, 1 folded, 0 discarded")
    assert (told["operations"], told["redactions"]) == ("3, 1 failed", "1")


def test_programs_get_the_row_of_a_session(call: Call, store: Path) -> None:
    row = json.loads(call("fold", "status", "--project", PROJECT, "--store", store, "--json").out)
    assert list(row) == ROW
    assert (row["total_tokens"], row["usage_percent"], row["tokens_saved"]) == (21_100, 64, 400)
    assert row["context_health"]["warning"] == "medium"


def test_the_current_folder_is_the_project_if_none_is_named(store: Path, tmp_path: Path) -> None:
    Agent(store, str(tmp_path)).record("Read", tokens=5)
    ran = context("fold", "status", "--store", store, "--json", cwd=tmp_path)
    assert json.loads(ran.out)["total_tokens"] == 5


def test_a_name_and_an_owner_tell_sessions_of_a_project_apart(call: Call, store: Path) -> None:
    def tokens(*argv: str) -> int:
        ran = call("fold", "status", "--project", PROJECT, "--store", store, "--json", *argv)
        return int(json.loads(ran.out)["total_tokens"])

    assert tokens("--session", "second") == 10
    assert tokens("--owner", "alice") == 77
    assert tokens("--session", "third") == 0


def at_second(second: int) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=10 * second)


def test_all_lists_every_live_session_of_the_owner_the_latest_first(call: Call, tmp_path: Path) -> None:
    path, long_ago = tmp_path / "state.db", datetime.now(UTC) - timedelta(days=2)
    for at, project in enumerate(["/a", "/b", "/c"]):
        Agent(path, project, clock=partial(at_second, at)).record("Read", tokens=at)
    Agent(path, "/ended", clock=lambda: long_ago).record("Read", tokens=9)
    Agent(path, "/d", owner="alice").record("Read", tokens=9)
    told = json.loads(call("fold", "status", "--all", "--store", path, "--json").out)
    assert [session["project_path"] for session in told["sessions"]] == ["/c", "/b", "/a"]
    assert list(told["sessions"][0]) == [*ROW, "savings"]
    lines = call("fold", "status", "--all", "--store", path).out.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["project", "/c", "/b", "/a"]


def test_without_a_session_it_says_so_and_fails(call: Call, store: Path) -> None:
    argv = ("fold", "status", "--project", "/nowhere", "--store", store)
    ran = call(*argv)
    assert (ran.code, ran.out) == (8, b"")
    assert "no session for /nowhere" in ran.err
    assert "--all" in ran.err
    assert json.loads(call(*argv, "--json").out)["session_id"] is None
    assert "no live session of nobody" in on_terminal("fold", "status", "--all", "--owner", "nobody", "--store", store)


@covers("product.md#fold-commands")
def test_a_terminal_shows_how_full_the_context_is_as_a_bar(store: Path) -> None:
    seen = on_terminal("fold", "status", "--project", PROJECT, "--store", store)
    assert "\x1b[" in seen
    drawn = without_colours(seen)
    bar = next(line.split()[1] for line in drawn.splitlines() if line.startswith("tokens"))
    assert [bar.count(cell) for cell in "█▓░"] == [20, 1, 11]
    other = without_colours(on_terminal("fold", "status", "--project", "/work/other", "--store", store))
    assert [other.split("main thread")[0].count(cell) for cell in "█▓░"] == [1, 0, 31]
    assert "main › Fix it" in drawn
    assert "▲ medium" in drawn
    assert "1 secret scrubbed" in drawn


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_whoever_wants_no_colours_gets_none(store: Path, env: dict[str, str]) -> None:
    for command in (["status"], ["status", "--all"], ["list"], ["show", "main"]):
        argv = ["fold", *command, "--project", PROJECT, "--store", store]
        argv = [word for word in argv if not ("--all" in command and word in ("--project", PROJECT))]
        assert "\x1b" not in on_terminal(*argv, env=env)


@pytest.mark.parametrize("command", ["status", "list", "show", "rollback", "tail", "search"])
def test_without_a_store_every_command_says_what_makes_one(call: Call, tmp_path: Path, command: str) -> None:
    words = {"show": ["main"], "search": ["x"], "rollback": ["br_1", "--yes"]}.get(command, [])
    ran = call("fold", command, *words, "--store", tmp_path / "absent.db")
    assert (ran.code, ran.out) == (5, b"")
    assert "`context serve` make it" in ran.err
    assert "context serve" in ran.err
    assert not (tmp_path / "absent.db").exists()


def test_a_look_brings_no_older_store_up_to_date_under_its_daemon(call: Call, tmp_path: Path) -> None:
    older = tmp_path / "state.db"
    older.write_bytes(gzip.decompress((ROOT / "tests" / "stores" / "sqlite" / "format-1.db.gz").read_bytes()))
    before = older.read_bytes()
    ran = call("fold", "status", "--store", older)
    assert (ran.code, ran.out) == (5, b"")
    assert "written by an older contextfold" in ran.err
    assert "context serve" in ran.err
    assert older.read_bytes() == before


def test_names_that_cannot_be_are_named(call: Call, store: Path) -> None:
    for argv, said in (
        (["--session", ""], "session must be a name"),
        (["--session", b"caf\xe9"], "--session must be UTF-8"),
        (["--owner", b"caf\xe9"], "--owner must be UTF-8"),
        (["--project", b"caf\xe9"], "--project must be UTF-8"),
    ):
        ran = call("fold", "status", "--store", store, *argv)
        assert (ran.code, ran.out) == (1, b"")
        assert said in ran.err


def test_a_folder_below_the_project_finds_its_session(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "app" / "src" / "deep"
    below.mkdir(parents=True)
    Agent(tmp_path / "state.db", str(tmp_path / "app")).record("Read", tokens=7)
    monkeypatch.chdir(below)
    ran = call("fold", "status", "--store", tmp_path / "state.db")
    assert ran.code == 0
    assert facts(ran.out)["project"] == str(tmp_path / "app")
