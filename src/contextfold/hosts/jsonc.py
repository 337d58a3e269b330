"""Parses JSON text with comments and trailing commas, and adds or removes one member without other changes.

`take` exactly undoes `put`. It needs no record of the original text, because `put` only adds characters, at positions
that `take` can determine:

    {"a": 1}              a comma directly after the last value; the member after the comments that follow it
    {"a": 1,}             the member and a comma, after the last comma and its comments
    {}                    the member directly after the brace or the last comment, nothing after it

So the white space before an added member was added with it, and the white space after it was not. Elements of arrays
are treated in the same way. Knows no file and no host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from json import JSONDecoder, dumps

from contextfold.common.record import Record

DEPTH_MAX = 127
BYTE_ORDER_MARK = "\ufeff"
USUAL_UNIT = "  "

_SPACE = " \t\r\n"
_TRIVIA = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*+", re.DOTALL)
_COMMENT = re.compile(r"//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_LITERAL = re.compile(r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)(?![\w.+-])")
_NEWLINE = re.compile(r"\r\n|\n|\r")
_LAST_LINE = re.compile(r"(?:\r\n|\n|\r)?[ \t]*\Z")
_INDENTED = re.compile(r"^([ \t]+)[^ \t\r\n]", re.MULTILINE)
_STRINGS = JSONDecoder()
_CONSTANTS = {"true": True, "false": False, "null": None}

# Longer numbers are parsed as floats, because the length of an integer is limited by Python.
INTEGER_DIGITS_MAX = 15


class Broken(ValueError):
    """The text is not valid; the message says where and why."""


class Node(Record):
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


class Member(Record):
    """A key, its value, and the position of the comma after it, or -1. An element of an array has no key."""

    key: str | None
    start: int
    node: Node
    comma: int

    @property
    def end(self) -> int:
        return self.node.end


class Style(Record):
    """The layout of a text at one position.

    `newline` is empty if everything is in one line. `indent` is the indentation of the line in which the member
    begins; `unit` is the additional indentation of the next level.
    """

    newline: str
    indent: str
    unit: str

    @property
    def inner(self) -> Style:
        return Style(self.newline, self.indent + self.unit, self.unit)


def read(text: str, *, comments: bool) -> Node:
    """Parse a text. Raises Broken if it is invalid; comments and trailing commas are valid if `comments` is true."""
    return _Reader(text, comments=comments).parse()


def render(value: object, style: Style) -> str:
    """The text of a value. Members of objects and of arrays of objects have lines of their own, if the style has lines.

    Any other value is in one line.
    """
    parts: list[tuple[str | None, object]]
    if isinstance(value, Mapping):
        parts, brackets = list(value.items()), "{}"
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        parts, brackets = [(None, item) for item in value], "[]"
    else:
        return dumps(value, ensure_ascii=False)
    opened = style.newline + style.inner.indent if style.newline else " "
    closed = style.newline + style.indent if style.newline else " "
    members = (_member(key, inner, style.inner) for key, inner in parts)
    return brackets[0] + opened + ("," + opened).join(members) + closed + brackets[1]


def _member(key: str | None, value: object, style: Style) -> str:
    rendered = render(value, style)
    return rendered if key is None else f"{dumps(key, ensure_ascii=False)}: {rendered}"


def put(text: str, target: Node, *members: tuple[str | None, object]) -> str:
    """Add members at the end of an object, or elements, which have no key, at the end of an array.

    `take` undoes it, from the last member to the first.
    """
    style = _style_in(text, target)
    if not target.members:
        at, comment = _after_comments(text, target.start + 1, target.end)
        style = style.inner if comment else style
        between = style.newline + style.indent if style.newline else " "
        written = ("," + between).join(_member(key, value, style) for key, value in members)
        return text[:at] + (between if comment else "") + written + text[at:]
    last = target.members[-1]
    at, comment = _after_comments(text, last.comma + 1 if last.comma >= 0 else last.end, target.end)
    between = _lead(text, target)
    written = ("," + between).join(_member(key, value, style) for key, value in members)
    # After a line comment, the member needs a line of its own.
    is_apart = not comment.startswith("//") or between.startswith(("\r", "\n"))
    lead = between if is_apart else _newline_of(text) + between
    if last.comma >= 0:
        return text[:at] + lead + written + "," + text[at:]
    return text[: last.end] + "," + text[last.end : at] + lead + written + text[at:]


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
    flat = not _NEWLINE.search(text, old.start, old.end)
    style = Style("" if flat else _newline_of(text), _indent_at(text, old.start), _unit_of(text))
    return text[: old.start] + render(value, style) + text[old.end :]


def holds_only(text: str, target: Node, member: Member) -> bool:
    """Whether an object or array has only this member, with white space before it.

    `render` writes white space there; `put` into an empty object or array does not.
    """
    opened, closed = text[target.start + 1 : member.start], text[member.end : target.end - 1]
    return len(target.members) == 1 and bool(opened) and not (opened + closed).strip(_SPACE)


def has_comment(text: str, member: Member) -> bool:
    """Whether there is a comment between a member's key and its value."""
    _, key_end = _STRINGS.raw_decode(text, member.start)
    return bool(_COMMENT.search(text, key_end, member.node.start))


