"""Calls of our own tools in responses of the four APIs, streamed and not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contextfold.serve.proxy.response_calls import COPY_BYTES_MAX
from contextfold.serve.proxy.usage import UsageReader

NAME = "mcp__contextfold__context_fold"
ARGUMENTS = json.dumps({"message": "It was the clock. " * 20})
HALF = len(ARGUMENTS) // 2


def stream(*events: dict[str, Any]) -> bytes:
    parts = [b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n" for event in events]
    return b"".join(parts) + b"data: [DONE]\n\n"


def anthropic_block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    begin = {"type": "content_block_start", "index": index, "content_block": start}
    return [begin, *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)]


ANTHROPIC_CALL = {"type": "tool_use", "id": "t1", "name": NAME, "input": json.loads(ARGUMENTS)}
CHAT_CALL = {"id": "t1", "type": "function", "function": {"name": NAME, "arguments": ARGUMENTS}}
RESPONSES_CALL = {"type": "function_call", "call_id": "t1", "name": NAME, "arguments": ARGUMENTS}
GEMINI_PART = {"functionCall": {"name": NAME, "args": json.loads(ARGUMENTS)}}
STREAMED = {
    "anthropic": stream(
        *anthropic_block(
            0,
            {"type": "tool_use", "id": "t1", "name": NAME, "input": {}},
            {"type": "input_json_delta", "partial_json": ARGUMENTS[:HALF]},
            {"type": "input_json_delta", "partial_json": ARGUMENTS[HALF:]},
        )
    ),
    "openai-chat": stream(
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "t1", "function": {"name": NAME}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS}}]}}]},
    ),
    "openai-responses": stream({"type": "response.output_item.done", "item": RESPONSES_CALL}),
    "gemini": stream({"candidates": [{"content": {"parts": [GEMINI_PART]}}]}),
}
WHOLE = {
    "anthropic": {"content": [ANTHROPIC_CALL]},
    "openai-chat": {"choices": [{"message": {"content": None, "tool_calls": [CHAT_CALL]}}]},
    "openai-responses": {"output": [RESPONSES_CALL]},
    "gemini": {"candidates": [{"content": {"parts": [GEMINI_PART]}}]},
}


def read(api: str, body: bytes, content_type: str) -> tuple[int, bool]:
    reader = UsageReader(api, content_type, "identity")
    for start in range(0, len(body), 50):
        reader.feed(body[start : start + 50])
    reader.usage()
    own = reader.own_output()
    return own.tokens, own.is_all


@pytest.mark.parametrize("api", STREAMED)
def test_a_response_of_only_our_call_is_recognised(api: str) -> None:
    for body, kind in ((STREAMED[api], "text/event-stream"), (json.dumps(WHOLE[api]).encode(), "application/json")):
        tokens, is_all = read(api, body, kind)
        assert is_all
        assert tokens == pytest.approx((len(ARGUMENTS) + 90) / 4, rel=0.15)


@pytest.mark.parametrize("body", [b"", b"context_", b'{"content": "context_fold"}', b'{"content": [{"context_": 1}]}'])
def test_odd_responses_tell_nothing(body: bytes) -> None:
    assert read("anthropic", body, "application/json") == (0, False)


def test_a_response_beyond_the_limit_tells_nothing() -> None:
    body = json.dumps({"content": [ANTHROPIC_CALL, {"type": "text", "text": "x" * COPY_BYTES_MAX}]}).encode()
    assert read("anthropic", body, "application/json") == (0, False)


def test_what_is_written_for_an_hour_is_told_apart() -> None:
    usage = {"input_tokens": 3, "cache_creation_input_tokens": 90, "output_tokens": 1}
    usage["cache_creation"] = {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 70}  # type: ignore[assignment]
    reader = UsageReader("anthropic", "application/json", "identity")
    reader.feed(json.dumps({"usage": usage}).encode())
    counted = reader.usage()
    assert counted is not None
    assert (counted.cache_write_tokens, counted.cache_write_1h_tokens) == (90, 70)
