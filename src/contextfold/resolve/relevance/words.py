"""What counts as a word: Unicode 17's letters, marks and numbers in lowercase, by tables of our own. Pure.

A token is a run of word characters as it was written. Its words are the token in lowercase or, for a run of CJK
characters, the run's bigrams. Its parts are the pieces of an identifier: `camelCase` has the parts `camel` and `case`.
"""

from __future__ import annotations

import re
from functools import cache

from contextfold.common.record import Record
from contextfold.common.text import lowercase
from contextfold.resolve.relevance.stemmer import stem

BASIC_PLANE_LAST = "\uffff"
LAST_CHARACTER = "\U0010ffff"
WORD_MAX = 80  # characters of a token that are looked at; longer ones are data, not language

STOP_WORDS = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "but",
        "by",
        "for",
        "if",
        "in",
        "into",
        "is",
        "it",
        "no",
        "not",
        "of",
        "on",
        "or",
        "such",
        "that",
        "the",
        "their",
        "then",
        "there",
        "these",
        "they",
        "this",
        "to",
        "was",
        "will",
        "with",
    ]
)
# Dropped from queries only: they say that somebody asks, not what about.
QUESTION_WORDS = frozenset(
    [
        "how",
        "what",
        "why",
        "when",
        "where",
        "which",
        "who",
        "whom",
        "whose",
        "do",
        "does",
        "did",
        "can",
        "could",
        "should",
        "would",
        "i",
        "my",
        "me",
        "we",
        "our",
        "you",
        "your",
        "am",
    ]
)

_ASCII_TOKEN = re.compile(r"[0-9A-Za-z_]+(?:'[A-Za-z]+)?")
_CHUNK_CHARACTERS = {code: " " for code in range(128) if not (chr(code).isalnum() or chr(code) in "_'")}
_IDENTIFIER = re.compile("[a-z0-9][A-Z]|[A-Za-z0-9]_+[A-Za-z0-9]|[A-Z]{2}[a-z]")
_PART = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_STEMMED = re.compile("[a-z']+")


class Token(Record):
    """What one token stands for."""

    words: tuple[str, ...]
    parts: tuple[str, ...]


NOTHING = Token((), ())


@cache
def _wide_token(highest: str) -> re.Pattern[str]:
    """Compiled on first use: most queries are ASCII. `highest` is the last character that the pattern knows.

    A character that is in no range is compared with all ranges beyond the basic plane, so few texts pay for them.
    """
    from contextfold.resolve.relevance.word_characters import CJK, WORD

    word, cjk = _character_class(WORD, highest), _character_class(CJK, highest)
    return re.compile(f"[0-9A-Za-z_{word}]+(?:['\u2019][A-Za-z{word}]+)?|[{cjk}]+")


@cache
def _first_cjk() -> frozenset[str]:
    from contextfold.resolve.relevance.word_characters import CJK

    return frozenset(chr(code_point) for first, last in CJK for code_point in range(first, last + 1))


def _character_class(ranges: tuple[tuple[int, int], ...], highest: str) -> str:
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges if last <= ord(highest))


def tokens(text: str) -> list[str]:
    """The tokens of a text in order, as they were written."""
    if text.isascii():
        return _ASCII_TOKEN.findall(text)
    return _wide_token(BASIC_PLANE_LAST if max(text) <= BASIC_PLANE_LAST else LAST_CHARACTER).findall(text)


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
    if token[0] in _first_cjk():
        return Token(_bigrams(token), ())
    word = lowercase(token).replace("\u2019", "'").strip("_")
    return Token((word,), ()) if word else NOTHING


def _parts(token: str) -> tuple[str, ...]:
    if not _IDENTIFIER.search(token):
        return ()
    parts = [part.lower() for part in _PART.findall(token)]
    return tuple(part for part in parts if len(part) > 1 and part not in STOP_WORDS)


def _bigrams(run: str) -> tuple[str, ...]:
    return tuple(run[at : at + 2] for at in range(len(run) - 1)) or (run,)


def stem_of(word: str) -> str:
    """The stem by which forms of a word are found together; other than English words are their own."""
    return stem(word) if _STEMMED.fullmatch(word) else word
