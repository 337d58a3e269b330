"""The answers of the model providers, as documented: bodies, event streams and errors of the four APIs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

CREATED_S = 1_700_000_000
# A stream is sent in small pieces.
DELTA_CHARS = 12
# Claude Code treats two answers with the same id as one message.
_MESSAGES = itertools.count(1)


class Billed(NamedTuple):
    """What a request is charged for; the parts do not overlap."""

    input: int
    read: int
    written: int
    output: int

    @property
    def prompt(self) -> int:
        return self.input + self.read + self.written


class Call(NamedTuple):
    id: str
    name: str
    arguments: dict[str, Any]
    # The name of a group of tools, and the text for a custom tool, in the Responses API.
    namespace: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Say:
    """The model's answer: a text, then tool calls; for Anthropic, a thought before them."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    thought: str = ""
    # This is the signature of the thought, as the provider issued it.
    signature: str = ""

    def to_json(self) -> str:
        return json.dumps([self.text, self.calls, self.thought])


@dataclass(frozen=True, slots=True)
class Fail:
    """An error in the provider's own shape."""

    status: int
    kind: str
    message: str = "scripted failure"
    headers: tuple[tuple[str, str], ...] = ()

    def body(self, api: str) -> dict[str, Any]:
        if api == "anthropic":
            error = {"type": self.kind, "message": self.message}
            return {"type": "error", "error": error, "request_id": "req_011"}
        return {"error": {"message": self.message, "type": self.kind, "param": None, "code": None}}


def body_of(api: str, model: str, say: Say, billed: Billed) -> dict[str, Any]:
    bodies = {"anthropic": _message, "gemini": _generated, "openai-chat": _completion, "openai-responses": _response}
    return bodies[api](model, say, billed)


def events_of(api: str, model: str, say: Say, billed: Billed, *, counts: bool) -> Iterator[bytes]:
    """The same answer as a stream. Chat Completions reports usage only if `counts` is true."""
    match api:
        case "anthropic":
            return (_event(value, value["type"]) for value in _message_events(model, say, billed))
        case "gemini":
            return iter([_event(_generated(model, say, billed))])
        case "openai-chat":
            return _chunks(model, say, billed, counts=counts)
    numbered = enumerate(_response_events(model, say, billed))
    return (_event({**value, "sequence_number": number}, value["type"]) for number, value in numbered)


def _event(value: dict[str, Any], name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value)}\n\n".encode()


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + DELTA_CHARS] for start in range(0, len(text), DELTA_CHARS))


def _anthropic_usage(billed: Billed) -> dict[str, Any]:
    return {
        "input_tokens": billed.input,
        "cache_creation_input_tokens": billed.written,
        "cache_read_input_tokens": billed.read,
        "output_tokens": billed.output,
    }


def _message(model: str, say: Say, billed: Billed) -> dict[str, Any]:
    thoughts = [{"type": "thinking", "thinking": say.thought, "signature": say.signature}] if say.thought else []
    texts = [{"type": "text", "text": say.text}] if say.text else []
    calls = [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in say.calls]
    return {
        "id": f"msg_{next(_MESSAGES):03}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [*thoughts, *texts, *calls],
        "stop_reason": "tool_use" if say.calls else "end_turn",
        "stop_sequence": None,
        "usage": _anthropic_usage(billed),
    }


def _message_events(model: str, say: Say, billed: Billed) -> Iterator[dict[str, Any]]:
    whole = _message(model, say, billed)
    start = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    yield {"type": "message_start", "message": start}
    yield {"type": "ping"}
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            empty: dict[str, Any] = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
        elif block["type"] == "thinking":
            empty = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        else:
            empty = {**block, "input": {}}
            arguments = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *_pieces(arguments)]]
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": billed.output}}
    yield {"type": "message_stop"}


def _generated(model: str, say: Say, billed: Billed) -> dict[str, Any]:
    texts: list[dict[str, Any]] = [{"text": say.text}] if say.text else []
    calls: list[dict[str, Any]] = [{"functionCall": {"name": call.name, "args": call.arguments}} for call in say.calls]
    for part in calls[:1]:
        part["thoughtSignature"] = "c2lnbmF0dXJl"
    return {
        "candidates": [{"index": 0, "content": {"role": "model", "parts": [*texts, *calls]}, "finishReason": "STOP"}],
        "usageMetadata": {
            "promptTokenCount": billed.prompt,
            "cachedContentTokenCount": billed.read,
            "candidatesTokenCount": billed.output,
            "totalTokenCount": billed.prompt + billed.output,
        },
        "modelVersion": model,
        "responseId": f"response-{next(_MESSAGES)}",
    }


