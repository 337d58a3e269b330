"""Secrets of many kinds are sent to every input; none of them appears on disk, in logs, answers, metrics or events."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from contextfold.fold.events import to_json
from contextfold.stores.sqlite.store import SqliteStore
from tests.serve.reporting import ApiReader
from tests.support.daemon import LEGACY, MODERN, RPC, Daemon, Http, HttpAgent, Refused
from tests.support.known_secrets import KnownSecret, known_secrets
from tests.support.machine import COMMAND, SOAK, run_command, times
from tests.support.waiting import until

PROJECT = "/work/leaky"
KINDS_MIN = 60
LAST = "the last of all operations"
# This only bounds a hang.
WATCH_TIMEOUT_S = 300


HOSTS = ("claude-code",)


class Inputs:
    """Sends secrets to every input of a daemon, and collects the answers."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.agents = [HttpAgent(daemon.port, era) for era in (LEGACY, MODERN)]
        self.answers: list[bytes] = []

    def send(self, secret: KnownSecret, number: int) -> None:
        """Sends a secret to every input for text. In `make test`, the other inputs get one secret in four each."""
        agent = self.agents[number % 2]
        self._fold(agent, secret.text, number)
        self._hooks(secret.text, number)
        # Each quarter contains secrets of both agents.
        quarter = number // 2 % 4
        if SOAK or quarter == 0:
            self._misuse(agent, secret.text)
        if SOAK or quarter == 1:
            self._rpc(agent, secret.text)
        if SOAK or quarter == 2:
            self._http(secret.text)
        if SOAK or quarter == 3:
            self._resolve(agent, secret.text)

    def call(self, agent: HttpAgent, tool: str, _meta: Mapping[str, Any] | None = None, **arguments: Any) -> Any:
        answer = None
        with suppress(Refused):
            answer = agent.call(tool, _meta, **arguments)
        assert agent.last
        self.answers += [agent.last.body, json.dumps(dict(agent.last.headers)).encode()]
        return answer

    def _fold(self, agent: HttpAgent, text: str, number: int) -> None:
        branch = self.call(
            agent, "context_branch", description=text[:200], prompt=f"Use this:\n{text}\n", project_path=PROJECT
        )
        assert branch
        assert self.call(agent, "context_record", type="output", content=f"$ cat x\n{text}\n", project_path=PROJECT)
        assert self.call(agent, "context_record", type="json", content=json.dumps({"out": text}), project_path=PROJECT)
        self.call(agent, "context_record", type=text[:64], tokens=1, project_path=PROJECT)
        assert self.call(agent, "context_return", message=f"It said {text}", project_path=PROJECT)
        # Stored texts of all kinds are read in the same way, so in `make test` one of these reads follows each secret.
        # A list has all branches so far, so a few lists contain every secret.
        turn = number // 2 % 4
        if SOAK or turn == 0:
            assert self.call(agent, "context_branch_status", project_path=PROJECT)
        if SOAK or number % 16 == 15:
            assert self.call(agent, "context_list_branches", project_path=PROJECT)
        branch_id = branch["branch_id"]
        if SOAK or turn in {1, 3}:
            assert self.call(agent, "context_expand", branch_id=branch_id, budget=100_000, project_path=PROJECT)
        if SOAK or turn == 2:
            rollback = {"branch_id": branch_id, "restore_state": False}
            assert self.call(agent, "context_rollback", project_path=PROJECT, **rollback)
            self.call(agent, "context_return", message="", project_path=PROJECT)

    def _misuse(self, agent: HttpAgent, text: str) -> None:
        """Sends a secret where none is expected, and where a careless program would repeat or store it."""
        for tool, arguments in (
            ("context_return", {"message": "m", "branch_id": text}),
            ("context_rollback", {"branch_id": text}),
            ("context_expand", {"branch_id": text, "cursor": text}),
            ("context_recall", {"query": f"where is {text} {text.lower()}", "format": "json"}),
            ("context_recall", {"query": "q", "since": text}),
            ("context_branch", {"description": "d", "prompt": "p", text: 1}),
            ("context_branch", {"description": [text], "prompt": "p"}),
        ):
            self.call(agent, tool, project_path=PROJECT, **arguments)
        for path in (f"/work/{text}", text):
            self.call(agent, "context_record", project_path=path, type="t", tokens=1)
        for key in ("contextfold/session", "contextfold/operation_id"):
            self.call(agent, "context_record", {key: text}, project_path=PROJECT, type="t", tokens=1)
        if text.isascii() and text.isprintable():
            # The name of a tool is sent in a header too.
            self.call(agent, text)

    def _rpc(self, agent: HttpAgent, text: str) -> None:
        for method, params in (
            ("tools/call", {"name": "context_branch", "arguments": [text]}),
            ("tools/call", {"name": 5, "arguments": text}),
            ("tools/list", {"cursor": {text: text}}),
            ("initialize", {"protocolVersion": text}),
        ):
            with suppress(Refused):
                agent.rpc(method, params)
            assert agent.last
            self.answers.append(agent.last.body)
        with Http(self.daemon.port) as http:
            for message in ([text], text, {text: 1}, {"jsonrpc": "2.0", "id": 1, "method": text}, {"jsonrpc": text}):
                self.answers.append(http.ask("POST", "/mcp", json.dumps(message).encode(), RPC).body)

    def _http(self, text: str) -> None:
        with Http(self.daemon.port) as http:
            body = json.dumps({"project_path": PROJECT, "type": "t", "content": text}).encode()
            requests: list[tuple[str, str, bytes | None, dict[str, str]]] = [
                ("POST", "/v1/operations", body, {}),
                ("POST", "/v1/operations", body[:-3], {}),
                ("POST", "/mcp", body, RPC),
                ("POST", "/mcp", text.encode(), RPC),
                ("GET", f"/{quote(text)}?token={quote(text)}", None, {}),
                ("GET", f"/mcp/{quote(text)}", None, {}),
                ("GET", f"/v1/sessions/{quote(text, '')}", None, {}),
                ("GET", f"/v1/sessions?cursor={quote(text, '')}&limit={quote(text, '')}", None, {}),
                ("GET", f"/v1/summaries?query={quote(text, '')}", None, {}),
                ("GET", f"/v1/events?after={quote(text, '')}", None, {}),
                ("POST", "/v1/recall", json.dumps({"query": text}).encode(), {}),
                ("POST", f"/v1/sessions/{quote(text, '')}/rollback", body, {}),
                ("GET", f"/web/{quote(text, '')}", None, {}),
            ]
            if text.isprintable() and text.isascii():
                for header in (
                    "x-context-session",
                    "idempotency-key",
                    "authorization",
                    "cookie",
                    "mcp-protocol-version",
                ):
                    requests.append(("POST", "/v1/operations", body, {header: text}))
                    requests.append(
                        ("POST", "/mcp", b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {**RPC, header: text})
                    )
                requests.append(("GET", "/healthz", None, {"origin": text}))
            for method, path, sent, headers in requests:
                reply = http.ask(method, path, sent, headers)
                self.answers += [reply.body, json.dumps(dict(reply.headers)).encode()]

    def _hooks(self, text: str, number: int) -> None:
        """Sends reports of a host, with the secret in every member that may contain it."""
        with Http(self.daemon.port) as http:
            common = {"hook_event_name": "PostToolUse", "session_id": "c", "cwd": PROJECT, "tool_name": "Bash"}
            reports: list[dict[str, Any]] = [
                {"tool_input": {"command": text}, "tool_response": {"stdout": f"$ x\n{text}", "stderr": text}},
                {"tool_input": {text: [text]}, "tool_response": [{"type": "text", "text": text}]},
                {"tool_name": text, "tool_response": {text: {"deep": text}}},
                {"hook_event_name": "PostToolUseFailure", "error": text},
                {"hook_event_name": "Stop", "last_assistant_message": f"It is {text}", "prompt_id": text},
                {"hook_event_name": "PreCompact", "trigger": text, "custom_instructions": text},
                {"hook_event_name": "PostCompact", "trigger": text, "compact_summary": text},
                {"hook_event_name": "UserPromptSubmit", "prompt": f"Use {text}"},
                {"session_id": text[:200], "cwd": f"/work/{text}", "tool_response": "x"},
                {"agent_id": text, "agent_type": text, "tool_response": text},
                {"hook_event_name": text},
                {"cwd": text, "session_id": f"new {number}"},
            ]
            for index, more in enumerate(reports):
                # In `make test`, a third of the reports is sent with each secret.
                if not SOAK and (number + index) % 3:
                    continue
                payload = json.dumps({**common, "tool_use_id": f"{number}.{index}", **more}).encode()
                for host in HOSTS if SOAK else [HOSTS[(number + index) // 3 % len(HOSTS)]]:
                    self.answers.append(http.ask("POST", f"/hooks/{host}", payload).body)
                if SOAK or index == -number % len(reports):
                    self.answers.append(http.ask("POST", "/hooks/claude-code", payload[:-2]).body)

    def _resolve(self, agent: HttpAgent, text: str) -> None:
        """By its contract, a selection repeats its query, so only that answer is not searched."""
        agent.call("context.resolve", cache="docs", query=text, budget=100)
        self.call(agent, "context.resolve", cache=text, query="q", budget=100)
        self.call(agent, "context.inspect_cache", cache=text)

    def close(self) -> None:
        for agent in self.agents:
            agent.close()


@pytest.fixture(scope="module")
def secrets() -> list[KnownSecret]:
    generated = [secret for seed in range(times(1, 4)) for secret in known_secrets(seed)]
    assert len({secret.kind for secret in generated}) >= KINDS_MIN
    return generated


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, secrets: list[KnownSecret]) -> Iterator[Inputs]:
    folder = tmp_path_factory.mktemp("leak")
    sources = folder / "sources"
    sources.mkdir()
    (sources / "a.md").write_text("Nothing.\n")
    (folder / "caches").mkdir()
    assert run_command("build", "--sources", sources, "--cache", folder / "caches" / "docs").code == 0
    env = {"CONTEXT_BRANCHES_PER_SESSION": "10000"}
    daemon = Daemon(folder, "--cache-root", str(folder / "caches"), env=env)
    inputs = Inputs(daemon)
    try:
        for number, secret in enumerate(secrets):
            inputs.send(secret, number)
        until(lambda: b"contextfold_hook_reports_waiting 0.0" in inputs.agents[0].http.ask("GET", "/metrics").body)
        yield inputs
    finally:
        inputs.close()
        daemon.stop()


def leaked(secrets: list[KnownSecret], *outputs: bytes) -> set[str]:
    """The kinds of secrets whose value occurs, either plain or as JSON encodes it."""
    everything = b"\n".join(outputs)
    return {
        secret.kind
        for secret in secrets
        if any(
            form.encode() in everything
            for form in {secret.value, json.dumps(secret.value)[1:-1], quote(secret.value), quote(secret.value, "")}
        )
    }


def test_no_answer_or_header_contains_a_secret(inputs: Inputs, secrets: list[KnownSecret]) -> None:
    assert len(inputs.answers) > 20 * len(secrets)
    assert leaked(secrets, *inputs.answers) == set()


def test_a_leaked_secret_would_be_noticed(secrets: list[KnownSecret]) -> None:
    assert leaked(secrets, json.dumps({"x": secrets[0].text}).encode()) == {secrets[0].kind}


def test_no_log_line_contains_a_secret(inputs: Inputs, secrets: list[KnownSecret]) -> None:
    log = inputs.daemon.log.read_bytes()
    assert all(json.loads(line) for line in log.splitlines())
    assert len(log.splitlines()) > len(secrets)
    assert leaked(secrets, log) == set()


def test_no_metric_contains_a_secret(inputs: Inputs, secrets: list[KnownSecret]) -> None:
    page = inputs.agents[0].http.ask("GET", "/metrics").body
    assert b"contextfold_redactions_total{" in page
    assert leaked(secrets, page) == set()


def test_no_file_contains_a_secret(inputs: Inputs, secrets: list[KnownSecret]) -> None:
    files = [path for path in inputs.daemon.folder.rglob("*") if path.is_file()]
    assert any(path.name == "state.db" for path in files)
    assert b"REDACTED" in b"".join(path.read_bytes() for path in inputs.daemon.store.parent.iterdir())
    assert leaked(secrets, *(path.read_bytes() for path in files)) == set()


def test_no_event_of_a_watcher_contains_a_secret(inputs: Inputs, secrets: list[KnownSecret]) -> None:
    inputs.agents[0].call("context_record", project_path=PROJECT, type=LAST, tokens=1)

    async def watch_events() -> list[bytes]:
        store = SqliteStore(inputs.daemon.store)
        seen = [b""]
        try:
            watching = store.watch("local", "0")
            async with asyncio.timeout(WATCH_TIMEOUT_S):
                while LAST.encode() not in seen[-1]:
                    seen.append(to_json((await anext(watching)).event).encode())
        finally:
            await store.close()
        return seen

    events = asyncio.run(watch_events())
    assert len(events) > 5 * len(secrets)
    assert leaked(secrets, *events) == set()


def test_no_session_tree_or_trajectory_contains_a_secret(inputs: Inputs, secrets: list[KnownSecret]) -> None:
    with ApiReader(inputs.daemon) as api:
        texts = [json.dumps(api.get("/v1/sessions?limit=100"))]
        for row in api.sessions()[:50]:
            view = api.get(f"/v1/sessions/{row['session_id']}?limit=500")
            threads = ["", *(branch["id"] for branch in view["branches"][:20])]
            texts += [json.dumps(view), *(json.dumps(api.entries(row["session_id"], thread)) for thread in threads)]
        mains = [row for row in api.sessions() if (row["project_path"], row["name"]) == (PROJECT, None)]
        texts += [json.dumps(api.entries(row["session_id"])) for row in mains]
    assert sum(text.count("REDACTED") for text in texts) > 3 * len(secrets)
    assert leaked(secrets, *(text.encode() for text in texts)) == set()


def test_the_search_command_prints_no_secret(inputs: Inputs, secrets: list[KnownSecret]) -> None:
    ran = run_command("fold", "search", "REDACTED", "--limit", "1000", "--store", str(inputs.daemon.store), "--json")
    assert len(json.loads(ran.out)["summaries"]) >= min(1000, len(secrets) // 2)
    assert leaked(secrets, ran.out, ran.err.encode()) == set()


def test_the_stdio_server_neither_stores_nor_prints_a_secret(tmp_path: Path, secrets: list[KnownSecret]) -> None:
    lines = [{"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": LEGACY}}]
    for number, secret in enumerate(secrets[: times(30, 2000)]):
        for tool, arguments in (
            ("context_branch", {"description": secret.text[:200], "prompt": secret.text}),
            ("context_record", {"type": "t", "content": secret.text}),
            ("context_return", {"message": secret.text}),
            ("context_return", {"message": "m", "branch_id": secret.text}),
        ):
            params = {"name": tool, "arguments": {"project_path": PROJECT, **arguments}}
            lines.append({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
    argv: list[str | Path] = [COMMAND, "serve", "--stdio", "--tools", "fold", "--store", tmp_path / "state.db"]
    sent = "".join(json.dumps(line) + "\n" for line in lines).encode()
    done = subprocess.run(argv, input=sent, capture_output=True, env=dict(os.environ), check=True, timeout=300)
    files = [path.read_bytes() for path in tmp_path.iterdir()]
    assert b"REDACTED" in b"".join(files)
    assert leaked(secrets, done.stdout, done.stderr, *files) == set()
