"""The facts about a message that folding needs, for all APIs: calls, results, words of the user. Knows no format.

Text may be UTF-8 decoded as latin-1 (`body.py` explains it), so it is only compared, measured, or matched with ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

# "model" is a message of the model, "input" is input for it, "standing" is an instruction that is never left out.
Kind = Literal["model", "input", "standing"]
Members = Mapping[str, Any]
NO_MEMBERS: Members = MappingProxyType({})

# A union of types would be made anew in each test, which takes longer than the test.
_SEQUENCES = (list, tuple)

# The id of a call without an id begins with this; the rest is the tool's name.
BY_NAME = "\0"

# The markup of texts that hosts add to a result for the model. Users do not write it.
_HOST_MARKUP = "system-reminder|system_reminder|environment_details|new-diagnostics"
_HOST_ENDS = tuple(f"</{name}>" for name in _HOST_MARKUP.split("|"))
# The end of the last block is searched for in this many characters at the end of a text.
_END_CHARS = 8
_HOST_TEXT = re.compile(rf"(?:\s*+<({_HOST_MARKUP})>(?:(?!</\1>)[\s\S])*+</\1>)++\s*+")
# A host may quote a message of its user in that markup: "The user sent the following message: …".
_QUOTES_USER = re.compile(
    r"(?i)\buser(?:'s|s)?\b[^.\n]{0,60}\b(?:sent|sa(?:id|ys)|wr[oi]te|typed|ask|message|prompt)"
    r"|\b(?:message|prompt|request|words)s?\b[^.\n]{0,40}\buser"
)


class Call(NamedTuple):
    # Empty if the provider runs the call in the same turn.
    id: str
    # The name of its tool, and whether it may be one of ours.
    name: str = ""
    may_be_ours: bool = False
    # "branch", "return", … for our own tools; else empty.
    verb: str = ""
    # Whether the name alone does not show that the tool is ours.
    needs_proof: bool = False
    # The arguments as they are in the request, and the part of the message that is the call.
    arguments: object = None
    part: Members = NO_MEMBERS


class Result(NamedTuple):
    # The id of its call.
    id: str
    content: object
    failed: bool = False
    # The part of the message that is the result.
    part: Members = NO_MEMBERS


class Fact(NamedTuple):
    kind: Kind
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()
    # The reason why no range with this message is folded; empty if there is none.
    flaw: str = ""
    # Whether it has thinking that a provider may have bound to all earlier messages.
    thinks: bool = False
    # Whether it has only thinking.
    only_thinks: bool = False
    # Whether it belongs to the next message and is left out only together with it.
    leads: bool = False
    # Whether the user wrote a part of it, which stays.
    has_words: bool = False
    # Whether a result in it quotes a message of the user. Such a turn stays.
    quotes_user: bool = False
    # Whether the user wrote it while the model worked, so that the tool loop continues after it.
    is_meanwhile: bool = False

    @property
    def lacks_ids(self) -> bool:
        """Whether it has calls or results without ids."""
        ids = [*(call.id for call in self.calls), *(result.id for result in self.results)]
        return any(each.startswith(BY_NAME) for each in ids)


class CallNumbers:
    """Makes ids for calls without ids and for their results: the tool's name and the number of its call.

    A history only grows, so the numbers do not change. The calls of one tool in one turn are answered in their order.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._unanswered: dict[str, list[str]] = {}
        self._is_over = False

    def numbered(self, fact: Fact) -> Fact:
        """The fact about the next message, with such ids."""
        if fact.kind != "model":
            self._is_over = True
        elif fact.calls and self._is_over:
            # A call without a result before the model's next turn never gets one.
            self._unanswered.clear()
            self._is_over = False
        if not fact.lacks_ids:
            return fact
        calls = tuple([call._replace(id=self._of_call(call.id)) for call in fact.calls])
        return fact._replace(
            calls=calls, results=tuple([each._replace(id=self._of_result(each.id)) for each in fact.results])
        )

    def _of_call(self, call_id: str) -> str:
        if not call_id.startswith(BY_NAME):
            return call_id
        self._counts[call_id] = number = self._counts.get(call_id, 0) + 1
        numbered = f"{call_id[len(BY_NAME) :]}#{number}"
        self._unanswered.setdefault(call_id, []).append(numbered)
        return numbered

    def _of_result(self, call_id: str) -> str:
        waiting = self._unanswered.get(call_id)
        return waiting.pop(0) if waiting else call_id


# Calling a class of named tuples takes twice as long as this, and each message of each request has two of them.
made = tuple.__new__

PROMPT = Fact("input", has_words=True)
MEANWHILE = Fact("input", has_words=True, is_meanwhile=True)
INSTRUCTION = Fact("input")
STANDING = Fact("standing")
SAID = Fact("model")
UNKNOWN = Fact("input", flaw="unknown_content")

HOSTED = Call("")


def members_of(value: object) -> Members | None:
    """The members of a JSON object or of an object of an official client."""
    if type(value) is dict or isinstance(value, Mapping):
        return value
    dump = getattr(value, "model_dump", None)
    dumped = dump() if callable(dump) else None
    return dumped if isinstance(dumped, dict) else None


def block_members(value: object) -> Members:
    """The members of a part of a message; none if it is not an object."""
    return value if type(value) is dict else members_of(value) or {}


def items_of(value: object) -> Sequence[object] | None:
    return value if type(value) is list or isinstance(value, _SEQUENCES) else None


def is_host_text(text: object) -> bool:
    """Whether a text consists of the host's markup and does not quote the user."""
    if not isinstance(text, str) or not text.lstrip().startswith("<"):
        return False
    return _HOST_TEXT.fullmatch(text) is not None and _QUOTES_USER.search(text) is None


def quotes_user(text: object) -> bool:
    """Whether a host's text quotes a message of the user."""
    return isinstance(text, str) and _QUOTES_USER.search(text) is not None


def has_quoted_user(content: object) -> bool:
    """Whether a host has added a message of the user, in its markup, at the end of a result."""
    if isinstance(content, str):
        return _quotes_user_at_end(content)
    parts = content.values() if isinstance(content, Mapping) else items_of(content) or ()
    for part in parts:
        text = part if isinstance(part, str) else block_members(part).get("text")
        if isinstance(text, str) and _quotes_user_at_end(text):
            return True
    return False


def _quotes_user_at_end(text: str) -> bool:
    # Nearly all results need only the first check.
    return ">" in text[-_END_CHARS:] and quotes_user(text[own_length(text) :])


def own_length(text: str) -> int:
    """The length of a result without the texts that a host has added at its end, in its markup.

    It reads backwards, block by block, because most results have no such block.
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


def answer(message: Members, call_id: object, content: object) -> Fact:
    """The fact for a message that is a single result."""
    if isinstance(call_id, str) and call_id:
        result = made(Result, (call_id, content, False, message))
        quotes = has_quoted_user(content)
        return made(Fact, ("input", (), (result,), "", False, False, False, False, quotes, False))
    return UNKNOWN