def _chat_usage(billed: Billed) -> dict[str, Any]:
    return {
        "prompt_tokens": billed.prompt,
        "completion_tokens": billed.output,
        "total_tokens": billed.prompt + billed.output,
        "prompt_tokens_details": {"cached_tokens": billed.read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _tool_calls(say: Say) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for call in say.calls
    ]


def _completion(model: str, say: Say, billed: Billed) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": say.text or None, "refusal": None}
    if say.calls:
        message["tool_calls"] = _tool_calls(say)
    finish = "tool_calls" if say.calls else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": CREATED_S,
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": _chat_usage(billed),
    }


def _chunks(model: str, say: Say, billed: Billed, *, counts: bool) -> Iterator[bytes]:
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": CREATED_S, "model": model}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if say.text else None}]
    deltas += [{"content": piece} for piece in _pieces(say.text)]
    for index, call in enumerate(_tool_calls(say)):
        arguments = call["function"]["arguments"]
        start = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
        deltas.append({"tool_calls": [start]})
        for piece in _pieces(arguments):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    finish = "tool_calls" if say.calls else "stop"
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    no_usage = {"usage": None} if counts else {}
    for choice in [*choices, {"index": 0, "delta": {}, "finish_reason": finish}]:
        yield _event({**base, "choices": [choice], **no_usage})
    if counts:
        yield _event({**base, "choices": [], "usage": _chat_usage(billed)})
    yield b"data: [DONE]\n\n"


def _response(model: str, say: Say, billed: Billed) -> dict[str, Any]:
    part = {"type": "output_text", "text": say.text, "annotations": []}
    output: list[dict[str, Any]] = []
    if say.text:
        output.append({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]})
    for number, call in enumerate(say.calls):
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": call.id, "name": call.name}
        item |= {"namespace": call.namespace} if call.namespace else {}
        if call.text:
            output.append({**item, "type": "custom_tool_call", "input": call.text, "status": "completed"})
        else:
            output.append({**item, "arguments": json.dumps(call.arguments), "status": "completed"})
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": CREATED_S,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": billed.prompt,
            "input_tokens_details": {"cached_tokens": billed.read, "cache_write_tokens": billed.written},
            "output_tokens": billed.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": billed.prompt + billed.output,
        },
    }


def _response_events(model: str, say: Say, billed: Billed) -> Iterator[dict[str, Any]]:
    whole = _response(model, say, billed)
    start = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": start}
    yield {"type": "response.in_progress", "response": start}
    for index, item in enumerate(whole["output"]):
        yield from _item_events(index, item)
    yield {"type": "response.completed", "response": whole}


def _item_events(index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    position = {"item_id": item["id"], "output_index": index}
    if item["type"] == "message":
        part = item["content"][0]
        yield {"type": "response.output_item.added", "output_index": index, "item": {**item, "content": []}}
        yield {"type": "response.content_part.added", **position, "content_index": 0, "part": {**part, "text": ""}}
        for piece in _pieces(part["text"]):
            yield {"type": "response.output_text.delta", **position, "content_index": 0, "delta": piece, "logprobs": []}
        yield {
            "type": "response.output_text.done",
            **position,
            "content_index": 0,
            "text": part["text"],
            "logprobs": [],
        }
        yield {"type": "response.content_part.done", **position, "content_index": 0, "part": part}
    elif item["type"] == "custom_tool_call":
        yield {"type": "response.output_item.added", "output_index": index, "item": {**item, "input": ""}}
        yield {"type": "response.custom_tool_call_input.delta", **position, "delta": item["input"]}
        yield {"type": "response.custom_tool_call_input.done", **position, "input": item["input"]}
    else:
        yield {"type": "response.output_item.added", "output_index": index, "item": {**item, "arguments": ""}}
        for piece in _pieces(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", **position, "delta": piece}
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **position, **done}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}
