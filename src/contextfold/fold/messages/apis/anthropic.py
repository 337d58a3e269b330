"""Reads messages of Anthropic's Messages API. Knows its roles, blocks and models, nothing of folding."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from contextfold.fold.messages.facts import (
    INSTRUCTION,
    MODEL_TEXT,
    PROMPT,
    UNKNOWN,
    WRITTEN_DURING_WORK,
    Api,
    Call,
    Fact,
    Members,
    Result,
    block_members,
    items_of,
)
from contextfold.fold.messages.own_tools import call_of, hosted_call
from contextfold.fold.messages.user_words import is_host_text, quotes_user

_THINKING = ("thinking", "redacted_thinking")
# The provider runs these calls, and their results are in the same turn.
_HOSTED = ("server_tool_use", "mcp_tool_use")
_SHOWN = ("text", "image", "document", "search_result")
# What a search for tools gives, the provider's in the model's turn and a client's in a result.
_FOUND_TOOLS = ("tool_search_tool_result", "tool_reference")
# `clear_at` says for how long the text is shown; it changes nothing else.
_SYSTEM_MEMBERS = frozenset({"role", "content", "clear_at"})

# From version 5.1 on, Claude's models accept a thinking block only after exactly the messages before which it was made.
# Only models with a lower version in their names are known to accept it anyway.
_CLAUDE = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?(?!.*latest)")
_FIRST_BINDING = (5, 1)


def read(message: Members) -> Fact:
    role, content = message.get("role"), message.get("content")
    if role == "system":
        return _read_system(message)
    if isinstance(content, str) and role in ("user", "assistant"):
        return PROMPT if role == "user" else MODEL_TEXT
    blocks = items_of(content)
    if blocks is None:
        return UNKNOWN
    if role == "user":
        return _read_user(blocks)
    return _read_assistant(blocks) if role == "assistant" else UNKNOWN


def binds_thinking(model: str, thinking: object) -> bool:
    """Whether the model may refuse thinking if the messages before it have changed. An unknown model may."""
    binding = thinking.get("block_binding") if isinstance(thinking, Mapping) else None
    if isinstance(binding, Mapping) and binding.get("prefix_mismatch_behavior") == "drop_block":
        return False
    match = _CLAUDE.search(model)
    return match is None or (int(match[1]), int(match[2] or 0)) >= _FIRST_BINDING


def names_stored_history(request: Members) -> bool:
    """Whether a request continues a thread. One that creates a thread has the whole history."""
    thread = request.get("thread")
    return thread is not None and block_members(thread).get("type") != "create"


def is_thinking(block: Members) -> bool:
    return block.get("type") in _THINKING


def is_result(block: Members) -> bool:
    return block.get("type") == "tool_result" and isinstance(block.get("tool_use_id"), str)


def is_words(block: Members, beside_result: bool) -> bool:
    """Whether the user wrote or attached a block of a user's message."""
    kind = block.get("type")
    if kind == "tool_result":
        return False
    return not (beside_result and kind == "text" and is_host_text(block.get("text")))


def _read_system(message: Members) -> Fact:
    """An instruction between the turns.

    Plain text is left out with the branch around it, because the API does not accept two adjacent instructions, unless
    it contains what the user wrote while the model worked. A message that changes tools or settings must stay.
    """
    content = message.get("content")
    blocks = [block_members(block) for block in items_of(content) or (None,)]
    is_text = isinstance(content, str) or all(block.get("type") == "text" for block in blocks)
    if not is_text or not message.keys() <= _SYSTEM_MEMBERS:
        return UNKNOWN
    texts = (content,) if isinstance(content, str) else (block.get("text") for block in blocks)
    return WRITTEN_DURING_WORK if any(map(quotes_user, texts)) else INSTRUCTION


def _read_user(blocks: Sequence[object]) -> Fact:
    results: list[Result] = []
    flaw, has_words, finds_tools = "", False, False
    for block in blocks:
        members = block_members(block)
        kind = members.get("type")
        if kind == "tool_result" and isinstance(members.get("tool_use_id"), str):
            result, mark = members.get("content"), members.get("is_error")
            # The call succeeded only if the member is missing, null or false; 0 means a failure.
            failed = mark is not None and mark is not False
            results.append(Result(members["tool_use_id"], result, failed, members))
            parts = map(block_members, items_of(result) or ())
            finds_tools = finds_tools or any(part.get("type") in _FOUND_TOOLS for part in parts)
        elif kind not in _SHOWN:
            flaw = "unknown_content"
        elif kind != "text" or not is_host_text(members.get("text")):
            has_words = True
    if not results:
        return UNKNOWN if flaw else PROMPT
    return Fact("input", results=tuple(results), flaw=flaw, has_words=has_words, finds_tools=finds_tools)


def _read_assistant(blocks: Sequence[object]) -> Fact:
    calls: list[Call] = []
    flaw, is_compaction, finds_tools = "", False, False
    thoughts: list[Members] = []
    # The calls that the provider runs. Its results name them and may be in a later turn.
    asked: list[object] = []
    answered: list[object] = []
    for block in blocks:
        members = block_members(block)
        kind = members.get("type")
        if kind == "text":
            continue
        if kind in _THINKING:
            thoughts.append(members)
        elif kind == "tool_use" and (
            call := call_of(members, members.get("id"), members.get("name"), members.get("input"))
        ):
            calls.append(call)
        elif kind in _HOSTED:
            calls.append(hosted_call(members))
            asked.append(members.get("id"))
        elif isinstance(kind, str) and kind.endswith("_tool_result"):
            answered.append(members.get("tool_use_id"))
            finds_tools = finds_tools or kind in _FOUND_TOOLS
        else:
            is_compaction = is_compaction or kind == "compaction"
            flaw = "unknown_content"
    if not flaw and not _are_same(asked, answered):
        flaw = "unbalanced"
    if not (calls or flaw or thoughts):
        return MODEL_TEXT
    return Fact(
        *("model", tuple(calls)),
        flaw=flaw,
        thinks=bool(thoughts),
        only_thinks=len(thoughts) == len(blocks),
        thoughts=tuple(thoughts),
        finds_tools=finds_tools,
        is_compaction=is_compaction,
    )


def _are_same(asked: Sequence[object], answered: Sequence[object]) -> bool:
    """Whether both lists have the same ids, each once, in any order."""
    ids = {each for each in asked if isinstance(each, str)}
    return len(ids) == len(asked) == len(answered) and ids == {each for each in answered if isinstance(each, str)}


API = Api(
    "messages",
    read,
    lambda block: ("content",),
    lambda block: ("input",),
    "content",
    is_result,
    has_alternating_roles=True,
    is_words=is_words,
    is_thinking=is_thinking,
    binds_thinking=binds_thinking,
    names_stored_history=names_stored_history,
)
