"""Histories in each API's words, a few messages long, and their projection by both ways in."""

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


def asked(format: Format, *calls: tuple[str, str], text: str = "", beside: tuple[Message, ...] = ()) -> list[Message]:
    """A turn of the model: its calls as (id, tool)."""
    if format == "anthropic":
        said = [{"type": "text", "text": text}] if text else []
        made = [{"type": "tool_use", "id": call, "name": tool, "input": {}} for call, tool in calls]
        return [{"role": "assistant", "content": [*beside, *said, *made]}]
    if format == "openai-chat":
        named = [
            {"id": call, "type": "function", "function": {"name": tool, "arguments": "{}"}} for call, tool in calls
        ]
        return [{"role": "assistant", "content": text or None, **({"tool_calls": named} if named else {})}]
    if format == "gemini":
        written = [{"text": text}] if text else []
        parts = [{"functionCall": {"id": call, "name": tool, "args": {}}} for call, tool in calls]
        return [{"role": "model", "parts": [*beside, *written, *parts]}]
    spoken = [{"type": "message", "role": "assistant", "content": text}] if text else []
    items = [{"type": "function_call", "call_id": call, "name": tool, "arguments": "{}"} for call, tool in calls]
    return [*beside, *spoken, *items]


def answered(format: Format, *results: tuple[str, Any], failed: bool = False) -> list[Message]:
    if format == "anthropic":
        named = [{"type": "tool_result", "tool_use_id": call, "content": told} for call, told in results]
        return [{"role": "user", "content": [one | {"is_error": True} if failed else one for one in named]}]
    if format == "openai-chat":
        return [{"role": "tool", "tool_call_id": call, "content": told} for call, told in results]
    if format == "gemini":
        member = "error" if failed else "output"
        parts = [
            {"functionResponse": {"id": call, "name": "tool", "response": {member: told}}} for call, told in results
        ]
        return [{"role": "user", "parts": parts}]
    return [{"type": "function_call_output", "call_id": call, "output": told} for call, told in results]


def named(branch_id: str, **others: Any) -> str:
    return json.dumps({"branch_id": branch_id, "session_id": SESSION, "parent_branch_id": None, **others})


def work(format: Format, call: str, result: str = "done") -> list[Message]:
    return [*asked(format, (call, "Bash")), *answered(format, (call, result))]


def branch(format: Format, branch_id: str, told: Any = None, tool: str = "context_branch") -> list[Message]:
    return [
        *asked(format, (f"b{branch_id}", tool)),
        *answered(format, (f"b{branch_id}", named(branch_id) if told is None else told)),
    ]


def back(format: Format, branch_id: str, told: Any = None, tool: str = "context_return") -> list[Message]:
    result = json.dumps({"folded_at": "2026", "branch_id": branch_id}) if told is None else told
    return [*asked(format, (f"r{branch_id}", tool)), *answered(format, (f"r{branch_id}", result))]


def say(text: str, format: Format = "anthropic") -> list[Message]:
    return [{"role": "user", "parts": [{"text": text}]} if format == "gemini" else {"role": "user", "content": text}]


def body_of(messages: list[Message], format: Format, **members: Any) -> bytes:
    return json.dumps({"model": MODEL, LIST[format]: messages, **members}, ensure_ascii=False).encode()


def sent(messages: list[Message], format: Format, **members: Any) -> list[Message]:
    """What is sent, the same by both ways in."""
    listed = project(messages, format, model=MODEL)
    projected = project_body(body_of(messages, format, **members), format)
    assert json.loads(projected.body)[LIST[format]] == listed.messages
    assert projected.receipt.header_fields().keys() == listed.receipt.header_fields().keys()
    assert projected.receipt.skipped == listed.receipt.skipped
    assert {one.reason for one in listed.receipt.skipped} <= set(REASONS)
    found: list[Message] = listed.messages
    return found


def reasons(messages: list[Message], format: Format) -> list[str]:
    assert sent(messages, format) == messages
    return [one.reason for one in project(messages, format, model=MODEL).receipt.skipped]
