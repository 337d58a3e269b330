"""The inputs that fuzzing has found are refused or read, and nothing else happens."""

from __future__ import annotations

import pytest

from tests.fuzz.parsers import CORPUS, PARSERS, read_corpus, try_input

CORPUS_MAX_BYTES = 300_000


@pytest.mark.parametrize("parser", PARSERS)
def test_no_input_of_the_corpus_breaks_its_parser(parser: str) -> None:
    inputs = read_corpus()[parser]
    assert inputs
    for raw in inputs:
        try_input(parser, raw)


def test_the_corpus_stays_small() -> None:
    assert CORPUS.stat().st_size < CORPUS_MAX_BYTES
