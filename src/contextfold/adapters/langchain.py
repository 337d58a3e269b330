"""A middleware that folds the messages of a LangChain agent, which LangGraph runs.

    agent = create_agent(model, tools, middleware=[FoldingMiddleware()])

The agent's state has all messages; only the requests to the model are folded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware

from contextfold.adapters.message_folding import (
    MessageReading,
    OnReceipt,
    call_block,
    fold_messages,
    fold_or_keep,
    result_block,
    text_block,
)

_THINKING = ("thinking", "redacted_thinking")
_MODEL_NAMES = ("model_name", "model", "model_id")


class FoldingMiddleware(AgentMiddleware):
    """The middleware. `on_receipt` is called with the receipt of every request."""

    def __init__(self, on_receipt: OnReceipt | None = None) -> None:
        super().__init__()
        self._on_receipt = on_receipt

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(fold_or_keep(lambda: self._fold(request), request))

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        return await handler(fold_or_keep(lambda: self._fold(request), request))

    def _fold(self, request: Any) -> Any:
        names = (getattr(request.model, name, None) for name in _MODEL_NAMES)
        model = next((name for name in names if isinstance(name, str)), "")
        tools = [tool if isinstance(tool, dict) else {"name": getattr(tool, "name", None)} for tool in request.tools]
        messages = fold_messages(
            request.messages, _read, _keep_blocks, model=model, tools=tools, on_receipt=self._on_receipt
        )
        return request.override(messages=messages)


def _read(message: Any) -> MessageReading:
    if message.type == "ai":
        calls = [*message.tool_calls, *message.invalid_tool_calls]
        said = [_read_block(block) for block in _content(message)]
        return MessageReading(True, [*said, *(call_block(call["id"], call["name"]) for call in calls)])
    if message.type == "tool":
        content = message.content
        return MessageReading(
            False, [result_block(message.tool_call_id, content, failed=getattr(message, "status", "") == "error")]
        )
    # The user's words and the program's instructions stay.
    is_known = message.type in ("human", "system", "chat")
    return MessageReading(False, [text_block(message.content) if is_known else {"type": message.type}])


def _content(message: Any) -> list[Any]:
    return message.content if isinstance(message.content, list) and message.content else [message.content]


def _read_block(block: Any) -> dict[str, Any]:
    """A block of the model's content as thinking or empty text. Calls are read from a separate member."""
    kind = block.get("type") if isinstance(block, dict) else "text"
    return {"type": kind} if kind in _THINKING else text_block("")


def _keep_blocks(message: Any, numbers: Sequence[int]) -> Any:
    """Remove the thinking from a message."""
    content = _content(message)
    return message.model_copy(update={"content": [content[number] for number in numbers if number < len(content)]})
