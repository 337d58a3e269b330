"""An item of OpenAI's Responses → its facts. Knows that API's items, not what folding does.

What the model gives in one turn is several items here: reasoning, messages and calls, up to the next input.
"""

from __future__ import annotations

from contextfold.fold.messages.facts import HOSTED, PROMPT, SAID, STANDING, UNKNOWN, Fact, Members, answer, call

_ROLES = {"user": PROMPT, "assistant": SAID, "system": STANDING, "developer": STANDING}
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_HOSTED = ("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call")
_OTHERS = {"reasoning": Fact("model", leads=True)} | dict.fromkeys(_HOSTED, Fact("model", (HOSTED,)))


def read(item: Members) -> Fact:
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        return _ROLES.get(role, UNKNOWN) if isinstance(role, str) else UNKNOWN
    if kind in _CALLS:
        made = call(item.get("call_id"), item.get("name"))
        return Fact("model", (made,)) if made else UNKNOWN
    if kind in _OUTPUTS:
        return answer(item.get("call_id"), item.get("output"))
    return _OTHERS.get(kind, UNKNOWN) if isinstance(kind, str) else UNKNOWN
