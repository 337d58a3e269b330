"""`context fold tail`: prints the events of other processes, and ends when its reader closes the pipe."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contextfold.fold.events import FoldSeen
from contextfold.fold.sent_request import RequestReport, Share
from tests.cli.fold.folds import PROJECT, StoreAgent, Terminal, without_colours
from tests.serve.reporting import HookedAgent
from tests.support.daemon import Daemon, HttpAgent
from tests.support.machine import COMMAND
from tests.support.receipts import receipt_of

PATIENCE_S = 60


class Tail:
    """The command in a pipe, read line by line."""

    def __init__(self, store: Path, *argv: str) -> None:
        words = [str(COMMAND), "fold", "tail", "--store", str(store), *argv]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def line(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline().decode()
        assert line.endswith("\n"), line
        return line

    def event(self) -> Any:
        return json.loads(self.line())

    def interrupt(self) -> tuple[int, bytes]:
        self._process.send_signal(signal.SIGINT)
        _, err = self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode, err


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    running = Daemon(tmp_path)
    yield running
    running.stop()


def test_it_follows_a_daemon_at_work_and_ends_on_ctrl_c(daemon: Daemon) -> None:
    agent = HttpAgent(daemon.port)
    agent.call("context_branch", project_path=PROJECT, description="First", prompt="Begin")
    tail = Tail(daemon.store, "--json", "--since-start", "--project", PROJECT)
    started, created = tail.event(), tail.event()
    assert (started["event"], started["project_path"]) == ("session.started", PROJECT)
    assert (created["event"], created["description"], created["session_id"]) == (
        "branch.created", "First", started["session_id"],
    )  # fmt: skip
    agent.call("context_branch", project_path="/work/other", description="Elsewhere", prompt="Begin")
    agent.call("context_record", project_path=PROJECT, type="Bash", tokens=12, failed=True)
    operation = tail.event()
    assert (operation["event"], operation["tokens"], operation["failed"]) == ("operation.completed", 12, True)
    agent.call("context_return", project_path=PROJECT, message="Done.\nWell.")
    folded = tail.event()
    assert (folded["event"], folded["summary"]) == ("branch.folded", "Done.\nWell.")
    agent.close()
    assert tail.interrupt() == (0, b"")


def test_a_request_to_a_model_is_an_event(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    fold = FoldSeen("br_" + "a1" * 8, 300, 80)
    share = Share(None, 100, 1, ("hello",))
    receipt = receipt_of(400, 100, fold, turns_dropped=4, first_changed=2, reason="roles")
    StoreAgent(path).sent(RequestReport("r1", "anthropic", "a-model", receipt, shares=(share,)))
    tail = Tail(path, "--since-start", "--project", PROJECT)
    lines = [tail.line().split(maxsplit=4) for _ in range(3)]
    assert [line[1] for line in lines] == ["session.started", "operation.completed", "request.sent"]
    assert lines[2][2:] == ["anthropic", "-300", "a-model, 100 of 400 tokens sent, not folded: roles\n"]
    assert tail.interrupt() == (0, b"")
    json_tail = Tail(path, "--since-start", "--project", PROJECT, "--json")
    event = [json_tail.event() for _ in range(3)][2]
    assert event["folds"] == [{"branch_id": fold.branch_id, "tokens": 300, "kept_tokens": 80}]
    assert event["threads"] == [{"branch_id": None, "messages": 1, "tokens": 100}]
    assert json_tail.interrupt() == (0, b"")


def test_a_compaction_shows_the_tokens_that_remain(daemon: Daemon) -> None:
    agent = HookedAgent(daemon, PROJECT)
    agent.report("UserPromptSubmit", prompt="Find the leak. " * 40)
    agent.report("PostCompact", trigger="auto", compact_summary="It was found")
    agent.close()
    tail = Tail(daemon.store, "--since-start", "--project", PROJECT)
    lines = [tail.line().split(maxsplit=4) for _ in range(3)]
    assert [line[3] for line in lines[1:]] == ["+150", "=3"]
    assert lines[2][4] == "compaction_summary (hook)\n"
    assert tail.interrupt() == (0, b"")


def test_a_pipe_gets_one_aligned_line_per_event(daemon: Daemon) -> None:
    agent = HttpAgent(daemon.port)
    branch_id = agent.call("context_branch", project_path=PROJECT, description="First", prompt="Begin")["branch_id"]
    agent.call("context_branch", project_path=PROJECT, description="Second", prompt="Begin")
    agent.call("context_rollback", project_path=PROJECT, branch_id=branch_id)
    agent.call("context_return", project_path=PROJECT, message="Done.\nWell.")
    agent.close()
    tail = Tail(daemon.store, "--since-start", "--project", PROJECT)
    lines = [tail.line() for _ in range(6)]
    assert tail.interrupt() == (0, b"")
    assert [line.split()[1] for line in lines] == [
        "session.started", "branch.created", "branch.created", "branch.discarded", "session.rolled_back",
        "branch.folded",
    ]  # fmt: skip
    assert {line[20:22] + line[41:43] for line in lines} == {"    "}
    assert lines[1][22:].split() == ["branch.created", branch_id, "+2", "First"]
    assert lines[5].rstrip().endswith("Done.")


def test_all_follows_every_project_and_a_session_name_selects_one_session(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    StoreAgent(path).record("Read", tokens=1)
    StoreAgent(path, session="second").record("Read", tokens=2)
    StoreAgent(path, "/work/other").record("Read", tokens=3)
    StoreAgent(path, owner="alice").record("Read", tokens=4)

    def tokens(count: int, *argv: str) -> list[int]:
        tail = Tail(path, "--json", "--since-start", *argv)
        events = [tail.event() for _ in range(2 * count)]
        assert tail.interrupt()[0] == 0
        return [event["tokens"] for event in events if event["event"] == "operation.completed"]

    assert tokens(2, "--project", PROJECT) == [1, 2]
    assert tokens(1, "--project", PROJECT, "--session", "second") == [2]
    assert tokens(3, "--all") == [1, 2, 3]
    assert tokens(1, "--all", "--owner", "alice") == [4]


def test_a_terminal_gets_colours_and_only_new_events(tmp_path: Path) -> None:
    agent = StoreAgent(tmp_path / "state.db")
    agent.record("Before", tokens=1)
    terminal = Terminal("fold", "tail", "--project", PROJECT, "--store", tmp_path / "state.db")
    assert f"following {PROJECT}; Ctrl-C ends it" in terminal.until("Ctrl-C ends it")
    branch_id = agent.branch("Look \x1b[2J around")
    terminal.until("around")
    agent.record("Bash", tokens=1_234, failed=True)
    terminal.until("Bash")
    terminal.process.send_signal(signal.SIGINT)
    code, output = terminal.finish()
    assert code == 0
    assert "Before" not in output
    assert "\x1b[2J" not in output
    assert "\x1b[31m✗" in output
    drawn = [line for line in without_colours(output).splitlines() if branch_id[:7] in line]
    assert "● branch" in drawn[0]
    assert "✗ failed" in drawn[1]
    assert drawn[0].index(branch_id[:7]) == drawn[1].index(branch_id[:7])
    assert "+1,234" in drawn[1]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_it_ends_when_its_reader_closes_the_pipe_even_without_new_events(tmp_path: Path, options: list[str]) -> None:
    agent = StoreAgent(tmp_path / "state.db")
    agent.record("Read", tokens=1)
    words = " ".join(
        [str(COMMAND), "fold", "tail", "--since-start", "--all", "--store", str(tmp_path / "state.db"), *options]
    )
    script = f"timeout {PATIENCE_S} {words} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    first, code = done.stdout.splitlines()
    assert "session.started" in first
    assert code == "0"


def test_a_full_disk_is_an_error_and_not_a_closed_pipe(tmp_path: Path) -> None:
    StoreAgent(tmp_path / "state.db").record("Read", tokens=1)
    words = [str(COMMAND), "fold", "tail", "--since-start", "--all", "--store", str(tmp_path / "state.db")]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False)
    assert done.returncode == 6
    assert b"No space left on device" in done.stderr
