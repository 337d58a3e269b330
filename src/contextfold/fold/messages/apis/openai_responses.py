"""Reads items of OpenAI's Responses. Knows its items, nothing of folding.

One turn of the model has several items: reasoning, messages and calls, up to the next input.
"""

from __future__ import annotations

from contextfold.fold.messages.facts import (
    MODEL_TEXT,
    PROMPT,
    STANDING,
    UNKNOWN,
    Api,
    Call,
    Fact,
    Members,
    read_answer,
)
from contextfold.fold.messages.own_tools import call_of, hosted_call, script_call

_ROLES = {"user": PROMPT, "assistant": MODEL_TEXT, "system": STANDING, "developer": STANDING}
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
# Tools that the API defines and the client runs: call and output are two items, paired by `call_id`.
_CLIENT_RUN = ("local_shell_call", "shell_call", "apply_patch_call", "computer_call")
# Tools that the provider runs: one item has both call and result.
_HOSTED = ("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call")
_OTHERS = {
    "reasoning": Fact("model", leads=True),
    "compaction": Fact("input", flaw="unknown_content", is_compaction=True),
    # These say which tools and settings there are from here on, so they stay.
    "mcp_list_tools": STANDING,
    "tool_search_call": STANDING,
    "tool_search_output": STANDING,
    "additional_tools": STANDING,
    "configuration_update": STANDING,
}


def read(item: Members) -> Fact:
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        return _ROLES.get(role, UNKNOWN) if isinstance(role, str) else UNKNOWN
    return _read_other(item, kind) if isinstance(kind, str) else UNKNOWN


def _read_other(item: Members, kind: str) -> Fact:
    call_id = item.get("call_id")
    if kind == "custom_tool_call":
        # Codex's default model calls all tools from the scripts that it gives to one tool.
        call = script_call(item, call_id, item.get("name"), item.get("input"))
        return Fact("model", (call,)) if call else UNKNOWN
    if kind == "function_call":
        call = call_of(item, call_id, item.get("name"), item.get("arguments"))
        return Fact("model", (call,)) if call else UNKNOWN
    if kind in _OUTPUTS:
        return read_answer(item, call_id, item.get("output"))
    if kind in _HOSTED:
        return Fact("model", (hosted_call(item),))
    called = kind.removesuffix("_output")
    if called not in _CLIENT_RUN or not isinstance(call_id, str) or not call_id:
        return _OTHERS.get(kind, UNKNOWN)
    # Ids are unique only within a kind of calls.
    unique_id = f"{called} {call_id}"
    return Fact("model", (Call(unique_id),)) if called == kind else read_answer(item, unique_id, None)


def names_stored_history(request: Members) -> bool:
    return request.get("previous_response_id") is not None or request.get("conversation") is not None


API = Api(
    "input",
    read,
    lambda item: ("output",),
    lambda item: ("arguments",),
    "",
    names_stored_history=names_stored_history,
    takes_text=True,
)
