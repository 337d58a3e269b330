"""The middleware with LangChain's own agent and a fake chat model of LangChain."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.adapters.days import (
    BRANCH,
    FIRST,
    FIRST_TURN,
    FOLDED,
    RETURNED,
    SECOND,
    SECOND_TURN,
    Asked,
    Receipts,
    check_day,
    needed,
    page,
)

needed("langchain")

from langchain.agents import create_agent  # noqa: E402
from langchain.agents.middleware import ModelRequest  # noqa: E402
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel  # noqa: E402
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402

from contextfold.adapters.langchain import FoldingMiddleware  # noqa: E402


class ScriptedModel(GenericFakeChatModel):
    """LangChain's fake model, which also takes tools and notes what it is given."""

    requests: list[list[Any]]

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[Any], *args: Any, **kwargs: Any) -> Any:
        self.requests.append(list(messages))
        return super()._generate(messages, *args, **kwargs)


@tool
def read_page(number: int) -> str:
    """Reads a page."""
    return page(number)


@tool
def context_branch() -> str:
    """Opens a branch."""
    return BRANCH


@tool
def context_return() -> str:
    """Folds a branch."""
    return RETURNED


@tool
def context_fold() -> str:
    """Folds finished work."""
    return FOLDED


def answers(steps: Sequence[list[Asked] | str]) -> list[Any]:
    made = []
    for number, step in enumerate(steps):
        calls = [
            {"name": call.name, "args": call.arguments, "id": f"call_{number}_{place}"}
            for place, call in enumerate(step if isinstance(step, list) else [])
        ]
        made.append(AIMessage(content=step if isinstance(step, str) else "", tool_calls=calls))
    return made


@pytest.mark.parametrize("is_async", [False, True])
def test_an_agents_messages_are_folded_and_its_state_keeps_all(is_async: bool) -> None:
    receipts = Receipts()
    model = ScriptedModel(messages=iter(answers([*FIRST_TURN, *SECOND_TURN])), requests=[])
    tools = [read_page, context_branch, context_return, context_fold]
    agent = create_agent(model, tools, middleware=[FoldingMiddleware(receipts)])

    def ask(messages: list[Any]) -> list[Any]:
        given = {"messages": messages}
        state = asyncio.run(agent.ainvoke(given)) if is_async else agent.invoke(given)
        said: list[Any] = state["messages"]
        return said

    said = ask([HumanMessage(FIRST)])
    assert said[-1].content == "Shall I migrate prod?"
    said = ask([*said, HumanMessage(SECOND)])
    assert said[-1].content == "Done."
    check_day([str(request) for request in model.requests], receipts)
    assert page(1) in str(said)


def folded(messages: list[Any], model: str = "") -> list[Any]:
    fake = ScriptedModel(messages=iter([]), requests=[])
    request = ModelRequest(model=fake, messages=messages, tools=[])
    seen: list[Any] = []
    FoldingMiddleware().wrap_model_call(request, seen.append)
    sent: list[Any] = seen[0].messages
    return sent


def called(name: str, answer: str, content: Any = "") -> list[Any]:
    said = AIMessage(content=content, tool_calls=[{"name": name, "args": {}, "id": name}])
    return [said, ToolMessage(answer, tool_call_id=name)]


def test_messages_that_stay_are_the_same_objects() -> None:
    words = HumanMessage(SECOND, additional_kwargs={"mine": 1})
    history = [
        HumanMessage(FIRST),
        *called("context_branch", BRANCH),
        *called("read_page", page(1)),
        words,
        *called("context_return", RETURNED),
    ]
    sent = folded(history)
    expected = [*history[:3], words, *history[6:]]
    assert [id(each) for each in sent] == [id(each) for each in expected]


def test_finished_thinking_behind_a_change_goes_and_the_running_loops_makes_it_wait() -> None:
    thought = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "So."}]
    history = [
        HumanMessage(FIRST),
        *called("context_branch", BRANCH),
        *called("read_page", page(1)),
        *called("context_return", RETURNED, thought),
    ]
    assert folded(history) == history
    later = [*history, AIMessage("Done."), HumanMessage(SECOND)]
    sent = folded(later)
    assert page(1) not in str(sent)
    assert sent[3].content == thought[1:]
    assert sent[3].tool_calls == later[5].tool_calls


def test_a_failed_return_folds_nothing() -> None:
    history = [HumanMessage(FIRST), *called("context_branch", BRANCH), *called("read_page", page(1))]
    history += called("context_return", RETURNED)
    history[-1].status = "error"
    assert folded(history) == history
