"""Reads messages of Anthropic's Messages API. Knows its roles and blocks, nothing of folding."""

from __future__ import annotations

from collections.abc import Sequence

from contextfold.fold.messages.apis.facts import (
    INSTRUCTION,
    MEANWHILE,
    PROMPT,
    SAID,
    UNKNOWN,
    Call,
    Fact,
    Members,
    Result,
    block_members,
    has_quoted_user,
    is_host_text,
    items_of,
    made,
    quotes_user,
)
from contextfold.fold.messages.own_tools import call_of, hosted_call

_THINKING = ("thinking", "redacted_thinking")
# The provider runs these calls, and their results are in the same turn.
_HOSTED = ("server_tool_use", "mcp_tool_use")
_SHOWN = ("text", "image", "document", "search_result")
_SYSTEM_MEMBERS = frozenset({"role", "content"})


def read(message: Members) -> Fact:
    role, content = message.get("role"), message.get("content")
    if role == "system":
        return _system(message)
    if isinstance(content, str) and role in ("user", "assistant"):
        return PROMPT if role == "user" else SAID
    blocks = content if type(content) is list else items_of(content)
    if blocks is None:
        return UNKNOWN
    if role == "user":
        return _user(blocks)
    return _assistant(blocks) if role == "assistant" else UNKNOWN


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


def _system(message: Members) -> Fact:
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
    return MEANWHILE if any(map(quotes_user, texts)) else INSTRUCTION


def _user(blocks: Sequence[object]) -> Fact:
    results: list[Result] = []
    flaw, has_words, quotes = "", False, False
    for block in blocks:
        # The usual case without a call: this is done for every block of every request.
        members: Members = block if type(block) is dict else block_members(block)
        kind = members.get("type")
        if kind == "tool_result" and isinstance(members.get("tool_use_id"), str):
            result, mark = members.get("content"), members.get("is_error")
            # The call succeeded only if the member is missing, null or false; 0 means a failure.
            failed = mark is not None and mark is not False
            results.append(made(Result, (members["tool_use_id"], result, failed, members)))
            quotes = quotes or has_quoted_user(result)
        elif kind not in _SHOWN:
            flaw = "unknown_content"
        elif kind != "text" or not is_host_text(members.get("text")):
            has_words = True
    if not results:
        return UNKNOWN if flaw else PROMPT
    return made(Fact, ("input", (), tuple(results), flaw, False, False, False, has_words, quotes, False))


def _assistant(blocks: Sequence[object]) -> Fact:
    calls: list[Call] = []
    flaw, thoughts = "", 0
    # The calls that the provider runs. Its results name them and may be in a later turn.
    asked: list[object] = []
    answered: list[object] = []
    for block in blocks:
        # The usual case without a call: this is done for every block of every request.
        members: Members = block if type(block) is dict else block_members(block)
        kind = members.get("type")
        if kind == "text":
            continue
        if kind in _THINKING:
            thoughts += 1
        elif kind == "tool_use" and (
            call := call_of(members, members.get("id"), members.get("name"), members.get("input"))
        ):
            calls.append(call)
        elif kind in _HOSTED:
            calls.append(hosted_call(members))
            asked.append(members.get("id"))
        elif isinstance(kind, str) and kind.endswith("_tool_result"):
            answered.append(members.get("tool_use_id"))
        else:
            flaw = "unknown_content"
    if asked != answered and not flaw and not _are_same(asked, answered):
        flaw = "unbalanced"
    if not (calls or flaw or thoughts):
        return SAID
    thinks, only_thinks = thoughts > 0, thoughts == len(blocks)
    return made(Fact, ("model", tuple(calls), (), flaw, thinks, only_thinks, False, False, False, False))


def _are_same(asked: Sequence[object], answered: Sequence[object]) -> bool:
    """Whether both lists have the same ids, each once, in any order."""
    ids = {each for each in asked if isinstance(each, str)}
    return len(ids) == len(asked) == len(answered) and ids == {each for each in answered if isinstance(each, str)}
