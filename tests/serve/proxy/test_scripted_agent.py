"""An agent whose model follows a script: it opens branches, nested ones too, calls tools, and returns.

The model is the upstream of `tests/support`, which refuses what a provider would refuse. Everything else is the same as
for a real agent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.serve.proxy.model_clients import APIS, Conversation, Model, tools
from tests.support.daemon import Daemon, Http, HttpAgent
from tests.support.machine import run_command
from tests.support.upstream import BYTES_PER_TOKEN, DROP_BLOCK, PromptCache, Upstream
from tests.support.upstream_answers import Billed, Call, Fail, Say

PAGE_LINES = 60
PREFIXES = {"anthropic": "mcp__contextfold__", "openai-chat": "", "openai-responses": "mcp_contextfold_"}
STEPS_MAX = 60
LEDGER_TOLERANCE = 0.03


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def daemon(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("agent"), *upstream.argv()) as daemon:
        yield daemon


def page(number: int) -> str:
    """The result of `read_file`: long, except for the first page."""
    return (
        "empty"
        if number == 0
        else f"page {number}\n" + "".join(f"p{number}:{line} nothing to be seen here\n" for line in range(PAGE_LINES))
    )


class ScriptedModel:
    """The model's answers in order, whatever the request is."""

    def __init__(self, api: str, project: Path) -> None:
        self._prefix, self._project = PREFIXES[api], str(project)
        self.steps: list[Say] = []
        self._requests = 0

    def _add_call(self, text: str, name: str, **arguments: Any) -> None:
        self.steps.append(Say(text, (Call(f"call_{len(self.steps)}", name, arguments),)))

    def branch(self, description: str) -> ScriptedModel:
        name, project = f"{self._prefix}context_branch", self._project
        self._add_call("", name, description=description, prompt=f"Do: {description}", project_path=project)
        return self

    def read(self, *pages: int) -> ScriptedModel:
        for number in pages:
            self._add_call(f"I read page {number}.", "read_file", page=number)
        return self

    def read_at_once(self, *pages: int) -> ScriptedModel:
        calls = (Call(f"call_{len(self.steps)}_{number}", "read_file", {"page": number}) for number in pages)
        self.steps.append(Say("All of them.", tuple(calls)))
        return self

    def fold(self, message: str) -> ScriptedModel:
        self._add_call("", f"{self._prefix}context_return", message=message, project_path=self._project)
        return self

    def answer(self, text: str) -> ScriptedModel:
        self.steps.append(Say(text))
        return self

    def __call__(self, _body: Any, _api: str) -> Say | Fail:
        self._requests += 1
        return self.steps[self._requests - 1]


class Agent:
    """Sends requests to the model and runs the tools that it calls, until it calls none."""

    def __init__(self, api: str, daemon: Daemon, headers: Mapping[str, str]) -> None:
        self.model = Model(api, daemon.url, headers=headers)
        self.mcp = HttpAgent(daemon.port)
        self.conversation = Conversation(api)
        # The keys are the numbers of the requests that brought the questions.
        self.questions: dict[int, str] = {}
        self._requests = 0
        self.branches: list[str] = []
        self.session_id = ""

    def run(self, question: str) -> Say:
        self.conversation.user(question)
        self.questions[self._requests] = question
        for step in range(STEPS_MAX):
            self._requests += 1
            say = self.model.ask(self.conversation, streams=step % 2 == 0)
            self.conversation.assistant(say)
            if not say.calls:
                return say
            self.conversation.results({call.id: self._run_call(call) for call in say.calls})
        raise AssertionError("the model did not stop calling tools")

    def _run_call(self, call: Call) -> str:
        if call.name == "read_file":
            return page(call.arguments["page"])
        response = self.mcp.call("context_" + call.name.rpartition("context_")[2], **call.arguments)
        if call.name.endswith("context_branch"):
            self.branches.append(response["branch_id"])
            self.session_id = response["session_id"]
        return "\n\n".join(block["text"] for block in self.mcp.result["content"])

    def close(self) -> None:
        self.model.close()
        self.mcp.close()


def two_tasks(api: str, project: Path) -> ScriptedModel:
    """Two tasks with a branch each; the first branch contains another one."""
    model = ScriptedModel(api, project).branch("Find the fault").read(1, 2, 3)
    model.branch("Look closer").read_at_once(4, 5).read(6).fold("Pages 4 to 6 say nothing.")
    model.read(7).fold("The fault is on page 7.")
    model.answer("The fault is on page 7; may I mend it?")
    model.read(8).branch("Mend it").read(9, 10, 11).fold("Mended.").answer("It is mended.")
    return model