def _style_in(text: str, target: Node) -> Style:
    """The layout of this object's members, or of those that will be added."""
    outer, unit = _indent_at(text, target.start), _unit_of(text)
    if not target.members:
        is_whole = not text[: target.start].strip(_SPACE + BYTE_ORDER_MARK)
        has_lines = _NEWLINE.search(text.strip(_SPACE + BYTE_ORDER_MARK))
        return Style(_newline_of(text) if has_lines or is_whole else "", outer, unit)
    lead = _lead(text, target)
    indent = lead.lstrip("\r\n")
    if indent == lead:
        return Style("", outer, unit)
    if indent.startswith(outer) and indent != outer:
        unit = indent[len(outer) :]
    return Style(_newline_of(text), indent, unit)


def _lead(text: str, target: Node) -> str:
    """The white space before a new member: that of the last member with a line of its own, else of the last member."""
    leads = []
    opened = target.start + 1
    for member in target.members:
        start, _ = _after_comments(text, opened, member.start)
        match = _LAST_LINE.search(text, start, member.start)
        leads.append(match.group() if match else "")
        opened = member.comma + 1
    return next((lead for lead in reversed(leads) if lead.startswith(("\r", "\n"))), leads[-1])


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


def _number(literal: str) -> int | float:
    is_short = literal.removeprefix("-").isdigit() and len(literal) <= INTEGER_DIGITS_MAX
    return int(literal) if is_short else float(literal)


class _Reader:
    def __init__(self, text: str, *, comments: bool) -> None:
        self._text = text
        self._comments = comments

    def parse(self) -> Node:
        begin = self._skip(len(BYTE_ORDER_MARK) if self._text.startswith(BYTE_ORDER_MARK) else 0)
        node = self._value(begin, 0)
        end = self._skip(node.end)
        if end < len(self._text):
            raise self._broken(end, "the text goes on after its end")
        return node

    def _value(self, at: int, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise self._broken(at, "it is nested too deeply")
        match self._text[at : at + 1]:
            case "{" | "[":
                return self._container(at, depth)
            case '"':
                value, end = self._string(at)
                return Node(at, end, value)
        literal_match = _LITERAL.match(self._text, at)
        if not literal_match:
            raise self._broken(at, "a value is expected")
        literal = literal_match.group()
        return Node(at, literal_match.end(), _CONSTANTS[literal] if literal in _CONSTANTS else _number(literal))

    def _container(self, start: int, depth: int) -> Node:
        """An object or an array."""
        closing = "}" if self._text[start] == "{" else "]"
        members: list[Member] = []
        at = self._skip(start + 1)
        while self._text[at : at + 1] != closing:
            if members and members[-1].comma < 0:
                raise self._broken(at, f"a comma or {closing} is expected")
            key, value_at = self._key(at) if closing == "}" else (None, at)
            node = self._value(value_at, depth + 1)
            comma, following = self._comma(node.end, closing)
            members.append(Member(key, at, node, comma))
            at = following
        values = [member.node.value for member in members]
        is_object = closing == "}"
        value = dict(zip((member.key for member in members), values, strict=True)) if is_object else values
        return Node(start, at + 1, value, tuple(members))

    def _key(self, at: int) -> tuple[str, int]:
        """A key, and the position of its value."""
        if self._text[at : at + 1] != '"':
            raise self._broken(at, "a key in double quotes or } is expected")
        key, end = self._string(at)
        colon = self._skip(end)
        if self._text[colon : colon + 1] != ":":
            raise self._broken(colon, "a colon is expected")
        return key, self._skip(colon + 1)

    def _comma(self, end: int, closing: str) -> tuple[int, int]:
        """The position of the comma after a value, or -1, and the position of the next token after it."""
        at = self._skip(end)
        if self._text[at : at + 1] != ",":
            return -1, at
        following = self._skip(at + 1)
        if self._text[following : following + 1] == closing and not self._comments:
            raise self._broken(at, "a comma follows the last value")
        return at, following

    def _string(self, at: int) -> tuple[str, int]:
        try:
            value, end = _STRINGS.raw_decode(self._text, at)
        except ValueError as problem:
            raise self._broken(at, "the string that begins here is not JSON") from problem
        return value, end

    def _skip(self, at: int) -> int:
        trivia = _TRIVIA.match(self._text, at)
        end = trivia.end() if trivia else at
        if not self._comments and (comment := _COMMENT.search(self._text, at, end)):
            raise self._broken(comment.start(), "a comment stands here")
        return end

    def _broken(self, at: int, problem: str) -> Broken:
        lines = _NEWLINE.split(self._text[:at])
        return Broken(f"line {len(lines)}, column {len(lines[-1].lstrip(BYTE_ORDER_MARK)) + 1}: {problem}")
