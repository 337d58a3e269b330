"""The scrubber that compiles rules only when they are needed gives the same result as the full one."""

from __future__ import annotations

import re
import string
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest
import re2  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from contextfold.common.canonical import version_of
from contextfold.scrub.quick_check import WORD_LENGTH_MAX, KeywordSearch, has_keyword, is_of_words
from contextfold.scrub.rules import rules_from
from contextfold.scrub.scrubber import Scrubber, _keyword_set
from contextfold.scrub.standard import QuickScrubber, read_rules_file, standard_scrubber
from tests.support.known_secrets import known_secrets
from tests.support.machine import ROOT, SOURCE, times

KEYWORDS = sorted({keyword for rule in rules_from(read_rules_file()) for keyword in rule.keywords})
# Letters outside ASCII, in both cases, have several bytes each.
PIECES = st.one_of(
    st.sampled_from(KEYWORDS), st.text(max_size=8), st.sampled_from(["LÖSENORD", "ПАРОЛЬ", "Ñ", "×÷", "="])
)
TEXTS = st.lists(st.one_of(PIECES, PIECES.map(str.upper), PIECES.map(str.lower)), max_size=8).map("".join)


@cache
def automaton() -> re2.Set:
    return _keyword_set(KEYWORDS)


@cache
def scrubbers() -> tuple[Scrubber, QuickScrubber]:
    return standard_scrubber(), QuickScrubber()


def test_the_keyword_module_is_up_to_date(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "scrub_keywords.py", tmp_path / "written.py"], check=True)
    assert (tmp_path / "written.py").read_bytes() == (SOURCE / "contextfold" / "scrub" / "keywords.py").read_bytes()


@given(TEXTS)
def test_has_keyword_agrees_with_the_automaton(text: str) -> None:
    assert has_keyword(text) == bool(automaton().Match(text.encode("utf-8", "surrogatepass")))


@given(TEXTS)
def test_keyword_search_agrees_with_the_automaton_on_any_text(text: str) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    assert KeywordSearch(KEYWORDS).matches(raw) == sorted(automaton().Match(raw) or ())


@given(st.binary(max_size=60), st.sampled_from(KEYWORDS))
def test_keyword_search_agrees_with_the_automaton_on_any_bytes(raw: bytes, keyword: str) -> None:
    for data in (raw + keyword.encode(), raw + bytes(byte ^ 0x20 for byte in keyword.encode())):
        assert KeywordSearch(KEYWORDS).matches(data) == sorted(automaton().Match(data) or ())


@given(TEXTS)
def test_both_scrubbers_give_the_same_result_for_any_text(text: str) -> None:
    full, quick = scrubbers()
    assert quick.scrub(text) == full.scrub(text)


def test_both_scrubbers_give_the_same_result_for_known_secrets() -> None:
    full, quick = scrubbers()
    for seed in range(times(2, 20)):
        for text in (secret.text for secret in known_secrets(seed)):
            assert quick.scrub(text) == full.scrub(text)
            assert quick.scrub(text.upper()) == full.scrub(text.upper())


# The rules that can match letters, spaces and a question mark, with words as long as `is_of_words` admits. The first
# two need a longer word. For the others see `quick_check`. If a rule is added here, or the version of their patterns
# changes, then `is_of_words` may have to be changed, too.
MATCH_WORDS = [
    "twitter-token",
    "base64-text",
    "netrc-password",
    "secret-command",
    "password-plain",
    "secret-plain",
    "secret-line",
]
VERSION_OF_PATTERNS = "sha256:3c42656131aa043afd625f7f2901d4a4630c8d136da2a5dc88fcd916b60aa87e"
LETTERS = frozenset(map(ord, string.ascii_letters + " ?"))
CATEGORIES = {
    "DIGIT": frozenset(map(ord, string.digits)),
    "WORD": frozenset(map(ord, string.ascii_letters + string.digits + "_")),
    "SPACE": frozenset(map(ord, string.whitespace)),
}


