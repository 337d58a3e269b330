"""Parses JSON text with comments and trailing commas, and adds or removes one member without other changes.

`take` exactly undoes `put`, and needs no record of the original text:

    {"a": 1}      `put` adds the member and a comma directly after the bracket, with the white space of the first member
    {}            `put` adds the member directly after the bracket, without white space

So the white space between the bracket and an added member was added with it, and everything after it was not. Elements
of arrays are treated in the same way. Knows no file and no host.
"""

from __future__ import annotations

import re
from json import JSONDecodeError, JSONDecoder, dumps
from typing import NamedTuple

from contextfold.common.canonical import is_too_deep

BYTE_ORDER_MARK = "\ufeff"
USUAL_UNIT = "  "
# Longer numbers are parsed as floats, because the length of an integer is limited by Python.
INTEGER_DIGITS_MAX = 15

_SPACE = " \t\r\n"
_COMMENT = re.compile(r"//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_STRING_OR_COMMENT = re.compile(rf'"(?:[^"\\]|\\.)*+"|({_COMMENT.pattern})', re.DOTALL)
# A comma that directly follows a bracket is left to the parser, which refuses it.
_STRING_OR_LAST_COMMA = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[{]\s*,|(,)(?=\s*[\]}])', re.DOTALL)
_WHITE_SPACE = re.compile(r"[ \t\r\n]*")
_NEWLINE = re.compile(r"\r\n|\n|\r")
_LAST_LINE = re.compile(r"(?:\r\n|\n|\r)?[ \t]*\Z")
_INDENTED = re.compile(r"^([ \t]+)[^ \t\r\n]", re.MULTILINE)


class Broken(ValueError):
    """The text is not valid; the message says where and why."""


def _refuse_constant(name: str) -> object:
    raise Broken(f"{name} is not JSON")


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) <= INTEGER_DIGITS_MAX else float(digits)


_DECODER = JSONDecoder(parse_int=_number, parse_constant=_refuse_constant)


class Node(NamedTuple):
    """A value and its position in the text. `members` has the members of an object or the elements of an array."""

    start: int
    end: int
    value: object
    members: tuple[Member, ...] = ()

    @property
    def is_object(self) -> bool:
        return isinstance(self.value, dict)

    def named(self, key: str) -> list[Member]:
        return [member for member in self.members if member.key == key]


class Member(NamedTuple):
    """A key, its value, and the position of the comma after it, or -1. An element of an array has no key."""

    key: str | None
    start: int
    node: Node
    comma: int

    @property
    def end(self) -> int:
        return self.node.end


def read(text: str, *, comments: bool) -> Node:
    """Parse a text. Raises Broken if it is invalid; comments and trailing commas are valid if `comments` is true."""
    bare = text.replace(BYTE_ORDER_MARK, " ", 1) if text.startswith(BYTE_ORDER_MARK) else text
    if comments:
        bare = _STRING_OR_COMMENT.sub(_blank, bare)
    plain = _STRING_OR_LAST_COMMA.sub(_blank, bare) if comments else bare
    # Each level is decoded again, so deep nesting would also take long.
    if is_too_deep(plain.encode("utf-8", "surrogatepass")):
        raise Broken("it is nested too deeply")
    try:
        _DECODER.decode(plain)
        return _node(bare, plain, _skip(bare, 0))
    except JSONDecodeError as problem:
        raise Broken(f"line {problem.lineno}, column {problem.colno}: {problem.msg}") from problem


def _blank(match: re.Match[str]) -> str:
    """Spaces instead of a comment or a comma, so that all positions stay the same."""
    return match[0] if match[1] is None else re.sub(r"[^\r\n]", " ", match[1])


def _node(bare: str, plain: str, start: int) -> Node:
    """The value at a position of a valid text, which `plain` has without its last commas."""
    value, end = _DECODER.raw_decode(plain, start)
    members = []
    at = _skip(bare, start + 1)
    while isinstance(value, dict | list) and at < end - 1:
        key, value_at = None, at
        if isinstance(value, dict):
            key, key_end = _DECODER.raw_decode(plain, at)
            value_at = _skip(bare, _skip(bare, key_end) + 1)
        node = _node(bare, plain, value_at)
        following = _skip(bare, node.end)
        comma = following if bare[following] == "," else -1
        members.append(Member(key, at, node, comma))
        at = following if comma < 0 else _skip(bare, comma + 1)
    return Node(start, end, value, tuple(members))


def _skip(bare: str, at: int) -> int:
    """The position of the next token."""
    space = _WHITE_SPACE.match(bare, at)
    return space.end() if space else at


def render(value: object, indent: str = "", unit: str = USUAL_UNIT, newline: str = "\n") -> str:
    """The text of a value, with a line for each member. `indent` is that of the line in which the value begins."""
    return dumps(value, indent=unit, ensure_ascii=False).replace("\n", newline + indent)


def put(text: str, target: Node, key: str | None, value: object) -> str:
    """Add a member at the beginning of an object, or an element, which has no key, at the beginning of an array."""
    at = target.start + 1
    lead, indent = "", _indent_at(text, target.start)
    if target.members:
        line = _LAST_LINE.search(text, at, target.members[0].start)
        lead = line.group() if line else ""
        indent = lead.lstrip("\r\n") if lead.startswith(("\r", "\n")) else indent
    label = "" if key is None else f"{dumps(key, ensure_ascii=False)}: "
    added = lead + label + render(value, indent, _unit_of(text), _newline_of(text))
    return text[:at] + added + ("," if target.members else "") + text[at:]


def take(text: str, target: Node, member: Member) -> str:
    """Remove a member of an object or an element of an array. Comments around it stay, separated from each other."""
    position = target.members.index(member)
    before = target.members[position - 1] if position else None
    start, comment = _after_comments(text, before.comma + 1 if before else target.start + 1, member.start)
    head, tail = text[:start], text[member.end :]
    if member.comma >= 0:
        tail = text[member.end : member.comma] + text[member.comma + 1 :]
    elif before:
        head = text[: before.comma] + text[before.comma + 1 : start]
    if comment.startswith("//") and not tail.startswith(("\n", "\r")):
        # Without a line break, the text after the comment would become part of it.
        head += _newline_of(text)
    return head + tail


def replace(text: str, old: Node, value: object) -> str:
    """Replace a value."""
    rendered = render(value, _indent_at(text, old.start), _unit_of(text), _newline_of(text))
    return text[: old.start] + rendered + text[old.end :]


def holds_only(text: str, target: Node, member: Member) -> bool:
    """Whether an object or array has only this member, with white space before it.

    `render` writes white space there; `put` into an empty object or array does not.
    """
    opened, closed = text[target.start + 1 : member.start], text[member.end : target.end - 1]
    return len(target.members) == 1 and bool(opened) and not (opened + closed).strip(_SPACE)


def has_comment(text: str, member: Member) -> bool:
    """Whether there is a comment between a member's key and its value."""
    _, key_end = _DECODER.raw_decode(text, member.start)
    return bool(_COMMENT.search(text, key_end, member.node.start))


def _after_comments(text: str, start: int, end: int) -> tuple[int, str]:
    """The end of the last comment between two positions, and the comment; the first position if there is none."""
    last = None
    for last in _COMMENT.finditer(text, start, end):  # noqa: B007 - the last one is what is wanted
        pass
    return (last.end(), last.group()) if last else (start, "")


def _newline_of(text: str) -> str:
    match = _NEWLINE.search(text)
    return match.group() if match else "\n"


def _unit_of(text: str) -> str:
    match = _INDENTED.search(text)
    return match.group(1) if match else USUAL_UNIT


def _indent_at(text: str, position: int) -> str:
    """The indentation of the line at this position."""
    begin = max(text.rfind("\n", 0, position), text.rfind("\r", 0, position)) + 1
    line = text[begin:position]
    return line[: len(line) - len(line.lstrip(" \t"))]
