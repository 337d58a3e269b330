"""The weight of a message: the bytes of its JSON, except for files in base64, which no model reads as text.

Also the weight of our own tools in a request: of their definitions, calls and results. The ledger compares with a run
without our tools, so it subtracts this weight.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from contextfold.common.token_counter import BYTES_PER_TOKEN
from contextfold.fold.messages.apis.facts import Fact, Members, block_members, items_of
from contextfold.fold.messages.own_tools import definitions_in, is_marked, name_in

# Providers count about this many tokens for an image of 1.2 megapixels.
IMAGE_TOKENS = 1_600

_IMAGE_WEIGHT = IMAGE_TOKENS * BYTES_PER_TOKEN
_URLS = ("url", "image_url", "file_url")
# These kinds of blocks have no file.
_PLAIN = ("text", "tool_use", "thinking", "input_text", "output_text")

# The members with a message's parts.
_PARTS = ("content", "tool_calls", "parts")

# The shortest JSON of a value. `json.dumps` would make an encoder for each call.
_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=block_members).encode


def weight_of(message: object) -> int:
    """The weight of a message outside of a body, from its shortest JSON; 0 if it cannot be encoded."""
    try:
        text = _encoded(message)
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    except (TypeError, ValueError, RecursionError):
        return 0
    return size - excess_of(block_members(message))


def excess_of(message: Members) -> int:
    """The excess of the bytes of a message's files over their weight."""
    content = message.get("content") or message.get("output") or message.get("parts")
    if type(content) is str:
        return 0
    excess = 0
    for block in content if type(content) is list else items_of(content) or ():
        members: Members = block if type(block) is dict else block_members(block)
        kind = members.get("type")
        if kind == "tool_result":
            # The usual result is a text.
            if type(members.get("content")) is not str:
                excess += excess_of(members)
        elif kind is None and ("text" in members or "functionCall" in members):
            continue
        elif kind is None and "functionResponse" in members:
            # The model reads the response as text. Files are beside it.
            excess += excess_of(block_members(members["functionResponse"]))
        elif kind not in _PLAIN:
            excess += excess_in(members)
    return excess


def excess_in(block: Members) -> int:
    """The excess of one part. It does not recurse, so deep nesting needs no stack."""
    excess = 0
    waiting: list[object] = [block]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            excess += sum(length - _IMAGE_WEIGHT for length in _lengths(value))
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)
    return excess


def _lengths(members: Members) -> list[int]:
    """The lengths of the files directly in an object, in the formats of the four APIs."""
    urls = [members.get(name) for name in _URLS]
    files = [url for url in urls if isinstance(url, str) and url.startswith("data:")]
    bare = [members.get("data") if members.get("type") == "base64" else None, members.get("file_data")]
    bare.append(block_members(members.get("input_audio")).get("data"))
    bare.append(block_members(members.get("inlineData", members.get("inline_data"))).get("data"))
    return [len(file) for file in (*files, *bare) if isinstance(file, str)]


# ---- Our own tools


def definition_weights(tool: object, size: int) -> list[tuple[str, int]]:
    """The definitions in an element of `tools`, which has `size` bytes, that may be ours: their names and weights."""
    members = block_members(tool)
    weights: list[tuple[str, int]] = []
    for definition in definitions_in(members):
        name = name_in(block_members(definition))
        if isinstance(name, str) and "context_" in name:
            weights.append((name, size if definition is members else _weight(definition)))
    return weights


class OwnCallWeights:
    """The weights of calls whose name may be one of ours, and of their results, by name.

    Which names are ours is known only at the end, because the list of tools may come after the messages.
    """

    __slots__ = ("_names", "_parts")

    def __init__(self) -> None:
        # The name and the weight of each call and each result.
        self._parts: list[tuple[str, int]] = []
        # The names of calls by call id.
        self._names: dict[str, str] = {}

    def take(self, message: Members, fact: Fact, size: int) -> None:
        """Add a message of `size` bytes with such a call or with its result."""
        names = self._names
        own: list[tuple[str, Members]] = []
        for call in fact.calls:
            if call.may_be_ours:
                names[call.id] = call.name
                own.append((call.name, call.part))
        for result in fact.results:
            if result.id in names:
                own.append((names[result.id], result.part))
        # Without its only part the whole message would not be there.
        is_only = len(own) == 1 and (own[0][1] is message or _part_count(message) == 1)
        self._parts += [(name, size if is_only else _weight(part)) for name, part in own]

    def total(self, ours: frozenset[str]) -> tuple[int, int]:
        """The weight of the calls and results of our tools, and their number."""
        weights = [weight for name, weight in self._parts if name in ours or is_marked(name)]
        return sum(weights), len(weights)


def _part_count(message: Members) -> int:
    """The number of a message's parts. A text beside calls is a part, too."""
    count = 0
    for name in _PARTS:
        value = message.get(name)
        if value:
            count += len(value) if type(value) is list else 1
    return count


def _weight(value: object) -> int:
    try:
        return len(_encoded(value))
    except (TypeError, ValueError, RecursionError):
        return 0
