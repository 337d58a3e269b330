"""Claude Code behind the proxy, with a scripted model: the requests that the provider receives.

One conversation has all of it: a branch with user messages between turns and while the model works; a `context_fold`; a
pause that is longer than the prompt cache lives; restarts of the daemon; results that the host has cleared.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, ShiftedClockDaemon
from tests.support.machine import run_command
from tests.support.prerequisites import CLAUDES, NO_CLAUDE
from tests.support.upstream import BINDING_MODELS, ReceivedRequest, Upstream, without_cache_marks
from tests.support.upstream_answers import Call, Say

pytestmark = pytest.mark.skipif(not CLAUDES, reason=NO_CLAUDE)

TIMEOUT_S = 120
PAUSE_S = 7_200
GREETINGS_MAX = 20
GREETING = "Good morning."
# Claude Code puts this text in the place of a result that it has cleared.
CLEARED = "[Old tool result content cleared]"
OURS = "mcp__contextfold__context_"
STUB = re.compile(r"\[contextfold: result of [^\]]*\]")


class ClaudeCode:
    """A process of Claude Code with a home and a project of its own, which reads messages line by line."""

    def __init__(self, folder: Path, daemon: Daemon, model: str, program: Path) -> None:
        self.project, self.home = folder / "project", folder / "home"
        self.project.mkdir()
        self.home.mkdir()
        self._daemon, self.model, self._config, self._program = daemon, model, folder / "mcp.json", program
        server = {"type": "http", "url": f"{daemon.url}/mcp", "alwaysLoad": True}
        self._config.write_text(json.dumps({"mcpServers": {"contextfold": server}}))
        self.session_id = ""

    def start(self) -> None:
        """Starts a conversation, or resumes the existing one."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "ANTHROPIC_API_KEY": "sk-ant-local-0123456789"}
        env |= {"ANTHROPIC_BASE_URL": f"{self._daemon.url}/proxy/anthropic", "DISABLE_AUTOUPDATER": "1"}
        env |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1"}
        argv = [
            str(self._program),
            "-p",
            "--input-format",
            "stream-json",
            "--output-format",
            "stream-json",
            "--verbose",
        ]
        argv += ["--model", self.model, "--mcp-config", str(self._config), "--strict-mcp-config"]
        argv += ["--allowedTools", "mcp__contextfold", "Read"]
        argv += ["--resume", self.session_id] if self.session_id else []
        self._process = subprocess.Popen(
            argv,
            cwd=self.project,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )

    def send(self, text: str) -> None:
        assert self._process.stdin
        message = {"type": "user", "message": {"role": "user", "content": text}}
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def ask(self, text: str) -> str:
        """Sends a user message, and returns the model's last answer."""
        self.send(text)
        assert self._process.stdout
        timer = threading.Timer(TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            for line in self._process.stdout:
                message = json.loads(line)
                self.session_id = message.get("session_id", self.session_id)
                if message["type"] == "result":
                    return str(message["result"])
        finally:
            timer.cancel()
        raise AssertionError("Claude Code has ended without an answer")

    def end(self) -> None:
        self._process.communicate(timeout=TIMEOUT_S)

    def clear_results(self, call_ids: Sequence[str]) -> None:
        """Clears results in the transcript, as Claude Code does with old ones."""
        (transcript,) = self.home.glob(f".claude/projects/*/{self.session_id}.jsonl")
        lines = [json.loads(line) for line in transcript.read_text().splitlines()]
        cleared = 0
        for block in blocks_of([line["message"] for line in lines if line.get("type") == "user"]):
            if block.get("tool_use_id") in call_ids:
                block["content"] = CLEARED
                cleared += 1
        assert cleared == len(call_ids)
        transcript.write_text("".join(json.dumps(line) + "\n" for line in lines))


class Model:
    """Answers with one step after another. During a request, the test may send another user message."""

    def __init__(self, steps: Sequence[Say]) -> None:
        self._steps = list(steps)
        self.requests = 0
        self.during_request: dict[int, Any] = {}

    def __call__(self, body: Any, _api: str) -> Say:
        if not any(tool["name"] == "Read" for tool in body.get("tools", ())):
            # This request is not part of the conversation.
            return Say("A title")
        if GREETING in json.dumps(body["messages"][-2:]):
            return Say("Hello.")
        self.requests += 1
        self.during_request.pop(self.requests, lambda: None)()
        say = self._steps[self.requests - 1]
        return say if body.get("thinking") else Say(say.text, say.calls)


def blocks_of(messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for message in messages:
        if isinstance(message["content"], list):
            yield from message["content"]


def results_of(got: ReceivedRequest) -> dict[str, Any]:
    blocks = blocks_of(got.messages)
    return {block["tool_use_id"]: block["content"] for block in blocks if block["type"] == "tool_result"}


class Setup:
    """Claude Code, the daemon and the provider, with the requests that the provider received."""

    def __init__(self, folder: Path, model: str, program: Path) -> None:
        self.upstream = Upstream()
        self.daemon = ShiftedClockDaemon(folder / "daemon", *self.upstream.argv())
        self.claude = ClaudeCode(folder, self.daemon, model, program)
        self.user_messages: list[str] = []
        self._greetings = 0

    @property
    def sent(self) -> list[ReceivedRequest]:
        return self._conversation_requests()[self._greetings :]

    def greet(self) -> None:
        """Sends greetings until Claude Code offers our tools; it may not be connected to the daemon at first."""
        for _ in range(GREETINGS_MAX):
            self.claude.ask(GREETING)
            self._greetings = len(self._conversation_requests())
            if any(tool["name"].startswith(OURS) for tool in self.upstream.requests[-1].body.get("tools", ())):
                return
        raise AssertionError("Claude Code has not connected to the daemon")

    def _conversation_requests(self) -> list[ReceivedRequest]:
        return [
            got for got in self.upstream.requests if any(tool["name"] == "Read" for tool in got.body.get("tools", ()))
        ]

    def file(self, name: str) -> str:
        """Writes a long file; each of its lines has the name of the file."""
        path = self.claude.project / f"{name}.txt"
        path.write_text("".join(f"{name} line {number} of a long file\n" for number in range(150)))
        return str(path)

    def ask(self, text: str) -> str:
        self.user_messages.append(text)
        return self.claude.ask(text)

    def close(self) -> None:
        self.claude.end()
        self.daemon.stop()
        self.upstream.close()


def say(text: str, *calls: tuple[str, str, dict[str, Any]]) -> Say:
    return Say(text, tuple(Call(*call) for call in calls), thought="Let me think.")


def last_line(name: str) -> bytes:
    return f"{name} line 149 of a long file".encode()


@pytest.mark.parametrize("program", CLAUDES, ids=lambda path: str(path.parents[2].name))
@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-opus-5-5"])
def test_claude_code_behind_the_proxy_sends_valid_folded_requests(model: str, program: Path, tmp_path: Path) -> None:
    setup = Setup(tmp_path, model, program)
    try:
        _run_conversation(setup)
        assert setup.upstream.violations == []
        _check_every_user_message_was_sent(setup)
    finally:
        setup.close()


def _run_conversation(setup: Setup) -> None:
    project = {"project_path": str(setup.claude.project)}
    names = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta")
    read = {name: (f"toolu_{name}", "Read", {"file_path": setup.file(name)}) for name in names}
    model = Model(
        [
            say("", ("toolu_branch", f"{OURS}branch", {"description": "Look", "prompt": "Look", **project})),
            say("", read["alpha"]),
            say("", read["beta"]),
            say("Shall I migrate prod?"),
            say("", read["gamma"]),
            say("", ("toolu_return", f"{OURS}return", {"message": "The fault is in gamma.", **project})),
            say("The fault is in gamma."),
            say("", read["delta"]),
            say("", ("toolu_fold", f"{OURS}fold", {"message": "Delta is fine.", **project})),
            say("Delta is fine."),
            *(say("", read[name]) for name in ("epsilon", "zeta", "eta")),
            say("Read."),
            say("Welcome back."),
            say("Still here."),
        ]
    )
    setup.upstream.script = model
    setup.claude.start()
    setup.greet()

    # A branch. The user writes while the model works in it, and between two turns.
    extra_message = "And keep the logs, whatever happens."
    model.during_request[2] = lambda: setup.claude.send(extra_message)
    setup.user_messages = ["Find the fault."]
    assert setup.claude.ask("Find the fault.") == "Shall I migrate prod?"
    setup.user_messages.append(extra_message)
    assert setup.ask("No! NEVER touch prod.") == "The fault is in gamma."
    assert setup.ask("Now look at delta.") == "Delta is fine."
    assert last_line("alpha") in setup.sent[2].raw

    # Claude Code sends a message of that kind inside a result or as an instruction. A turn with such a result stays.
    assert setup.ask("Now read the rest.") == "Read."
    last = setup.sent[-1].raw
    with_user_text = [
        name for name in names if extra_message in json.dumps(results_of(setup.sent[-1]).get(f"toolu_{name}"))
    ]
    assert len(with_user_text) <= 1
    assert [name for name in names if last_line(name) in last] == [*with_user_text, "epsilon", "zeta", "eta"]
    assert b"The fault is in gamma." in last
    assert STUB.findall(last.decode()) == []

    # A pause that is longer than the prompt cache lives, then a restart.
    setup.daemon.advance_clock(PAUSE_S)
    assert setup.ask("I am back.") == "Welcome back."
    after_pause = setup.sent[-1]
    (stub,) = STUB.findall(after_pause.raw.decode())
    assert "epsilon.txt" in stub
    assert last_line("epsilon") not in after_pause.raw
    setup.daemon.restart()
    assert setup.ask("Are you there?") == "Still here."
    _check_continues(after_pause, setup.sent[-1])

    # The text comes back on demand.
    result_id = re.findall(r"res_[0-9a-f]+", stub)[0]
    model._steps += [say("", ("toolu_expand", f"{OURS}expand", {"branch_id": result_id, **project})), say("Seen.")]
    assert setup.ask("What was in epsilon?") == "Seen."
    assert last_line("epsilon").decode() in json.dumps(results_of(setup.sent[-1])["toolu_expand"])

    # Claude Code and the daemon are restarted. Results are cleared before, unless thinking blocks are bound to them.
    setup.claude.end()
    setup.daemon.restart()
    clears_results = not BINDING_MODELS.search(setup.claude.model)
    if clears_results:
        setup.claude.clear_results(["toolu_branch", "toolu_return", "toolu_fold"])
    model._steps.append(say("As before."))
    setup.claude.start()
    assert setup.ask("Once more.") == "As before."
    cleared = setup.sent[-1]
    assert cleared.raw.count(CLEARED.encode()) == (3 if clears_results else 0)
    assert STUB.findall(cleared.raw.decode()) == [stub]
    assert not any(last_line(name) in cleared.raw for name in {"alpha", "beta", "gamma", "delta"} - set(with_user_text))

    _fold_by_hand(setup, model)


def _fold_by_hand(setup: Setup, model: Model) -> None:
    """A person folds what the model has just done."""
    names = ("theta", "iota", "kappa")
    reads = [say("", (f"toolu_{name}", "Read", {"file_path": setup.file(name)})) for name in names]
    model._steps += [*reads, say("All read."), say("You are welcome.")]
    assert setup.ask("Read three more.") == "All read."
    assert all(last_line(name) in setup.sent[-1].raw for name in names)
    place = ("--project", str(setup.claude.project), "--url", setup.daemon.url)
    ran = run_command("fold", "now", "These three are fine.", *place)
    assert "requests leave these tokens out" in ran.err
    setup.daemon.restart()
    assert setup.ask("Thanks.") == "You are welcome."
    folded = setup.sent[-1].raw
    assert b"folded by hand: These three are fine." in folded
    assert not any(last_line(name) in folded for name in names)


def _check_continues(before: ReceivedRequest, after: ReceivedRequest) -> None:
    """The later request begins with the messages of the earlier one, apart from cache marks."""
    earlier, later = (_normalized(got.messages) for got in (before, after))
    assert later[: len(earlier)] == earlier


def _normalized(messages: Sequence[dict[str, Any]]) -> list[Any]:
    normalized: list[Any] = without_cache_marks(list(messages))
    for message in normalized:
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
    return normalized


def _check_every_user_message_was_sent(setup: Setup) -> None:
    """Every user message is in each request from its first one on, and they are in order."""
    for text in setup.user_messages:
        encoded = json.dumps(text)[1:-1].encode()
        was_sent = [encoded in got.raw for got in setup.sent]
        assert any(was_sent), text
        assert all(was_sent[was_sent.index(True) :]), text
    last = setup.sent[-1].raw
    offsets = [last.index(json.dumps(text)[1:-1].encode()) for text in setup.user_messages]
    assert offsets == sorted(offsets)
