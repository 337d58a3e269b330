"""How answers are written: text for a model or a person, or JSON for a program; amounts, shares, counts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)

MICROS_PER_DOLLAR = 1_000_000
# The unit of costs where prices are not known.
TOKENS_WORTH = "input tokens' worth"
# An amount below half a cent is said to be small, and one that no bill would show is none.
HALF_CENT_MICROS = 5_000
MICROS_SHOWN_MIN = 50


def join_blocks(blocks: Iterable[str]) -> str:
    """Blocks of lines, with a blank line between them. Empty ones are left out."""
    joined = ""
    for block in filter(None, blocks):
        joined += ("\n" if joined and not joined.endswith("\n\n") else "") + block
    return joined


def format_count(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 'es' if thing.endswith('ch') else 's'}"


def name_first(names: Sequence[str], most: int) -> str:
    """The first names in one line, which says if there are more."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def format_dollars(micros: int) -> str:
    """An amount of money, the same everywhere."""
    if abs(micros) < MICROS_SHOWN_MIN:
        return "$0"
    sign = "-" if micros < 0 else ""
    if abs(micros) < HALF_CENT_MICROS:
        return f"{sign}<$0.01"
    return f"{sign}${abs(micros) / MICROS_PER_DOLLAR:,.2f}"


def format_share(part: float, whole: float) -> str:
    """A share in percent; one that is not 0 is not shown as 0."""
    rounded = int(100 * part / whole + 0.5) if whole else 0
    return "<1 %" if part and not rounded else f"{rounded} %"
