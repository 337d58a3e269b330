"""The APIs whose lists we fold, as data: where the list is, who reads a message. Knows names, not what they mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from contextfold.fold.messages import anthropic, openai_chat, openai_responses
from contextfold.fold.messages.facts import Fact, Members

Format = Literal["anthropic", "openai-chat", "openai-responses"]
FORMATS: tuple[Format, ...] = ("anthropic", "openai-chat", "openai-responses")


@dataclass(frozen=True, slots=True)
class Api:
    list_name: str
    read: Callable[[Members], Fact]
    elsewhere: frozenset[str] = frozenset()  # members that say that the provider keeps the history
    takes_text: bool = False  # in place of the list


_APIS: Mapping[str, Api] = {
    "anthropic": Api("messages", anthropic.read),
    "openai-chat": Api("messages", openai_chat.read),
    "openai-responses": Api(
        "input", openai_responses.read, frozenset({"previous_response_id", "conversation"}), takes_text=True
    ),
}

# From these on, Claude's models take a thinking block back only behind the very messages that it was made behind.
_CLAUDE = re.compile(r"claude-[a-z]+-(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")
_FIRST_BINDING = (5, 1)


def api_of(format: str) -> Api:
    api = _APIS.get(format)
    if api is None:
        raise ValueError(f"unknown format {format!r}; known are {', '.join(FORMATS)}")
    return api


def binds_thinking(model: str, thinking: object) -> bool:
    """Whether the model refuses thinking that a message is missing in front of; `thinking` is the request's member."""
    binding = thinking.get("block_binding") if isinstance(thinking, Mapping) else None
    if isinstance(binding, Mapping) and binding.get("prefix_mismatch_behavior") == "drop_block":
        return False
    found = _CLAUDE.search(model)
    return found is not None and (int(found[1]), int(found[2] or 0)) >= _FIRST_BINDING
