"""A scrubber that compiles rules when they are needed gives the same bytes as one that has compiled all."""

from __future__ import annotations

from functools import cache

import re2  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from contextfold.scrub.quick_check import KeywordSearch, standard_keywords
from contextfold.scrub.rules import rules_from
from contextfold.scrub.scrubber import Scrubber, _keyword_set
from contextfold.scrub.standard import QuickScrubber, read_rules_file, standard_scrubber
from tests.support.known_secrets import known_secrets
from tests.support.machine import times

KEYWORDS = sorted(standard_keywords(read_rules_file()))
# Beside the ordinary: both cases of letters beyond ASCII, which are several bytes each.
PIECES = st.one_of(
    st.sampled_from(KEYWORDS), st.text(max_size=8), st.sampled_from(["LÖSENORD", "ПАРОЛЬ", "Ñ", "×÷", "="])
)
TEXTS = st.lists(st.one_of(PIECES, PIECES.map(str.upper), PIECES.map(str.lower)), max_size=8).map("".join)


@cache
def automaton() -> re2.Set:
    return _keyword_set(KEYWORDS)


@cache
def both() -> tuple[Scrubber, QuickScrubber]:
    return standard_scrubber(), QuickScrubber()


def test_the_keywords_are_those_of_the_rules() -> None:
    assert sorted({keyword for rule in rules_from(read_rules_file()) for keyword in rule.keywords}) == KEYWORDS


@given(TEXTS)
def test_plain_search_finds_the_keywords_that_the_automaton_finds(text: str) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    assert KeywordSearch(KEYWORDS).matches(raw) == sorted(automaton().Match(raw) or ())


@given(st.binary(max_size=60), st.sampled_from(KEYWORDS))
def test_it_does_so_in_bytes_of_any_kind(raw: bytes, keyword: str) -> None:
    for each in (raw + keyword.encode(), raw + bytes(byte ^ 0x20 for byte in keyword.encode())):
        assert KeywordSearch(KEYWORDS).matches(each) == sorted(automaton().Match(each) or ())


@given(TEXTS)
def test_any_text_is_scrubbed_the_same(text: str) -> None:
    whole, quick = both()
    assert quick.scrub(text) == whole.scrub(text)


def test_known_secrets_are_redacted_the_same() -> None:
    whole, quick = both()
    for seed in range(times(2, 20)):
        for text in (secret.text for secret in known_secrets(seed)):
            assert quick.scrub(text) == whole.scrub(text)
            assert quick.scrub(text.upper()) == whole.scrub(text.upper())
