"""Ranks documents and sections for a question. Pure; knows indexes and scores, not files or budgets.

There are two phases. First, documents are nominated by their postings, the rarest term first. When as many postings
were read as there are documents, more frequent terms only change the order of the best 120 documents. Then the sections
of the best 60 documents are scored. Several indexes are ranked as one: their counts and frequencies are added.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from contextfold.common.question import Question
from contextfold.common.term_scores import (
    AVERAGE_FACTOR,
    BEST_PIECE_WEIGHT,
    BEST_SECTION_WEIGHT,
    FRONT,
    LENGTH_FACTOR,
    PAIR_WEIGHT,
    SATURATION_BITS,
    SECTION_WEIGHT,
    STEM_WEIGHT,
    TF_FACTOR,
    WORD_WEIGHT,
    average_length,
    collection_log2,
    occurrence_score,
    pair_score,
    term_weight,
)
from contextfold.resolve.relevance.answer import WhyTerm
from contextfold.resolve.relevance.index_entries import (
    COUNT_MAX,
    COUNTS_MASK,
    ENTRY_SHIFT,
    FRONT_IN_SECTION,
    SECTION_IN_SECTION,
    pair_key,
    word_of_key,
)
from contextfold.resolve.relevance.index_format import IndexView, Integers, Postings, integers

# Twice these numbers find nothing more in any of the public sets, and take longer. The limit on postings is at least
# the number of documents.
POSTINGS_MAX = 12_000
NOMINEES_MAX = 120
DOCUMENTS_MAX = 60
# With more postings per wanted document, a search in the postings is faster than reading all of them.
SEARCHED_FROM = 10
# The number of bytes of a document's score if the scores of all documents are added as one number.
LANE_BYTES = 8
# If there are this many times more documents than wanted, a sample of the scores shows which scores are high.
SAMPLED_FROM = 16
SAMPLE_PER_WANTED = 8
SAMPLE_SLACK = 10

# The fields in which a term occurs. They are bits below the weighted occurrences in a section.
FIELDS = ("title", "heading", "body", "path", "identifier")
FIELD_BITS = len(FIELDS)
_TITLE, _HEADING, _BODY, _PATH, _IDENTIFIER = (1 << bit for bit in range(FIELD_BITS))
FIELD_MASK = (1 << FIELD_BITS) - 1
_FIELD_NAMES = [tuple(name for bit, name in enumerate(FIELDS) if mask >> bit & 1) for mask in range(FIELD_MASK + 1)]


def _weigh_fields(weights: Sequence[int], count_field: int, marked_field: int) -> list[int]:
    """The weight of each value of packed counts in a section, above the bits of its fields."""
    # Packed counts have four bits, two bits and two bits.
    fields = [
        (count and count_field) | (marked and marked_field) | (parts and _IDENTIFIER)
        for parts in (0, 1, 1, 1)
        for marked in (0, 1, 1, 1)
        for count in (0, *[1] * COUNT_MAX)
    ]
    return [weight << FIELD_BITS | of_fields for weight, of_fields in zip(weights, fields, strict=True)]


_SECTION_WEIGHTS = _weigh_fields(SECTION_IN_SECTION, _BODY, _HEADING)
_FRONT_WEIGHTS = _weigh_fields(FRONT_IN_SECTION, _TITLE, _PATH)


class TermPostings(NamedTuple):
    """The postings of one term of the question.

    `word` is the term in the question's spelling. `cost` is the number of its postings. `by_index` has the postings to
    add in each index, with the weights of their values.
    """

    word: str
    stem_weight: int
    cost: int
    by_index: list[list[tuple[int, Postings]]]


class RankedSection(NamedTuple):
    """A section with a term. `cache` is the number of its index; the best section has the lowest `order`."""

    order: int
    cache: int
    document: int
    section: int
    score: int


class RankedDocument(NamedTuple):
    """A document with its score. `cache` is the number of its index."""

    cache: int
    document: int
    score: int


class Ranking(NamedTuple):
    """The ranked documents and sections, the best first. Only sections with a term of the question are ranked.

    `occurrences` has those in each section, by index and by term. `rows` has the fields of the sections, sorted by all
    of them: there are hundreds, an answer has few of them, and plain tuples are sorted much faster than records.
    """

    terms: list[TermPostings]
    occurrences: list[list[dict[int, int]]]
    documents: list[RankedDocument]
    rows: list[tuple[int, int, int, int, int]]
    unmatched: tuple[str, ...]
    document_count: int

    @property
    def sections(self) -> list[RankedSection]:
        return [RankedSection._make(row) for row in self.rows]


def rank(question: Question, views: Sequence[IndexView]) -> Ranking:
    document_count = sum(view.head.document_count for view in views)
    collection = collection_log2(document_count)
    terms, unmatched = _look_up(question, views, collection)
    left, read = max(POSTINGS_MAX, document_count), 0
    for term in terms:
        left -= term.cost
        if left < 0 and read:
            break
        read += 1
    scores = [
        _scores(view, [weighted for term in terms[:read] for weighted in term.by_index[index]])
        for index, view in enumerate(views)
    ]
    _add_pairs(question, views, collection, scores)
    nominees = _best(scores, NOMINEES_MAX)
    for index in range(len(views)):
        _rescore(terms[read:], nominees, index)
    nominees = {place: score >> SATURATION_BITS for place, score in nominees.items()}
    best = sorted(nominees, key=lambda place: (-nominees[place], place))[:DOCUMENTS_MAX]
    documents: list[RankedDocument] = []
    rows: list[tuple[int, int, int, int, int]] = []
    occurrences = []
    for index, view in enumerate(views):
        wanted = {document: nominees[at, document] for at, document in best if at == index}
        occurrences.append(_count_terms(view, index, terms, sorted(wanted)))
        found = _score_sections(view, [term.stem_weight for term in terms], occurrences[-1])
        for document, score in wanted.items():
            total, ranked = _rank_sections(view, (index, document), score, found)
            documents.append(RankedDocument._make((index, document, total)))
            rows += ranked
    documents.sort(key=lambda found: (-found.score, found.cache, found.document))
    rows.sort()
    return Ranking(terms, occurrences, documents, rows, unmatched, document_count)


def _look_up(
    question: Question, views: Sequence[IndexView], collection: int
) -> tuple[list[TermPostings], tuple[str, ...]]:
    """The terms that occur in any index, the rarest first, and the words of all other terms."""
    terms: list[tuple[int, str, TermPostings]] = []
    unmatched: list[str] = []
    for stem, words in question.terms:
        by_index = [view.terms_of(stem.encode()) for view in views]
        if not any(by_index):
            unmatched.append(words[0])
            continue
        frequency = sum(postings[0].stem_documents for postings in by_index if postings)
        frequencies: dict[bytes, int] = {word.encode(): 0 for word in words}
        for found in by_index:
            for postings in found:
                if postings.ends and (word := word_of_key(postings.key)) in frequencies:
                    frequencies[word] += len(postings.documents)
        stem_weight = term_weight(collection, frequency)
        weights = {word: WORD_WEIGHT * term_weight(collection, count) for word, count in frequencies.items() if count}
        cost = sum(len(postings.documents) for found in by_index for postings in found if postings.ends)
        weighted = [[(_weight(postings, stem_weight, weights), postings) for postings in found] for found in by_index]
        terms.append((cost, stem, TermPostings(words[0], stem_weight, cost, weighted)))
    terms.sort(key=lambda found: found[:2])
    return [term for _, _, term in terms], tuple(unmatched)


def _weight(postings: Postings, stem_weight: int, word_weights: Mapping[bytes, int]) -> int:
    """The weight of the values of postings: of a form of the stem, of the word in the question, or of the excess."""
    if not postings.ends:
        return -STEM_WEIGHT * stem_weight
    return STEM_WEIGHT * stem_weight + word_weights.get(word_of_key(postings.key), 0)


def _scores(view: IndexView, weighted: Sequence[tuple[int, Postings]]) -> list[int]:
    """The scores of all documents. A question spends most of its time here."""
    count = view.head.document_count
    scores = [0] * count
    common = [(weight, postings.all_values) for weight, postings in weighted if postings.all_values is not None]
    if common:
        # The values of all documents are one number with a lane for each document, wide enough for any sum.
        total = sum([weight * int.from_bytes(_lanes(values, count), "little") for weight, values in common])
        scores = integers(memoryview(total.to_bytes(LANE_BYTES * count, "little")), "Q").tolist()
    for weight, postings in weighted:
        if postings.all_values is None:
            for document, value in zip(postings.documents.tolist(), postings.values.tolist(), strict=True):
                scores[document] += weight * value
    return scores


def _lanes(values: memoryview, count: int) -> bytearray:
    lanes = bytearray(LANE_BYTES * count)
    lanes[0::LANE_BYTES] = values[:count]
    lanes[1::LANE_BYTES] = values[count:]
    return lanes


def _add_pairs(question: Question, views: Sequence[IndexView], collection: int, scores: list[list[int]]) -> None:
    for first, second in question.pairs:
        key = pair_key(first, second)[:-1]
        by_index = [view.terms_of(key) for view in views]
        if not any(by_index):
            continue
        frequency = sum(len(found.documents) for postings in by_index for found in postings)
        weight = term_weight(collection, frequency)
        for postings, found in zip(by_index, scores, strict=True):
            for pair in postings:
                for document, occurrences in zip(pair.documents, pair.values, strict=True):
                    found[document] += PAIR_WEIGHT * pair_score(weight, occurrences) << SATURATION_BITS


def _best(scores: list[list[int]], count: int) -> dict[tuple[int, int], int]:
    """The documents with the highest scores, as index and number. Equal scores are in that order."""
    every = [score for found in scores for score in found] if len(scores) > 1 else scores[0]
    least = 1
    if len(every) > SAMPLED_FROM * count:
        # The threshold is so low in a sample that probably at least `count` scores are higher; if not, all are sorted.
        sample = sorted(every[:: len(every) // (SAMPLE_PER_WANTED * count)], reverse=True)
        least = max(sample[count * len(sample) // len(every) + SAMPLE_SLACK], least)
    chosen = _at_least(scores, least)
    if len(chosen) < count and least > 1:
        chosen = _at_least(scores, 1)
    chosen.sort()
    return {(index, document): -negative for negative, index, document in chosen[:count]}


def _at_least(scores: list[list[int]], least: int) -> list[tuple[int, int, int]]:
    chosen = []
    for index, found in enumerate(scores):
        document = -1
        # Looking the few high scores up again is faster than counting all.
        for score in [score for score in found if score >= least]:
            document = found.index(score, document + 1)
            chosen.append((-score, index, document))
    return chosen


def _rescore(terms: Sequence[TermPostings], nominees: dict[tuple[int, int], int], index: int) -> None:
    """Add the parts of frequent terms only to the scores of the nominees of one index."""
    wanted = sorted(document for at, document in nominees if at == index)
    among = frozenset(wanted)
    sums = [0] * len(wanted)
    found: dict[int, int] = {}
    for term in terms:
        for weight, postings in term.by_index[index]:
            values = postings.all_values
            if values is None:
                for document, at in _places(postings.documents, wanted, among):
                    found[document] = found.get(document, 0) + weight * postings.values[at]
            else:
                high = len(values) // 2
                sums = [
                    added + weight * (values[document] | values[high + document] << 8)
                    for added, document in zip(sums, wanted, strict=True)
                ]
    for added, document in zip(sums, wanted, strict=True):
        nominees[index, document] += added + found.get(document, 0)


def _places(documents: Integers, wanted: list[int], among: frozenset[int]) -> list[tuple[int, int]]:
    """The wanted documents that are among these, with their positions. Both lists are in ascending order.

    `among` is the set of the wanted documents.
    """
    count = len(documents)
    if count < SEARCHED_FROM * len(wanted):
        return [
            (document, bisect_left(documents, document)) for document in sorted(among.intersection(documents.tolist()))
        ]
    found = []
    at = 0
    for document in wanted:
        at = bisect_left(documents, document, at)
        if at == count:
            break
        if documents[at] == document:
            found.append((document, at))
    return found


def _count_terms(view: IndexView, index: int, terms: list[TermPostings], documents: list[int]) -> list[dict[int, int]]:
    """For each term, its occurrences in each section of the documents, which are in ascending order."""
    sections = {document: view.sections_of(document) for document in documents}
    among = frozenset(documents)
    occurrences_of_terms = []
    for term in terms:
        occurrences: dict[int, int] = {}
        fronts: dict[int, int] = {}
        for _, postings in term.by_index[index]:
            ends, entries = postings.ends, postings.entries
            for document, at in _places(postings.documents, documents, among) if ends else ():
                before = sections[document].start - (FRONT + 1)
                for entry in entries[ends[at - 1] if at else 0 : ends[at]].tolist():
                    if entry > COUNTS_MASK:
                        section, found = before + (entry >> ENTRY_SHIFT), _SECTION_WEIGHTS[entry & COUNTS_MASK]
                        occurrences[section] = (
                            _add_occurrences(occurrences[section], found) if section in occurrences else found
                        )
                    else:
                        found = _FRONT_WEIGHTS[entry]
                        fronts[document] = _add_occurrences(fronts[document], found) if document in fronts else found
        for document, found in fronts.items():
            for section in sections[document]:
                occurrences[section] = (
                    _add_occurrences(occurrences[section], found) if section in occurrences else found
                )
        occurrences_of_terms.append(occurrences)
    return occurrences_of_terms


def _add_occurrences(one: int, other: int) -> int:
    """The sum of the occurrences, with the fields of both."""
    return (one >> FIELD_BITS) + (other >> FIELD_BITS) << FIELD_BITS | (one | other) & FIELD_MASK


def _score_sections(view: IndexView, weights: list[int], occurrences_of_terms: list[dict[int, int]]) -> dict[int, int]:
    """The score of each section that has any term."""
    lengths = view.column("section_words")
    average = average_length(view.head.section_words, view.head.section_count)
    factor, base = TF_FACTOR * average, AVERAGE_FACTOR * average
    scores: dict[int, int] = {}
    for weight, occurrences in zip(weights, occurrences_of_terms, strict=True):
        for section, value in occurrences.items():
            scaled = factor * (value >> FIELD_BITS)
            # The same as `occurrence_score`.
            score = weight * scaled // (scaled + base + LENGTH_FACTOR * lengths[section]) or 1
            scores[section] = scores.get(section, 0) + score
    return scores


def _rank_sections(
    view: IndexView, place: tuple[int, int], score: int, scores: Mapping[int, int]
) -> tuple[int, list[tuple[int, int, int, int, int]]]:
    """The total score of a document, and the fields of its sections with a term."""
    numbers = view.sections_of(place[1])
    headings = view.column("section_headings")[numbers.start : numbers.stop].tolist()
    scored = [
        (section, found, heading)
        for section, heading in zip(numbers, headings, strict=True)
        if (found := scores.get(section))
    ]
    # The best score among the pieces below one heading.
    best: dict[int, int] = {}
    for _, found, heading in scored:
        if found > best.get(heading, 0):
            best[heading] = found
    total = score + BEST_SECTION_WEIGHT * max(best.values(), default=0)
    cache, document = place
    return total, [
        (-(SECTION_WEIGHT * found + BEST_PIECE_WEIGHT * best[heading] + total), cache, document, section, found)
        for section, found, heading in scored
    ]


def explain(ranking: Ranking, views: Sequence[IndexView], section: RankedSection) -> tuple[WhyTerm, ...]:
    """The contribution of each term to a section's score. Their sum is the score."""
    view = views[section.cache]
    average = average_length(view.head.section_words, view.head.section_count)
    length = view.column("section_words")[section.section]
    explained = []
    for term, occurrences in zip(ranking.terms, ranking.occurrences[section.cache], strict=True):
        value = occurrences.get(section.section)
        if value is not None:
            score = occurrence_score(term.stem_weight, value >> FIELD_BITS, length, average)
            explained.append(WhyTerm._make((term.word, _FIELD_NAMES[value & FIELD_MASK], score)))
    explained.sort(key=lambda found: (-found.score, found.term))
    return tuple(explained)
