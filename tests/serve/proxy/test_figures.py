"""Every surface says the same figures, and they are those of the requests that the provider received.

Days are generated: runs, conversations that go on in another run, `/clear`, forks, subagents, compactions, pauses,
requests for a title, folds with and without the tool's definition in the request or with its name in a namespace, folds
that are undone, retries after errors, streams that are aborted, and a change of the model. The provider counts what it
receives, and its counts are compared with all that is said. What would have been sent without us is computed from the
host's own messages.
"""

from __future__ import annotations

import json
import random
import re
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from contextfold.cli.hook import abbreviate
from contextfold.cli.run import summary_lines
from contextfold.common.answer_format import format_count
from tests.serve.proxy.proxy_daemon import MESSAGES, ProxyDaemon, begin
from tests.serve.proxy.raw_upstream import RawRequest, Wire
from tests.support.daemon import SHIFTED_CLOCK, HttpAgent, advance_clock
from tests.support.machine import run_command, times
from tests.support.waiting import until

# Longer than any provider keeps a prompt.
PAUSE_S = 25 * 3600
OUTPUT_TOKENS = 7
STUB = "[contextfold: result of "
SYSTEM = "You are a host. " * 300
# On a busy machine the daemon may take longer than a status bar waits.
STATUSLINE_TRIES = 20
# The ledger estimates what would have been sent without us. What is left out of the first request of a fork, or to
# another model, is taken for results of tools, which are denser than the rest, and not in these tests.
ESTIMATE_OFF_SHARE, ESTIMATE_OFF_TOKENS, FORK_OFF_SHARE = 0.03, 50, 0.16


def size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


def count(value: Any) -> int:
    """The provider's tokens for a request. It does not count how its JSON is spaced."""
    return size(value) // 4


