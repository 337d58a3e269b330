"""An agent whose model follows a script: it branches, works, nests, returns and goes on, all through the daemon.

The model is the stand-in upstream, which refuses what a provider would refuse; everything else is the same as for a
real agent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.serve.proxy.agents import APIS, Conversation, Model, tools
from tests.support.clauses import covers
from tests.support.daemon import Daemon, Http, HttpAgent
from tests.support.machine import context
from tests.support.upstream import BYTES_PER_TOKEN, DROPS, PromptCache, Upstream
from tests.support.upstream_answers import Billed, Call, Fail, Say

PAGE_LINES = 60
PREFIXES = {"anthropic": "mcp__contextfold__", "openai-chat": "", "openai-responses": "mcp_contextfold_"}
STEPS_MAX = 60
LEDGER_OFF_MAX = 0.03


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def daemon(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("agent"), *upstream.argv())
    yield daemon
    assert daemon.stop() == 0


def page(number: int) -> str:
    """A tool's long result, which is not needed once the branch is folded; the first one is short."""
    return (
        "empty"
        if number == 0
        else f"page {number}\n" + "".join(f"p{number}:{line} nothing to be seen here\n" for line in range(PAGE_LINES))
    )


class Mind:
    """The model's answers, step by step, independent of the request."""

    def __init__(self, api: str, project: Path) -> None:
        self._prefix, self._project = PREFIXES[api], str(project)
        self.steps: list[Say] = []
        self._asked = 0

    def _calls(self, text: str, name: str, **arguments: Any) -> None:
        self.steps.append(Say(text, (Call(f"call_{len(self.steps)}", name, arguments),)))

    def branch(self, description: str) -> Mind:
        name, project = f"{self._prefix}context_branch", self._project
        self._calls("", name, description=description, prompt=f"Do: {description}", project_path=project)
        return self

    def read(self, *pages: int) -> Mind:
        for number in pages:
            self._calls(f"I read page {number}.", "read_file", page=number)
        return self

    def read_at_once(self, *pages: int) -> Mind:
        calls = (Call(f"call_{len(self.steps)}_{number}", "read_file", {"page": number}) for number in pages)
        self.steps.append(Say("All of them.", tuple(calls)))
        return self

    def fold(self, message: str) -> Mind:
        self._calls("", f"{self._prefix}context_return", message=message, project_path=self._project)
        return self

    def says(self, text: str) -> Mind:
        self.steps.append(Say(text))
        return self

    def __call__(self, _body: Any, _api: str) -> Say | Fail:
        self._asked += 1
        return self.steps[self._asked - 1]


class Agent:
    """Asks the model, runs the calls and sends their results, until there are no more calls."""

    def __init__(self, api: str, daemon: Daemon, headers: Mapping[str, str]) -> None:
        self.model = Model(api, daemon.url, headers=headers)
        self.hands = HttpAgent(daemon.port)
        self.talk = Conversation(api)
        # By number of the request that they came with.
        self.questions: dict[int, str] = {}
        self._asked = 0
        self.branches: list[str] = []
        self.session_id = ""

    def run(self, question: str) -> Say:
        self.talk.user(question)
        self.questions[self._asked] = question
        for step in range(STEPS_MAX):
            self._asked += 1
            say = self.model.ask(self.talk, streams=step % 2 == 0)
            self.talk.said(say)
            if not say.calls:
                return say
            self.talk.results({call.id: self._do(call) for call in say.calls})
        raise AssertionError("it never came to an end")

    def _do(self, call: Call) -> str:
        if call.name == "read_file":
            return page(call.arguments["page"])
        told = self.hands.call("context_" + call.name.rpartition("context_")[2], **call.arguments)
        if call.name.endswith("context_branch"):
            self.branches.append(told["branch_id"])
            self.session_id = told["session_id"]
        return "\n\n".join(block["text"] for block in self.hands.result["content"])

    def close(self) -> None:
        self.model.close()
        self.hands.close()


def day(api: str, project: Path) -> Mind:
    """Two branches in a row, the first of which contains another one."""
    mind = Mind(api, project).branch("Find the fault").read(1, 2, 3)
    mind.branch("Look closer").read_at_once(4, 5).read(6).fold("Pages 4 to 6 say nothing.")
    mind.read(7).fold("The fault is on page 7.")
    mind.says("The fault is on page 7; may I mend it?")
    mind.read(8).branch("Mend it").read(9, 10, 11).fold("Mended.").says("It is mended.")
    return mind


