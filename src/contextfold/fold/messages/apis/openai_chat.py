"""Reads messages of OpenAI's Chat Completions. Knows its roles, nothing of folding."""

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
    block_members,
    items_of,
    read_answer,
)
from contextfold.fold.messages.own_tools import call_of


def read(message: Members) -> Fact:
    role = message.get("role")
    if role == "assistant":
        return _read_assistant(message)
    if role == "tool":
        return read_answer(message, message.get("tool_call_id"), message.get("content"))
    if role == "user":
        return PROMPT
    return STANDING if role in ("system", "developer") else UNKNOWN


def _read_assistant(message: Members) -> Fact:
    # The results of `function_call`, the predecessor of `tool_calls`, name no call.
    if message.get("function_call") is not None:
        return Fact("model", flaw="unknown_content")
    asked = message.get("tool_calls")
    if not asked:
        return MODEL_TEXT
    calls: list[Call] = []
    flaw = ""
    for each in items_of(asked) or (None,):
        call = _read_call(block_members(each))
        if call:
            calls.append(call)
        else:
            flaw = "unknown_content"
    return Fact("model", tuple(calls), flaw=flaw)


def _read_call(asked: Members) -> Call | None:
    kind = asked.get("type", "function")
    about = block_members(asked.get(kind)) if kind in ("function", "custom") else {}
    return call_of(asked, asked.get("id"), about.get("name"), about.get("arguments"))


API = Api("messages", read, lambda message: ("content",), lambda call: ("function", "arguments"), "tool_calls")
