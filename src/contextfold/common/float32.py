"""Single-precision ratios and their shortest decimal text.

Python formats and parses floats by algorithms of its own, so the digits do not depend on the C library or the locale.
"""

from __future__ import annotations

from array import array

from contextfold.common.canonical import WrittenFloat

# Nine significant digits distinguish any two float32 values.
MAX_DIGITS = 9
# Numbers from 0.000001 on are written without an exponent.
FIXED_POINT_FROM = -6
CACHED_TEXTS = 4096


class Float32(WrittenFloat):
    """A float32 between 0 and 1. Its text is the shortest decimal that parses to the same value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return shortest_text(float(self))

    __str__ = __repr__


def single(value: float) -> float:
    """Round to the nearest float32."""
    return array("f", (value,))[0]


def ratio(part: int, whole: int) -> Float32:
    """Divide two integers in float32 arithmetic; 0 if `whole` is 0.

    A double has more than twice the precision of a float32, so rounding the quotient of two float32 numbers once more
    gives exactly the float32 quotient.
    """
    return Float32(single(single(part) / single(whole))) if whole else Float32(0.0)


_texts: dict[float, str] = {}


def shortest_text(value: float) -> str:
    text = _texts.get(value)
    if text is None:
        if len(_texts) >= CACHED_TEXTS:
            _texts.clear()
        text = _texts[value] = _made_text(value)
    return text


def _made_text(value: float) -> str:
    """The text of a float32 that is 0, or a quotient of counts: below 2^-64, the shortest may be missed."""
    if value == 0.0:
        return "0.0"
    for decimals in range(MAX_DIGITS):
        text = f"{value:.{decimals}e}"
        if single(float(text)) == value:
            break
    mantissa, _, exponent = text.partition("e")
    if int(exponent) >= FIXED_POINT_FROM:
        return f"{value:.{max(decimals - int(exponent), 1)}f}"
    return f"{mantissa}e{int(exponent)}"