def bills_without_folding(agent: Agent, model: ScriptedModel, *, forgets: bool = False) -> list[Billed]:
    """What the same work would have cost if the model had not used our tools."""
    cache, api = PromptCache(forgets=forgets), agent.conversation.api
    conversation = Conversation(api)
    bills: list[Billed] = []
    for step, say in enumerate(model.steps):
        if step in agent.questions:
            conversation.user(agent.questions[step])
        calls = tuple(call for call in say.calls if call.name == "read_file")
        if say.calls and not calls:
            continue
        without = replace(say, calls=calls)
        bills.append(cache.bill(api, {**conversation.body(), "tools": tools(api, ("read_file",))}, without))
        conversation.assistant(without)
        if calls:
            conversation.results({call.id: page(call.arguments["page"]) for call in calls})
    return bills


@pytest.mark.parametrize("api", APIS)
def test_a_fold_that_cost_more_than_it_saved_is_listed_as_costly(
    api: str, upstream: Upstream, daemon: Daemon, tmp_path: Path
) -> None:
    """Much comes before the branch and little is in it, and the provider caches only the last request."""
    model = (
        ScriptedModel(api, tmp_path)
        .read(1, 2, 3, 4)
        .branch("Look")
        .read(0)
        .fold("There was nothing.")
        .answer("Nothing.")
    )
    upstream.requests.clear()
    upstream.cache, upstream.script = PromptCache(forgets=True), model
    with closing(Agent(api, daemon, {"x-context-project": str(tmp_path)})) as agent:
        agent.run("Is there anything?")
        response = get_session(daemon, f"{agent.session_id}/savings")
        saved = cost(bills_without_folding(agent, model, forgets=True)) - cost(upstream.billed)
        assert saved < -1_000
        assert response["cost_saved"] == pytest.approx(saved, rel=0.1)
        assert response["costly_folds"] == agent.branches


@pytest.mark.parametrize(
    ("model_name", "extra", "folds"),
    [
        pytest.param("claude-sonnet-5-5", {}, False, id="thoughts bound to what came before"),
        pytest.param("claude-sonnet-5-5", {"block_binding": DROP_BLOCK}, True, id="and dropped where they do not fit"),
        pytest.param("claude-opus-5", {}, True, id="thoughts of an older model"),
    ],
)
def test_no_thinking_block_is_sent_that_the_model_would_refuse(  # noqa: PLR0917
    model_name: str, extra: dict[str, Any], folds: bool, upstream: Upstream, daemon: Daemon, tmp_path: Path
) -> None:
    model = ScriptedModel("anthropic", tmp_path).branch("One").read(1, 2).fold("First.").read(3)
    model.steps = [replace(step, thought="Hm.") for step in model.steps]
    model.branch("Two").read(4, 5).fold("Second, without a thought.").read(6).answer("Done.")
    upstream.requests.clear()
    upstream.script = model
    with closing(Agent("anthropic", daemon, {})) as agent:
        agent.conversation.extra = {"model": model_name, "thinking": {"type": "adaptive", **extra}}
        assert agent.run("Think.").text == "Done."
        assert upstream.violations == []
        sent = upstream.requests[-1].raw
        assert [f"p{number}:1 nothing".encode() in sent for number in range(1, 7)] == [
            *([not folds] * 2), True, False, False, True,
        ]  # fmt: skip
        assert agent.model.fold["reason"] == (None if folds else "bound_thinking")


def get_session(daemon: Daemon, path: str) -> Any:
    with Http(daemon.port) as http:
        return http.ask("GET", f"/v1/sessions/{path}").json


def cost(bills: list[Billed]) -> float:
    return sum(bill.input + bill.read * 0.1 + bill.written * 1.25 + bill.output * 5 for bill in bills)


