"""`context fold now` through the proxy: what the provider receives before and after, and what all surfaces say."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.serve.proxy.proxy_daemon import ProxyDaemon
from tests.serve.proxy.raw_upstream import WAIT_S, RawRequest, Wire
from tests.serve.proxy.test_figures import Anthropic, Responses, count, size
from tests.support.known_secrets import known_secrets
from tests.support.machine import Ran, run_command

SUMMARY = "Logins fail: tokens expire after a minute."
BINDING_MODEL = "claude-opus-5-5"
both_apis = pytest.mark.parametrize("api", [Anthropic, Responses])


class Agent:
    """A conversation of an agent behind a proxy: it reads files, and never calls our tools."""

    def __init__(self, proxy: ProxyDaemon, api: type[Anthropic | Responses], folder: Path) -> None:
        self.proxy, self.folder = proxy, folder
        self.api = api("0f0e0d0c-1111-4222-8333-444455556666", "")
        self.messages: list[dict[str, Any]] = [self.api.text("user", "Why do logins fail?")]
        self.model = api.model
        self.receipt: dict[str, Any] = {}
        self.before_answer: Callable[[], None] = lambda: None

    def send(self) -> list[Any]:
        """Send a request; returns the messages that the provider received."""

        def answer(request: RawRequest, wire: Wire) -> None:
            self.before_answer()
            body = self.api.answer(self.api.text("assistant", "Yes."), 0)
            # Nothing is read from the cache, so that every change of what was sent is listed.
            body["usage"]["cache_creation_input_tokens"] = count(request.json)
            wire.answer(json.dumps(body).encode(), "Content-Type: application/json")

        self.proxy.upstream.script = answer
        body = self.api.body(self.model, self.messages, [self.api.tool("Read")])
        headers = {"x_context_project": str(self.folder), **self.api.headers}
        reply = self.proxy.post(body, self.api.path, **headers)
        assert reply.status == 200, reply.body
        self.receipt = json.loads(reply.headers["x-context-fold"])
        received: list[Any] = self.proxy.upstream.next().json[self.api.member]
        return received

    def restart(self) -> None:
        assert self.proxy.daemon.stop() == 0
        self.proxy.daemon.start()
        self.proxy.port = self.proxy.daemon.port

    def read(self, number: int, text: str = "") -> None:
        call_id = f"toolu_{number}"
        self.messages += [
            self.api.call(call_id, "Read", {"file": f"f{number}"}),
            self.api.result(call_id, text or f"line {number}\n" * 300),
        ]

    def work(self) -> None:
        """Three files are read, and the third one is the last thing that the provider has received."""
        for number in range(3):
            self.send()
            self.read(number)
        assert self.send() == self.messages

    def say(self) -> None:
        self.messages += [self.api.text("assistant", "It is the tokens."), self.api.text("user", "Fix it.")]

    def fold(self, *words: str) -> Ran:
        place = ("--project", str(self.folder), "--url", self.proxy.daemon.url)
        return run_command("fold", "now", *(words or (SUMMARY,)), *place)

    def roll_back(self, folded: Ran) -> None:
        (session,) = self.proxy.request("GET", "/v1/sessions").json["sessions"]
        words = (folded.out.decode().split()[-1], "--yes", "--session", session["session_id"])
        assert run_command("fold", "rollback", *words, "--store", self.proxy.daemon.store).code == 0

    def ask(self, name: str, *words: str) -> Any:
        (session,) = self.proxy.request("GET", "/v1/sessions").json["sessions"]
        store = ("--store", self.proxy.daemon.store, "--session", session["session_id"])
        return json.loads(run_command("fold", name, *words, *store, "--json").out)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyDaemon]:
    with closing(ProxyDaemon(tmp_path / "daemon")) as proxy:
        yield proxy


@both_apis
def test_later_requests_have_the_summary_in_place_of_the_work(
    proxy: ProxyDaemon, api: type[Anthropic | Responses], tmp_path: Path
) -> None:
    agent = Agent(proxy, api, tmp_path)
    agent.work()
    before = count(agent.api.body(agent.model, agent.messages, [agent.api.tool("Read")]))
    work = agent.messages[1:5]
    text = "line 2\n" * 300
    tokens = -(-sum(size(message) + 1 for message in work) // 4) + -(-size(text) // 4)
    ran = agent.fold()
    assert (ran.code, ran.err) == (
        0,
        "note: from the next request on, requests leave these tokens out and have the summary instead\n",
    )
    said = re.fullmatch(r"folded ([\d,]+) tokens as (br_\w+)\n", ran.out.decode())
    assert said, ran.out
    branch_id = said[2]
    assert int(said[1].replace(",", "")) == tokens
    # A host that repeats its request gets what it got before.
    assert agent.send() == agent.messages
    agent.say()
    received = agent.send()
    stub = (
        f"[contextfold: folded by hand: {SUMMARY}\n"
        f'To see it: context_expand "{branch_id}", or run: context fold expand {branch_id}]'
    )
    expected = [agent.messages[0], agent.messages[5], agent.api.result("toolu_2", stub), *agent.messages[7:]]
    assert received == expected
    assert (agent.receipt["turns_dropped"], agent.receipt["results_left_out"], agent.receipt["first_changed"]) == (
        2,
        0,
        1,
    )
    assert abs(agent.receipt["tokens_before"] - agent.receipt["tokens_after"] + -(-len(stub) // 4) - tokens) <= 2
    assert agent.receipt["tokens_after"] < before
    # Every surface says the same figure.
    (branch,) = agent.ask("list")["branches"]
    assert (branch["id"], branch["tokens_removed"]) == (branch_id, tokens)
    assert agent.ask("status")["folded_tokens"] == tokens
    assert [(fold["branch_id"], fold["tokens_dropped"]) for fold in agent.ask("savings")["folds"]] == [
        (branch_id, tokens)
    ]
    # The scripted usage of OpenAI's API says nothing of a cache.
    assert [miss["cause"] for miss in agent.ask("misses")["misses"]][-1:] == (["fold"] if api is Anthropic else [])
    assert not [line for line in proxy.log() if line["event"] == "proxy.own_difference"]
    assert "line 2" in run_command("fold", "expand", branch_id, "--store", proxy.daemon.store).out.decode()
    # A host that masks the result does not undo the fold.
    agent.messages[6] = agent.api.result("toolu_2", "[Old tool result content cleared]")
    assert agent.send() == expected


@both_apis
def test_another_daemon_on_the_store_sends_the_same(
    proxy: ProxyDaemon, api: type[Anthropic | Responses], tmp_path: Path
) -> None:
    agent = Agent(proxy, api, tmp_path)
    agent.work()
    assert agent.fold().code == 0
    agent.restart()
    agent.say()
    received = agent.send()
    assert len(received) == len(agent.messages) - 4
    agent.restart()
    agent.read(3)
    assert agent.send() == [*received, *agent.messages[-2:]]


def test_a_rollback_takes_the_fold_back_as_long_as_no_request_has_left_it_out(
    proxy: ProxyDaemon, tmp_path: Path
) -> None:
    agent = Agent(proxy, Anthropic, tmp_path)
    agent.work()
    agent.roll_back(agent.fold("Not", "finished"))
    agent.say()
    assert agent.send() == agent.messages
    assert agent.ask("status")["folded_tokens"] == 0
    for number in (3, 4):
        agent.read(number)
    agent.send()
    folded = agent.fold("Again.")
    agent.read(5)
    received = agent.send()
    assert len(received) == len(agent.messages) - 2
    # The model's later thinking may be bound to what it was sent, so no fold that was sent comes back.
    agent.roll_back(folded)
    assert agent.send() == received
    assert agent.ask("status")["folded_tokens"] > 0


def test_with_bound_thinking_the_work_leaves_requests_after_the_users_next_words(
    proxy: ProxyDaemon, tmp_path: Path
) -> None:
    agent = Agent(proxy, Anthropic, tmp_path)
    agent.model = BINDING_MODEL
    agent.work()
    ran = agent.fold()
    assert "from your next message on" in ran.err
    agent.read(3)
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s="}
    call = agent.messages[-2]
    agent.messages[-2] = {**call, "content": [thinking, *call["content"]]}
    assert agent.send() == agent.messages
    assert agent.receipt["reason"] == "bound_thinking"
    assert agent.ask("status")["folded_tokens"] == 0
    agent.say()
    received = agent.send()
    assert len(received) == len(agent.messages) - 4
    assert received[3] == call


def test_a_fold_waits_for_the_response_to_the_last_request(proxy: ProxyDaemon, tmp_path: Path) -> None:
    agent = Agent(proxy, Anthropic, tmp_path)
    for number in range(3):
        agent.send()
        agent.read(number)
    has_begun, may_end = threading.Event(), threading.Event()

    def wait() -> None:
        has_begun.set()
        assert may_end.wait(WAIT_S)

    agent.before_answer = wait
    with ThreadPoolExecutor(2) as threads:
        sending = threads.submit(agent.send)
        assert has_begun.wait(WAIT_S)
        folding = threads.submit(agent.fold)
        may_end.set()
        assert sending.result() == agent.messages
        ran = folding.result()
    assert "from the next request on" in ran.err
    words = (ran.out.decode().split()[-1], "--store", proxy.daemon.store)
    assert "line 2" in run_command("fold", "expand", *words).out.decode()
    agent.say()
    assert len(agent.send()) == len(agent.messages) - 4


def words_of_the_user(agent: Agent) -> None:
    agent.messages[-1] = agent.api.result("toolu_2", "Permission denied. The user said: leave that file alone")


def failure(agent: Agent) -> None:
    agent.messages[-1]["content"][0] |= {"is_error": True, "content": "Exit code 1"}


def picture(agent: Agent) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}
    agent.messages[-1]["content"][0]["content"] = [{"type": "image", "source": source}]


def secret(agent: Agent) -> None:
    agent.messages[-1] = agent.api.result("toolu_2", f"key: {known_secrets(1)[0].value}")


def one_turn(agent: Agent) -> None:
    agent.messages[1:5] = []


def unknown_content(agent: Agent) -> None:
    agent.messages[3]["content"].append({"type": "never_seen"})


def newer_words(agent: Agent) -> None:
    agent.say()


@pytest.mark.parametrize(
    "change", [words_of_the_user, failure, picture, secret, one_turn, unknown_content, newer_words]
)
def test_what_cannot_be_left_out_safely_stays_and_the_command_says_so(
    proxy: ProxyDaemon, tmp_path: Path, change: Callable[[Agent], None]
) -> None:
    agent = Agent(proxy, Anthropic, tmp_path)
    for number in range(3):
        agent.read(number)
        agent.send()
    change(agent)
    agent.send()
    ran = agent.fold()
    assert ran.code == 0 or change is newer_words, ran.err
    assert change is newer_words or ran.err.startswith("note: requests still have this work"), ran.err
    agent.say()
    assert agent.send() == agent.messages
    assert agent.ask("status")["folded_tokens"] == 0


def test_after_a_restart_the_daemon_does_not_know_the_work(proxy: ProxyDaemon, tmp_path: Path) -> None:
    agent = Agent(proxy, Anthropic, tmp_path)
    agent.work()
    agent.restart()
    assert agent.fold().err.startswith("note: requests still have this work")
    agent.say()
    assert agent.send() == agent.messages
