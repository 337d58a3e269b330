"""Scores are float32 and print as the shortest decimal that reads back as the same float32."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextfold.resolve.selection import ratio, shortest_text
from tests.support import oracle

# Counts have at most 64 bits, so no score but 0 is below 2^-64.
LEAST_POWER = 64
LEAST_BITS = 127 - LEAST_POWER << 23
COUNTS = st.integers(0, 2**25) | st.integers(0, 2**40)


@given(COUNTS, COUNTS)
def test_a_score_is_the_float32_quotient_with_the_shortest_text(first: int, second: int) -> None:
    part, whole = sorted((first, second))
    score = ratio(part, whole)
    expected = numpy.float32(part) / numpy.float32(whole) if whole else numpy.float32(0)
    assert numpy.float32(score) == expected
    assert repr(score) == oracle.score_text(part, whole)


# The neighbours of a power of two are at different distances.
POWERS_OF_TWO = st.integers(127 - LEAST_POWER, 127).map(lambda exponent: exponent << 23)


@given(st.integers(LEAST_BITS, 0x3F800000) | POWERS_OF_TWO)
def test_the_text_of_any_float32_up_to_one_gives_the_same_float32(bits: int) -> None:
    value = numpy.uint32(bits).view(numpy.float32)
    text = shortest_text(float(value))
    assert numpy.float32(text) == value
    digits = text.split("e")[0].replace(".", "").strip("0")
    assert len(digits) == len(numpy.format_float_scientific(value, trim="-").split("e")[0].replace(".", ""))


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (3, 4, "0.75"),
        (1, 3, "0.33333334"),
        (0, 7, "0.0"),
        (0, 0, "0.0"),
        (7, 7, "1.0"),
        (1, 1_000_000, "0.000001"),
        (1, 10_000_000, "1e-7"),
        (1, 2**24, "5.9604645e-8"),
        (1, 2**24 + 1, "5.9604645e-8"),
        (1, 2**24 + 3, "5.960463e-8"),
        (1, 2_000_000, "5e-7"),
    ],
)
def test_the_specified_examples(part: int, whole: int, text: str) -> None:
    assert str(ratio(part, whole)) == text