@pytest.mark.parametrize("names_project", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_an_agents_requests_stay_small_and_folded_work_can_be_expanded(
    api: str, names_project: bool, upstream: Upstream, daemon: Daemon, tmp_path: Path
) -> None:
    model = two_tasks(api, tmp_path)
    upstream.requests.clear()
    upstream.cache, upstream.script = PromptCache(), model
    headers = {"x-context-project": str(tmp_path)} if names_project else {}
    with closing(Agent(api, daemon, headers)) as agent:
        assert agent.run("Find the fault.").text == "The fault is on page 7; may I mend it?"
        first_task_end = upstream.requests[-1]
        assert agent.run("Mend it.").text == "It is mended."
        assert len(upstream.requests) == len(model.steps)

        assert upstream.violations == []
        _check_the_main_thread_stays_small(agent, upstream, first_task_end.raw)
        _check_sent_messages_never_change(upstream)
        _check_the_figures_are_the_providers(agent, upstream, daemon)
        _check_folded_work_can_be_expanded(agent, tmp_path)
        _check_the_ledger_agrees_with_the_bill(agent, model, upstream.billed, daemon)
        result = run_command("fold", "savings", "--json", "--project", str(tmp_path), "--store", str(daemon.store))
        assert result.code == 0, result.err
        assert json.loads(result.out) == get_session(daemon, f"{agent.session_id}/savings")


def _check_the_main_thread_stays_small(agent: Agent, upstream: Upstream, first_task_end: bytes) -> None:
    last = upstream.requests[-1]
    unfolded_size = len(json.dumps(agent.conversation.messages))
    assert unfolded_size > 12 * PAGE_LINES * 30
    assert len(last.raw) < unfolded_size / 3
    for number in (1, 2, 3, 4, 5, 6, 7, 9, 10, 11):
        assert f"p{number}:1 nothing".encode() not in last.raw
    # This page was read on the main thread.
    assert b"p8:1 nothing" in last.raw
    assert b":1 nothing" not in first_task_end
    assert b"The fault is on page 7." in first_task_end
    # The call and the return of the inner branch are counted too.
    assert agent.model.fold["turns_dropped"] == 8 + 3
    assert agent.model.fold["reason"] is None


def _check_sent_messages_never_change(upstream: Upstream) -> None:
    """Each list begins with the list before it; after a fold, with the part up to the branch call and its result."""
    folds = 0
    for before, after in zip(upstream.requests, upstream.requests[1:], strict=False):
        common = next(
            (
                index
                for index, pair in enumerate(zip(before.messages, after.messages, strict=False))
                if pair[0] != pair[1]
            ),
            min(len(before.messages), len(after.messages)),
        )
        if common < len(before.messages):
            folds += 1
            # The result of the branch call is still sent.
            assert "branch_id" in json.dumps(after.messages[common - 1])
            assert "context_return" in json.dumps(after.messages[common : common + 2])
    assert folds == 3


def _check_the_figures_are_the_providers(agent: Agent, upstream: Upstream, daemon: Daemon) -> None:
    response = get_session(daemon, f"{agent.session_id}/trajectory?budget=100000")
    sources = {entry["source"] for entry in response["entries"] if entry["kind"] == "operation"}
    assert sources == {"proxy"}
    last = upstream.billed[-1]
    session = get_session(daemon, agent.session_id)["session"]
    assert session["context_tokens"] == last.prompt
    assert session["total_tokens"] == session["main_thread_tokens"] == last.prompt - session["host_tokens"]
    assert session["operations"] >= len(upstream.requests)
    work = sum(len(page(number)) for number in (1, 2, 3, 4, 5, 6, 7, 9, 10, 11)) // BYTES_PER_TOKEN
    assert work < session["folded_tokens"] < 1.5 * work


def _check_folded_work_can_be_expanded(agent: Agent, project: Path) -> None:
    texts = {}
    for branch_id in agent.branches:
        response = agent.mcp.call("context_expand", project_path=str(project), branch_id=branch_id, budget=100_000)
        texts[branch_id] = "\n".join(entry["text"] for entry in response["entries"])
    first, inner, last = (texts[branch_id] for branch_id in agent.branches)
    for number in range(1, 12):
        line = f"p{number}:{PAGE_LINES - 1} nothing to be seen here"
        assert (line in first, line in inner, line in last) == (number in (1, 2, 3, 7), number in (4, 5, 6), number > 8)


def _check_the_ledger_agrees_with_the_bill(
    agent: Agent, model: ScriptedModel, bills: list[Billed], daemon: Daemon
) -> None:
    response = get_session(daemon, f"{agent.session_id}/savings")
    assert (response["requests"], response["estimated_requests"], response["failed_open"]) == (len(bills), 0, {})
    assert response["tokens_sent"] == sum(bill.prompt for bill in bills)
    assert response["output_tokens"] == sum(bill.output for bill in bills)
    assert response["cost_sent"] == pytest.approx(cost(bills), abs=0.01)

    without = bills_without_folding(agent, model)
    assert response["extra_requests"] == len(bills) - len(without)
    assert response["tokens_without"] == pytest.approx(sum(bill.prompt for bill in without), rel=LEDGER_TOLERANCE)
    assert response["cost_without"] == pytest.approx(cost(without), rel=LEDGER_TOLERANCE)
    assert {fold["branch_id"] for fold in response["folds"]} == set(agent.branches)
