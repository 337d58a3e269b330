"""The APIs whose lists are folded. Each module has the knowledge of one of them: its messages and models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from contextfold.fold.messages.apis import anthropic, gemini, openai_chat, openai_responses
from contextfold.fold.messages.facts import UNKNOWN, Api, CallNumbers, Fact, members_of

Format = Literal["anthropic", "openai-chat", "openai-responses", "gemini"]
FORMATS: tuple[Format, ...] = ("anthropic", "openai-chat", "openai-responses", "gemini")

_APIS: Mapping[str, Api] = {
    "anthropic": anthropic.API,
    "openai-chat": openai_chat.API,
    "openai-responses": openai_responses.API,
    "gemini": gemini.API,
}


def api_of(format: str) -> Api:
    api = _APIS.get(format)
    if api is None:
        raise ValueError(f"unknown format {format!r}; known are {', '.join(FORMATS)}")
    return api


def read_facts(messages: Iterable[object], api: Api) -> list[Fact]:
    """The facts about the messages of one request, in order."""
    facts = [UNKNOWN if (members := members_of(message)) is None else api.read(members) for message in messages]
    if api.numbers_calls:
        numbers = CallNumbers()
        facts = [numbers.number(fact) for fact in facts]
    return facts