def unfolded(agent: Agent, mind: Mind, *, forgets: bool = False) -> list[Billed]:
    """The bill for the same work at the same provider if the model had not used our tools."""
    cache, api = PromptCache(forgets=forgets), agent.talk.api
    talk = Conversation(api)
    bills: list[Billed] = []
    for step, say in enumerate(mind.steps):
        if step in agent.questions:
            talk.user(agent.questions[step])
        calls = tuple(call for call in say.calls if call.name == "read_file")
        if say.calls and not calls:
            continue
        without = replace(say, calls=calls)
        bills.append(cache.bill(api, {**talk.body(), "tools": tools(api, ("read_file",))}, without))
        talk.said(without)
        if calls:
            talk.results({call.id: page(call.arguments["page"]) for call in calls})
    return bills


@pytest.mark.parametrize("api", APIS)
def test_a_fold_that_cost_more_than_it_saved_is_called_that(
    api: str, upstream: Upstream, daemon: Daemon, tmp_path: Path
) -> None:
    """Much comes before the branch and little is in it; the provider's cache has only the last request."""
    mind = Mind(api, tmp_path).read(1, 2, 3, 4).branch("Look").read(0).fold("There was nothing.").says("Nothing.")
    upstream.got.clear()
    upstream.cache, upstream.script = PromptCache(forgets=True), mind
    with closing(Agent(api, daemon, {"x-context-project": str(tmp_path)})) as agent:
        agent.run("Is there anything?")
        told = looked_at(daemon, f"{agent.session_id}/savings")
        saved = cost(unfolded(agent, mind, forgets=True)) - cost(upstream.billed)
        assert saved < -1_000
        assert told["cost_saved"] == pytest.approx(saved, rel=0.1)
        assert told["costly_folds"] == agent.branches


@pytest.mark.parametrize(
    ("model", "more", "folds"),
    [
        pytest.param("claude-sonnet-5-5", {}, False, id="thoughts bound to what came before"),
        pytest.param("claude-sonnet-5-5", {"block_binding": DROPS}, True, id="and dropped where they do not fit"),
        pytest.param("claude-opus-5", {}, True, id="thoughts of an older model"),
    ],
)
def test_a_model_that_thinks_is_never_given_a_thought_that_it_refuses(  # noqa: PLR0917
    model: str, more: dict[str, Any], folds: bool, upstream: Upstream, daemon: Daemon, tmp_path: Path
) -> None:
    mind = Mind("anthropic", tmp_path).branch("One").read(1, 2).fold("First.").read(3)
    mind.steps = [replace(step, thought="Hm.") for step in mind.steps]
    mind.branch("Two").read(4, 5).fold("Second, without a thought.").read(6).says("Done.")
    upstream.got.clear()
    upstream.script = mind
    with closing(Agent("anthropic", daemon, {})) as agent:
        agent.talk.more = {"model": model, "thinking": {"type": "adaptive", **more}}
        assert agent.run("Think.").text == "Done."
        assert upstream.violations == []
        sent = upstream.got[-1].raw
        assert [f"p{number}:1 nothing".encode() in sent for number in range(1, 7)] == [
            *([not folds] * 2), True, False, False, True,
        ]  # fmt: skip
        assert agent.model.fold["reason"] == (None if folds else "bound_thinking")


def looked_at(daemon: Daemon, path: str) -> Any:
    http = Http(daemon.port)
    told = http.ask("GET", f"/v1/sessions/{path}").json
    http.close()
    return told


def cost(bills: list[Billed]) -> float:
    return sum(bill.input + bill.read * 0.1 + bill.written * 1.25 + bill.output * 5 for bill in bills)


