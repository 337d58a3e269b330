"""A history processor that folds the history of a pydantic-ai agent.

    agent = Agent(model, toolsets=[...], capabilities=[ProcessHistory(fold_history)])

Its messages are dataclasses whose parts have a kind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pydantic_ai import RunContext

from contextfold.adapters.message_folding import (
    MessageReading,
    OnReceipt,
    call_block,
    fold_messages,
    fold_or_keep,
    result_block,
    text_block,
)

# The kinds of parts with text: of the model, of the user, and of the program on the user's behalf.
_TEXTS = ("text", "file", "user-prompt", "system-prompt", "retry-feedback", "retry-prompt", "speech")
_OTHERS = {"builtin-tool-call": "server_tool_use", "builtin-tool-return": "server_tool_result"}


def fold_history(ctx: RunContext[Any], messages: list[Any]) -> list[Any]:
    """A history processor. `ctx` is the run's context, whose model decides whether thinking is bound."""
    return HistoryFolding()(ctx, messages)


class HistoryFolding:
    """The same processor with a function that is called with the receipt of every request."""

    def __init__(self, on_receipt: OnReceipt | None = None) -> None:
        self._on_receipt = on_receipt

    def __call__(self, ctx: RunContext[Any], messages: list[Any]) -> list[Any]:
        model = getattr(getattr(ctx, "model", None), "model_name", None)
        name = model if isinstance(model, str) else ""
        return fold_or_keep(
            lambda: fold_messages(messages, _read, _keep_blocks, model=name, on_receipt=self._on_receipt), messages
        )


def _read(message: Any) -> MessageReading:
    is_model = message.kind == "response"
    return MessageReading(is_model, [_block(part) for part in message.parts] or [text_block("")])


def _block(part: Any) -> dict[str, Any]:
    kind = part.part_kind
    if kind in ("tool-return", "retry-prompt") and part.tool_name is not None:
        failed = kind == "retry-prompt" or getattr(part, "outcome", "success") != "success"
        text = part.model_response() if kind == "retry-prompt" else part.model_response_str()
        return result_block(part.tool_call_id, text, failed=failed)
    if kind == "tool-call":
        return call_block(part.tool_call_id, part.tool_name)
    if kind in _TEXTS:
        return text_block(getattr(part, "content", ""))
    # A branch with an unknown part is not folded. Calls that the provider runs refer to each other.
    call_id = getattr(part, "tool_call_id", None)
    return {"type": _OTHERS.get(kind, kind), "id": call_id, "tool_use_id": call_id}


def _keep_blocks(message: Any, numbers: Sequence[int]) -> Any:
    return dataclasses.replace(message, parts=[message.parts[number] for number in numbers])
