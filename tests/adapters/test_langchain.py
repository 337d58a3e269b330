"""The middleware with LangChain's own agent and a fake chat model of LangChain."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.adapters.scripted_conversation import (
    BRANCH,
    FIRST_PROMPT,
    FIRST_TURN,
    FOLDED,
    RETURNED,
    SECOND_PROMPT,
    SECOND_TURN,
    ReceiptList,
    ScriptedCall,
    check_requests,
    import_or_skip,
    page_text,
)

import_or_skip("langchain")

from langchain.agents import create_agent  # noqa: E402
from langchain.agents.middleware import ModelRequest  # noqa: E402
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel  # noqa: E402
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402

from contextfold.adapters.langchain import FoldingMiddleware  # noqa: E402


class ScriptedModel(GenericFakeChatModel):
    """LangChain's fake model, which also accepts tools and records its requests."""

    requests: list[list[Any]]

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[Any], *args: Any, **kwargs: Any) -> Any:
        self.requests.append(list(messages))
        return super()._generate(messages, *args, **kwargs)


@tool
def read_page(number: int) -> str:
    """Reads a page."""
    return page_text(number)


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


def scripted_messages(steps: Sequence[list[ScriptedCall] | str]) -> list[Any]:
    messages = []
    for number, step in enumerate(steps):
        calls = [
            {"name": call.name, "args": call.arguments, "id": f"call_{number}_{index}"}
            for index, call in enumerate(step if isinstance(step, list) else [])
        ]
        messages.append(AIMessage(content=step if isinstance(step, str) else "", tool_calls=calls))
    return messages


@pytest.mark.parametrize("is_async", [False, True])
def test_messages_of_an_agent_are_folded_and_its_state_stays_whole(is_async: bool) -> None:
    receipts = ReceiptList()
    model = ScriptedModel(messages=iter(scripted_messages([*FIRST_TURN, *SECOND_TURN])), requests=[])
    tools = [read_page, context_branch, context_return, context_fold]
    agent = create_agent(model, tools, middleware=[FoldingMiddleware(receipts)])

    def ask(input_messages: list[Any]) -> list[Any]:
        state_in = {"messages": input_messages}
        state = asyncio.run(agent.ainvoke(state_in)) if is_async else agent.invoke(state_in)
        messages: list[Any] = state["messages"]
        return messages

    messages = ask([HumanMessage(FIRST_PROMPT)])
    assert messages[-1].content == "Shall I migrate prod?"
    messages = ask([*messages, HumanMessage(SECOND_PROMPT)])
    assert messages[-1].content == "Done."
    check_requests([str(request) for request in model.requests], receipts)
    assert page_text(1) in str(messages)


def folded(messages: list[Any], model: str = "") -> list[Any]:
    model_ = ScriptedModel(messages=iter([]), requests=[])
    request = ModelRequest(model=model_, messages=messages, tools=[])
    requests: list[Any] = []
    FoldingMiddleware().wrap_model_call(request, requests.append)
    sent: list[Any] = requests[0].messages
    return sent


def call_with_result(name: str, result: str, content: Any = "") -> list[Any]:
    turn = AIMessage(content=content, tool_calls=[{"name": name, "args": {}, "id": name}])
    return [turn, ToolMessage(result, tool_call_id=name)]


def test_messages_that_stay_are_the_same_objects() -> None:
    user_message = HumanMessage(SECOND_PROMPT, additional_kwargs={"mine": 1})
    history = [
        HumanMessage(FIRST_PROMPT),
        *call_with_result("context_branch", BRANCH),
        *call_with_result("read_page", page_text(1)),
        user_message,
        *call_with_result("context_return", RETURNED),
    ]
    sent = folded(history)
    expected = [*history[:3], user_message, *history[6:]]
    assert [id(each) for each in sent] == [id(each) for each in expected]


def test_thinking_of_the_running_loop_delays_a_fold_and_finished_thinking_is_removed() -> None:
    thought = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "So."}]
    history = [
        HumanMessage(FIRST_PROMPT),
        *call_with_result("context_branch", BRANCH),
        *call_with_result("read_page", page_text(1)),
        *call_with_result("context_return", RETURNED, thought),
    ]
    assert folded(history) == history
    later = [*history, AIMessage("Done."), HumanMessage(SECOND_PROMPT)]
    sent = folded(later)
    assert page_text(1) not in str(sent)
    assert sent[3].content == thought[1:]
    assert sent[3].tool_calls == later[5].tool_calls


def test_a_failed_return_folds_nothing() -> None:
    history = [
        HumanMessage(FIRST_PROMPT),
        *call_with_result("context_branch", BRANCH),
        *call_with_result("read_page", page_text(1)),
    ]
    history += call_with_result("context_return", RETURNED)
    history[-1].status = "error"
    assert folded(history) == history
