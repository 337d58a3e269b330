"""The APIs whose lists we fold, as data: where the list is, who reads a message. Knows names, not what they mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from contextfold.common.dataclass import dataclass
from contextfold.fold.messages.apis import anthropic, gemini, openai_chat, openai_responses
from contextfold.fold.messages.apis.facts import Fact, Members

Format = Literal["anthropic", "openai-chat", "openai-responses", "gemini"]
FORMATS: tuple[Format, ...] = ("anthropic", "openai-chat", "openai-responses", "gemini")


class WordsTest(Protocol):
    def __call__(self, part: Members, /, *, beside_result: bool) -> bool: ...


@dataclass(frozen=True, slots=True)
class MessageParts:
    """How an API's messages are made of parts, where roles must alternate: a user's words cannot stand alone inside a
    range that is left out, so they are put into the user's message in front of it."""

    list_name: str
    is_words: WordsTest
    is_thinking: Callable[[Members], bool]


@dataclass(frozen=True, slots=True)
class ResultMembers:
    """Where a message holds the content of its results."""

    # The names on the way to the content, from the message or from the part that is a result.
    path: Callable[[Members], tuple[str, ...]]
    # None where the message itself is the result.
    is_result: Callable[[Members], bool] | None = None
    # The content must be an object: the stub is a member of it.
    is_object: bool = False


@dataclass(frozen=True, slots=True)
class Api:
    list_name: str
    # Makes what reads the messages of one request, each once and in order.
    reader: Callable[[], Callable[[Members], Fact]]
    results: ResultMembers
    # Members of the request that say that the provider keeps the history.
    elsewhere: frozenset[str] = frozenset()
    # Text may stand in place of the list.
    takes_text: bool = False
    # None where messages of one role may follow each other, so that words stay where they are.
    parts: MessageParts | None = None
    # Whether models of this API may bind thinking to what is in front of it.
    may_bind_thinking: bool = False


def _no_thinking(part: Members) -> bool:
    return False


_APIS: Mapping[str, Api] = {
    "anthropic": Api(
        "messages",
        lambda: anthropic.read,
        ResultMembers(lambda block: ("content",), anthropic.is_result),
        parts=MessageParts("content", anthropic.is_words, anthropic.is_thinking),
        may_bind_thinking=True,
    ),
    "openai-chat": Api("messages", lambda: openai_chat.read, ResultMembers(lambda message: ("content",))),
    "openai-responses": Api(
        "input",
        lambda: openai_responses.read,
        ResultMembers(lambda item: ("output",)),
        frozenset({"previous_response_id", "conversation"}),
        takes_text=True,
    ),
    "gemini": Api(
        "contents",
        gemini.reader,
        ResultMembers(gemini.response_path, gemini.is_result, is_object=True),
        parts=MessageParts("parts", gemini.is_words, _no_thinking),
    ),
}

# From version 5.1 on, Claude's models take a thinking block back only behind the very messages that it was made behind.
# Only names that carry a version below that are known not to.
_CLAUDE = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?(?!.*latest)")
_FIRST_BINDING = (5, 1)


def api_of(format: str) -> Api:
    api = _APIS.get(format)
    if api is None:
        raise ValueError(f"unknown format {format!r}; known are {', '.join(FORMATS)}")
    return api


def binds_thinking(api: Api, model: str, thinking: object = None) -> bool:
    """Whether the model may refuse thinking if what is in front of it has changed; `thinking` is the request's member.

    A model that is not known is taken for one that does.
    """
    if not api.may_bind_thinking:
        return False
    binding = thinking.get("block_binding") if isinstance(thinking, Mapping) else None
    if isinstance(binding, Mapping) and binding.get("prefix_mismatch_behavior") == "drop_block":
        return False
    match = _CLAUDE.search(model)
    return match is None or (int(match[1]), int(match[2] or 0)) >= _FIRST_BINDING
