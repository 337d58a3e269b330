"""The arithmetic of relevance scores, in integers, so that every machine and every Python computes the same. Pure.

A term's weight (idf) is log2(2N + 2) - log2(2·df + 1) in 1024ths of a bit, and at least 16 of them: a word that every
document has says little, but a question may consist of it. A term that occurs tf times in a text of some length scores
idf · tf / (tf + K) with K = k1 · (1 - b + b · length / average), k1 = 7/5 and b = 3/5. In a section the product is
rounded down once, and is at least 1. In a document the fraction is rounded down to 65536ths, and the sum over all terms
is rounded down once more: so the fraction depends on the posting alone and need not be computed for each term.
"""

from __future__ import annotations

SCALE_BITS = 10
# The least weight of a term, in 1024ths of a bit.
WEIGHT_MIN = 16
SATURATION_BITS = 16
# The number of fractional bits of the numbers that are squared.
WORK_BITS = 32

# K times 25 times the average length: 14 · average + 21 · length. Follows from k1 = 7/5 and b = 3/5.
TF_FACTOR = 25
AVERAGE_FACTOR = 14
LENGTH_FACTOR = 21
# A pair of words in headings has no length to compare with: K is a constant.
PAIR_K = 3

# document = 4 · stems + words + 2 · pairs + 4 · best section + 3 · best heading, the title included, + 2 · best link. A
# section scores its text + 3 · its heading, and the best one of each document half of the best link to that. Sections
# are ordered by 20 · section + 4 · document without the link; the best one of each document has one more document, and
# a section of which three of its document are in front counts 19/20. The document's share is small, so that a budget
# shows sections of several documents.
STEM_WEIGHT = 4
WORD_WEIGHT = 1
PAIR_WEIGHT = 2
BEST_SECTION_WEIGHT = 4
SECTION_WEIGHT = 20
HEADING_WEIGHT = 3
BEST_HEADING_WEIGHT = 3
LINK_WEIGHT = 2
LINK_DIVISOR = 2
DOCUMENT_WEIGHT = 4
# For the best section of each document, in addition.
FIRST_SECTION_WEIGHT = 1
SECTIONS_IN_FRONT = 3
FURTHER_FACTOR, FURTHER_DIVISOR = 19, 20

# The largest number of weighted occurrences of one word in one document.
OCCURRENCES_MAX = 255


def log2_fixed(number: int) -> int:
    """log2 of a positive integer in 1024ths, rounded down, by repeated squaring."""
    whole = number.bit_length() - 1
    mantissa = (number << WORK_BITS) >> whole
    fraction = 0
    for _ in range(SCALE_BITS):
        mantissa = mantissa * mantissa >> WORK_BITS
        fraction <<= 1
        if mantissa >> WORK_BITS + 1:
            fraction |= 1
            mantissa >>= 1
    return whole << SCALE_BITS | fraction


def collection_log2(document_count: int) -> int:
    """log2(2N + 2): the part of a term's weight that all terms have in common."""
    return log2_fixed(2 * document_count + 2)


def term_weight(collection: int, document_frequency: int) -> int:
    """The idf of a term, in 1024ths of a bit. `collection` is `collection_log2` of all documents."""
    return max(collection - log2_fixed(2 * document_frequency + 1), WEIGHT_MIN)


def heading_score(weight: int, named: int, length: int, average: int) -> int:
    """idf / (1 + K) times the share of the heading that the question names, `named` stems of `length`; rounded down."""
    fraction = TF_FACTOR * average * named
    return weight * fraction // (((TF_FACTOR + AVERAGE_FACTOR) * average + LENGTH_FACTOR * length) * length)


def average_length(total: int, count: int) -> int:
    """The average in whole words, at least 1."""
    return max(total // count, 1) if count else 1


def occurrence_score(weight: int, occurrences: int, length: int, average: int) -> int:
    """idf · tf / (tf + K), rounded down, and at least 1."""
    scaled = TF_FACTOR * average * occurrences
    return weight * scaled // (scaled + AVERAGE_FACTOR * average + LENGTH_FACTOR * length) or 1


def saturation(occurrences: int, length: int, average: int) -> int:
    """tf / (tf + K) in 65536ths, rounded down."""
    scaled = TF_FACTOR * average * occurrences
    return (scaled << SATURATION_BITS) // (scaled + AVERAGE_FACTOR * average + LENGTH_FACTOR * length)


def pair_score(weight: int, occurrences: int) -> int:
    return weight * occurrences // (occurrences + PAIR_K)
