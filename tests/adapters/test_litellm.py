"""The callback with LiteLLM itself and a provider of one's own, which LiteLLM calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
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
    Receipts,
    check_day,
    needed,
    page,
)

needed("litellm")

import litellm  # noqa: E402

from contextfold.adapters.litellm import FoldingCallback, fold_chat  # noqa: E402

ANSWERS = {"context_branch": BRANCH, "context_return": RETURNED, "context_fold": FOLDED}


class ScriptedProvider(litellm.CustomLLM):
    def __init__(self) -> None:
        super().__init__()
        self.script = [*FIRST_TURN, *SECOND_TURN]
        self.requests: list[list[Any]] = []

    async def acompletion(self, *args: Any, **kwargs: Any) -> Any:
        self.requests.append(list(kwargs["messages"]))
        step, number = self.script.pop(0), len(self.requests)
        calls = [
            {"id": f"call_{number}_{place}", "type": "function", "function": _function(call)}
            for place, call in enumerate(step if isinstance(step, list) else [])
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


def test_requests_are_folded_and_the_loops_own_list_stays(provider: ScriptedProvider) -> None:
    receipts = Receipts()
    litellm.callbacks = [FoldingCallback(receipts)]
    messages: list[Any] = []

    async def ask(words: str) -> str:
        messages.append({"role": "user", "content": words})
        while True:
            answer = await litellm.acompletion(model="scripted/model", messages=messages)
            said = answer.choices[0].message
            messages.append(said)
            if not said.tool_calls:
                return str(said.content)
            for call in said.tool_calls:
                arguments = json.loads(call.function.arguments)
                text = ANSWERS.get(call.function.name) or page(arguments["number"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})

    async def day() -> None:
        assert await ask(FIRST) == "Shall I migrate prod?"
        assert await ask(SECOND) == "Done."

    asyncio.run(day())
    check_day([str(request) for request in provider.requests], receipts)
    assert page(1) in str(messages)


def called(name: str, answer: str, **more: Any) -> list[Any]:
    call = {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call], **more},
        {"role": "tool", "tool_call_id": name, "content": answer},
    ]


def test_messages_that_stay_are_the_same_objects_and_thinking_is_heeded() -> None:
    thought = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]
    words = {"role": "user", "content": SECOND}
    head = [{"role": "user", "content": FIRST}, *called("context_branch", BRANCH)]
    inside = called("read_page", page(1))
    plain = [*head, *inside, words, *called("context_return", RETURNED)]
    assert [id(each) for each in fold_chat(plain)] == [id(each) for each in [*head, words, *plain[6:]]]
    bound = [*head, *inside, *called("context_return", RETURNED, thinking_blocks=thought)]
    assert fold_chat(bound) == bound
    later = [*bound, {"role": "assistant", "content": "Done."}, words]
    sent = fold_chat(later)
    assert "Hm." not in str(sent)
    assert page(1) not in str(sent)
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
def test_anything_else_passes_as_it_came(call_type: str | None, kwargs: dict[str, Any]) -> None:
    assert asyncio.run(FoldingCallback().async_pre_call_deployment_hook(kwargs, call_type)) == kwargs
