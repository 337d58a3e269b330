"""Configurations in every way a person may have typed them: the text, and the value it stands for."""

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


def typed(draw: Draw, value: Any, trivia: st.SearchStrategy[str], *, last_commas: bool) -> str:
    """A value as text, with anything allowed between its tokens."""

    def listed(opening: str, parts: list[str], closing: str) -> str:
        separated = (draw(trivia) + "," + draw(trivia)).join(parts)
        last = draw(trivia) + "," if parts and last_commas and draw(st.booleans()) else ""
        return f"{opening}{draw(trivia)}{separated}{last}{draw(trivia)}{closing}"

    def inner(value: Any) -> str:
        return typed(draw, value, trivia, last_commas=last_commas)

    if isinstance(value, dict):
        members = (
            json.dumps(key, ensure_ascii=draw(st.booleans())) + draw(trivia) + ":" + draw(trivia) + inner(held)
            for key, held in value.items()
        )
        return listed("{", list(members), "}")
    if isinstance(value, list):
        return listed("[", [inner(item) for item in value], "]")
    return json.dumps(value, ensure_ascii=bool(draw(st.booleans())))


@st.composite
def configurations(draw: Draw, host: str) -> tuple[str, dict[str, Any]]:
    """Some formatted by a program, some by hand."""
    value = dict(draw(st.dictionaries(NAMES, VALUES, max_size=3)))
    if draw(st.booleans()):
        value[KEYS[host]] = draw(st.dictionaries(NAMES, VALUES, max_size=3))
    return formatted(draw, host, value)


@st.composite
def hook_files(draw: Draw, host: str) -> tuple[str, dict[str, Any]]:
    """With the hooks of others in them, in the arrays that ours go into too."""
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
    mark = draw(st.sampled_from(["", "", "\ufeff"]))
    if draw(st.booleans()):
        indent = draw(st.sampled_from([None, 0, 1, 2, 4, "\t"]))
        newline = draw(st.sampled_from(["\n", "\r\n"]))
        text = json.dumps(value, indent=indent, ensure_ascii=False).replace("\n", newline)
        return mark + text + draw(st.sampled_from(["", newline])), value
    with_comments = host != "claude-code"
    trivia = COMMENTED if with_comments else SPACE
    text = typed(draw, value, trivia, last_commas=with_comments)
    return mark + draw(trivia) + text + draw(trivia), value
