"""Splits texts into words: Unicode 17's letters, marks and numbers in lowercase, by tables of this package. Pure.

A token is a run of word characters in the original spelling. Its words are the token in lowercase or, for a run of CJK
characters, the run's bigrams. Its parts are the pieces of an identifier: `camelCase` has the parts `camel` and `case`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from contextfold.common.relevance.stemmer import stem
from contextfold.common.text import characters, lowercase, ranges
from contextfold.common.unicode17 import CJK, WORD

BASIC_PLANE_LAST = "\uffff"
LAST_CHARACTER = "\U0010ffff"
# Only this many characters of a token are used; a longer token is data, not language.
WORD_MAX = 80

STOP_WORDS = frozenset(
    """
    a an and are as at be but by for if in into is it no not of on or such that the their then there these they this
    to was will with
    """.split()  # noqa: SIM905 - easier to read than a list
)
# These words are removed only from queries: they show that it is a question, not its subject.
QUESTION_WORDS = frozenset(
    """
    how what why when where which who whom whose do does did can could should would i my me we our you your am
    """.split()  # noqa: SIM905 - likewise
)

_CHUNK_CHARACTERS = {code: " " for code in range(128) if not (chr(code).isalnum() or chr(code) in "_'")}
# Marks that English prose has beside ASCII. They separate words; the first is in every breadcrumb.
TYPOGRAPHIC_MARKS = "\u203a\u2014\u2013\u2026\u201c\u201d"
_ASCII_WORD = re.compile("[0-9A-Za-z_]+(?:'[A-Za-z]+)?")
_IDENTIFIER = re.compile("[a-z0-9][A-Z]|[A-Za-z0-9]_+[A-Za-z0-9]|[A-Z]{2}[a-z]")
_PART = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


class Token(NamedTuple):
    """The words and parts of one token."""

    words: tuple[str, ...]
    parts: tuple[str, ...]


NOTHING = Token((), ())


@cache
def _wide_token(highest: str) -> re.Pattern[str]:
    """The pattern of a token up to the character `highest`.

    A character in no range is compared with all ranges, so the ranges beyond the basic plane are used only if needed.
    """
    word, cjk = (
        "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges(table) if last <= ord(highest))
        for table in (WORD, CJK)
    )
    return re.compile(f"[0-9A-Za-z_{word}]+(?:['\u2019][A-Za-z{word}]+)?|[{cjk}]+")


@cache
def _cjk_characters() -> frozenset[str]:
    return characters(CJK)


def without_marks(text: str, replacement: str = " ") -> str:
    """The text without its typographic marks. Most texts are ASCII then, which is much quicker to split."""
    if not text.isascii():
        for mark in TYPOGRAPHIC_MARKS:
            text = text.replace(mark, replacement)
    return text


def tokens(text: str) -> list[str]:
    """The tokens of a text in their order and original spelling."""
    text = without_marks(text)
    if text.isascii():
        return _ASCII_WORD.findall(text) if "'" in text else chunks(text)
    highest = BASIC_PLANE_LAST if max(text) <= BASIC_PLANE_LAST else LAST_CHARACTER
    return _wide_token(highest).findall(text)


def chunks(text: str) -> list[str]:
    """The tokens of an ASCII text, but with the apostrophes around them; much quicker than looking for tokens."""
    return text.translate(_CHUNK_CHARACTERS).split()


def read_token(token: str) -> Token:
    """The words and the parts of a token; nothing for a stop word."""
    token = token[:WORD_MAX]
    if token.isascii():
        word = token.lower().strip("_")
        if word in STOP_WORDS or not word:
            return NOTHING
        return Token((word,), _parts(token))
    if token[0] in _cjk_characters():
        return Token(_bigrams(token), ())

    word = lowercase(token).replace("\u2019", "'").strip("_")
    return Token((word,), ()) if word else NOTHING


def _parts(token: str) -> tuple[str, ...]:
    rest = token[1:]
    if ("_" not in token and rest == rest.lower()) or not _IDENTIFIER.search(token):
        return ()
    parts = [part.lower() for part in _PART.findall(token)]
    return tuple(part for part in parts if len(part) > 1 and part not in STOP_WORDS)


def _bigrams(run: str) -> tuple[str, ...]:
    return tuple(run[at : at + 2] for at in range(len(run) - 1)) or (run,)


def stem_of(word: str) -> str:
    """The stem of a word, which all its forms share. Words that are not ASCII are their own stems."""
    return stem(word) if word.isascii() and word.replace("'", "").isalpha() else word
