"""Words, stems, sections and token estimates."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextfold.common import tokens as weights
from contextfold.common.tokens import ChunkUnits, estimate
from contextfold.common.words import TYPOGRAPHIC_MARKS, chunks, read_token, stem, stem_of, tokens
from contextfold.resolve.relevance.sections import HARD_SECTION, outline
from tests.support.machine import ROOT

# Words of each step and exception of the published algorithm, with the stems that its vocabulary gives.
STEMS = """
consign consign|consigned consign|consistency consist|consolation consol|knightly knight|knack knack|caresses caress
ties tie|cries cri|gas gas|gaps gap|kiwis kiwi|feed feed|agreed agre|hopping hop|hoping hope|luxuriated luxuri
cry cri|by by|say say|happy happi|relational relat|generously generous|communication communic|arsenal arsenal
skis ski|skies sky|dying die|news news|inning inning|proceed proceed|exceeding exceed|rational ration|electricity electr
hopefulness hope|formative format|adoption adopt|controlling control|roll roll|falling fall|yyyyy yyyyy|geologist geolog
deployment deploy|deploying deploy|deployed deploy|running run|indices indic|tokens token|classes class
""".replace("\n", "|")


@pytest.mark.parametrize("pair", [pair for pair in STEMS.split("|") if pair])
def test_stems_are_those_of_the_published_vocabulary(pair: str) -> None:
    word, expected = pair.split()
    assert stem(word) == expected


def test_stems_are_the_same_as_those_of_snowball() -> None:
    snowball = pytest.importorskip("snowballstemmer").stemmer("english")
    words = {word for pair in STEMS.split("|") if pair for word in pair.split()}
    for page in (ROOT / "docs").rglob("*.md"):
        words.update(word.lower() for word in tokens(page.read_text("utf-8")) if word.isascii() and word.isalpha())
    assert {word: stem(word) for word in words} == {word: snowball.stemWord(word) for word in words}


def test_identifiers_are_split_into_parts_and_cjk_into_bigrams() -> None:
    assert read_token("getHTTPResponse") == (("gethttpresponse",), ("get", "http", "response"))
    assert read_token("snake_case_name") == (("snake_case_name",), ("snake", "case", "name"))
    assert read_token("数据库") == (("数据", "据库"), ())
    assert read_token("The") == ((), ())
    assert tokens("ΣΊΣΥΦΟΣ don’t 数据库x") == ["ΣΊΣΥΦΟΣ", "don’t", "数据库", "x"]
    assert read_token("ΣΊΣΥΦΟΣ").words == ("σίσυφος",)
    assert stem_of("v1") == "v1"


def headings(path: str, text: str) -> list[tuple[str, ...]]:
    return [section.headings for section in outline(path, text).sections]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.md", "# One\n\ntext\n\n## Two\n\ntext\n"),
        ("a.md", "One\n===\n\ntext\n\nTwo\n---\n\ntext\n"),
        ("a.md", "# One\n\n```\n# not a heading\n```\n\n## Two ##\n\ntext\n"),
        ("a.html", "<h1>One</h1>\n<p>text</p>\n<h2 id='x'>Two</h2>\ntext\n"),
        ("a.rst", "One\n===\n\ntext\n\nTwo\n---\n\ntext\n"),
        ("a.adoc", "= One\n\ntext\n\n== Two\n\n----\n== not a heading\n----\n"),
        ("a.org", "* One\n\ntext\n\n** Two\n#+begin_src\n* not a heading\n#+end_src\n"),
    ],
)
def test_documents_are_cut_at_headings(path: str, text: str) -> None:
    assert headings(path, text) == [("One",), ("One", "Two")]


def test_code_is_cut_at_definitions_with_their_comments() -> None:
    text = "import x\n\n# About f.\n@cached\ndef f():\n    def g():\n        pass\n"
    sections = outline("a.py", text).sections
    assert [section.headings for section in sections] == [(), ("def f",)]
    assert text[sections[1].start :].startswith("# About f.")


def test_long_sections_are_cut_at_blank_lines() -> None:
    text = "# One\n\n" + ("word " * 100 + "\n\n") * 10
    sections = outline("a.md", text).sections
    assert len(sections) > 2
    assert all(section.end - section.start < 2500 for section in sections)
    assert sections[1].first_line == 1 + text.count("\n", 0, sections[1].start)


@pytest.mark.parametrize("extension", ["md", "rst", "adoc", "org", "py", "c", "ts", "css", "java", "rs"])
@pytest.mark.parametrize(
    "text",
    [
        "x" * 300_000,
        "# a b\n" * 5_000,
        "```\n" + "abc\n\n# x\n" * 5_000,
        "=" * 50_000,
        "=\n" * 20_000,
        "[" * 50_000,
        "<h1" * 20_000,
        "---\n" + "a\n" * 20_000,
        "\n" * 50_000,
        "pub async " * 10_000,
        "// a\n" * 10_000 + "class A {\n" * 3_000,
    ],
    ids=range(11),
)
def test_hostile_texts_are_cut_into_sections_without_loss(extension: str, text: str) -> None:
    sections = outline(f"a.{extension}", text).sections
    assert "".join(text[section.start : section.end] for section in sections) == text
    assert all(section.end - section.start <= HARD_SECTION for section in sections)
    assert sections[-1].first_line == 1 + text.count("\n", 0, sections[-1].start)


def test_the_cache_of_words_is_bounded_and_changes_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "CHUNKS_MAX", 5)
    remembered = ChunkUnits()
    text = " ".join(f"word{number}" for number in range(40))
    assert estimate(text, known=remembered) == estimate(text, known=remembered) == estimate(text)
    assert len(remembered) <= 5


def test_a_joined_text_is_estimated_at_most_at_the_sum_of_its_parts() -> None:
    assert estimate("") == 0
    assert estimate("deploy") == 1
    assert estimate("a\n\nb") <= estimate("a\n") + estimate("\nb")
    assert estimate("数据库同步") == 4
    # The parts of a camelCase word are in the vocabulary.
    assert estimate("TiDB") == 2
    assert estimate("HTMLElement") == estimate("abcdefghijk")


def slow_estimate(text: str) -> int:
    """The estimate by its definition: the sum of the weights of all runs, one pattern after another."""
    wide = re.findall("[^\\x00-\\x7f]", text)
    cjk = [
        c for c in wide if "\u2e80" <= c <= "\u2fff" or "\u3040" <= c <= "\ud7ff" or "\U00020000" <= c <= "\U0003ffff"
    ]
    wide_marks = [c for c in wide if "\u3000" <= c <= "\u303f" or "\uff00" <= c <= "\uff20"]
    units = len(cjk) * weights.CJK_CHARACTER + len(wide_marks) * weights.WIDE_MARK
    units += (len(wide) - len(cjk) - len(wide_marks)) * weights.OTHER_CHARACTER
    text = re.sub("[^\\x00-\\x7f]+", " ", text)
    for word in re.findall("[A-Z]*[a-z]+|[A-Z]+", text):
        units += weights.WORD + max(len(word) - 6, 0) * weights.LETTER_BEYOND_6
        units += max(len(word) - 12, 0) * weights.LETTER_BEYOND_12
    units += sum(-(-len(digits) // 3) * weights.DIGIT_GROUP for digits in re.findall("[0-9]+", text))
    for run in re.findall("[!-/:-@\\[-`{-~]+", text):
        units += weights.PUNCTUATION_RUN
        if len(run) > weights.LONG_RUN and weights.RULE in run:
            units += run.count("+") * weights.PUNCTUATION_RUN + (len(run) - weights.LONG_RUN) * weights.RULE_CHARACTER
    units += text.count("  |") * weights.PADDING
    if "\n" in text:
        units += (1 + sum(1 for line in text.split("\n")[1:-1] if line.strip())) * weights.LINE_BREAK
    return -(-units // weights.UNIT)


TEXTS = st.text(st.sampled_from("aBcD12 \n\t\r\x0b\x1c\x00\x7f.|+-'_é数。" + TYPOGRAPHIC_MARKS), max_size=40)


@given(TEXTS)
def test_an_estimate_is_the_sum_of_its_weights(text: str) -> None:
    assert estimate(text) == slow_estimate(text)
    if text.isascii():
        assert estimate(text, chunks(text), ChunkUnits()) == slow_estimate(text)


@given(TEXTS)
def test_typographic_marks_separate_words(text: str) -> None:
    plain = re.sub(f"[{TYPOGRAPHIC_MARKS}]", " ", text)
    # With a letter that is not ASCII, the text is read by the pattern for all of Unicode.
    assert [*tokens(text), "é"] == tokens(f"{plain} é") == tokens(f"{text} é")
