"""The rules of the OpenAI Responses API for requests, from its documentation and error messages; independent of src.

Unknown members are accepted; an item of an unknown type is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

INPUT_PARTS = {"input_text", "input_image", "input_file", "input_audio"}
OUTPUT_PARTS = {"output_text", "refusal"}
CALLS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "tool_search_call": "tool_search_output",
}
OUTPUTS = {output: call for call, output in CALLS.items()}
ON_THE_SERVER = {
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
    *("mcp_call", "mcp_list_tools", "mcp_approval_request"),
}
OTHER = {"item_reference", "mcp_approval_response", "compaction", "reasoning", "message", "additional_tools"}


def violations(body: Any) -> list[str]:
    """Every rule that a request breaks; empty for a request that the API would accept."""
    if not isinstance(body, dict):
        return ["not an object"]
    broken = [] if isinstance(body.get("model"), str) and body["model"] else ["model: missing"]
    items = body.get("input")
    if isinstance(items, str):
        return broken
    if not isinstance(items, list) or not items:
        return [*broken, "input: neither text nor a list with anything in it"]
    shapes = [f"input.{index}: {fault}" for index, item in enumerate(items) if (fault := _shape(item))]
    if shapes:
        return broken + shapes
    continues = any(isinstance(body.get(name), str | dict) for name in ("previous_response_id", "conversation"))
    return [
        *broken,
        *_calls_and_outputs(items, continues=continues),
        *_reasoning_items(items),
        *_namespaces(body.get("tools") or (), items),
    ]


def _kind(item: Mapping[str, Any]) -> Any:
    return item.get("type", "message" if "role" in item else None)


def _shape(item: Any) -> str:  # noqa: PLR0911 - a table of shapes, one line each
    kind = _kind(item) if isinstance(item, dict) else None
    if not isinstance(kind, str) or kind not in CALLS.keys() | OUTPUTS.keys() | ON_THE_SERVER | OTHER:
        return f"unknown type {kind!r}"
    if kind == "message":
        return _message_fault(item)
    if (kind in CALLS or kind in OUTPUTS) and not (isinstance(item.get("call_id"), str) and item["call_id"]):
        return f"{kind} without call_id"
    if kind == "function_call":
        has_name = isinstance(item.get("name"), str) and item["name"]
        return "" if has_name and isinstance(item.get("arguments"), str) else "a call of nothing"
    if kind == "function_call_output":
        return _parts_fault(item.get("output"), INPUT_PARTS)
    if kind == "compaction":
        return "" if isinstance(item.get("encrypted_content"), str) else "compaction without content"
    if kind in ("tool_search_output", "additional_tools"):
        return "" if isinstance(item.get("tools"), list) else f"{kind} without tools"
    if kind == "reasoning":
        return "" if isinstance(item.get("summary"), list) else "reasoning without summary"
    if kind == "item_reference":
        return "" if isinstance(item.get("id"), str) and item["id"] else "a reference to nothing"
    return ""


def _message_fault(item: Mapping[str, Any]) -> str:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        return f"unknown role {role!r}"
    return _parts_fault(item.get("content"), OUTPUT_PARTS if role == "assistant" else INPUT_PARTS)


def _parts_fault(content: Any, known: set[str]) -> str:
    if isinstance(content, str):
        return ""
    if not isinstance(content, list) or not content:
        return "content is neither text nor parts"
    kinds = [part.get("type") if isinstance(part, dict) else None for part in content]
    unknown = [kind for kind in kinds if not isinstance(kind, str) or kind not in known]
    return f"parts {unknown}" if unknown else ""


def _calls_and_outputs(items: list[dict[str, Any]], *, continues: bool) -> Iterator[str]:
    open_calls: dict[tuple[str, str], int] = {}
    answered: set[tuple[str, str]] = set()
    for index, item in enumerate(items):
        kind = _kind(item)
        if kind in CALLS:
            key = (kind, item["call_id"])
            if key in open_calls or key in answered:
                yield f"input.{index}: two calls of one id {item['call_id']}"
            open_calls[key] = index
        elif kind in OUTPUTS:
            key = (OUTPUTS[kind], item["call_id"])
            if key in answered:
                yield f"input.{index}: two outputs of one call {item['call_id']}"
            elif open_calls.pop(key, None) is None and not continues:
                yield f"input.{index}: no tool call found for function call output with call_id {item['call_id']}"
            answered.add(key)
    for (_, call_id), index in open_calls.items():
        yield f"input.{index}: no tool output found for function call {call_id}"


def _namespaces(tools: Sequence[Mapping[str, Any]], items: list[dict[str, Any]]) -> Iterator[str]:
    """The namespace of a call is one of the request's tools, or an earlier item has loaded it."""
    known = {tool.get("name") for tool in tools if tool.get("type") == "namespace"}
    for index, item in enumerate(items):
        known |= {tool.get("name") for tool in item.get("tools") or () if tool.get("type") == "namespace"}
        if item.get("namespace") is not None and item["namespace"] not in known:
            yield f"input.{index}: unknown namespace {item['namespace']!r}"


def _reasoning_items(items: list[dict[str, Any]]) -> Iterator[str]:
    """A reasoning item must come directly before the item that it led to."""
    for index, item in enumerate(items):
        if _kind(item) != "reasoning":
            continue
        after = items[index + 1] if index + 1 < len(items) else {}
        kind = _kind(after)
        has_successor = kind in CALLS or kind in ON_THE_SERVER or kind in ("reasoning", "item_reference")
        if not has_successor and not (kind == "message" and after.get("role") == "assistant"):
            yield f"input.{index}: reasoning was provided without its required following item"