def members(items: Iterable[tuple[Any, Any]], *, in_any_case: bool) -> frozenset[int]:
    """The characters of a class in a parsed pattern."""
    codes: set[int] = set()
    for kind, value in items:
        if kind is op.LITERAL:
            codes.add(value)
        elif kind is op.RANGE:
            codes.update(range(value[0], value[1] + 1))
        elif kind is op.CATEGORY:
            *_, name = str(value).split("_")
            codes |= set(range(256)) - CATEGORIES[name] if "NOT" in str(value) else CATEGORIES[name]
        else:
            assert kind is op.NEGATE
    if in_any_case:
        codes |= {ord(chr(code).swapcase()) for code in codes if chr(code).isascii()}
    is_negated = any(kind is op.NEGATE for kind, _ in items)
    return frozenset(range(256)) - codes if is_negated else frozenset(codes)


def can_match(parts: Iterable[tuple[Any, Any]], *, in_any_case: bool) -> bool:
    """Whether a parsed pattern may match a text of LETTERS. True in case of doubt."""
    for kind, value in parts:
        if kind in (op.LITERAL, op.NOT_LITERAL):
            possible = bool(LETTERS & members([(op.LITERAL, value)], in_any_case=in_any_case)) or kind is op.NOT_LITERAL
        elif kind is op.IN:
            possible = bool(LETTERS & members(value, in_any_case=in_any_case))
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            least, _, repeated = value
            (first, characters), *others = repeated
            is_long_word = least > WORD_LENGTH_MAX and first is op.IN and not others
            has_space = not is_long_word or ord(" ") in members(characters, in_any_case=in_any_case)
            possible = not least or (has_space and can_match(repeated, in_any_case=in_any_case))
        elif kind is op.SUBPATTERN:
            _, added, removed, inner = value
            inner_case = (in_any_case or bool(added & re.IGNORECASE)) and not removed & re.IGNORECASE
            possible = can_match(inner, in_any_case=inner_case)
        elif kind is op.BRANCH:
            possible = any(can_match(branch, in_any_case=in_any_case) for branch in value[1])
        else:
            assert kind in (op.AT, op.ANY), kind
            possible = True
        if not possible:
            return False
    return True


def test_the_rules_that_can_match_words_are_the_reviewed_ones() -> None:
    matching_rules = []
    for rule in rules_from(read_rules_file()):
        parsed = parser.parse(rule.pattern)
        if can_match(parsed, in_any_case=bool(parsed.state.flags & re.IGNORECASE)):
            matching_rules.append(rule)
    assert [rule.id for rule in matching_rules] == MATCH_WORDS
    assert version_of("".join(rule.pattern for rule in matching_rules).encode()) == VERSION_OF_PATTERNS


WORDS = st.one_of(
    st.sampled_from([keyword for keyword in KEYWORDS if keyword.isalpha()]),
    st.sampled_from(["is", "was", "to", "ist", "set", "now", "the", "of", "password", "login", "machine", "consul"]),
    st.sampled_from(["apikey", "dbpass", "myPass", "authToken", "username", "put", "kv", "bearer", "correcthorse"]),
    st.text(string.ascii_letters, min_size=1, max_size=WORD_LENGTH_MAX),
)


@given(st.lists(WORDS, min_size=2, max_size=9).map(" ".join), st.sampled_from(["", "?"]))
def test_a_question_of_plain_words_has_nothing_to_redact(question: str, mark: str) -> None:
    full, _ = scrubbers()
    if is_of_words(question + mark):
        assert full.scrub(question + mark).text == question + mark


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rotate the auth token", True),
        ("How did we fix the password reset?", True),
        ("where is the api key read", True),
        ("the password is hunter", False),
        ("login bob password hunter", False),
        ("token abcdefgh", False),
        ("set token abcdefgh", False),
        ("the token  abcdefgh", False),
        ("rotate the auth-token", False),
        ("rotate the token now, please", False),
        ("the passwörd of the clock", False),
    ],
)
def test_questions_of_plain_words_are_recognised(text: str, expected: bool) -> None:
    assert is_of_words(text) is expected
