"""What a message means for folding, whichever API it is of: calls, results, whether it may go. Knows no format.

Text in here may be UTF-8 read as latin-1 (`body.py` says why), so it is only compared, measured, or matched by ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

# model: what the model said. input: what it was given. standing: instructions that stay wherever they stand.
Kind = Literal["model", "input", "standing"]
Members = Mapping[str, Any]

# An id that begins with this stands for a call without an id: the rest is the tool's name.
BY_NAME = "\0"

# Markup in which hosts write to the model around a result, and in which no user writes.
_HOST_MARKUP = "system-reminder|system_reminder|environment_details|new-diagnostics"
_HOST_ENDS = tuple(f"</{name}>" for name in _HOST_MARKUP.split("|"))
# Space behind the last block that is still looked for.
_END_CHARS = 8
_HOST_TEXT = re.compile(rf"(?:\s*+<({_HOST_MARKUP})>(?:(?!</\1>)[\s\S])*+</\1>)++\s*+")
# A host may hand over what its user wrote meanwhile inside that markup: "The user sent the following message: …".
_QUOTES_USER = re.compile(
    r"(?i)\buser(?:'s|s)?\b[^.\n]{0,60}\b(?:sent|sa(?:id|ys)|wr[oi]te|typed|ask|message|prompt)"
    r"|\b(?:message|prompt|request|words)s?\b[^.\n]{0,40}\buser"
)


class Call(NamedTuple):
    # Empty where the provider itself answers the call, in the same turn.
    id: str
    # Of our own tools: "branch", "return", …; else empty.
    verb: str = ""
    # Whether the name alone does not show that the tool is ours.
    needs_proof: bool = False
    # Of our own tools alone.
    name: str = ""


class Result(NamedTuple):
    # Of the call it answers.
    id: str
    content: object
    failed: bool = False


class Fact(NamedTuple):
    kind: Kind
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()
    # Why nothing that holds this message is folded.
    flaw: str = ""
    # Holds thinking that a provider may have bound to all that is before it.
    thinks: bool = False
    # Holds nothing but thinking.
    only_thinks: bool = False
    # Belongs to what comes next: it stays or goes with that.
    leads: bool = False
    # A user wrote some of it, and that stays.
    has_words: bool = False
    # A host has put what its user wrote meanwhile into a result: that turn stays.
    quotes_user: bool = False
    # The user's words came while the model worked: the tool loop goes on behind them.
    is_meanwhile: bool = False


class CallNumbers:
    """Gives calls without ids, and their results, ids of their own: the tool's name and a number that counts its calls.

    A history only grows, so the numbers stay. Calls of one tool in one turn are answered in their order.
    """

    __slots__ = ("_counts", "_is_over", "_unanswered")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._unanswered: dict[str, list[str]] = {}
        self._is_over = False

    def end_turn(self) -> None:
        """The model is given something. A call that has no result before its next turn never gets one."""
        self._is_over = True

    def of_call(self, call_id: str) -> str:
        if self._is_over:
            self._unanswered.clear()
            self._is_over = False
        if not call_id.startswith(BY_NAME):
            return call_id
        self._counts[call_id] = number = self._counts.get(call_id, 0) + 1
        numbered = f"{call_id[len(BY_NAME) :]}#{number}"
        self._unanswered.setdefault(call_id, []).append(numbered)
        return numbered

    def of_result(self, call_id: str) -> str:
        waiting = self._unanswered.get(call_id)
        return waiting.pop(0) if waiting else call_id


PROMPT = Fact("input", has_words=True)
MEANWHILE = Fact("input", has_words=True, is_meanwhile=True)
INSTRUCTION = Fact("input")
STANDING = Fact("standing")
SAID = Fact("model")
UNKNOWN = Fact("input", flaw="unknown_content")

HOSTED = Call("")


def members_of(value: object) -> Members | None:
    """Of an object as JSON has it, or as the official clients give it back."""
    if type(value) is dict or isinstance(value, Mapping):
        return value
    dump = getattr(value, "model_dump", None)
    dumped = dump() if callable(dump) else None
    return dumped if isinstance(dumped, dict) else None


def block_members(value: object) -> Members:
    """Of a part of a message; what is no object has none."""
    return value if type(value) is dict else members_of(value) or {}


def items_of(value: object) -> Sequence[object] | None:
    return value if isinstance(value, list | tuple) else None


def is_host_text(text: object) -> bool:
    """Whether all of a text is the host's own markup and quotes nothing that its user wrote."""
    if not isinstance(text, str) or not text.lstrip().startswith("<"):
        return False
    return _HOST_TEXT.fullmatch(text) is not None and _QUOTES_USER.search(text) is None


def quotes_user(text: object) -> bool:
    """Whether a host's text hands over what its user wrote."""
    return isinstance(text, str) and _QUOTES_USER.search(text) is not None


def has_quoted_user(content: object) -> bool:
    """Whether a host has put what its user wrote meanwhile behind a result, in its markup and inside the result."""
    if isinstance(content, str):
        # Nearly all results end here.
        return ">" in content[-_END_CHARS:] and quotes_user(content[own_length(content) :])
    parts = content.values() if isinstance(content, Mapping) else items_of(content) or ()
    texts = (part if isinstance(part, str) else block_members(part).get("text") for part in parts)
    return any(quotes_user(text[own_length(text) :]) for text in texts if isinstance(text, str))


def own_length(text: str) -> int:
    """How long a result is without what a host has put behind it, in its markup.

    Reads backwards, block by block: most results have no such block, whatever their length.
    """
    end = len(text)
    while True:
        tail = text[max(0, end - _END_CHARS) : end]
        last = end - len(tail) + len(tail.rstrip())
        if not text.endswith(_HOST_ENDS, 0, last):
            return end
        name = text[text.rfind("</", 0, last) + 2 : last - 1]
        begin = text.rfind(f"<{name}>", 0, last)
        if begin < 0:
            return end
        end = begin


def answer(call_id: object, content: object) -> Fact:
    """A message that is one result and nothing else."""
    if isinstance(call_id, str) and call_id:
        return Fact("input", (), (Result(call_id, content),), quotes_user=has_quoted_user(content))
    return UNKNOWN
