"""The rules of Gemini's `generateContent` for requests, from its documentation and error messages; independent of src.

They are as strict as the service ever is: roles alternate, and the content after one with calls has one response for
each call. Unknown members are accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ON_THE_SERVER = {"executableCode", "codeExecutionResult", "toolCall", "toolResponse"}
PART_KINDS = {"text", "inlineData", "fileData", "functionCall", "functionResponse"} | ON_THE_SERVER
MODEL_KINDS = {"functionCall"} | ON_THE_SERVER


def violations(body: Any) -> list[str]:
    """Every rule that a request breaks; empty for a request that the API would accept."""
    if not isinstance(body, dict):
        return ["not an object"]
    contents = body.get("contents")
    if not isinstance(contents, list) or not contents:
        return ["contents: not a list with anything in it"]
    shapes = [f"contents.{index}: {fault}" for index, content in enumerate(contents) if (fault := _shape(content))]
    return shapes or [*_roles(contents), *_calls_and_responses(contents), *signature_faults(contents)]


def _shape(content: Any) -> str:
    if not isinstance(content, dict) or content.get("role") not in ("user", "model"):
        return "no content of a known role"
    parts = content.get("parts")
    if not isinstance(parts, list) or not parts:
        return "no parts"
    return next((fault for part in parts if (fault := _part_fault(content["role"], part))), "")


def _part_fault(role: str, part: Any) -> str:
    kinds = PART_KINDS & part.keys() if isinstance(part, dict) else set()
    if len(kinds) != 1:
        return f"a part of {sorted(kinds)}"
    (kind,) = kinds
    if (kind in MODEL_KINDS and role != "model") or (kind == "functionResponse" and role != "user"):
        return f"{kind} in a content of role {role}"
    if kind in ("functionCall", "functionResponse"):
        call_or_response = part[kind] if isinstance(part[kind], dict) else {}
        if not call_or_response.get("name") or not all(
            isinstance(call_or_response.get(name, ""), str) for name in ("name", "id")
        ):
            return f"{kind} without a name"
    if kind == "functionResponse" and not isinstance(part[kind].get("response"), dict):
        return "a response that is no object"
    return "text is no text" if kind == "text" and not isinstance(part["text"], str) else ""


def _roles(contents: list[dict[str, Any]]) -> Iterator[str]:
    if contents[0]["role"] != "user":
        yield "contents.0: the first is not the user's"
    for index in range(1, len(contents)):
        if contents[index]["role"] == contents[index - 1]["role"]:
            yield f"contents.{index}: multiturn requests alternate between user and model"


def _ids_and_names(content: Mapping[str, Any], kind: str) -> list[tuple[str, str]]:
    return sorted((part[kind].get("id", ""), part[kind]["name"]) for part in content["parts"] if kind in part)


def _calls_and_responses(contents: list[dict[str, Any]]) -> Iterator[str]:
    pending: list[tuple[str, str]] = []
    for index, content in enumerate(contents):
        responses = _ids_and_names(content, "functionResponse")
        if responses != pending:
            yield f"contents.{index}: function responses {responses} do not equal function calls {pending}"
        pending = _ids_and_names(content, "functionCall")
    if pending:
        yield f"contents.{len(contents)}: calls without responses: {pending}"


def signature_faults(contents: list[dict[str, Any]]) -> Iterator[str]:
    """If one content of the running turn is signed, all are: on the first of their calls."""
    prompts = [
        index
        for index, content in enumerate(contents)
        if content["role"] == "user" and not _ids_and_names(content, "functionResponse")
    ]
    running = contents[prompts[-1] :] if prompts else contents
    firsts = [next((part for part in content["parts"] if "functionCall" in part), None) for content in running]
    signed = [bool(first.get("thoughtSignature")) for first in firsts if first]
    if any(signed) and not all(signed):
        yield "a function call in the running turn has lost its thoughtSignature"
