"""The callback with LiteLLM itself and a custom provider that LiteLLM calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
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
    check_requests,
    import_or_skip,
    page_text,
)

import_or_skip("litellm")

import litellm  # noqa: E402

from contextfold.adapters.litellm import FoldingCallback, fold_chat  # noqa: E402

TOOL_RESULTS = {"context_branch": BRANCH, "context_return": RETURNED, "context_fold": FOLDED}

# The package's own types make pydantic warn.
pytestmark = pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict:UserWarning")


class ScriptedProvider(litellm.CustomLLM):
    def __init__(self) -> None:
        super().__init__()
        self.script = [*FIRST_TURN, *SECOND_TURN]
        self.requests: list[list[Any]] = []

    async def acompletion(self, *args: Any, **kwargs: Any) -> Any:
        self.requests.append(list(kwargs["messages"]))
        step, number = self.script.pop(0), len(self.requests)
        calls = [
            {"id": f"call_{number}_{index}", "type": "function", "function": _function(call)}
            for index, call in enumerate(step if isinstance(step, list) else [])
        ]
        message = {"role": "assistant", "content": step if isinstance(step, str) else None, "tool_calls": calls or None}
        return litellm.ModelResponse(choices=[{"message": message, "finish_reason": "stop", "index": 0}])


def _function(call: Any) -> dict[str, str]:
    return {"name": call.name, "arguments": json.dumps(call.arguments)}


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    provider = ScriptedProvider()
    before = litellm.custom_provider_map, litellm.callbacks
    litellm.custom_provider_map = [{"provider": "scripted", "custom_handler": provider}]
    yield provider
    litellm.custom_provider_map, litellm.callbacks = before


def test_requests_are_folded_and_the_list_of_the_loop_is_not_changed(provider: ScriptedProvider) -> None:
    receipts = ReceiptList()
    litellm.callbacks = [FoldingCallback(receipts)]
    messages: list[Any] = []

    async def ask(prompt: str) -> str:
        messages.append({"role": "user", "content": prompt})
        while True:
            response = await litellm.acompletion(model="scripted/model", messages=messages)
            message = response.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return str(message.content)
            for call in message.tool_calls:
                arguments = json.loads(call.function.arguments)
                text = TOOL_RESULTS.get(call.function.name) or page_text(arguments["number"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})

    async def conversation() -> None:
        assert await ask(FIRST_PROMPT) == "Shall I migrate prod?"
        assert await ask(SECOND_PROMPT) == "Done."

    asyncio.run(conversation())
    check_requests([str(request) for request in provider.requests], receipts)
    assert page_text(1) in str(messages)


def call_with_result(name: str, result: str, **more: Any) -> list[Any]:
    call = {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call], **more},
        {"role": "tool", "tool_call_id": name, "content": result},
    ]


def test_messages_that_stay_are_the_same_objects_and_bound_thinking_delays_a_fold() -> None:
    thought = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]
    user_message = {"role": "user", "content": SECOND_PROMPT}
    head = [{"role": "user", "content": FIRST_PROMPT}, *call_with_result("context_branch", BRANCH)]
    inside = call_with_result("read_page", page_text(1))
    plain = [*head, *inside, user_message, *call_with_result("context_return", RETURNED)]
    assert [id(each) for each in fold_chat(plain)] == [id(each) for each in [*head, user_message, *plain[6:]]]
    bound = [*head, *inside, *call_with_result("context_return", RETURNED, thinking_blocks=thought)]
    assert fold_chat(bound) == bound
    later = [*bound, {"role": "assistant", "content": "Done."}, user_message]
    sent = fold_chat(later)
    assert "Hm." not in str(sent)
    assert page_text(1) not in str(sent)
    assert fold_chat(bound, model="gpt-5") == [*head, *bound[5:]]


@pytest.mark.parametrize(
    ("call_type", "kwargs"),
    [
        ("aembedding", {"input": ["x"]}),
        ("acompletion", {"messages": [5]}),
        ("aresponses", {"input": "text"}),
        ("anthropic_messages", {"messages": [{"role": "user", "content": "x"}]}),
        (None, {}),
    ],
)
def test_other_calls_pass_unchanged(call_type: str | None, kwargs: dict[str, Any]) -> None:
    assert asyncio.run(FoldingCallback().async_pre_call_deployment_hook(kwargs, call_type)) == kwargs
