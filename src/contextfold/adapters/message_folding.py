"""Folds a list of any package's messages: reads them as Anthropic's, and returns the package's objects.

Anthropic's format has everything that the others have: results in the message after their calls, words next to them,
thinking. Knows blocks and indexes, no package.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from contextfold.fold.messages import Format, Receipt, project

_log = logging.getLogger("contextfold")
# The models of other providers, which do not bind thinking.
_OTHER_MODELS = re.compile(r"(?:.*[/:])?(?:gpt|chatgpt|o\d|gemini|mistral|grok|deepseek|llama|qwen)", re.IGNORECASE)

Message = TypeVar("Message")
Answer = TypeVar("Answer")
OnReceipt = Callable[[Receipt], None]


class MessageReading(NamedTuple):
    """A package's message as blocks of an Anthropic message."""

    # Whether it is a message of the model; else it is input for the model.
    is_model: bool
    blocks: list[dict[str, Any]]


def text_block(text: object) -> dict[str, Any]:
    return {"type": "text", "text": text if isinstance(text, str) else ""}


def call_block(call_id: object, name: object) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}}


def result_block(call_id: object, content: object, *, failed: bool) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": failed}


def fold_messages(
    messages: Sequence[Message],
    read: Callable[[Message], MessageReading],
    keep_blocks: Callable[[Message, Sequence[int]], Message],
    *,
    model: str = "",
    tools: object = None,
    on_receipt: OnReceipt | None = None,
) -> list[Message]:
    """The messages to send. `keep_blocks` makes a message with some of another's blocks, given by their numbers."""
    listed: list[dict[str, Any]] = []
    sizes: list[int] = []
    # The message of each block and the number of the block in it, by the block's identity.
    owners: dict[int, tuple[int, int]] = {}
    for position, message in enumerate(messages):
        is_model, blocks = read(message)
        sizes.append(len(blocks))
        owners.update((id(block), (position, number)) for number, block in enumerate(blocks))
        if not is_model and listed and listed[-1]["role"] == "user":
            listed[-1]["content"] += blocks
        else:
            listed.append({"role": "assistant" if is_model else "user", "content": list(blocks)})
    binds_thinking = False if _OTHER_MODELS.match(model) else None
    projection = project(listed, "anthropic", model=model, tools=tools, binds_thinking=binds_thinking)
    if on_receipt is not None:
        on_receipt(projection.receipt)
    if not projection.changed:
        return list(messages)
    sent: list[tuple[int, list[int]]] = []
    for folded in projection.messages:
        for position, number in (owners[id(block)] for block in folded["content"]):
            if sent and sent[-1][0] == position:
                sent[-1][1].append(number)
            else:
                sent.append((position, [number]))
    return [
        messages[position] if len(numbers) == sizes[position] else keep_blocks(messages[position], numbers)
        for position, numbers in sent
    ]


def fold_list(messages: Any, format: Format, *, model: str, tools: object, on_receipt: OnReceipt | None) -> Any:
    """Fold the list of a package whose messages already have one of the known formats."""
    projection = project(messages, format, model=model, tools=tools)
    if on_receipt is not None:
        on_receipt(projection.receipt)
    return projection.messages if projection.changed else messages


def fold_or_keep(fold: Callable[[], Answer], otherwise: Answer) -> Answer:
    """Call `fold`. If it fails, log the type of the error and return `otherwise`."""
    try:
        return fold()
    except Exception as problem:
        _log.warning("messages were sent unfolded: %s", type(problem).__name__)
        return otherwise
