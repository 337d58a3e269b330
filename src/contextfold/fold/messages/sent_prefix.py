"""What a provider's cache holds of a conversation: the prefixes that were sent, as hashes. Pure.

A prompt's cached prefix is lost after a pause, but also with another model, a changed system prompt, list of tools or
early message. Behind the first difference to everything that was sent lately there is nothing warm to lose, so old
results can be left out there at no cost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from contextfold.fold.messages.facts import Members, block_members, items_of
from contextfold.fold.messages.request import BodyProjection
from contextfold.fold.messages.weight import encode_json

# The members of a request, beside its messages, that come before them in the prompt. Others may count, too; what is not
# here is taken to keep the cache.
_HEAD = ("system", "instructions", "systemInstruction", "system_instruction", "cachedContent")
# Clients move these marks from message to message. They are not part of the prompt.
_MARK = re.compile(rb',"(?:cache_control|prompt_cache_breakpoint)":\{[^{}]*\}')
# Claude Code's first block of the system prompt is for the bill and changes all the time. The provider removes it.
_NOT_CACHED = "x-anthropic-billing-header"


class SentPrefix(NamedTuple):
    # The hash of model, tools and system prompt.
    head: int
    # The hash of each message, as it is sent.
    messages: tuple[int, ...]


def read_prefix(projection: BodyProjection) -> SentPrefix:
    """The prefix that a request leaves in the cache."""
    request = projection.parsed.members
    tools = [tool for tool in items_of(request.get("tools")) or () if not block_members(tool).get("defer_loading")]
    head = [projection.model, tools, *(_without_bill(request, name) for name in _HEAD)]
    return SentPrefix(_hash(head), tuple(map(_hash, items_of(projection.messages) or ())))


def count_warm_messages(now: SentPrefix, held: Iterable[SentPrefix]) -> int:
    """The number of a request's first messages that the cache holds, if it holds these prefixes."""
    return max((_count_common(now, each) for each in held if each.head == now.head), default=0)


def _count_common(now: SentPrefix, before: SentPrefix) -> int:
    count = 0
    for mine, theirs in zip(now.messages, before.messages, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def _hash(value: object) -> int:
    return hash(_MARK.sub(b"", encode_json(value)))


def _without_bill(request: Members, name: str) -> object:
    value = request.get(name)
    blocks = items_of(value)
    if blocks is None:
        return value
    return [block for block in blocks if not str(block_members(block).get("text")).startswith(_NOT_CACHED)]
