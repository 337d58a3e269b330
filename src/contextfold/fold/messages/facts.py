"""What a message means for folding, whichever API it is of: calls, results, whether it may go. Knows no format.

Text in here may be UTF-8 read as latin-1 (`body.py` says why), so it is only compared, measured, or matched by ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

# model: what the model said. input: what it was told. standing: instructions that stay wherever they stand.
Kind = Literal["model", "input", "standing"]
Members = Mapping[str, Any]

NAME_LENGTH_MAX = 256  # the pattern's time grows faster than the name
RESULT_LENGTH_MAX = 65_536  # our own results are shorter by far; what a client adds after them is not read

# The last part is the tool's name: `mcp__SERVER__TOOL`, `SERVER.TOOL`, `MCP:TOOL`, `SERVER/TOOL`, `mcp_SERVER_TOOL`.
_OURS = re.compile(r"(?:.*(?:__|[.:/-])|(?i:mcp)_.+_)?context_(branch|return|rollback|record|branch_status)", re.DOTALL)

# A client may put a result into a string of its own JSON (backslashes) or print it as Python does (single quotes).
# The patterns begin with the name, which is found fast; that a quote stands before it is looked at then.
_QUOTES = ('"', "'")
_QUOTE = r"\\*+[\"']"
_COLON = rf"{_QUOTE}\s*+:\s*+"


class _Member(NamedTuple):
    name: str
    pattern: re.Pattern[str]  # from its name on; the group is what it has

    def of(self, text: str) -> str | None:
        """What the first member of that name has."""
        if self.name in text:  # most often it is not, which is known sooner so
            for found in self.pattern.finditer(text):
                if text.endswith(_QUOTES, 0, found.start()):
                    return found[1]
        return None


def _member(name: str, value: str) -> _Member:
    return _Member(name, re.compile(f"{name}{_COLON}{value}"))


_BRANCH_ID = _member("branch_id", rf"{_QUOTE}(br_[0-9A-Za-z_-]{{1,64}})")
_SESSION_ID = _member("session_id", rf"{_QUOTE}(sess_[0-9A-Za-z_-]{{1,64}})")
_ROLLED_BACK = _member("rolled_back_to", rf"{_QUOTE}(br_)")
_DISCARDED = _member("branches_discarded", r"\[([^\[\]]*+)\]")  # up to the next list, if this one has no end
_ID = re.compile(r"br_[0-9A-Za-z_-]{1,64}")
_FAILED = (
    _member("error", "(?!null|None)()"),
    _member("current_status", "(?!null|None)()"),
    _member("isError", "[tT]rue()"),
)


class Call(NamedTuple):
    id: str  # empty where the provider itself answers it, in the same turn
    verb: str  # of our own tools: "branch", "return", …; else empty


class Result(NamedTuple):
    id: str  # of the call it answers
    content: object
    failed: bool
    is_alone: bool  # no other result beside it, nothing in front of it


class Fact(NamedTuple):
    kind: Kind
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()
    flaw: str = ""  # why nothing that holds this message is folded
    thinks: bool = False  # holds thinking that a provider may have bound to all that is before it
    leads: bool = False  # belongs to what comes next: it stays or goes with that


class Told(NamedTuple):
    """What a result of one of our tools says."""

    branch_id: str
    session_id: str
    discarded: frozenset[str]


PROMPT = Fact("input")
STANDING = Fact("standing")
SAID = Fact("model")
UNKNOWN = Fact("input", flaw="unknown_content")

HOSTED = Call("", "")
NOTHING_TOLD = Told("", "", frozenset())


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


def verb_of(tool_name: str) -> str:
    found = _OURS.fullmatch(tool_name) if len(tool_name) <= NAME_LENGTH_MAX else None
    return found[1] if found else ""


def call(call_id: object, name: object) -> Call | None:
    if isinstance(call_id, str) and call_id and isinstance(name, str):
        return Call(call_id, verb_of(name) if "context_" in name else "")
    return None


def answer(call_id: object, content: object) -> Fact:
    """A message that is one result and nothing else."""
    if isinstance(call_id, str) and call_id:
        return Fact("input", (), (Result(call_id, content, False, True),))
    return UNKNOWN


def told(verb: str, result: Result) -> Told:
    """What the result names, nothing if the call failed."""
    text = _text_of(result.content)[:RESULT_LENGTH_MAX]
    if result.failed or any(mark.of(text) is not None for mark in _FAILED):
        return NOTHING_TOLD
    session_id = _SESSION_ID.of(text) or ""
    if verb == "rollback" and _ROLLED_BACK.of(text):
        return Told("", session_id, frozenset(_ID.findall(_DISCARDED.of(text) or "")))
    branch_id = _BRANCH_ID.of(text) if verb in ("branch", "return") else None
    return Told(branch_id or "", session_id, frozenset())


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    texts = (block_members(block).get("text") for block in items_of(content) or ())
    return "\n".join(text for text in texts if isinstance(text, str))
