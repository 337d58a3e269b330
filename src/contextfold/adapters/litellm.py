"""A callback that folds the messages of requests through LiteLLM, as a library or as its proxy.

    litellm.callbacks = [FoldingCallback()]

LiteLLM lets callbacks change requests only of its asynchronous functions. Call `fold_chat` before `litellm.completion`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

from contextfold.adapters.message_folding import (
    MessageReading,
    OnReceipt,
    call_block,
    fold_list,
    fold_messages,
    fold_or_keep,
    result_block,
    text_block,
)


class FoldingCallback(CustomLogger):
    """The callback. `on_receipt` is called with the receipt of every request."""

    def __init__(self, on_receipt: OnReceipt | None = None) -> None:
        super().__init__()
        self._on_receipt = on_receipt

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any]:
        return fold_or_keep(lambda: self._fold(kwargs, str(getattr(call_type, "value", call_type))), kwargs)

    def _fold(self, kwargs: dict[str, Any], call_type: str) -> dict[str, Any]:
        model, tools, on_receipt = str(kwargs.get("model") or ""), kwargs.get("tools"), self._on_receipt
        if call_type in ("completion", "acompletion") and kwargs.get("messages"):
            messages = fold_chat(kwargs["messages"], model=model, tools=tools, on_receipt=on_receipt)
            return {**kwargs, "messages": messages}
        if call_type == "anthropic_messages" and kwargs.get("messages"):
            messages = fold_list(kwargs["messages"], "anthropic", model=model, tools=tools, on_receipt=on_receipt)
            return {**kwargs, "messages": messages}
        if call_type in ("responses", "aresponses") and not kwargs.get("previous_response_id"):
            items = fold_list(kwargs.get("input"), "openai-responses", model=model, tools=tools, on_receipt=on_receipt)
            return {**kwargs, "input": items}
        return kwargs


def fold_chat(
    messages: list[Any], *, model: str = "", tools: object = None, on_receipt: OnReceipt | None = None
) -> list[Any]:
    """Fold the messages of a chat completion, which are dicts or LiteLLM's objects."""
    return fold_or_keep(
        lambda: fold_messages(messages, _read, _keep_blocks, model=model, tools=tools, on_receipt=on_receipt), messages
    )


def _read(message: Any) -> MessageReading:
    role = message.get("role")
    if role == "assistant":
        thoughts = [{"type": each.get("type")} for each in message.get("thinking_blocks") or ()]
        calls = [call_block(call.get("id"), call["function"]["name"]) for call in message.get("tool_calls") or ()]
        legacy = [{"type": "function_call"}] if message.get("function_call") else []
        return MessageReading(True, [*thoughts, text_block(""), *calls, *legacy])
    if role == "tool":
        return MessageReading(False, [result_block(message.get("tool_call_id"), message.get("content"), failed=False)])
    is_known = role in ("user", "system", "developer")
    return MessageReading(False, [text_block(message.get("content")) if is_known else {"type": str(role)}])


def _keep_blocks(message: Any, numbers: Sequence[int]) -> Any:
    """Remove the thinking from a message."""
    members = message if isinstance(message, dict) else message.model_dump(exclude_none=True)
    return {name: value for name, value in members.items() if name not in ("thinking_blocks", "reasoning_content")}
