"""Every surface says the same figures, and they are those of the requests that the provider saw.

Conversations are generated: runs, new and continued conversations, subagents, compactions, requests for a title, calls
of `context_fold` with and without its definition in the request, retries after errors, and a change of the model.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.serve.proxy.proxy_daemon import MESSAGES, ProxyDaemon, proxy, shared_proxy
from tests.serve.proxy.raw_upstream import RawRequest, Wire
from tests.support.daemon import HttpAgent
from tests.support.machine import run_command, times

__all__ = ["proxy", "shared_proxy"]

OURS = "mcp__contextfold__context_fold"
READ = {"name": "Read", "description": "reads", "input_schema": {"type": "object"}}
FOLD = {"name": OURS, "description": "folds", "input_schema": {"type": "object"}}


def size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


class Conversation:
    """A host's conversation, and what is expected of it."""

    def __init__(self, proxy: ProxyDaemon, dice: random.Random, run: str, host_id: str, agent: str = "") -> None:
        self.proxy, self.dice, self.run, self.host_id, self.agent = proxy, dice, run, host_id, agent
        self.messages: list[dict[str, Any]] = []
        self.work_start = 0
        self.calls = 0
        self.model = "claude-sonnet-4-5"
        # With a deferred tool, its definition is not in the request.
        self.tools = [READ] if dice.random() < 0.5 else [READ, FOLD]
        self.requests: list[int] = []
        self.last_count = 0
        self.folds: dict[str, int] = {}

    def headers(self) -> dict[str, str]:
        agent = {"x_claude_code_agent_id": self.agent} if self.agent else {}
        return {"x_claude_code_session_id": self.host_id, **agent}

    def post(self, *content: dict[str, Any], is_title: bool = False) -> None:
        """Sends a request; the model answers with this content. The provider counts the bytes that it receives."""

        def answer(request: RawRequest, wire: Wire) -> None:
            usage = {"input_tokens": len(request.body) // 4, "output_tokens": 7}
            body = json.dumps({"content": content, "usage": usage}).encode()
            wire.answer(body, "Content-Type: application/json")

        body: dict[str, Any] = {"model": self.model, "system": "You are a host. " * 300, "messages": self.messages}
        if is_title:
            body |= {"model": "claude-haiku-4-5", "messages": [{"role": "user", "content": "A title, please."}]}
        else:
            body["tools"] = self.tools
        path = f"/run/{self.run}{MESSAGES}"
        while self.dice.random() < 0.15:
            self.proxy.upstream.script = lambda _, wire: wire.answer(b"{}", status="429 Too Many Requests")
            assert self.proxy.post(body, path, **self.headers()).status == 429
            self.proxy.upstream.next()
        self.proxy.upstream.script = answer
        assert self.proxy.post(body, path, **self.headers()).status == 200
        count = len(self.proxy.upstream.next().body) // 4
        self.requests.append(count)
        self.last_count = self.last_count if is_title else count

    def prompt(self) -> None:
        self.messages.append({"role": "user", "content": f"Do {self.host_id} {len(self.messages)}."})
        self.work_start = len(self.messages)
        self.post({"type": "text", "text": "Yes."})
        self.messages.append({"role": "assistant", "content": [{"type": "text", "text": "Yes."}]})
        self.messages.append({"role": "user", "content": "Go on."})
        self.work_start = len(self.messages)

    def call(self, name: str, arguments: dict[str, Any], result: str = "") -> None:
        self.calls += 1
        call_id = f"toolu_{self.run}_{self.host_id}_{self.calls}"
        call = {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
        self.post(call)
        removed = self.messages[self.work_start :]
        if name == OURS:
            with HttpAgent(self.proxy.port, path=f"/run/{self.run}/mcp") as agent:
                meta = {"claudecode/toolUseId": call_id} if self.dice.random() < 0.5 else None
                answer = agent.call("context_fold", meta, **arguments)
                result = agent.result["content"][0]["text"]
            expected = -(-sum(size(message) + 1 for message in removed) // 4)
            assert answer["summary"]["tokens_folded"] == expected
            self.folds[answer["branch_id"]] = expected
        self.messages.append({"role": "assistant", "content": [call]})
        reply = {"type": "tool_result", "tool_use_id": call_id, "content": result}
        self.messages.append({"role": "user", "content": [reply]})
        if name == OURS:
            self.work_start = len(self.messages)

    def read(self) -> None:
        self.call("Read", {"file": f"f{self.calls}"}, f"line {self.calls}\n" * self.dice.randrange(20, 400))

    def fold(self) -> None:
        if len(self.messages) == self.work_start:
            self.read()
        self.call(OURS, {"message": f"Done with {self.run} {self.host_id} {self.calls}."})

    def compact(self) -> None:
        # The last fold is in a request before.
        self.read()
        self.messages = [{"role": "user", "content": "What was done so far: a lot."}]
        self.work_start = 1
        self.post({"type": "text", "text": "Fine."})
        self.messages += [{"role": "assistant", "content": "Fine."}, {"role": "user", "content": "Go on."}]
        self.work_start = len(self.messages)

    def step(self) -> None:
        action = self.dice.choice(["read", "read", "fold", "fold", "prompt", "compact", "title", "model"])
        if action == "title":
            self.post({"type": "text", "text": "A title"}, is_title=True)
        elif action == "model":
            self.model = self.dice.choice(["claude-sonnet-4-5", "claude-opus-4-5"])
        else:
            getattr(self, action)()


@pytest.mark.parametrize("seed", range(times(4, 100)))
def test_every_surface_says_what_the_provider_saw(proxy: ProxyDaemon, seed: int) -> None:
    dice = random.Random(seed)
    runs = [f"run_{seed:08x}{number:08x}" for number in range(2)]
    project = f"/figures/{seed}"
    for run in runs:
        announced = json.dumps({"project_path": project, "program": "claude"}).encode()
        assert proxy.request("PUT", f"/v1/runs/{run}", announced, content_type="application/json").status == 200
    conversations = [
        Conversation(proxy, dice, runs[number % 2], f"host-{seed}-{number // 2}", "agent" if number % 4 > 1 else "")
        for number in range(4)
    ]
    for conversation in conversations:
        conversation.prompt()
    for _ in range(times(24, 60)):
        dice.choice(conversations).step()
    for conversation in conversations:
        # The last fold is in a request.
        conversation.read()
    merged: dict[tuple[str, str], list[Conversation]] = {}
    for conversation in conversations:
        merged.setdefault((conversation.host_id, conversation.agent), []).append(conversation)
    rows = {
        (row["conversation"], row["agent"] or ""): row
        for row in proxy.request("GET", "/v1/sessions?limit=100").json["sessions"]
        if row["project_path"] == project
    }
    assert set(rows) == set(merged)
    for key, parts in merged.items():
        check_session(proxy, rows[key], parts)
    for run in runs:
        sums = proxy.request("GET", f"/v1/runs/{run}").json
        mine = [conversation for conversation in conversations if conversation.run == run]
        assert sums["tokens_sent"] == sum(sum(each.requests) for each in mine)
        assert sums["requests"] == sum(len(each.requests) for each in mine)
        assert sums["fold_tokens"] == sum(sum(each.folds.values()) for each in mine)


def check_session(proxy: ProxyDaemon, row: Any, parts: list[Conversation]) -> None:
    folds = {branch_id: tokens for part in parts for branch_id, tokens in part.folds.items()}
    assert row["context_tokens"] == parts[-1].last_count
    assert row["total_tokens"] + row["host_tokens"] == row["context_tokens"]
    assert row["folded_tokens"] == sum(folds.values())
    savings = proxy.request("GET", f"/v1/sessions/{row['session_id']}/savings").json
    assert savings["tokens_sent"] == sum(sum(part.requests) for part in parts)
    assert {fold["branch_id"]: fold["tokens_dropped"] for fold in savings["folds"]} == folds
    view = proxy.request("GET", f"/v1/sessions/{row['session_id']}?limit=500").json
    assert {branch["id"]: branch["tokens_removed"] for branch in view["branches"]} == folds
    store = ("--store", proxy.daemon.store, "--session", row["session_id"], "--json")
    status = json.loads(run_command("fold", "status", *store).out)
    listed = json.loads(run_command("fold", "list", *store).out)["branches"]
    assert [status[name] for name in ("context_tokens", "folded_tokens")] == [
        row[name] for name in ("context_tokens", "folded_tokens")
    ]
    assert {branch["id"]: branch["tokens"] for branch in listed} == folds