class Anthropic:
    path, member, ours = MESSAGES, "messages", "mcp__contextfold__context_fold"
    model, other_model, can_abort = "claude-sonnet-4-5", "claude-opus-4-5", True

    def __init__(self, host_id: str, agent: str) -> None:
        self.headers = {"x_claude_code_session_id": host_id} | ({"x_claude_code_agent_id": agent} if agent else {})

    def text(self, role: str, text: str) -> dict[str, Any]:
        return {"role": role, "content": [{"type": "text", "text": text}]}

    def call(self, call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"role": "assistant", "content": [{"type": "tool_use", "id": call_id, "name": name, "input": arguments}]}

    def result(self, call_id: str, text: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": text}]}

    def tool(self, name: str) -> dict[str, Any]:
        return {"name": name, "description": "does it", "input_schema": {"type": "object"}}

    def body(self, model: str, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
        return {"model": model, "system": SYSTEM, "messages": messages, "tools": tools}

    def answer(self, item: dict[str, Any], prompt_tokens: int) -> dict[str, Any]:
        usage = {"input_tokens": prompt_tokens, "output_tokens": OUTPUT_TOKENS}
        return {"content": item["content"], "usage": usage}

    def results_in(self, body: Any) -> Iterator[tuple[str, str]]:
        for message in body["messages"]:
            for block in message["content"]:
                if block["type"] == "tool_result":
                    yield block["tool_use_id"], block["content"]


class Responses:
    """OpenAI's Responses API, with our tool in a namespace as Codex has it."""

    path, member, ours = "/proxy/openai/v1/responses", "input", "context_fold"
    model, other_model, can_abort = "gpt-5", "gpt-5-mini", False

    def __init__(self, host_id: str, _agent: str) -> None:
        self.headers: dict[str, str] = {}
        self._key = host_id

    def text(self, role: str, text: str) -> dict[str, Any]:
        kind = "output_text" if role == "assistant" else "input_text"
        return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}

    def call(self, call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        space = {"namespace": "mcp__contextfold"} if name == self.ours else {}
        call = {"type": "function_call", "call_id": call_id, "name": name, **space}
        return {**call, "arguments": json.dumps(arguments)}

    def result(self, call_id: str, text: str) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": call_id, "output": text}

    def tool(self, name: str) -> dict[str, Any]:
        tool = {"type": "function", "name": name, "description": "does it", "parameters": {"type": "object"}}
        return {"type": "namespace", "name": "mcp__contextfold", "tools": [tool]} if name == self.ours else tool

    def body(self, model: str, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
        key = {"prompt_cache_key": self._key}
        return {"model": model, "instructions": SYSTEM, "input": messages, "tools": tools, **key}

    def answer(self, item: dict[str, Any], prompt_tokens: int) -> dict[str, Any]:
        usage = {"input_tokens": prompt_tokens, "output_tokens": OUTPUT_TOKENS}
        return {"status": "completed", "output": [{"id": "i", **item}], "usage": usage}

    def results_in(self, body: Any) -> Iterator[tuple[str, str]]:
        for item in body["input"]:
            if item["type"] == "function_call_output":
                yield item["call_id"], item["output"]


class Sent(NamedTuple):
    """A request that the provider has answered: its tokens, and those of a run without our tools (or no request)."""

    run: str
    tokens: int
    without: int | None


class Conversation:
    """A conversation as its host has it, and what the provider has received of it."""

    def __init__(self, day: Day, api: type[Anthropic | Responses], run: str, agent_of: str = "") -> None:
        self.day, self.dice, self.run = day, day.dice, run
        self.host_id = agent_of or str(uuid.UUID(int=day.dice.getrandbits(128)))
        self.agent = "agent" if agent_of else ""
        self.api = api(self.host_id, self.agent)
        self.model = api.model
        self.messages: list[dict[str, Any]] = []
        # The messages that are there only because of our tool, by their position in the list of all messages.
        self.ours: list[dict[str, Any]] = []
        # A deferred tool has no definition in the request.
        self.tools = ["Read"] if self.dice.random() < 0.5 else ["Read", api.ours]
        self.work_start = self.calls = 0
        self.texts: dict[str, str] = {}
        self.sent: list[Sent] = []
        self.received: Any = None
        self.last_tokens, self.last_model = 0, ""
        # The tokens of each fold, and the run in whose requests it was first left out.
        self.folds: dict[str, tuple[int, str]] = {}
        self.new_fold = ("", 0, 0)
        # Whether the first request with its model may leave something out.
        self.begins_folded = False
        # The folds of the conversation from which it was forked, and those that may be undone.
        self.folds_before: dict[str, int] = {}
        self.undoable: list[str] = []
        # The folds that a person has made, of which the messages say nothing.
        self.by_hand: list[str] = []
        self.left_out: dict[str, int] = {}
        self.extra_requests = 0

    def __repr__(self) -> str:
        return f"{type(self.api).__name__} {self.host_id} {self.agent}"

    # ---- one request

    def body(self, *, without_us: bool = False) -> dict[str, Any]:
        api = self.api
        if not without_us:
            return api.body(self.model, self.messages, [api.tool(name) for name in self.tools])
        messages = [message for message in self.messages if not any(message is ours for ours in self.ours)]
        return api.body(self.model, messages, [api.tool("Read")])

    def post(self, item: dict[str, Any]) -> None:
        """Send a request; the model answers with this item. Sometimes the provider refuses it first."""
        body = self.body()
        path = f"/run/{self.run}{self.api.path}"
        while self.dice.random() < 0.1:
            self.day.fail(body, path, self.api.headers)
            self.day.failed[self.run] += 1
        received = self.day.post(body, path, self.api, item)
        is_ours = item in self.ours
        self.extra_requests += is_ours
        self._note(received, without=None if is_ours else count(self.body(without_us=True)))

    def _note(self, received: Any, without: int | None) -> None:
        self.last_tokens, self.last_model = count(received), self.model
        self.sent.append(Sent(self.run, self.last_tokens, without))
        fold_id, tokens, hidden = self.new_fold
        if fold_id:
            # The fold has left the request, and nothing else has.
            assert len(self.messages) - len(received[self.api.member]) == hidden
            self.folds[fold_id] = (tokens, self.run)
            self.undoable.append(fold_id)
            self.new_fold = ("", 0, 0)
        for call_id, text in self.api.results_in(received):
            if text.startswith(STUB):
                self.left_out[call_id] = -(-len(self.texts[call_id].encode()) // 4)
        self.received = received

    # ---- what happens in a conversation

    def prompt(self, text: str = "") -> None:
        self.messages.append(self.api.text("user", text or f"Do {self.host_id} {len(self.messages)}."))
        answer = self.api.text("assistant", "Yes.")
        self.post(answer)
        self.messages += [answer, self.api.text("user", "Go on.")]
        self.work_start = len(self.messages)

    def read(self) -> None:
        text = f"line {self.calls}\n" * self.dice.randrange(20, 400)
        self._call("Read", {"file": f"f{self.calls}"}, text)

    def fold(self) -> None:
        if len(self.messages) == self.work_start:
            self.read()
        self._call(
            self.api.ours, {"message": f"Done: {self.host_id} {self.agent} {self.calls} {len(self.messages)}."}, None
        )
        self.work_start = len(self.messages)

    def _call(self, name: str, arguments: dict[str, Any], text: str | None) -> None:
        self.calls += 1
        call_id = f"toolu_{self.host_id}_{self.agent}_{self.calls}"
        call = self.api.call(call_id, name, arguments)
        if text is None:
            self.ours.append(call)
        self.post(call)
        if text is None:
            text = self._fold_now(call_id, arguments)
        result = self.api.result(call_id, text)
        if call in self.ours:
            self.ours.append(result)
        self.texts[call_id] = text
        self.messages += [call, result]

    def _fold_now(self, call_id: str, arguments: dict[str, Any]) -> str:
        """Make the call of our tool; its answer must name exactly what leaves the next request."""
        received = self.received[self.api.member]
        # The work is at the end of what the provider has received.
        work = received[len(received) - (len(self.messages) - self.work_start) :]
        tokens = -(-sum(size(message) + 1 for message in work) // 4)
        with HttpAgent(self.day.proxy.port, path=f"/run/{self.run}/mcp") as agent:
            meta = {"claudecode/toolUseId": call_id} if self.dice.random() < 0.5 else None
            answer = agent.call("context_fold", meta, **arguments)
            text = str(agent.result["content"][0]["text"])
        assert answer["summary"]["tokens_folded"] == tokens, self
        self.new_fold = (answer["branch_id"], tokens, len(self.messages) - len(received) + len(work))
        return text

    def fold_by_hand(self) -> None:
        """A person folds: the turns in front of the last result that was sent go, and the summary replaces it."""
        self.read()
        self.read()
        self.read()
        received = self.received[self.api.member]
        # The model's last call, and its result, are not sent yet; the turn before is the one with the summary.
        work = received[len(received) - (len(self.messages) - self.work_start) + 2 : -2]
        ((call_id, _),) = list(self.api.results_in({self.api.member: received[-1:]}))
        tokens = -(-sum(size(message) + 1 for message in work) // 4) + -(-size(self.texts[call_id]) // 4)
        answer = self.day.ask_session(self, "fold", message=f"By hand: {self.host_id} {self.agent} {self.calls}.")
        assert answer["requests"]["tokens"] == answer["summary"]["tokens_folded"] == tokens, self
        self.new_fold = (answer["branch_id"], tokens, len(self.messages) - 2 - len(received) + len(work))
        self.work_start = len(self.messages) - 2
        self.by_hand.append(answer["branch_id"])
        self.read()

    def undo(self) -> None:
        """A person undoes a fold and those after it. What requests leave out does not come back."""
        if self.undoable:
            # The last fold is in a request before.
            self.read()
            at = self.dice.randrange(len(self.undoable))
            self.day.ask_session(self, "rollback", branch_id=self.undoable[at])
            del self.undoable[at:]
            self.read()

    def fork(self) -> Conversation:
        """The same messages with another id, as the host has them."""
        # The last fold is in a request before.
        self.read()
        fork = Conversation(self.day, Anthropic, self.run)
        fork.messages, fork.ours, fork.texts = list(self.messages), list(self.ours), dict(self.texts)
        fork.begins_folded = True
        fork.model, fork.tools = self.model, self.tools
        known = self.folds_before | {fold_id: tokens for fold_id, (tokens, _) in self.folds.items()}
        texts = json.dumps(self.messages)
        fork.by_hand = list(self.by_hand)
        fork.folds_before = {
            fold_id: tokens for fold_id, tokens in known.items() if fold_id in texts or fold_id in self.by_hand
        }
        fork.prompt()
        return fork

    def compact(self) -> None:
        # The last fold is in a request before.
        self.read()
        self.messages, self.by_hand = [], []
        self.prompt("What was done so far: a lot.")

    def title(self) -> None:
        body = {"model": "claude-haiku-4-5", "messages": [{"role": "user", "content": "A title, please."}]}
        if isinstance(self.api, Anthropic):
            item = self.api.text("assistant", "A title")
            received = self.day.post(body, f"/run/{self.run}{self.api.path}", self.api, item)
            self.sent.append(Sent(self.run, count(received), count(body)))

    def abort(self) -> None:
        """The user stops the model, whose answer has begun: the provider has counted the request."""
        if self.api.can_abort:
            received = self.day.abort(self.body() | {"stream": True}, f"/run/{self.run}{self.api.path}", self.api)
            self._note(received, count(self.body(without_us=True) | {"stream": True}))

    def change_model(self) -> None:
        self.model = self.dice.choice([self.api.model, self.api.other_model])
        self.begins_folded = True

    def go_on_in_another_run(self) -> None:
        self.run = self.dice.choice(self.day.runs)


class Day:
    """Some conversations of one project, behind one daemon."""

    def __init__(self, proxy: ProxyDaemon, seed: int) -> None:
        self.proxy, self.dice, self.project = proxy, random.Random(seed), f"/figures/{seed}"
        self.runs = [f"run_{seed:08x}{number:08x}" for number in range(2)]
        self.failed = dict.fromkeys(self.runs, 0)
        for run in self.runs:
            announced = json.dumps({"project_path": self.project, "program": "claude"}).encode()
            self._ask("PUT", f"/v1/runs/{run}", announced, content_type="application/json")
        self.open = [Conversation(self, api, self.runs[0]) for api in (Anthropic, Anthropic, Responses)]
        self.open.append(Conversation(self, Anthropic, self.runs[0], agent_of=self.open[0].host_id))
        self.all = list(self.open)

    def _ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Any:
        reply = self.proxy.request(method, path, body, **headers)
        assert reply.status == 200, reply.body
        return reply.json

    def get(self, path: str) -> Any:
        return self._ask("GET", path)

    def ask_session(self, conversation: Conversation, action: str, **members: str) -> Any:
        named = (conversation.host_id, conversation.agent)
        rows = self.get("/v1/sessions?limit=100")["sessions"]
        (session_id,) = [row["session_id"] for row in rows if (row["conversation"], row["agent"] or "") == named]
        body = json.dumps(members).encode()
        return self._ask("POST", f"/v1/sessions/{session_id}/{action}", body, content_type="application/json")

    # ---- requests

    def post(self, body: Any, path: str, api: Anthropic | Responses, item: dict[str, Any]) -> Any:
        """Send a request, which the provider answers with this item; what it received."""

        def answer(request: RawRequest, wire: Wire) -> None:
            answered = json.dumps(api.answer(item, count(request.json))).encode()
            wire.answer(answered, "Content-Type: application/json")

        self.proxy.upstream.script = answer
        reply = self.proxy.post(body, path, **api.headers)
        assert reply.status == 200, reply.body
        return self.proxy.upstream.next().json

    def fail(self, body: Any, path: str, headers: dict[str, str]) -> None:
        status = self.dice.choice(["429 Too Many Requests", "529 Overloaded"])
        self.proxy.upstream.script = lambda _, wire: wire.answer(b"{}", status=status)
        assert self.proxy.post(body, path, **headers).status == int(status[:3])
        self.proxy.upstream.next()

    def abort(self, body: Any, path: str, api: Anthropic | Responses) -> Any:
        """Send a request, and hang up when its answer has begun."""

        def begin_answer(request: RawRequest, wire: Wire) -> None:
            message = api.answer(api.text("assistant", ""), count(request.json))
            wire.begin("Content-Type: text/event-stream")
            wire.chunk(f"data: {json.dumps({'type': 'message_start', 'message': message})}\n\n".encode())
            wire.is_closed()

        self.proxy.upstream.script = begin_answer
        before = self.get("/v1/savings")["total"]["requests"]
        assert before == sum(len(each.sent) for each in self.all), "an answered request is not counted yet"
        headers = [f"{name.replace('_', '-')}: {value}" for name, value in api.headers.items()]
        with self.proxy.connect() as client:
            begin(client, path, json.dumps(body).encode(), *headers)
            received = b""
            while b"message_start" not in received:
                received += client.recv(1 << 16)
        until(lambda: self.get("/v1/savings")["total"]["requests"] == before + 1)
        return self.proxy.upstream.next().json

    # ---- steps

    def step(self) -> None:
        number = self.dice.randrange(len(self.open))
        conversation = self.open[number]
        name = self.dice.choice(
            [
                *("read", "read", "read", "fold", "fold", "prompt", "compact", "title", "abort", "change_model"),
                *("go_on_in_another_run", "pause", "clear", "fork", "undo", "fold_by_hand"),
            ]
        )
        if name == "pause":
            advance_clock(self.proxy.daemon.folder / "ahead_s", PAUSE_S)
        elif name == "clear":
            if not conversation.agent:
                conversation.read()
                self.open[number] = Conversation(self, type(conversation.api), conversation.run)
                self.open[number].prompt()
                self.all.append(self.open[number])
        elif name == "fork":
            if isinstance(conversation.api, Anthropic) and not conversation.agent:
                self.open[number] = conversation.fork()
                self.all.append(self.open[number])
        else:
            getattr(conversation, name)()


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyDaemon]:
    """A daemon whose clock is ahead by the number of seconds in a file."""
    (tmp_path / "ahead_s").write_text("0")
    program = (sys.executable, SHIFTED_CLOCK, tmp_path / "ahead_s")
    with closing(ProxyDaemon(tmp_path, program=program)) as daemon:
        yield daemon


@pytest.mark.parametrize("seed", range(times(3, 100)))
def test_every_surface_says_what_the_provider_received(proxy: ProxyDaemon, seed: int) -> None:
    day = Day(proxy, seed)
    for conversation in day.open:
        conversation.prompt()
    for _ in range(times(40, 80)):
        day.step()
    for conversation in day.open:
        # The last fold is in a request.
        conversation.read()
    rows = {
        (row["conversation"], row["agent"] or ""): row
        for row in day.get("/v1/sessions?limit=100")["sessions"]
        if row["project_path"] == day.project
    }
    assert set(rows) == {(conversation.host_id, conversation.agent) for conversation in day.all}
    for conversation in day.all:
        check_session(day, rows[conversation.host_id, conversation.agent], conversation)
    for run in day.runs:
        check_run(day, run)


def test_the_status_line_of_a_new_conversation_says_nothing_of_the_others(proxy: ProxyDaemon) -> None:
    day = Day(proxy, 0)
    conversation = next(each for each in day.open if not each.agent)
    conversation.prompt()
    day.get(f"/v1/runs/{conversation.run}")
    assert " tokens (" in read_statusline(day, conversation.host_id)
    assert read_statusline(day, "just-begun") == "contextfold: nothing folded here yet\n"
    proxy.daemon.pause()
    assert run_command("statusline", "--url", proxy.daemon.url, stdin=b"{}").out == b"contextfold: the daemon is busy\n"
    proxy.daemon.resume()


def check_session(day: Day, row: Any, conversation: Conversation) -> None:
    folds = {fold_id: tokens for fold_id, (tokens, _) in conversation.folds.items()}
    before = conversation.folds_before
    left_out, sent = conversation.left_out, conversation.sent
    # The page and the API.
    assert row["context_tokens"] == row["total_tokens"] + row["host_tokens"] == conversation.last_tokens
    assert (row["model"], row["folded_before_tokens"]) == (conversation.last_model, sum(before.values()))
    assert row["folded_tokens"] == sum(folds.values()) + sum(before.values())
    assert (row["left_out_results"], row["left_out_tokens"]) == (len(left_out), sum(left_out.values()))
    view = day.get(f"/v1/sessions/{row['session_id']}?limit=500")
    assert view["session"] == row
    assert {branch["id"]: branch["tokens_removed"] for branch in view["branches"]} == folds
    assert day.get(f"/v1/sessions/{row['session_id']}/timeline")["points"][-1]["total_tokens"] == row["total_tokens"]
    savings = day.get(f"/v1/sessions/{row['session_id']}/savings")
    assert {name: savings[name] for name in row["savings"]} == row["savings"]
    assert (savings["requests"], savings["tokens_sent"]) == (len(sent), sum(each.tokens for each in sent))
    assert savings["extra_requests"] == conversation.extra_requests
    assert {fold["branch_id"]: fold["tokens_dropped"] for fold in savings["folds"]} == folds | before
    assert (savings["left_out"]["results"], savings["left_out"]["tokens"]) == (len(left_out), sum(left_out.values()))
    without = sum(each.without or 0 for each in sent)
    brought = conversation.begins_folded * sum([*before.values(), *folds.values(), *left_out.values()])
    off = ESTIMATE_OFF_SHARE * without + FORK_OFF_SHARE * len(sent) * brought + ESTIMATE_OFF_TOKENS
    assert abs(savings["tokens_without"] - without) <= off
    # The commands, for programs and for people.
    store = ("--store", day.proxy.daemon.store, "--session", row["session_id"])

    def ask(name: str, *words: str) -> Any:
        return json.loads(run_command("fold", name, *words, *store, "--json").out)

    assert ask("status") == ask("list")["session"] == ask("report")["session"] == row
    assert {branch["id"]: branch["tokens_removed"] for branch in ask("list")["branches"]} == folds
    folded = {branch["id"] for branch in view["branches"] if branch["status"] == "folded"}
    assert folded == folds.keys() & set(conversation.undoable)
    reported = {fold["branch_id"]: fold["tokens"] for fold in ask("report")["folds"]}
    assert reported == {fold_id: folds[fold_id] for fold_id in folded}
    assert ask("savings") == savings
    for fold_id in list(folds)[:1]:
        assert ask("show", fold_id)["branch"]["tokens_removed"] == folds[fold_id]
    status = dict(
        line.split(maxsplit=1)
        for line in run_command("fold", "status", *store).out.decode().splitlines()
        if " " in line
    )
    assert int(status["last-request"]) == row["context_tokens"]
    assert int(status["folded"].partition(",")[0]) == row["folded_tokens"]
    assert status["sent"].startswith(f"{len(sent)} request")
    assert f" {savings['tokens_sent']:,} tokens; without folding {savings['tokens_without']:,}" in status["sent"]
    report = run_command("fold", "report", *store).out.decode()
    assert f"{format_count(len(sent), 'request')} sent {savings['tokens_sent']:,} tokens;" in report
    if not conversation.agent:
        check_statusline(day, row, conversation)


def read_statusline(day: Day, host_id: str) -> str:
    payload = json.dumps({"session_id": host_id, "cwd": day.project}).encode()
    line = ""
    for _ in range(STATUSLINE_TRIES):
        line = run_command("statusline", "--url", day.proxy.daemon.url, stdin=payload).out.decode()
        if "is busy" not in line:
            break
    return line


def check_statusline(day: Day, row: Any, conversation: Conversation) -> None:
    line = read_statusline(day, conversation.host_id)
    expected = [f"{abbreviate(row['total_tokens'])} tokens ({row['usage_percent']}%)"]
    expected += [f"{abbreviate(row['folded_tokens'])} folded"] if row["folded_tokens"] else []
    expected += [f"{abbreviate(row['left_out_tokens'])} left out"] if conversation.left_out else []
    assert line.startswith("contextfold: " + " · ".join(expected))


def check_run(day: Day, run: str) -> None:
    sums = day.get(f"/v1/runs/{run}")
    sent = [each for conversation in day.all for each in conversation.sent if each.run == run]
    folds = [tokens for conversation in day.all for tokens, seen_in in conversation.folds.values() if seen_in == run]
    assert (sums["requests"], sums["tokens_sent"]) == (len(sent), sum(each.tokens for each in sent))
    assert (sums["fold_tokens"], sums["failed_requests"]) == (sum(folds), day.failed[run])
    if sent:
        line, *_ = summary_lines(sums, "claude", [])
        assert re.match(rf"{len(sent):,} requests? sent {sums['tokens_sent']:,} tokens; without folding ", line)
