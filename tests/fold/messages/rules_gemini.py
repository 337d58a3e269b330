"""What Gemini's `generateContent` asks of a request, as its documentation and its error messages say; no look at src.

Strict where the service is at its strictest: roles alternate, a content with calls is answered in the very next
content, one response for each call. Members nobody knows are let through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ON_THE_SERVER = {"executableCode", "codeExecutionResult", "toolCall", "toolResponse"}
DATA = {"text", "inlineData", "fileData", "functionCall", "functionResponse"} | ON_THE_SERVER
OF_MODEL = {"functionCall"} | ON_THE_SERVER


def violations(body: Any) -> list[str]:
    """Every rule that a request breaks; none for one the API would take."""
    if not isinstance(body, dict):
        return ["not an object"]
    contents = body.get("contents")
    if not isinstance(contents, list) or not contents:
        return ["contents: not a list with anything in it"]
    shapes = [f"contents.{place}: {wrong}" for place, one in enumerate(contents) if (wrong := _shape(one))]
    return shapes or [*_order(contents), *_pairs(contents), *_signatures(contents)]


def _shape(content: Any) -> str:
    if not isinstance(content, dict) or content.get("role") not in ("user", "model"):
        return "no content of a known role"
    parts = content.get("parts")
    if not isinstance(parts, list) or not parts:
        return "no parts"
    return next((wrong for part in parts if (wrong := _part_fault(content["role"], part))), "")


def _part_fault(role: str, part: Any) -> str:
    kinds = DATA & part.keys() if isinstance(part, dict) else set()
    if len(kinds) != 1:
        return f"a part of {sorted(kinds)}"
    (kind,) = kinds
    if (kind in OF_MODEL and role != "model") or (kind == "functionResponse" and role != "user"):
        return f"{kind} in a content of role {role}"
    if kind in ("functionCall", "functionResponse"):
        about = part[kind] if isinstance(part[kind], dict) else {}
        if not about.get("name") or not all(isinstance(about.get(name, ""), str) for name in ("name", "id")):
            return f"{kind} without a name"
    if kind == "functionResponse" and not isinstance(part[kind].get("response"), dict):
        return "a response that is no object"
    return "text is no text" if kind == "text" and not isinstance(part["text"], str) else ""


def _order(contents: list[dict[str, Any]]) -> Iterator[str]:
    if contents[0]["role"] != "user":
        yield "contents.0: the first is not the user's"
    for place in range(1, len(contents)):
        if contents[place]["role"] == contents[place - 1]["role"]:
            yield f"contents.{place}: multiturn requests alternate between user and model"


def _of(content: Mapping[str, Any], kind: str) -> list[tuple[str, str]]:
    return sorted((part[kind].get("id", ""), part[kind]["name"]) for part in content["parts"] if kind in part)


def _pairs(contents: list[dict[str, Any]]) -> Iterator[str]:
    due: list[tuple[str, str]] = []
    for place, content in enumerate(contents):
        answered = _of(content, "functionResponse")
        if answered != due:
            yield f"contents.{place}: function responses {answered} do not equal function calls {due}"
        due = _of(content, "functionCall")
    if due:
        yield f"contents.{len(contents)}: calls without responses: {due}"


def _signatures(contents: list[dict[str, Any]]) -> Iterator[str]:
    """If one step of the running turn is signed, each is: on the first of its calls."""
    prompts = [
        place for place, one in enumerate(contents) if one["role"] == "user" and not _of(one, "functionResponse")
    ]
    running = contents[prompts[-1] :] if prompts else contents
    firsts = [next((part for part in one["parts"] if "functionCall" in part), None) for one in running]
    signed = ["thoughtSignature" in first for first in firsts if first]
    if any(signed) and not all(signed):
        yield "a function call in the running turn has lost its thoughtSignature"
