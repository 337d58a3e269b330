"""What the OpenAI Chat Completions API asks of a request, as its documentation and its error messages say; no look
at src. Members nobody knows are let through."""

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
    """Every rule that a request breaks; none for one the API would take."""
    if not isinstance(body, dict):
        return ["not an object"]
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return ["messages: not a list with anything in it"]
    found = [] if isinstance(body.get("model"), str) and body["model"] else ["model: missing"]
    shapes = [f"messages.{place}: {wrong}" for place, one in enumerate(messages) if (wrong := _shape(one))]
    return found + shapes if shapes else [*found, *_pairs(messages)]


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
        return _calls_fault(message) or _content_fault(role, message.get("content"), may_lack=_says_otherwise(message))
    return _content_fault(role, message.get("content"), may_lack=role == "function")


def _says_otherwise(message: Mapping[str, Any]) -> bool:
    return any(message.get(name) for name in ("tool_calls", "function_call", "refusal", "audio"))


def _content_fault(role: str, content: Any, *, may_lack: bool) -> str:
    if content is None:
        return "" if may_lack else "no content"
    if isinstance(content, str):
        return ""
    if not isinstance(content, list) or not content:
        return "content is neither text nor parts"
    kinds = [part.get("type") if isinstance(part, dict) else None for part in content]
    strange = [kind for kind in kinds if not isinstance(kind, str) or kind not in PARTS[role]]
    return f"parts {strange} in a message of role {role}" if strange else ""


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
        told = call.get(kind)
        text = "arguments" if kind == "function" else "input"
        if not isinstance(told, dict) or not told.get("name") or not isinstance(told.get(text), str):
            return "a call of nothing"
    ids = [call["id"] for call in calls]
    return "" if len(set(ids)) == len(ids) else "two calls of one id"


def _pairs(messages: list[dict[str, Any]]) -> Iterator[str]:
    due: list[str] = []
    due_function: str | None = None
    for place, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            if message["tool_call_id"] in due:
                due.remove(message["tool_call_id"])
            else:
                yield f"messages.{place}: role 'tool' must be a response to a preceding message with 'tool_calls'"
            continue
        if due:
            yield f"messages.{place}: tool_call_ids did not have response messages: {due}"
        if role == "function" and message["name"] != due_function:
            yield f"messages.{place}: role 'function' answers no call"
        due = [call["id"] for call in message.get("tool_calls") or []]
        due_function = (message.get("function_call") or {}).get("name")
    if due:
        yield f"messages.{len(messages)}: tool_call_ids did not have response messages: {due}"
