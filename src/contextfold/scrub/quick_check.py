"""Tells which rules may find something in a text, by plain search for their keywords. Compiles no rule.

A process that scrubs many texts uses an automaton instead (`scrubber`), which takes longer to make than a thousand
short texts take here.
"""

from __future__ import annotations

from contextfold.common.canonical import parse_json
from contextfold.common.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_KEYWORDS_LINE = "keywords = "
# Lowercases the letters of Latin-1, as RE2 does in texts of single bytes.
_CAPITALS = bytes([*range(0x41, 0x5B), *range(0xC0, 0xD7), *range(0xD8, 0xDF)])
_LOWERCASE = bytes.maketrans(_CAPITALS, bytes(byte + 0x20 for byte in _CAPITALS))


class Scrubbed(Record):
    """A scrubbed text, the number of new redactions, and the rules that caused them, in order of appearance."""

    text: str
    redactions: int
    rules: tuple[str, ...]


class KeywordSearch:
    """Finds keywords in bytes. A keyword with a capital letter matches only as it is written."""

    def __init__(self, keywords: Sequence[str]) -> None:
        self._keywords = [
            (keyword.encode("utf-8"), True)
            if keyword != keyword.lower()
            else (keyword.encode("utf-8").translate(_LOWERCASE), False)
            for keyword in keywords
        ]

    def matches(self, raw: bytes) -> list[int]:
        """The positions of the keywords that occur."""
        lower = raw.translate(_LOWERCASE)
        return [
            position
            for position, (keyword, is_as_written) in enumerate(self._keywords)
            if keyword in (raw if is_as_written else lower)
        ]


def standard_keywords(toml_text: str) -> list[str]:
    """The keywords of all standard rules. Each array of them is on a line of its own, and is also JSON."""
    keywords: dict[str, None] = {}
    for line in toml_text.split("\n"):
        if line.startswith(_KEYWORDS_LINE):
            keywords.update(dict.fromkeys(parse_json(line.removeprefix(_KEYWORDS_LINE))))
    return list(keywords)
