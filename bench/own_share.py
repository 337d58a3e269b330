"""What our tools add to a request and to a response, for the ledger: it compares with a run that does not have them.

A request has their definitions, their calls and the results; a response has calls. Sizes are estimates from bytes, as
everywhere in a receipt. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from contextfold.common.token_counter import tokens_of
from contextfold.fold.messages.apis.facts import Members, block_members, items_of
from contextfold.fold.messages.cold_results import results_reader
from contextfold.fold.messages.own_tools import is_tool_of_ours, names_in

# The bytes around the arguments of a call and around a result: type, id and name, without those themselves.
CALL_BYTES = 50
RESULT_BYTES = 50
# Where Gemini has the tools of one entry of the list.
_TOOL_LISTS = ("functionDeclarations", "function_declarations")


@dataclass(slots=True)
class OwnShare:
    """The part of a conversation's messages that is ours, so far. Messages are taken in order, each once."""

    format: str
    messages: int = 0
    # Content blocks, ours or not.
    blocks: int = 0
    _bytes: int = 0
    _calls: set[str] = field(default_factory=set)

    def take(self, message: Mapping[str, Any]) -> None:
        members = block_members(message)
        reader = results_reader(self.format)
        self.messages += 1
        self.blocks += len(items_of(members.get("content", members.get("parts"))) or (message,))
        for call_id, tool, arguments in reader.calls(members):
            if is_tool_of_ours(tool):
                self._calls.add(call_id)
                self._bytes += CALL_BYTES + len(call_id) + len(tool) + _size(arguments)
        for call_id, content, _ in reader.results(members):
            if call_id in self._calls:
                self._bytes += RESULT_BYTES + len(call_id) + _size(content)

    @property
    def tokens(self) -> int:
        return tokens_of(self._bytes)


def definitions_tokens(tools: object) -> int:
    """Of our tools in a request's list of tools."""
    size = 0
    for tool in items_of(tools) or ():
        members = block_members(tool)
        listed = next((members[name] for name in _TOOL_LISTS if name in members), [tool])
        ours = [each for each in items_of(listed) or () if any(map(is_tool_of_ours, names_in([each])))]
        size += sum(_size(each) + 1 for each in ours)
    return tokens_of(size)


class OwnOutput(NamedTuple):
    """What a response has of our calls: their tokens, and whether it has nothing else that a user or a tool gets."""

    tokens: int = 0
    is_all: bool = False


NO_OWN_OUTPUT = OwnOutput()


def own_output(format: str, messages: Sequence[Members]) -> OwnOutput:
    """Of a response's messages, written as a later request has them."""
    size, has_others = 0, False
    reader = results_reader(format)
    for message in messages:
        for call_id, tool, arguments in reader.calls(message):
            if is_tool_of_ours(tool):
                size += CALL_BYTES + len(call_id) + len(tool) + _size(arguments)
            else:
                has_others = True
        has_others = has_others or _has_words(message)
    return OwnOutput(tokens_of(size), bool(size) and not has_others) if size else NO_OWN_OUTPUT


def common_prefix(one: bytes, other: bytes) -> int:
    """How many bytes two texts begin with in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _has_words(message: Members) -> bool:
    content = message.get("content", message.get("parts"))
    if isinstance(content, str):
        return bool(content.strip())
    texts: Iterable[object] = (block_members(block).get("text") for block in items_of(content) or ())
    return any(isinstance(text, str) and text.strip() for text in texts)


def _size(value: object) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    try:
        return len(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=block_members))
    except (TypeError, ValueError, RecursionError):
        return 0
