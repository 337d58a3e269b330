"""Reads messages of OpenAI's Chat Completions. Knows its roles, nothing of folding."""

from __future__ import annotations

from contextfold.fold.messages.apis.facts import (
    PROMPT,
    SAID,
    STANDING,
    UNKNOWN,
    Call,
    Fact,
    Members,
    answer,
    block_members,
    items_of,
    made,
)
from contextfold.fold.messages.own_tools import call_of


def read(message: Members) -> Fact:
    role = message.get("role")
    if role == "assistant":
        return _assistant(message)
    if role == "tool":
        return answer(message, message.get("tool_call_id"), message.get("content"))
    if role == "user":
        return PROMPT
    return STANDING if role in ("system", "developer") else UNKNOWN


def _assistant(message: Members) -> Fact:
    # The results of `function_call`, the predecessor of `tool_calls`, name no call.
    if message.get("function_call") is not None:
        return Fact("model", flaw="unknown_content")
    asked = message.get("tool_calls")
    if not asked:
        return SAID
    calls: list[Call] = []
    flaw = ""
    for each in items_of(asked) or (None,):
        call = _call(each if type(each) is dict else block_members(each))
        if call:
            calls.append(call)
        else:
            flaw = "unknown_content"
    return made(Fact, ("model", tuple(calls), (), flaw, False, False, False, False, False, False))


def _call(asked: Members) -> Call | None:
    kind = asked.get("type", "function")
    about = block_members(asked.get(kind)) if kind in ("function", "custom") else {}
    return call_of(asked, asked.get("id"), about.get("name"), about.get("arguments"))
