"""The calls of our own tools in a model's response, read from a copy of it. Knows the four APIs' responses; no socket.

The ledger compares with a run that does not have our tools, so it must know what their calls cost, and which requests
were made for them alone. A copy is kept only up to a limit: nothing is known of a longer response.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from contextfold.fold.messages.own_share import NO_OWN_OUTPUT, OwnOutput, own_output

COPY_BYTES_MAX = 512 << 10
# What every name of our tools has; a response without it needs no look.
_OUR_MARK = b"context_"

Members = Mapping[str, Any]


class ResponseCopy:
    """Fed with a response's decoded body in any pieces."""

    __slots__ = ("_api", "_body", "_is_too_long", "_streams")

    def __init__(self, api: str, *, streams: bool) -> None:
        self._api, self._streams = api, streams
        self._body = bytearray()
        self._is_too_long = False

    def feed(self, piece: bytes) -> None:
        if self._is_too_long or len(self._body) + len(piece) > COPY_BYTES_MAX:
            self._is_too_long = True
            self._body.clear()
        else:
            self._body += piece

    def own_output(self) -> OwnOutput:
        """Nothing where the response is not what the API sends."""
        if _OUR_MARK not in self._body:
            return NO_OWN_OUTPUT
        try:
            documents = _events(bytes(self._body)) if self._streams else [json.loads(self._body)]
            return own_output(self._api, list(_MESSAGES[self._api](documents)))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            return NO_OWN_OUTPUT


def _events(body: bytes) -> list[Members]:
    lines = (line[5:].strip() for line in body.splitlines() if line.startswith(b"data:"))
    return [json.loads(line) for line in lines if line.startswith(b"{")]


def _anthropic(documents: Iterable[Members]) -> Iterator[Members]:
    blocks: dict[int, dict[str, Any]] = {}
    for document in documents:
        if isinstance(document.get("content"), list):
            yield {"content": document["content"]}
        elif document.get("type") == "content_block_start":
            blocks[document["index"]] = {**document["content_block"], "input": ""}
        elif document.get("type") == "content_block_delta":
            block, delta = blocks[document["index"]], document["delta"]
            block["text"] = block.get("text", "") + delta.get("text", "")
            block["input"] += delta.get("partial_json", "")
    if blocks:
        yield {"content": list(blocks.values())}


def _chat(documents: Iterable[Members]) -> Iterator[Members]:
    text, calls = "", dict[int, dict[str, Any]]()
    for document in documents:
        for choice in document.get("choices", ())[:1]:
            if "message" in choice:
                yield choice["message"]
            delta = choice.get("delta") or {}
            text += delta.get("content") or ""
            for part in delta.get("tool_calls") or ():
                call = calls.setdefault(part.get("index", 0), {"id": "", "function": {"name": "", "arguments": ""}})
                call["id"] += part.get("id") or ""
                for name in ("name", "arguments"):
                    call["function"][name] += (part.get("function") or {}).get(name) or ""
    if text or calls:
        yield {"content": text, "tool_calls": list(calls.values())}


def _responses(documents: Iterable[Members]) -> Iterator[Members]:
    for document in documents:
        if document.get("type") == "response.output_item.done":
            yield document["item"]
        elif isinstance(document.get("output"), list):
            yield from document["output"]


def _gemini(documents: Iterable[Members]) -> Iterator[Members]:
    for document in documents:
        for number, candidate in enumerate(document.get("candidates", ())[:1]):
            parts = candidate.get("content", {}).get("parts", ())
            # Calls have an id only in some versions of the API; the reader of calls wants one.
            yield {"parts": [_with_id(part, number) for part in parts]}


def _with_id(part: Members, number: int) -> Members:
    call = part.get("functionCall")
    return {"functionCall": {"id": str(number), **call}} if isinstance(call, Mapping) else part


_MESSAGES = {
    "anthropic": _anthropic,
    "openai-chat": _chat,
    "openai-responses": _responses,
    "gemini": _gemini,
}
