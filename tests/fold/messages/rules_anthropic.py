"""The rules of the Anthropic Messages API for requests, from its documentation and error messages; independent of src.

They are as strict as the documentation: roles alternate (the API merges neighbours, but no client should rely on it),
every call is answered in the very next message, and results come first there. Unknown members are accepted. Of a
request that continues a thread only the shapes are checked: the provider has the messages before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

ROLES = ("user", "assistant", "system")
MAX_CACHE_MARKS = 4
CALL_ID = re.compile(r"[A-Za-z0-9_-]+")
BLOCKS = {
    "user": {"text", "image", "document", "search_result", "tool_result", "container_upload"},
    "assistant": {
        *("text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use", "mcp_tool_result"),
        *("web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result", "compaction"),
        "tool_search_tool_result",
    },
    "system": {"text", "tool_addition", "tool_removal"},
}
CLEARED = (None, "never", "next_user_message")
EDITS = ("clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112")
THOUGHTS = ("thinking", "redacted_thinking")
ON_THE_SERVER = {"server_tool_use", "mcp_tool_use"}


def violations(body: Any) -> list[str]:
    """Every rule that a request breaks; empty for a request that the API would accept."""
    if not isinstance(body, dict):
        return ["not an object"]
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return ["messages: not a list with anything in it"]
    broken = [] if isinstance(body.get("model"), str) and body["model"] else ["model: missing"]
    # 0 only fills the cache.
    if type(body.get("max_tokens")) is not int or body["max_tokens"] < 0:
        broken.append("max_tokens: missing")
    broken += [*_thread(body), *_edits(body)]
    shapes = [text for index, message in enumerate(messages) for text in _shape(index, message)]
    if shapes:
        # The checks below expect messages of a valid shape.
        return broken + shapes
    if isinstance(body.get("thread"), dict) and body["thread"].get("type") == "continue":
        return broken
    broken += [
        *_roles(messages),
        *_compactions(messages),
        *_tool_changes(body, messages),
        *_tool_references(body, messages),
        *_calls_and_results(messages),
        *_thinking_blocks(body, messages),
        *_cache_marks(body),
        *_trailing_whitespace(messages),
    ]
    if any(block["type"] in ("tool_use", "tool_result") for message in messages for block in _blocks(message)):
        broken += [] if body.get("tools") else ["tools: missing, though messages hold calls"]
    return broken


def _thread(body: Mapping[str, Any]) -> Iterator[str]:
    thread = body.get("thread")
    if thread is None:
        return
    kind = thread.get("type") if isinstance(thread, dict) else None
    names_message = kind == "continue" and isinstance(thread.get("previous_message_id"), str)
    if kind != "create" and not names_message:
        yield "thread: neither created nor continued"


def _edits(body: Mapping[str, Any]) -> Iterator[str]:
    kinds = [edit.get("type") for edit in (body.get("context_management") or {}).get("edits", ())]
    if any(kind not in EDITS for kind in kinds) or len(set(kinds)) != len(kinds):
        yield f"context_management: {kinds}"
    if EDITS[0] in kinds[1:]:
        yield "context_management: clear_thinking must come first"


def _compactions(messages: list[dict[str, Any]]) -> Iterator[str]:
    """A signed summary is alone in the first message; an older one begins the model's message."""
    for index, message in enumerate(messages):
        for number, block in enumerate(_blocks(message)):
            if block["type"] == "compaction" and (number or (block.get("signature") and index)):
                yield f"messages.{index}.content.{number}: compaction must come first"


def _tool_changes(body: Mapping[str, Any], messages: list[dict[str, Any]]) -> Iterator[str]:
    """A change of tools names a tool of the request, or one that an earlier message has defined."""
    known = [tool.get("name") for tool in body.get("tools") or ()]
    for index, message in enumerate(messages):
        for block in _blocks(message):
            if block["type"] not in ("tool_addition", "tool_removal"):
                continue
            tool = block["tool"]
            if tool["type"] == "tool_definition" and block["type"] == "tool_addition":
                known.append(tool["definition"]["name"])
            elif tool.get("name") not in known:
                yield f"messages.{index}: {block['type']} of unknown tool {tool.get('name')!r}"


def _tool_references(body: Mapping[str, Any], messages: list[dict[str, Any]]) -> Iterator[str]:
    """A tool that a search has found is one of the request."""
    known = [tool.get("name") for tool in body.get("tools") or ()]
    for index, message in enumerate(messages):
        for block in _blocks(message):
            content = block.get("content")
            found = content.get("tool_references") if isinstance(content, dict) else content
            for part in found if isinstance(found, list) else ():
                if part.get("type") == "tool_reference" and part.get("tool_name") not in known:
                    yield f"messages.{index}: tool reference {part.get('tool_name')!r} is not an available tool"


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _shape(index: int, message: Any) -> Iterator[str]:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        yield f"messages.{index}: no message of a known role"
        return
    content = message.get("content")
    if message.get("clear_at") not in CLEARED or ("clear_at" in message and message["role"] != "system"):
        yield f"messages.{index}: clear_at"
    if isinstance(content, str):
        if not content.strip():
            yield f"messages.{index}: empty"
        return
    if not isinstance(content, list) or not content:
        yield f"messages.{index}: no content"
        return
    for number, block in enumerate(content):
        fault = _block_fault(message["role"], block)
        if fault:
            yield f"messages.{index}.content.{number}: {fault}"


