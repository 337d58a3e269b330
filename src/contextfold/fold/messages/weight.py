"""The weight of a message: the bytes of its JSON, except for files in base64, which no model reads as text."""

from __future__ import annotations

import json
from collections.abc import Mapping

from contextfold.common.token_counter import BYTES_PER_TOKEN
from contextfold.fold.messages.apis.facts import Members, block_members, items_of

# Providers count about this many tokens for an image of 1.2 megapixels.
IMAGE_TOKENS = 1_600

_IMAGE_WEIGHT = IMAGE_TOKENS * BYTES_PER_TOKEN
_URLS = ("url", "image_url", "file_url")
# These kinds of blocks have no file.
_PLAIN = ("text", "tool_use", "thinking", "input_text", "output_text")

# The shortest JSON of a value. `json.dumps` would make an encoder for each call.
encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=block_members).encode


def weight_of(message: object) -> int:
    """The weight of a message outside of a body, from its shortest JSON; 0 if it cannot be encoded."""
    try:
        text = encoded(message)
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
