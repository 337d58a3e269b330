"""The table of the APIs whose lists are folded: the member with the list, and the reader of its messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from contextfold.fold.messages.apis import anthropic, gemini, openai_chat, openai_responses
from contextfold.fold.messages.apis.facts import UNKNOWN, CallNumbers, Fact, Members, members_of

Format = Literal["anthropic", "openai-chat", "openai-responses", "gemini"]
FORMATS: tuple[Format, ...] = ("anthropic", "openai-chat", "openai-responses", "gemini")


@dataclass(frozen=True, slots=True)
class Api:
    list_name: str
    # Reads one message.
    read: Callable[[Members], Fact]
    # The names of the members that lead to the content of a result, from the message or from the part that is a result.
    content_path: Callable[[Members], tuple[str, ...]]
    # Whether a part of a message is a result; None if the message itself is the result.
    is_result: Callable[[Members], bool] | None = None
    # Whether the content of a result must be an object, which then has the stub as a member.
    has_object_results: bool = False
    # The member with the parts of a message, for an API in which roles must alternate. There a user's words inside a
    # range that is left out are moved to the user's message before it. In the other APIs words do not move.
    parts_name: str = ""
    # Whether the user wrote or attached a part; the second argument says whether the message has a result, too.
    is_words: Callable[[Members, bool], bool] = lambda part, beside_result: True
    is_thinking: Callable[[Members], bool] = lambda part: False
    # Whether models of this API may bind thinking to the messages before it.
    may_bind_thinking: bool = False
    # The members of a request which mean that the provider stores the history.
    elsewhere: frozenset[str] = frozenset()
    # Whether a text is allowed instead of the list.
    takes_text: bool = False
    # Whether calls may lack ids, so that they are numbered.
    numbers_calls: bool = False


_APIS: Mapping[str, Api] = {
    "anthropic": Api(
        "messages",
        anthropic.read,
        lambda block: ("content",),
        anthropic.is_result,
        parts_name="content",
        is_words=anthropic.is_words,
        is_thinking=anthropic.is_thinking,
        may_bind_thinking=True,
    ),
    "openai-chat": Api("messages", openai_chat.read, lambda message: ("content",)),
    "openai-responses": Api(
        "input",
        openai_responses.read,
        lambda item: ("output",),
        elsewhere=frozenset({"previous_response_id", "conversation"}),
        takes_text=True,
    ),
    "gemini": Api(
        "contents",
        gemini.read,
        gemini.response_path,
        gemini.is_result,
        has_object_results=True,
        parts_name="parts",
        is_words=gemini.is_words,
        numbers_calls=True,
    ),
}

# From version 5.1 on, Claude's models accept a thinking block only after exactly the messages before which it was made.
# Only models with a lower version in their names are known to accept it anyway.
_CLAUDE = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?(?!.*latest)")
_FIRST_BINDING = (5, 1)


def api_of(format: str) -> Api:
    api = _APIS.get(format)
    if api is None:
        raise ValueError(f"unknown format {format!r}; known are {', '.join(FORMATS)}")
    return api


def facts_of(messages: Iterable[object], api: Api) -> Iterator[Fact]:
    """The facts about the messages of one request, in order."""
    numbers = CallNumbers()
    for message in messages:
        members = members_of(message)
        fact = UNKNOWN if members is None else api.read(members)
        yield numbers.numbered(fact) if api.numbers_calls else fact


def binds_thinking(api: Api, model: str, thinking: object = None) -> bool:
    """Whether the model may refuse thinking if the messages before it have changed. `thinking` is a request's member.

    An unknown model is assumed to refuse it.
    """
    if not api.may_bind_thinking:
        return False
    binding = thinking.get("block_binding") if isinstance(thinking, Mapping) else None
    if isinstance(binding, Mapping) and binding.get("prefix_mismatch_behavior") == "drop_block":
        return False
    match = _CLAUDE.search(model)
    return match is None or (int(match[1]), int(match[2] or 0)) >= _FIRST_BINDING
