"""The rules of the OpenAI Chat Completions API for requests, from its documentation and error messages.

They are independent of src. Unknown members are accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

PARTS = {
    "system": {"text"},
    "developer": {"text"},
    "user": {"text", "image_url", "input_audio", "file"},
    "assistant": {"text", "refusal"},
    "tool": {"text"},
    "function": set[str](),
}
CALLS = ("function", "custom")


def violations(body: Any) -> list[str]:
    """Every rule that a request breaks; empty for a request that the API would accept."""
    if not isinstance(body, dict):
        return ["not an object"]
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return ["messages: not a list with anything in it"]
    broken = [] if isinstance(body.get("model"), str) and body["model"] else ["model: missing"]
    shapes = [f"messages.{index}: {fault}" for index, message in enumerate(messages) if (fault := _shape(message))]
    return broken + shapes if shapes else [*broken, *_calls_and_results(messages)]


def _shape(message: Any) -> str:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or role not in PARTS:
        return f"unknown role {role!r}"
    if role == "tool" and not (isinstance(message.get("tool_call_id"), str) and message["tool_call_id"]):
        return "a tool's message without tool_call_id"
    if role == "function" and not (isinstance(message.get("name"), str) and message["name"]):
        return "a function's message without name"
    if role != "tool" and "tool_call_id" in message:
        return "tool_call_id in a message that is not a tool's"
    if role == "assistant":
        return _calls_fault(message) or _content_fault(
            role, message.get("content"), optional=_has_other_content(message)
        )
    return _content_fault(role, message.get("content"), optional=role == "function")


def _has_other_content(message: Mapping[str, Any]) -> bool:
    return any(message.get(name) for name in ("tool_calls", "function_call", "refusal", "audio"))


def _content_fault(role: str, content: Any, *, optional: bool) -> str:
    if content is None:
        return "" if optional else "no content"
    if isinstance(content, str):
        return ""
    if not isinstance(content, list) or not content:
        return "content is neither text nor parts"
    kinds = [part.get("type") if isinstance(part, dict) else None for part in content]
    unknown = [kind for kind in kinds if not isinstance(kind, str) or kind not in PARTS[role]]
    return f"parts {unknown} in a message of role {role}" if unknown else ""


def _calls_fault(message: Mapping[str, Any]) -> str:
    if "tool_calls" not in message:
        return ""
    calls = message["tool_calls"]
    if not isinstance(calls, list) or not calls:
        return "tool_calls is not a list with anything in it"
    for call in calls:
        kind = call.get("type") if isinstance(call, dict) else None
        if kind not in CALLS or not isinstance(call.get("id"), str) or not call["id"]:
            return "a call without type or id"
        details = call.get(kind)
        text_name = "arguments" if kind == "function" else "input"
        if not isinstance(details, dict) or not details.get("name") or not isinstance(details.get(text_name), str):
            return "a call of nothing"
    ids = [call["id"] for call in calls]
    return "" if len(set(ids)) == len(ids) else "two calls of one id"


def _calls_and_results(messages: list[dict[str, Any]]) -> Iterator[str]:
    pending: list[str] = []
    pending_function: str | None = None
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            if message["tool_call_id"] in pending:
                pending.remove(message["tool_call_id"])
            else:
                yield f"messages.{index}: role 'tool' must be a response to a preceding message with 'tool_calls'"
            continue
        if pending:
            yield f"messages.{index}: tool_call_ids did not have response messages: {pending}"
        if role == "function" and message["name"] != pending_function:
            yield f"messages.{index}: role 'function' answers no call"
        pending = [call["id"] for call in message.get("tool_calls") or []]
        pending_function = (message.get("function_call") or {}).get("name")
    if pending:
        yield f"messages.{len(messages)}: tool_call_ids did not have response messages: {pending}"