def _block_fault(role: str, block: Any) -> str:  # noqa: PLR0911 - a table of shapes, one line each
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str) or kind not in BLOCKS[role]:
        return f"{kind!r} in a message of role {role}"
    match kind:
        case "text":
            return "" if isinstance(block.get("text"), str) and block["text"].strip() else "text is empty"
        case "tool_use":
            has_name = isinstance(block.get("name"), str) and block["name"]
            return "" if _is_id(block.get("id")) and has_name and isinstance(block.get("input"), dict) else "no call"
        case "tool_result":
            return _result_fault(block)
        case "thinking":
            has_signature = isinstance(block.get("signature"), str) and block["signature"]
            return "" if isinstance(block.get("thinking"), str) and has_signature else "thinking without signature"
        case "redacted_thinking":
            return "" if isinstance(block.get("data"), str) and block["data"] else "redacted thinking without data"
        case "compaction":
            return "" if block.get("content") != "" else "compaction is empty"
        case "tool_addition" | "tool_removal":
            return _tool_fault(block.get("tool"))
        case "image" | "document":
            return "" if isinstance(block.get("source"), dict) and block["source"].get("type") else "no source"
    return ""


def _tool_fault(tool: Any) -> str:
    if not isinstance(tool, dict) or not tool.get("type"):
        return "no tool"
    definition = tool.get("definition")
    is_defined = isinstance(definition, dict) and isinstance(definition.get("name"), str)
    return "" if is_defined or tool["type"] != "tool_definition" else "a definition without a name"


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and CALL_ID.fullmatch(value) is not None


def _result_fault(block: Mapping[str, Any]) -> str:
    if not _is_id(block.get("tool_use_id")):
        return "a result of no call"
    if not isinstance(block.get("is_error", False), bool):
        return "is_error is no boolean"
    content = block.get("content", "")
    if isinstance(content, str):
        return ""
    kinds = ("text", "image", "document", "search_result", "tool_reference")
    is_known = isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") in kinds for part in content
    )
    return "" if is_known else "a result of unknown content"


def _roles(messages: list[dict[str, Any]]) -> Iterator[str]:
    if messages[0]["role"] != "user" and _blocks(messages[0])[0]["type"] != "compaction":
        yield "messages.0: the first is not the user's"
    for index in range(1, len(messages)):
        before, role = messages[index - 1]["role"], messages[index]["role"]
        after_server = before == "assistant" and _blocks(messages[index - 1])[-1]["type"] in ON_THE_SERVER
        if role == "system" and before != "user" and not after_server:
            yield f"messages.{index}: role 'system' must follow a 'user' message"
        elif before == "system" and role != "assistant":
            yield f"messages.{index - 1}: role 'system' must precede an 'assistant' message or end the array"
        elif role == before:
            yield f"messages.{index}: roles do not alternate"


def _calls_and_results(messages: list[dict[str, Any]]) -> Iterator[str]:
    seen: set[str] = set()
    pending: list[str] = []
    for index, message in enumerate(messages):
        blocks = _blocks(message)
        result_ids = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if any(block["type"] == "tool_result" for block in blocks[len(result_ids) :]):
            yield f"messages.{index}: results do not come first"
        if missing := set(pending) - set(result_ids):
            yield f"messages.{index - 1}: `tool_use` ids without `tool_result` blocks after: {sorted(missing)}"
        if unexpected := [call_id for call_id in result_ids if call_id not in pending]:
            yield f"messages.{index}: unexpected `tool_use_id`: {unexpected}"
        if len(set(result_ids)) != len(result_ids):
            yield f"messages.{index}: two results of one call"
        pending = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if repeated := [
            call_id for number, call_id in enumerate(pending) if call_id in seen or call_id in pending[:number]
        ]:
            yield f"messages.{index}: `tool_use` ids must be unique: {repeated}"
        seen.update(pending)
    if pending:
        yield f"messages.{len(messages) - 1}: `tool_use` ids without `tool_result` blocks after: {pending}"


def _thinking_blocks(body: Mapping[str, Any], messages: list[dict[str, Any]]) -> Iterator[str]:
    turns = [(index, _blocks(message)) for index, message in enumerate(messages) if message["role"] == "assistant"]
    for index, blocks in turns:
        if blocks[-1]["type"] in THOUGHTS:
            yield f"messages.{index}: the final block cannot be thinking"
    thinking = body.get("thinking")
    if turns and isinstance(thinking, dict) and thinking.get("type") == "enabled":
        index, blocks = turns[-1]
        if any(block["type"] == "tool_use" for block in blocks) and blocks[0]["type"] not in THOUGHTS:
            yield f"messages.{index}: expected thinking first in the final assistant message"


def _cache_marks(body: Mapping[str, Any]) -> Iterator[str]:
    marks = list(_objects_with_marks({name: body.get(name) for name in ("system", "tools", "messages")}))
    if len(marks) > MAX_CACHE_MARKS:
        yield f"{len(marks)} blocks with cache_control, of {MAX_CACHE_MARKS} at most"
    for object_ in marks:
        mark = object_["cache_control"]
        if not isinstance(mark, dict) or mark.get("type") != "ephemeral" or object_.get("type") in THOUGHTS:
            yield f"cache_control {mark!r} on {object_.get('type')}"


def _objects_with_marks(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if value.get("cache_control") is not None:
            yield value
        for name, member in value.items():
            # These members are the caller's own data.
            if name not in ("input", "input_schema"):
                yield from _objects_with_marks(member)
    elif isinstance(value, list):
        for member in value:
            yield from _objects_with_marks(member)


def _trailing_whitespace(messages: list[dict[str, Any]]) -> Iterator[str]:
    last = messages[-1]
    if last["role"] == "assistant" and _blocks(last)[-1].get("text", "").rstrip() != _blocks(last)[-1].get("text", ""):
        yield f"messages.{len(messages) - 1}: final assistant content cannot end with trailing whitespace"
