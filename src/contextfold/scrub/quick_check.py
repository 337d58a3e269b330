"""Tells which rules may find something in a text, by plain search for their keywords. Compiles no rule.

A process that scrubs many texts uses an automaton instead (`scrubber`), which takes longer to make than a thousand
short texts take here.

A question often has a keyword and is nothing but words, as in "rotate the auth token". `is_of_words` recognises most of
those in which no rule can find anything. It depends on the rules, and `tests/scrub/test_quick_check.py` fails if one is
added or changed that could: a rule needs a sign, a digit or a long word, or it is one of these, which need

    login or machine, and a password                         netrc-password
    consul                                                   secret-command
    a name with a keyword, then is, was, ist or to           password-plain, secret-plain
    a line of two words, after set, export or the like       secret-line
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from contextfold.scrub.keywords import AS_WRITTEN, IN_ANY_CASE

# A question of words: its length, the least number of its words, and the length of each.
WORDS_LENGTH_MAX = 400
WORDS_MIN = 3
WORD_LENGTH_MAX = 11
# What stands between a name and its value, in a sentence.
_VERBS = frozenset(("is", "was", "ist", "to"))
_COMMAND_PARTS = ("login", "machine", "consul")
# What may stand before the name in a line of a configuration file.
_LINE_STARTS = frozenset(("set", "setenv", "export", "env", "arg", "enable", "username"))
# Lowercases the letters of Latin-1, as RE2 does in texts of single bytes.
_CAPITALS = bytes([*range(0x41, 0x5B), *range(0xC0, 0xD7), *range(0xD8, 0xDF)])
_LOWERCASE = bytes.maketrans(_CAPITALS, bytes(byte + 0x20 for byte in _CAPITALS))


class Scrubbed(NamedTuple):
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
            else (lowercased(keyword.encode("utf-8")), False)
            for keyword in keywords
        ]

    def matches(self, raw: bytes) -> list[int]:
        """The positions of the keywords that occur."""
        lower = lowercased(raw)
        return [
            position
            for position, (keyword, is_as_written) in enumerate(self._keywords)
            if keyword in (raw if is_as_written else lower)
        ]


def lowercased(raw: bytes) -> bytes:
    return raw.translate(_LOWERCASE)


def has_keyword(text: str) -> bool:
    """Whether a text has a keyword of a standard rule."""
    # Most questions are of words, and need no keyword.

    raw = text.encode("utf-8", "surrogatepass")
    written, lower = raw.decode("latin-1"), lowercased(raw).decode("latin-1")
    return any(keyword in written for keyword in AS_WRITTEN.split("|")) or any(
        keyword in lower for keyword in IN_ANY_CASE.split("|")
    )


def is_of_words(text: str) -> bool:
    """Whether a text is of words, and of such words that no standard rule finds anything in it."""
    if len(text) > WORDS_LENGTH_MAX or not text.isascii():
        return False
    words = text.lower().removesuffix("?").split(" ")
    if len(words) < WORDS_MIN or words[0] in _LINE_STARTS:
        return False
    if not all(word.isalpha() and len(word) <= WORD_LENGTH_MAX for word in words):
        return False
    if any(part in word for word in words for part in _COMMAND_PARTS):
        return False
    last = max((at for at, word in enumerate(words) if word in _VERBS), default=0)
    return not last or not has_keyword(text[: len(" ".join(words[:last]))])
