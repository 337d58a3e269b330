"""Single-precision ratios and their shortest decimal text.

It uses integer arithmetic, so the digits do not depend on the C library, the locale or double rounding.
"""

from __future__ import annotations

import sys

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
    from array import array

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
    if value == 0.0:
        return "0.0"
    digits, exponent = _shortest_digits(value)
    if exponent >= 0:
        return digits.ljust(exponent + 1, "0") + ".0"
    if exponent >= FIXED_POINT_FROM:
        return "0." + "0" * (-exponent - 1) + digits
    fraction = "." + digits[1:] if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{exponent}"


def _shortest_digits(value: float) -> tuple[str, int]:
    """The digits d₁d₂… and the exponent e of d₁.d₂… × 10^e, the shortest decimal that rounds to `value`.

    Of several decimals with the same number of digits, it is the nearest.
    """
    from array import array

    bits = int.from_bytes(array("f", (value,)).tobytes(), sys.byteorder)
    biased, fraction = bits >> 23 & 0xFF, bits & 0x7FFFFF
    mantissa, power = (fraction, -149) if biased == 0 else (fraction | 0x800000, biased - 150)
    # The value and the ends of the interval that rounds to it, in quarters of the last place.
    exact, high = 4 * mantissa, 4 * mantissa + 2
    low = exact - (1 if fraction == 0 and biased > 1 else 2)
    closed = mantissa % 2 == 0
    denominator = 1 << (2 - power)
    first_exponent = _decimal_exponent(exact, denominator)
    for count in range(1, MAX_DIGITS + 1):
        scale = 10 ** (count - 1 - first_exponent)
        floor = exact * scale // denominator
        inside = [
            digits
            for digits in (floor, floor + 1)
            if low * scale < digits * denominator < high * scale
            or (closed and digits * denominator in (low * scale, high * scale))
        ]
        if inside:
            digits = min(inside, key=lambda digits: (abs(digits * denominator - exact * scale), digits % 2))
            text = str(digits)
            return text.rstrip("0"), first_exponent + len(text) - count
    raise AssertionError(f"{MAX_DIGITS} digits always suffice")


def _decimal_exponent(numerator: int, denominator: int) -> int:
    """e with 10^e ≤ numerator/denominator < 10^(e+1), for a fraction of at most 1."""
    exponent = 0
    while numerator * 10**-exponent < denominator:
        exponent -= 1
    return exponent
