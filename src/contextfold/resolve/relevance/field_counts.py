"""The packed counts of a word in a section, one byte, and their weights in scores. Pure.

Builds and questions both use this module.
"""

from __future__ import annotations

# The stem of a pair has this between its stems. No word contains it.
PAIR_JOINT = " "


def pair_key(first_stem: str, second_stem: str) -> str:
    return first_stem + PAIR_JOINT + second_stem


# A term's occurrences in one section are stored as one byte with three counts, each with a maximum: in the body, in the
# heading, and as parts of identifiers. For the front of a document they are those in the path, in the title, and as
# parts of identifiers in the path. Parts of identifiers in a heading or a title count like its words.
COUNT_MAX = 15
MARKED_MAX = 3
PARTS_MAX = 3
MARKED_SHIFT, PARTS_SHIFT = 4, 6


def pack_counts(count: int, marked: int, parts: int) -> int:
    return min(count, COUNT_MAX) | min(marked, MARKED_MAX) << MARKED_SHIFT | min(parts, PARTS_MAX) << PARTS_SHIFT


def _weigh_counts(count_weight: int, marked_weight: int, parts_weight: int) -> tuple[int, ...]:
    """The weight of each packed byte."""
    return tuple(
        count_weight * count + marked_weight * marked + parts_weight * parts
        for parts in range(PARTS_MAX + 1)
        for marked in range(MARKED_MAX + 1)
        for count in range(COUNT_MAX + 1)
    )


# The weights of the packed counts of a section, and of a document's front, in the score of the document.
SECTION_IN_DOCUMENT = _weigh_counts(1, 2, 1)
FRONT_IN_DOCUMENT = _weigh_counts(3, 5, 1)
# Their weights in the score of a section.
SECTION_IN_SECTION = _weigh_counts(1, 3, 1)
FRONT_IN_SECTION = _weigh_counts(1, 3, 1)
# The packed counts without an occurrence in the heading or the title.
UNMARKED = bytes(packed for packed in range(256) if not packed >> MARKED_SHIFT & MARKED_MAX)
