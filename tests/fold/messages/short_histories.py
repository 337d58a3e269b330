"""Short histories in the format of each API, and their projection by the library and by the proxy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contextfold.fold.messages import FORMATS, REASONS, Format, project, project_body

Message = dict[str, Any]
LIST = {"anthropic": "messages", "openai-chat": "messages", "openai-responses": "input", "gemini": "contents"}
# A model that is known not to bind thinking.
MODEL = "claude-sonnet-4-5"
SESSION = "sess_0123456789abcdef"
every_format = pytest.mark.parametrize("format", FORMATS)


def model_turn(
    format: Format, *calls: tuple[str, str], text: str = "", beside: tuple[Message, ...] = ()
) -> list[Message]:
    """A turn of the model. Its calls are given as (id, tool)."""
    if format == "anthropic":
        texts = [{"type": "text", "text": text}] if text else []
        tool_uses = [{"type": "tool_use", "id": call, "name": tool, "input": {}} for call, tool in calls]
        return [{"role": "assistant", "content": [*beside, *texts, *tool_uses]}]
    if format == "openai-chat":
        calls_with_ids = [
            {"id": call, "type": "function", "function": {"name": tool, "arguments": "{}"}} for call, tool in calls
        ]
        return [
            {"role": "assistant", "content": text or None, **({"tool_calls": calls_with_ids} if calls_with_ids else {})}
        ]
    if format == "gemini":
        texts = [{"text": text}] if text else []
        parts = [{"functionCall": {"id": call, "name": tool, "args": {}}} for call, tool in calls]
        return [{"role": "model", "parts": [*beside, *texts, *parts]}]
    messages = [{"type": "message", "role": "assistant", "content": text}] if text else []
    items = [{"type": "function_call", "call_id": call, "name": tool, "arguments": "{}"} for call, tool in calls]
    return [*beside, *messages, *items]


def tool_results(format: Format, *results: tuple[str, Any], failed: bool = False) -> list[Message]:
    if format == "anthropic":
        result_blocks = [{"type": "tool_result", "tool_use_id": call, "content": result} for call, result in results]
        return [
            {"role": "user", "content": [block | {"is_error": True} if failed else block for block in result_blocks]}
        ]
    if format == "openai-chat":
        return [{"role": "tool", "tool_call_id": call, "content": result} for call, result in results]
    if format == "gemini":
        member = "error" if failed else "output"
        parts = [
            {"functionResponse": {"id": call, "name": "tool", "response": {member: result}}} for call, result in results
        ]
        return [{"role": "user", "parts": parts}]
    return [{"type": "function_call_output", "call_id": call, "output": result} for call, result in results]


def branch_result(branch_id: str, **others: Any) -> str:
    return json.dumps({"branch_id": branch_id, "session_id": SESSION, "parent_branch_id": None, **others})


def work(format: Format, call: str, result: str = "done") -> list[Message]:
    return [*model_turn(format, (call, "Bash")), *tool_results(format, (call, result))]


def branch(format: Format, branch_id: str, result: Any = None, tool: str = "context_branch") -> list[Message]:
    return [
        *model_turn(format, (f"b{branch_id}", tool)),
        *tool_results(format, (f"b{branch_id}", branch_result(branch_id) if result is None else result)),
    ]


def return_turn(format: Format, branch_id: str, result: Any = None, tool: str = "context_return") -> list[Message]:
    result = json.dumps({"folded_at": "2026", "branch_id": branch_id}) if result is None else result
    return [*model_turn(format, (f"r{branch_id}", tool)), *tool_results(format, (f"r{branch_id}", result))]


def say(text: str, format: Format = "anthropic") -> list[Message]:
    return [{"role": "user", "parts": [{"text": text}]} if format == "gemini" else {"role": "user", "content": text}]


def body_of(messages: list[Message], format: Format, **members: Any) -> bytes:
    return json.dumps({"model": MODEL, LIST[format]: messages, **members}, ensure_ascii=False).encode()


def sent(messages: list[Message], format: Format, **members: Any) -> list[Message]:
    """The messages that are sent, which must be the same for the library and the proxy."""
    listed = project(messages, format, model=MODEL)
    projected = project_body(body_of(messages, format, **members), format)
    assert json.loads(projected.body)[LIST[format]] == listed.messages
    assert projected.receipt.header_fields().keys() == listed.receipt.header_fields().keys()
    assert projected.receipt.skipped == listed.receipt.skipped
    assert {skipped.reason for skipped in listed.receipt.skipped} <= set(REASONS)
    sent_messages: list[Message] = listed.messages
    return sent_messages


def reasons(messages: list[Message], format: Format) -> list[str]:
    assert sent(messages, format) == messages
    return [skipped.reason for skipped in project(messages, format, model=MODEL).receipt.skipped]
