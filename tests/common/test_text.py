"""Lowercase and words follow Unicode 17 on every interpreter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contextfold.common.text import count_terms, count_words, lowercase, split_words
from tests.support import oracle

# Cased, ignorable and mapped characters, white space, and separators that are not white space.
SPECIAL_CHARACTERS = st.sampled_from(
    "aAzZİıſKÅΩΣσςßẞΑΌǅǈﬁᲊᲉꟋ𐐀𐐨𐵐𐵰𖺠𖺻'.·:^\u00ad\u0300\u0345\u180e\u200b\u200d\u2019\u001c\u001f\u007f\ufeff"
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000"
)
# All code points but the surrogates, in pieces.
BLOCK = 256
BLOCKS = [
    "".join(map(chr, range(first, first + BLOCK)))
    for first in range(0, 0x110000, BLOCK)
    if not 0xD800 <= first < 0xE000
]
TEXTS = st.text(SPECIAL_CHARACTERS | st.characters(codec="utf-8"), max_size=60)


def test_every_code_point_is_lowercased_as_in_unicode_17() -> None:
    for block in BLOCKS:
        characters = [character for character in block if character != "Σ"]
        lower = [oracle.LOWER.get(character, character) for character in characters]
        assert lowercase(" ".join(characters)) == " ".join(lower)


def test_every_cased_and_case_ignorable_character_decides_the_final_sigma() -> None:
    for character in oracle.CASED | oracle.IGNORABLE | set("1 /\n"):
        for text in (f"{character}Σ", f"aΣ{character}", f"aΣ{character}a", f"a{character}Σ"):
            assert lowercase(text) == oracle.lowercase(text), ascii(text)


def test_words_are_split_exactly_at_white_space() -> None:
    for block in BLOCKS:
        # A block without white space is one word; in the others each character is tested alone.
        if oracle.WHITE_SPACE.isdisjoint(block):
            assert len(split_words(f"a{block}b")) == 1, ascii(block[0])
            continue
        for character in block:
            splits = len(split_words(f"a{character}b")) == 2
            assert splits == (character in oracle.WHITE_SPACE), ascii(character)


@given(TEXTS)
def test_words_are_those_of_the_lowercased_text(text: str) -> None:
    assert split_words(text) == oracle.words(text)


@given(TEXTS)
def test_counting_words_equals_listing_them(text: str) -> None:
    counts = count_words(text.encode())
    assert {word.decode(): count for word, count in counts.items()} == {
        word: oracle.words(text).count(word) for word in oracle.words(text)
    }


@given(TEXTS, st.lists(TEXTS, max_size=3))
def test_counting_terms_equals_counting_words(text: str, queries: list[str]) -> None:
    terms = list(dict.fromkeys(word for query in queries for word in oracle.words(query)))
    matches, total = count_terms(text.encode(), [term.encode() for term in terms])
    assert matches == sum(word in terms for word in oracle.words(text))
    assert total == len(oracle.words(text))


@given(TEXTS)
def test_lowercasing_twice_gives_the_same_as_once(text: str) -> None:
    assert lowercase(lowercase(text)) == lowercase(text)
