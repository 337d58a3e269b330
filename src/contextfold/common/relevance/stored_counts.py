"""Counts and lengths as the index of documents stores them, and the tables of their weights. Pure."""

from __future__ import annotations

# A term's occurrences in one section are stored as one byte with three counts, each with a maximum: in the body, in the
# heading, and as parts of identifiers. For the front of a document they are those in the title and in the path.
COUNT_MAX = 15
MARKED_MAX = 3
PARTS_MAX = 3
MARKED_SHIFT, PARTS_SHIFT = 4, 6


def pack_counts(count: int, marked: int, parts: int) -> int:
    return min(count, COUNT_MAX) | min(marked, MARKED_MAX) << MARKED_SHIFT | min(parts, PARTS_MAX) << PARTS_SHIFT


def _weighted(count_weight: int, marked_weight: int, parts_weight: int) -> tuple[int, ...]:
    # In the order of the packed byte, and with few operations, because every command with a question does this.
    others = [
        marked_weight * marked + parts_weight * parts
        for parts in range(PARTS_MAX + 1)
        for marked in range(MARKED_MAX + 1)
    ]
    counts = [count_weight * count for count in range(COUNT_MAX + 1)]
    return tuple([other + count for other in others for count in counts])


# The weights of the packed counts of a section, and of a document's front, in the score of the document.
SECTION_IN_DOCUMENT = _weighted(1, 2, 1)
FRONT_IN_DOCUMENT = _weighted(5, 3, 1)
# Their weights in the score of a section.
SECTION_IN_SECTION = _weighted(1, 12, 1)
FRONT_IN_SECTION = _weighted(3, 1, 1)


# A document's length is stored in a byte: exact below 32 words, then with five significant bits.
EXACT_LENGTHS = 32
MANTISSA_BITS = 5
LONGEST_CLASS = 255


def length_class(words: int) -> int:
    """The length class of a document, one byte. Classes grow with the length."""
    shift = max(words.bit_length() - MANTISSA_BITS, 0)
    return min((shift << MANTISSA_BITS - 1) + (words >> shift), LONGEST_CLASS)


def _class_length(number: int) -> int:
    """The length in the middle of a class."""
    if number < EXACT_LENGTHS:
        return number
    half = EXACT_LENGTHS // 2
    shift = number // half - 1
    return (half + number % half << shift) + (1 << shift >> 1)


CLASS_LENGTHS = tuple(map(_class_length, range(LONGEST_CLASS + 1)))
