"""The JSON of messages, and their weight: its bytes, except for files in base64, which no model reads as text.

Also the weight of our own tools in a request: of their definitions, calls and results. The ledger compares with a run
without our tools, so it subtracts this weight.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from contextfold.common.tokens import BYTES_PER_TOKEN
from contextfold.fold.messages.facts import Fact, Members, block_members, items_of
from contextfold.fold.messages.own_tools import name_of

# Providers count about this many tokens for an image of 1.2 megapixels.
IMAGE_TOKENS = 1_600

_IMAGE_WEIGHT = IMAGE_TOKENS * BYTES_PER_TOKEN
_URLS = ("url", "image_url", "file_url")
# These kinds of blocks have no file.
_PLAIN = ("text", "tool_use", "input_text", "output_text")
_THINKING = ("thinking", "redacted_thinking")

# The members with a message's parts.
_PARTS = ("content", "tool_calls", "parts")

# A mark for the cache, in the JSON of a message.
MARK = re.compile(rb',"(?:cache_control|prompt_cache_breakpoint)":\{[^{}]*\}')

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=block_members)


def encode_json(value: object) -> bytes:
    """The JSON of a value, always the same for the same value: no spaces, and no escape that is not necessary.

    Half a surrogate pair has no UTF-8, so it stays the escape that it must have been.
    """
    return _ENCODER.encode(value).encode("utf-8", "backslashreplace")


def encode_message(message: object) -> bytes:
    """The JSON of a message; empty for an object of a library's user that has none."""
    try:
        return encode_json(message)
    except (TypeError, ValueError, RecursionError):
        return b""


def weigh_message(message: object, encoded: bytes) -> int:
    """The weight of a message, whose JSON is given."""
    return len(encoded) - _excess_of(block_members(message)) if encoded else 0


def _excess_of(message: Members) -> int:
    """The excess of the bytes of a message's files over their weight."""
    content = message.get("content") or message.get("output") or message.get("parts")
    excess = 0
    for block in items_of(content) or ():
        members = block_members(block)
        kind = members.get("type")
        if kind == "tool_result":
            excess += _excess_of(members)
        elif kind in _THINKING:
            excess += _excess_of_thinking(members)
        elif kind is None and ("text" in members or "functionCall" in members):
            continue
        elif kind is None and "functionResponse" in members:
            # The model reads the response as text. Files are beside it.
            excess += _excess_of(block_members(members["functionResponse"]))
        elif kind not in _PLAIN:
            excess += _excess_in_part(members)
    return excess


def _excess_of_thinking(block: Members) -> int:
    """More than half of a thinking block: most of it is the signature, and providers count the thinking behind it."""
    return 11 * sum(len(value) for value in block.values() if isinstance(value, str)) // 20


def weigh_thinking(blocks: Sequence[Members]) -> int:
    return len(encode_json(blocks)) - sum(map(_excess_of_thinking, blocks))


def _excess_in_part(block: Members) -> int:
    """The excess of one part. It does not recurse, so deep nesting needs no stack."""
    excess = 0
    waiting: list[object] = [block]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            excess += sum(length - _IMAGE_WEIGHT for length in _file_lengths(value))
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)
    return excess


def _file_lengths(members: Members) -> list[int]:
    """The lengths of the files directly in an object, in the formats of the four APIs."""
    urls = [members.get(name) for name in _URLS]
    files = [url for url in urls if isinstance(url, str) and url.startswith("data:")]
    bare = [members.get("data") if members.get("type") == "base64" else None, members.get("file_data")]
    bare.append(block_members(members.get("input_audio")).get("data"))
    bare.append(block_members(members.get("inlineData", members.get("inline_data"))).get("data"))
    return [len(file) for file in (*files, *bare) if isinstance(file, str)]


# ---- Our own tools


def weigh_own_definitions(definitions: Sequence[object]) -> list[tuple[str, int]]:
    """The definitions of tools that may be ours: the name and the weight of each."""
    weights: list[tuple[str, int]] = []
    for definition in definitions:
        name = name_of(block_members(definition))
        if isinstance(name, str) and "context_" in name:
            weights.append((name, len(encode_json(definition))))
    return weights


def weigh_own_calls(messages: Sequence[object], facts: Sequence[Fact]) -> list[tuple[str, int]]:
    """The calls whose name may be one of ours, and their results: the name and the weight of each."""
    weights: list[tuple[str, int]] = []
    # The names of those calls that have no result yet, by call id.
    names: dict[str, str] = {}
    for message, fact in zip(messages, facts, strict=True):
        own: list[tuple[str, Members]] = []
        for call in fact.calls:
            names.pop(call.id, None)
            if call.may_be_ours:
                names[call.id] = call.name
                own.append((call.name, call.part))
        own += [(names.pop(result.id), result.part) for result in fact.results if result.id in names]
        if own:
            members = block_members(message)
            # Without its only part the whole message would not be there.
            is_only = len(own) == 1 and (own[0][1] is members or _part_count(members) == 1)
            weights += [(name, _weigh_unmarked(members if is_only else part)) for name, part in own]
    return weights


def _weigh_unmarked(part: Members) -> int:
    """The weight of a call or result of ours. Without us, a mark for the cache would be at another part."""
    encoded = encode_json(part)
    return len(encoded) - sum(len(mark) for mark in MARK.findall(encoded))


def _part_count(message: Members) -> int:
    """The number of a message's parts. A text beside calls is a part, too."""
    count = 0
    for name in _PARTS:
        value = message.get(name)
        if value:
            count += len(value) if isinstance(value, list) else 1
    return count
