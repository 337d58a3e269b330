"""Claude Code itself behind the proxy, with a scripted model: what the provider received.

One conversation goes through all of it: a branch in which the user speaks, between turns and while the model works; a
`context_fold`; a pause that outlives the prompt cache; restarts of the daemon; results that the host has cleared.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.clauses import covers
from tests.support.daemon import Daemon
from tests.support.left_out import CLAUDE, NO_CLAUDE
from tests.support.upstream import BINDING, Got, Upstream, without_cache_marks
from tests.support.upstream_answers import Call, Say

pytestmark = [
    pytest.mark.skipif(not CLAUDE, reason=NO_CLAUDE),
    covers("proxy.md#laws", "proxy.md#clients", "proxy.md#cold-results"),
]

PATIENCE_S = 120
PAUSE_S = 7_200
GREETINGS_MAX = 20
GREETING = "Good morning."
# Claude Code's own words for a result that it has cleared.
CLEARED = "[Old tool result content cleared]"
OURS = "mcp__contextfold__context_"
STUB = re.compile(r"\[contextfold: result of [^\]]*\]")


class LateDaemon(Daemon):
    """A daemon whose clock a test moves."""

    def __init__(self, folder: Path, *argv: str) -> None:
        folder.mkdir()
        self._ahead = folder / "ahead_s"
        self._ahead.write_text("0")
        super().__init__(folder, *argv)

    def start(self) -> None:
        self._argv[:1] = [sys.executable, str(Path(__file__).parent / "shifted_clock.py"), str(self._ahead)]
        super().start()
        self._argv[:3] = self._argv[:1]

    def wait(self, pause_s: float) -> None:
        self._ahead.write_text(str(float(self._ahead.read_text()) + pause_s))

    def restart(self) -> None:
        assert self.stop() == 0
        self.start()


class ClaudeCode:
    """A process of Claude Code in a home and a project of its own, that is spoken to line by line."""

    def __init__(self, folder: Path, daemon: Daemon, model: str) -> None:
        self.project, self.home = folder / "project", folder / "home"
        self.project.mkdir()
        self.home.mkdir()
        self._daemon, self.model, self._config = daemon, model, folder / "mcp.json"
        server = {"type": "http", "url": f"{daemon.url}/mcp"}
        self._config.write_text(json.dumps({"mcpServers": {"contextfold": server}}))
        self.session_id = ""

    def start(self) -> None:
        """Begins a conversation, or goes on with the one there is."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "ANTHROPIC_API_KEY": "sk-ant-local-0123456789"}
        env |= {"ANTHROPIC_BASE_URL": f"{self._daemon.url}/proxy/anthropic", "DISABLE_AUTOUPDATER": "1"}
        env |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1"}
        argv = [str(CLAUDE), "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
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

    def send(self, words: str) -> None:
        assert self._process.stdin
        message = {"type": "user", "message": {"role": "user", "content": words}}
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def says(self, words: str) -> str:
        """What the model says in the end."""
        self.send(words)
        assert self._process.stdout
        impatience = threading.Timer(PATIENCE_S, self._process.kill)
        impatience.start()
        try:
            for line in self._process.stdout:
                told = json.loads(line)
                self.session_id = told.get("session_id", self.session_id)
                if told["type"] == "result":
                    return str(told["result"])
        finally:
            impatience.cancel()
        raise AssertionError("Claude Code has ended without an answer")

    def end(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)

    def clear_results(self, call_ids: Sequence[str]) -> None:
        """As Claude Code does with old results, in the transcript that it goes on from."""
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
    """Says one step after another; while some step is thought about, the user says something more."""

    def __init__(self, steps: Sequence[Say]) -> None:
        self._steps = list(steps)
        self.asked = 0
        self.meanwhile: dict[int, Any] = {}

    def __call__(self, body: Any, _api: str) -> Say:
        if not any(tool["name"] == "Read" for tool in body.get("tools", ())):
            # What Claude Code asks beside the conversation.
            return Say("A title")
        if GREETING in json.dumps(body["messages"][-2:]):
            return Say("Hello.")
        self.asked += 1
        self.meanwhile.pop(self.asked, lambda: None)()
        step = self._steps[self.asked - 1]
        return step if body.get("thinking") else Say(step.text, step.calls)


def blocks_of(messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for message in messages:
        if isinstance(message["content"], list):
            yield from message["content"]


def results_of(got: Got) -> dict[str, Any]:
    blocks = blocks_of(got.messages)
    return {block["tool_use_id"]: block["content"] for block in blocks if block["type"] == "tool_result"}


class Scene:
    """Claude Code, the daemon and the provider, and what the provider received of the conversation."""

    def __init__(self, folder: Path, model: str) -> None:
        self.upstream = Upstream()
        self.daemon = LateDaemon(folder / "daemon", *self.upstream.argv())
        self.claude = ClaudeCode(folder, self.daemon, model)
        self.words: list[str] = []
        self._greetings = 0

    @property
    def sent(self) -> list[Got]:
        return self._of_the_conversation()[self._greetings :]

    def greet(self) -> None:
        """Until Claude Code offers our tools: its first requests may leave before it has connected to the daemon."""
        for _ in range(GREETINGS_MAX):
            self.claude.says(GREETING)
            self._greetings = len(self._of_the_conversation())
            if any(tool["name"].startswith(OURS) for tool in self.upstream.got[-1].body.get("tools", ())):
                return
        raise AssertionError("Claude Code has not connected to the daemon")

    def _of_the_conversation(self) -> list[Got]:
        return [got for got in self.upstream.got if any(tool["name"] == "Read" for tool in got.body.get("tools", ()))]

    def file(self, name: str) -> str:
        """A file that is worth folding; each of its lines names it."""
        path = self.claude.project / f"{name}.txt"
        path.write_text("".join(f"{name} line {number} of a long file\n" for number in range(150)))
        return str(path)

    def says(self, words: str) -> str:
        self.words.append(words)
        return self.claude.says(words)

    def close(self) -> None:
        self.claude.end()
        self.daemon.stop()
        self.upstream.close()


def step(text: str, *calls: tuple[str, str, dict[str, Any]]) -> Say:
    return Say(text, tuple(Call(*call) for call in calls), thought="Let me think.")


def whole_file(name: str) -> bytes:
    return f"{name} line 149 of a long file".encode()


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-opus-5-5"])
def test_what_the_provider_receives_of_a_day_with_claude_code(model: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path, model)
    try:
        _a_day(scene)
        assert scene.upstream.violations == []
        _every_word_was_heard(scene)
    finally:
        scene.close()


def _a_day(scene: Scene) -> None:
    project = {"project_path": str(scene.claude.project)}
    names = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta")
    read = {name: (f"toolu_{name}", "Read", {"file_path": scene.file(name)}) for name in names}
    script = Model(
        [
            step("", ("toolu_branch", f"{OURS}branch", {"description": "Look", "prompt": "Look", **project})),
            step("", read["alpha"]),
            step("", read["beta"]),
            step("Shall I migrate prod?"),
            step("", read["gamma"]),
            step("", ("toolu_return", f"{OURS}return", {"message": "The fault is in gamma.", **project})),
            step("The fault is in gamma."),
            step("", read["delta"]),
            step("", ("toolu_fold", f"{OURS}fold", {"message": "Delta is fine.", **project})),
            step("Delta is fine."),
            *(step("", read[name]) for name in ("epsilon", "zeta", "eta")),
            step("Read."),
            step("Welcome back."),
            step("Still here."),
        ]
    )
    scene.upstream.script = script
    scene.claude.start()
    scene.greet()

    # A branch. The user speaks while the model works in it, and between two turns.
    meanwhile = "And keep the logs, whatever happens."
    script.meanwhile[2] = lambda: scene.claude.send(meanwhile)
    scene.words = ["Find the fault."]
    assert scene.claude.says("Find the fault.") == "Shall I migrate prod?"
    scene.words.append(meanwhile)
    assert scene.says("No! NEVER touch prod.") == "The fault is in gamma."
    assert scene.says("Now look at delta.") == "Delta is fine."
    assert whole_file("alpha") in scene.sent[2].raw

    # Claude Code hands words of meanwhile over inside a result or as an instruction: with the result its turn stays.
    assert scene.says("Now read the rest.") == "Read."
    last = scene.sent[-1].raw
    spoken = [name for name in names if meanwhile in json.dumps(results_of(scene.sent[-1]).get(f"toolu_{name}"))]
    assert len(spoken) <= 1
    assert [name for name in names if whole_file(name) in last] == [*spoken, "epsilon", "zeta", "eta"]
    assert b"The fault is in gamma." in last
    assert STUB.findall(last.decode()) == []

    # A pause that is longer than the prompt cache lives, then a restart.
    scene.daemon.wait(PAUSE_S)
    assert scene.says("I am back.") == "Welcome back."
    after_pause = scene.sent[-1]
    (stub,) = STUB.findall(after_pause.raw.decode())
    assert "epsilon.txt" in stub
    assert whole_file("epsilon") not in after_pause.raw
    scene.daemon.restart()
    assert scene.says("Are you there?") == "Still here."
    _continues(after_pause, scene.sent[-1])

    # The text comes back on demand.
    result_id = re.findall(r"res_[0-9a-f]+", stub)[0]
    script._steps += [step("", ("toolu_expand", f"{OURS}expand", {"branch_id": result_id, **project})), step("Seen.")]
    assert scene.says("What was in epsilon?") == "Seen."
    assert whole_file("epsilon").decode() in json.dumps(results_of(scene.sent[-1])["toolu_expand"])

    # Claude Code starts again with results that it has cleared, unless thinking is bound to them. The daemon does, too.
    scene.claude.end()
    scene.daemon.restart()
    clears = not BINDING.search(scene.claude.model)
    if clears:
        scene.claude.clear_results(["toolu_branch", "toolu_return", "toolu_fold"])
    script._steps.append(step("As before."))
    scene.claude.start()
    assert scene.says("Once more.") == "As before."
    cleared = scene.sent[-1]
    assert cleared.raw.count(CLEARED.encode()) == (3 if clears else 0)
    assert STUB.findall(cleared.raw.decode()) == [stub]
    assert not any(whole_file(name) in cleared.raw for name in {"alpha", "beta", "gamma", "delta"} - set(spoken))


def _continues(before: Got, after: Got) -> None:
    """What was sent is sent again, but for the marks that say up to where to cache."""
    one, other = (_plain(got.messages) for got in (before, after))
    assert other[: len(one)] == one


def _plain(messages: Sequence[dict[str, Any]]) -> list[Any]:
    plain: list[Any] = without_cache_marks(list(messages))
    for message in plain:
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
    return plain


def _every_word_was_heard(scene: Scene) -> None:
    """From the request on that it was first sent with."""
    for words in scene.words:
        encoded = json.dumps(words)[1:-1].encode()
        heard = [encoded in got.raw for got in scene.sent]
        assert any(heard), words
        assert all(heard[heard.index(True) :]), words
    last = scene.sent[-1].raw
    places = [last.index(json.dumps(words)[1:-1].encode()) for words in scene.words]
    assert places == sorted(places)
