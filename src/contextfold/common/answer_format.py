"""The forms of an answer: text for a model or a person, JSON for a program. Pure."""

from __future__ import annotations

from collections.abc import Iterable

TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)


def join_blocks(blocks: Iterable[str]) -> str:
    """Blocks of lines, with a blank line between them. Empty ones are left out."""
    joined = ""
    for block in filter(None, blocks):
        joined += ("\n" if joined and not joined.endswith("\n\n") else "") + block
    return joined
