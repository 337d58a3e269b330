"""Random configuration files, formatted in every valid way: the text and the value it stands for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.cli.agents.wiring import EVENTS, KEYS

Draw = Callable[..., Any]

SPACE = st.lists(st.sampled_from([" ", "  ", "\t", "\n", "\r\n", "\r", "\n    "]), max_size=3).map("".join)
COMMENTED = st.lists(
    st.sampled_from(["", " ", "\n  ", "\r\n\t", "// {\n", '// " , \r\n', "// 1  \n", "/**/", "/* } */", "/* // */"]),
    max_size=4,
).map("".join)
NAMES = st.text(max_size=4) | st.sampled_from(["inputs", "mcp", "a//b", "/*", 'q"', "é\u2028"])
LEAVES = st.none() | st.booleans() | st.integers(-9, 10**30) | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2), max_leaves=4
)


def json_text(draw: Draw, value: Any, trivia: st.SearchStrategy[str], *, last_commas: bool) -> str:
    """A value as JSON text, with random space or comments between its tokens."""

    def joined(opening: str, parts: list[str], closing: str) -> str:
        separated = (draw(trivia) + "," + draw(trivia)).join(parts)
        last = draw(trivia) + "," if parts and last_commas and draw(st.booleans()) else ""
        return f"{opening}{draw(trivia)}{separated}{last}{draw(trivia)}{closing}"

    def inner(value: Any) -> str:
        return json_text(draw, value, trivia, last_commas=last_commas)

    if isinstance(value, dict):
        members = (
            json.dumps(key, ensure_ascii=draw(st.booleans())) + draw(trivia) + ":" + draw(trivia) + inner(member)
            for key, member in value.items()
        )
        return joined("{", list(members), "}")
    if isinstance(value, list):
        return joined("[", [inner(item) for item in value], "]")
    return json.dumps(value, ensure_ascii=bool(draw(st.booleans())))


@st.composite
def configurations(draw: Draw, host: str) -> tuple[str, dict[str, Any]]:
    """A configuration of a host, with servers of others in it."""
    value = dict(draw(st.dictionaries(NAMES, VALUES, max_size=3)))
    if draw(st.booleans()):
        value[KEYS[host]] = draw(st.dictionaries(NAMES, VALUES, max_size=3))
    return formatted(draw, host, value)


@st.composite
def hook_files(draw: Draw, host: str) -> tuple[str, dict[str, Any]]:
    """A hook file with hooks of others, also in the arrays that ours are added to."""
    value = dict(draw(st.dictionaries(NAMES, VALUES, max_size=2)))
    if host == "cursor":
        value["version"] = 1
    if draw(st.booleans()):
        names = st.sampled_from([*EVENTS[host], "SubagentStop", "other"])
        arrays = st.lists(VALUES | st.fixed_dictionaries({"hooks": st.lists(VALUES, max_size=2)}), max_size=2)
        value["hooks"] = draw(st.dictionaries(names, arrays, max_size=3))
    return formatted(draw, host, value)


def formatted(draw: Draw, host: str, value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    value = dict(draw(st.permutations(list(value.items()))))
    byte_order_mark = draw(st.sampled_from(["", "", "\ufeff"]))
    if draw(st.booleans()):
        indent = draw(st.sampled_from([None, 0, 1, 2, 4, "\t"]))
        newline = draw(st.sampled_from(["\n", "\r\n"]))
        text = json.dumps(value, indent=indent, ensure_ascii=False).replace("\n", newline)
        return byte_order_mark + text + draw(st.sampled_from(["", newline])), value
    with_comments = host != "claude-code"
    trivia = COMMENTED if with_comments else SPACE
    text = json_text(draw, value, trivia, last_commas=with_comments)
    return byte_order_mark + draw(trivia) + text + draw(trivia), value
