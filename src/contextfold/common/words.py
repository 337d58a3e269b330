"""Splits texts into words, by tables of Unicode 17 in this package, and finds the stems of English words. Pure.

A token is a run of word characters in the original spelling. Its words are the token in lowercase or, for a run of CJK
characters, the run's bigrams. Its parts are the pieces of an identifier: `camelCase` has the parts `camel` and `case`.

Stems follow the Snowball algorithm (Porter2) and are part of the index format: a change here needs a new format number
in `fingerprint_record.py`. The algorithm works on two regions of a word. R1 begins after the first consonant that
follows a vowel, R2 after the next such consonant. Most suffixes are removed only where they lie inside one of them. A
`y` that acts as a consonant is written `Y` while the steps run.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

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


# Shorter words are their own stems.
SHORTEST_STEMMED = 3

VOWELS = frozenset("aeiouy")
DOUBLES = ("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt")
# The suffix `li` is removed only after one of these letters.
LI_ENDINGS = frozenset("cdeghkmnrt")

# R1 begins directly after these prefixes; otherwise the stems would be too short.
_R1_PREFIXES = ("gener", "commun", "arsen", "past", "univers", "later", "emerg", "organ", "inter")

_KEEP_ING = frozenset(("inn", "out", "cann", "herr", "earr", "even"))
_KEEP_EED = frozenset(("proc", "exc", "succ"))


def _pairs(text: str) -> dict[str, str]:
    """Suffixes or words, each with its replacement."""
    return dict([pair.split(":") for pair in text.split()])


def _by_ending(text: str) -> dict[str, list[tuple[int, str, str]]]:
    """Group suffixes by their last letter, the longest first, so that a lookup compares few of them."""
    grouped: dict[str, list[tuple[int, str, str]]] = {}
    suffixes = _pairs(text)
    for suffix in sorted(suffixes, key=len, reverse=True):
        grouped.setdefault(suffix[-1], []).append((len(suffix), suffix, suffixes[suffix]))
    return grouped


_WHOLE_WORDS = _pairs(
    "skis:ski skies:sky idly:idl gently:gentl ugly:ugli early:earli only:onli singly:singl "
    "sky:sky news:news howe:howe atlas:atlas cosmos:cosmos bias:bias andes:andes"
)
_STEP_2_SUFFIXES = _by_ending(
    "tional:tion enci:ence anci:ance abli:able entli:ent izer:ize ization:ize ational:ate ation:ate ator:ate "
    "alism:al aliti:al alli:al fulness:ful ousli:ous ousness:ous iveness:ive iviti:ive biliti:ble bli:ble "
    "ogist:og ogi:og fulli:ful lessli:less li:"
)
_STEP_3_SUFFIXES = _by_ending("ational:ate tional:tion alize:al icate:ic iciti:ic ical:ic ful: ness: ative:")
_STEP_4_SUFFIXES = _by_ending(
    "al: ance: ence: er: ic: able: ible: ant: ement: ment: ent: ism: ate: iti: ous: ive: ize: ion:"
)


def stem(word: str) -> str:
    """The stem of a lowercase word, which must have only ASCII letters and apostrophes."""
    if len(word) < SHORTEST_STEMMED:
        return word
    if word in _WHOLE_WORDS:
        return _WHOLE_WORDS[word]
    word = word.removeprefix("'")
    if "y" in word:
        word = _mark_consonant_y(word)
    r1, r2 = _regions(word)
    word = _remove_possessive(word)
    word = _step_1a(word)
    word = _step_1b(word, r1)
    word = _step_1c(word)
    word = _step_2(word, r1)
    word = _step_3(word, r1, r2)
    word = _step_4(word, r2)
    word = _step_5(word, r1, r2)
    return word.replace("Y", "y")


def _mark_consonant_y(word: str) -> str:
    """Write each `y` that is a consonant, at the beginning of a word or after a vowel, as `Y`."""
    marked = "Y" if word.startswith("y") else word[0]
    for letter in word[1:]:
        marked += "Y" if letter == "y" and marked[-1] in VOWELS else letter
    return marked


def _regions(word: str) -> tuple[int, int]:
    r1 = 0
    if word.startswith(_R1_PREFIXES):
        r1 = next(len(prefix) for prefix in _R1_PREFIXES if word.startswith(prefix))
    r1 = r1 or _after_vowel_and_consonant(word, 0)
    return r1, _after_vowel_and_consonant(word, r1)


def _after_vowel_and_consonant(word: str, start: int) -> int:
    after_vowel = False
    for at in range(start, len(word)):
        if word[at] in VOWELS:
            after_vowel = True
        elif after_vowel:
            return at + 1
    return len(word)


def _has_vowel(letters: str) -> bool:
    return not VOWELS.isdisjoint(letters)


def _remove_possessive(word: str) -> str:
    for suffix in ("'s'", "'s", "'"):
        if word.endswith(suffix):
            return word.removesuffix(suffix)
    return word


def _step_1a(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > len("ties") else word[:-1]
    if word.endswith(("us", "ss")):
        return word
    if word.endswith("s") and _has_vowel(word[:-2]):
        return word[:-1]
    return word


def _step_1b(word: str, r1: int) -> str:
    for suffix in ("eedly", "eed"):
        if word.endswith(suffix):
            base = word.removesuffix(suffix)
            return base + "ee" if len(base) >= r1 and base not in _KEEP_EED else word
    for suffix in ("ingly", "edly", "ing", "ed"):
        if word.endswith(suffix):
            return _without_participle(word, word.removesuffix(suffix), suffix, r1)
    return word


def _without_participle(word: str, base: str, suffix: str, r1: int) -> str:
    if suffix == "ing" and len(base) == len("dy") and base[1] == "y" and base[0] not in VOWELS:
        return base[0] + "ie"
    if (suffix == "ing" and base in _KEEP_ING) or not _has_vowel(base):
        return word
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if base.endswith(DOUBLES):
        return base if len(base) == len("add") and base[0] in "aeo" else base[:-1]
    if len(base) <= r1 and _ends_in_short_syllable(base):
        return base + "e"
    return base


def _step_1c(word: str) -> str:
    if word[-1:] in ("y", "Y") and len(word) > len("by") and word[-2] not in VOWELS:
        return word[:-1] + "i"
    return word


def _split_suffix(word: str, suffixes: dict[str, list[tuple[int, str, str]]]) -> tuple[str, str, str]:
    """A word without its longest suffix of a step, the suffix and its replacement; the word alone if it has none."""
    for length, suffix, replacement in suffixes.get(word[-1:], ()):
        if word.endswith(suffix):
            return word[:-length], suffix, replacement
    return word, "", ""


def _step_2(word: str, r1: int) -> str:
    base, suffix, replacement = _split_suffix(word, _STEP_2_SUFFIXES)
    stays = (suffix == "li" and base[-1:] not in LI_ENDINGS) or (suffix == "ogi" and base[-1:] != "l")
    return word if stays or len(base) < r1 else base + replacement


def _step_3(word: str, r1: int, r2: int) -> str:
    base, suffix, replacement = _split_suffix(word, _STEP_3_SUFFIXES)
    return word if len(base) < (r2 if suffix == "ative" else r1) else base + replacement


def _step_4(word: str, r2: int) -> str:
    base, suffix, _ = _split_suffix(word, _STEP_4_SUFFIXES)
    return word if len(base) < r2 or (suffix == "ion" and base[-1:] not in ("s", "t")) else base


def _step_5(word: str, r1: int, r2: int) -> str:
    base = word[:-1]
    if word.endswith("e"):
        if len(base) >= r2 or (len(base) >= r1 and not _ends_in_short_syllable(base)):
            return base
    elif word.endswith("ll") and len(base) >= r2:
        return base
    return word


def _ends_in_short_syllable(word: str) -> bool:
    """A vowel between consonants at the end, the last of them not w, x or Y; or a vowel and a consonant as a word."""
    if word == "past":
        return True
    if len(word) == len("at"):
        return word[0] in VOWELS and word[1] not in VOWELS
    return len(word) > len("at") and word[-2] in VOWELS and word[-3] not in VOWELS and word[-1] not in "aeiouywxY"
