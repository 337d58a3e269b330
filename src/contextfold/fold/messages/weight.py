"""What a message weighs: the bytes of its JSON, but for files in base64, which no model reads as text."""

from __future__ import annotations

import json
from collections.abc import Mapping

from contextfold.common.token_counter import BYTES_PER_TOKEN
from contextfold.fold.messages.apis.facts import Members, block_members, items_of

# About what providers count for a picture of 1.2 megapixels.
IMAGE_TOKENS = 1_600

_IMAGE_WEIGHT = IMAGE_TOKENS * BYTES_PER_TOKEN
_URLS = ("url", "image_url", "file_url")
# Blocks that hold no file.
_PLAIN = ("text", "tool_use", "thinking", "input_text", "output_text")


def weight_of(message: object) -> int:
    """Of a message that is in no body: of its shortest JSON. What cannot be written as JSON weighs nothing."""
    try:
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"), default=block_members)
        size = len(text.encode("utf-8", "surrogatepass"))
    except (TypeError, ValueError, RecursionError):
        return 0
    return size - excess_of(block_members(message))


def excess_of(message: Members) -> int:
    """How much more the bytes of its files are than what they count for."""
    excess = 0
    content = message.get("content") or message.get("output") or message.get("parts")
    if type(content) is str:
        return 0
    for block in items_of(content) or ():
        members: Members = block if type(block) is dict else block_members(block)
        kind = members.get("type")
        if kind == "tool_result":
            excess += excess_of(members) if items_of(members.get("content")) else 0
        elif kind is None and ("text" in members or "functionCall" in members):
            continue
        elif kind not in _PLAIN:
            excess += excess_in(members)
    return excess


def excess_in(block: Members) -> int:
    """The same of one part. It does not call itself: nesting must not cost a stack."""
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
    """Of the files that an object holds itself, in the ways the four APIs have for them."""
    urls = [members.get(name) for name in _URLS]
    files = [url for url in urls if isinstance(url, str) and url.startswith("data:")]
    bare = [members.get("data") if members.get("type") == "base64" else None, members.get("file_data")]
    bare.append(block_members(members.get("input_audio")).get("data"))
    bare.append(block_members(members.get("inlineData", members.get("inline_data"))).get("data"))
    return [len(file) for file in (*files, *bare) if isinstance(file, str)]
