"""A request's bytes cut at the elements of its list, without a JSON parser: brackets and strings are enough.

It is written independently of src, so that the handling of bytes there can be compared with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

SPACE = b" \t\r\n"
TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},:]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Cut:
    """The request is head + texts[0] + gaps[0] + texts[1] + … + tail."""

    head: bytes
    texts: tuple[bytes, ...]
    # Each gap reaches from the end of an element to the beginning of the next.
    gaps: tuple[bytes, ...]
    tail: bytes

    def without(self, dropped: frozenset[int]) -> bytes:
        """The bytes without these elements, each removed together with the gap before the next element that stays."""
        remaining = [index for index in range(len(self.texts)) if index not in dropped]
        parts = [self.head]
        for number, index in enumerate(remaining):
            parts.append(self.texts[index])
            if number + 1 < len(remaining):
                parts.append(self.gaps[index])
        return b"".join((*parts, self.tail))


def cut(body: bytes, name: str) -> Cut | None:
    """Cuts a body, which must be JSON. Returns None if the object has no list of that name, or has the member twice."""
    if not body.lstrip(SPACE).startswith(b"{"):
        return None
    values = [member for member in map(_value, _pieces(body, body.index(b"{"))) if member[0] == name]
    if len(values) != 1 or body[values[0][1] : values[0][1] + 1] != b"[":
        return None
    start = values[0][1]
    elements = [(piece.first, piece.last) for piece in _pieces(body, start)]
    if not elements:
        return Cut(body[: start + 1], (), (), body[start + 1 :])
    gaps = tuple(body[before[1] : after[0]] for before, after in pairwise(elements))
    texts = tuple(body[first:last] for first, last in elements)
    return Cut(body[: elements[0][0]], texts, gaps, body[elements[-1][1] :])


@dataclass(frozen=True, slots=True)
class _Piece:
    body: bytes
    first: int
    last: int


def _pieces(body: bytes, bracket: int) -> Iterator[_Piece]:
    """The texts between the commas of one list or object, without the whitespace around them."""
    depth, begin = 0, bracket + 1
    for token in TOKENS.finditer(body, bracket):
        text = token.group()
        depth += (text in (b"[", b"{")) - (text in (b"]", b"}"))
        if depth == 0 or (depth == 1 and text == b","):
            content = body[begin : token.start()]
            if content.strip(SPACE):
                first = begin + len(content) - len(content.lstrip(SPACE))
                yield _Piece(body, first, first + len(content.strip(SPACE)))
            begin = token.end()
        if depth == 0:
            return


def _value(piece: _Piece) -> tuple[str, int]:
    """The name of a member, and where its value begins."""
    name = TOKENS.match(piece.body, piece.first)
    assert name
    colon = piece.body.index(b":", name.end()) + 1
    rest = piece.body[colon : piece.last]
    return json.loads(name.group()), colon + len(rest) - len(rest.lstrip(SPACE))