@covers("proxy.md#routes", "proxy.md#expand", "proxy.md#clients")
@pytest.mark.parametrize("names_project", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_an_agent_s_day(api: str, names_project: bool, upstream: Upstream, daemon: Daemon, tmp_path: Path) -> None:
    mind = day(api, tmp_path)
    upstream.got.clear()
    upstream.cache, upstream.script = PromptCache(), mind
    headers = {"x-context-project": str(tmp_path)} if names_project else {}
    with closing(Agent(api, daemon, headers)) as agent:
        assert agent.run("Find the fault.").text == "The fault is on page 7; may I mend it?"
        middle = upstream.got[-1]
        assert agent.run("Mend it.").text == "It is mended."
        assert len(upstream.got) == len(mind.steps)

        assert upstream.violations == []
        _the_main_thread_stays_small(agent, upstream, middle.raw)
        _what_was_sent_is_never_sent_otherwise(upstream)
        _the_figures_are_the_provider_s(agent, upstream, daemon)
        _folded_work_is_given_back(agent, tmp_path)
        _the_ledger_agrees_with_the_bill(agent, mind, upstream.billed, daemon)
        ran = context("fold", "savings", "--json", "--project", str(tmp_path), "--store", str(daemon.store))
        assert ran.code == 0, ran.err
        assert json.loads(ran.out) == looked_at(daemon, f"{agent.session_id}/savings")


def _the_main_thread_stays_small(agent: Agent, upstream: Upstream, middle: bytes) -> None:
    last = upstream.got[-1]
    whole = len(json.dumps(agent.talk.messages))
    assert whole > 12 * PAGE_LINES * 30
    assert len(last.raw) < whole / 3
    for number in (1, 2, 3, 4, 5, 6, 7, 9, 10, 11):
        assert f"p{number}:1 nothing".encode() not in last.raw
    # This page was read on the main thread.
    assert b"p8:1 nothing" in last.raw
    assert b":1 nothing" not in middle
    assert b"The fault is on page 7." in middle
    # The call and the return of the inner branch are counted too.
    assert agent.model.fold["turns_dropped"] == 8 + 3
    assert agent.model.fold["reason"] is None


def _what_was_sent_is_never_sent_otherwise(upstream: Upstream) -> None:
    """Each list begins with the list before it; after a fold, with the part up to the branch call and its result."""
    folds = 0
    for before, after in zip(upstream.got, upstream.got[1:], strict=False):
        same = next(
            (
                place
                for place, pair in enumerate(zip(before.messages, after.messages, strict=False))
                if pair[0] != pair[1]
            ),
            min(len(before.messages), len(after.messages)),
        )
        if same < len(before.messages):
            folds += 1
            # The result of the branch call is still sent.
            assert "branch_id" in json.dumps(after.messages[same - 1])
            assert "context_return" in json.dumps(after.messages[same : same + 2])
    assert folds == 3


def _the_figures_are_the_provider_s(agent: Agent, upstream: Upstream, daemon: Daemon) -> None:
    told = looked_at(daemon, f"{agent.session_id}/trajectory?budget=100000")
    sources = {entry["source"] for entry in told["entries"] if entry["kind"] == "operation"}
    assert sources == {"proxy"}
    last = upstream.billed[-1]
    session = looked_at(daemon, agent.session_id)["session"]
    assert session["main_thread_tokens"] == session["total_tokens"] == last.prompt + last.output
    assert session["operations"] >= len(upstream.got)
    work = sum(len(page(number)) for number in (1, 2, 3, 4, 5, 6, 7, 9, 10, 11)) // BYTES_PER_TOKEN
    assert work < session["folded_tokens"] < 1.5 * work


def _folded_work_is_given_back(agent: Agent, project: Path) -> None:
    texts = {}
    for branch_id in agent.branches:
        told = agent.hands.call("context_expand", project_path=str(project), branch_id=branch_id, budget=100_000)
        texts[branch_id] = "\n".join(entry["text"] for entry in told["entries"])
    first, inner, last = (texts[branch_id] for branch_id in agent.branches)
    for number in range(1, 12):
        mark = f"p{number}:{PAGE_LINES - 1} nothing to be seen here"
        assert (mark in first, mark in inner, mark in last) == (number in (1, 2, 3, 7), number in (4, 5, 6), number > 8)


def _the_ledger_agrees_with_the_bill(agent: Agent, mind: Mind, bills: list[Billed], daemon: Daemon) -> None:
    told = looked_at(daemon, f"{agent.session_id}/savings")
    assert (told["requests"], told["estimated_requests"], told["failed_open"]) == (len(bills), 0, {})
    assert told["tokens_sent"] == sum(bill.prompt for bill in bills)
    assert told["output_tokens"] == sum(bill.output for bill in bills)
    assert told["cost_sent"] == pytest.approx(cost(bills), abs=0.01)

    without = unfolded(agent, mind)
    assert told["extra_requests"] == len(bills) - len(without)
    assert told["tokens_without"] == pytest.approx(sum(bill.prompt for bill in without), rel=LEDGER_OFF_MAX)
    assert told["cost_without"] == pytest.approx(cost(without), rel=LEDGER_OFF_MAX)
    assert {fold["branch_id"] for fold in told["folds"]} == set(agent.branches)
