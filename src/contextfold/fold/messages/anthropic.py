"""A message of Anthropic's Messages API → its facts. Knows that API's roles and blocks, not what folding does."""

from __future__ import annotations

from collections.abc import Sequence

from contextfold.fold.messages.facts import (
    HOSTED,
    PROMPT,
    SAID,
    UNKNOWN,
    Call,
    Fact,
    Members,
    Result,
    block_members,
    call,
    items_of,
)

_THINKING = ("thinking", "redacted_thinking")
_HOSTED = ("server_tool_use", "mcp_tool_use")  # answered by the provider, in the same turn
_SHOWN = ("text", "image", "document", "search_result")
_SYSTEM_MEMBERS = frozenset({"role", "content"})


def read(message: Members) -> Fact:
    role, content = message.get("role"), message.get("content")
    if role == "system":
        return _system(message)
    if isinstance(content, str) and role in ("user", "assistant"):
        return PROMPT if role == "user" else SAID
    blocks = items_of(content)
    if blocks is None:
        return UNKNOWN
    if role == "user":
        return _asked(blocks)
    return _answered(blocks) if role == "assistant" else UNKNOWN


def _system(message: Members) -> Fact:
    """An instruction given on the way. Plain text goes with the branch it was given in, since of several that would be
    left side by side the API takes none; what changes tools or settings must stay."""
    content = message.get("content")
    blocks = (block_members(block) for block in items_of(content) or (None,))
    is_text = isinstance(content, str) or all(block.get("type") == "text" for block in blocks)
    return PROMPT if is_text and message.keys() <= _SYSTEM_MEMBERS else UNKNOWN


def _asked(blocks: Sequence[object]) -> Fact:
    answers: list[Members] = []
    flaw = ""
    for block in blocks:
        members = block_members(block)
        kind = members.get("type")
        if kind == "tool_result" and isinstance(members.get("tool_use_id"), str):
            answers.append(members)
        elif kind not in _SHOWN:
            flaw = "unknown_content"
    if not answers:
        return UNKNOWN if flaw else PROMPT
    is_alone = len(answers) == 1 and block_members(blocks[0]).get("type") == "tool_result"
    return Fact("input", (), tuple([_result(answer, is_alone) for answer in answers]), flaw)


def _result(block: Members, is_alone: bool) -> Result:
    said = block.get("is_error")
    failed = said is not None and said is not False  # 0 is no way to say no
    return Result(block["tool_use_id"], block.get("content"), failed, is_alone)


def _answered(blocks: Sequence[object]) -> Fact:
    calls: list[Call] = []
    flaw, thinks = "", False
    asked: list[object] = []  # the provider itself; its results name them, and may come in a later turn
    answered: list[object] = []
    for block in blocks:
        members = block_members(block)
        kind = members.get("type")
        if kind == "text":
            continue
        if kind in _THINKING:
            thinks = True
        elif kind == "tool_use" and (made := call(members.get("id"), members.get("name"))):
            calls.append(made)
        elif kind in _HOSTED:
            calls.append(HOSTED)
            asked.append(members.get("id"))
        elif isinstance(kind, str) and kind.endswith("_tool_result"):
            answered.append(members.get("tool_use_id"))
        else:
            flaw = "unknown_content"
    if asked != answered and not flaw and not _are_same(asked, answered):
        flaw = "unbalanced"
    return Fact("model", tuple(calls), (), flaw, thinks) if calls or flaw or thinks else SAID


def _are_same(asked: Sequence[object], answered: Sequence[object]) -> bool:
    """Whether each is there once, in any order."""
    ids = {each for each in asked if isinstance(each, str)}
    return len(ids) == len(asked) == len(answered) and ids == {each for each in answered if isinstance(each, str)}
