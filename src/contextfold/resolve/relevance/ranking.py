"""Ranks documents and sections for a question. Pure; knows indexes and scores, not files or budgets.

There are two phases. First, documents are nominated by their postings, the rarest term first. When as many postings
were read as there are documents, more frequent terms only change the order of the best 120 documents. Then the sections
of the best 60 documents are scored. Several indexes are ranked as one: their counts and frequencies are added.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import NamedTuple

from contextfold.common.question import Question
from contextfold.common.term_scores import (
    AVERAGE_FACTOR,
    BEST_HEADING_WEIGHT,
    BEST_SECTION_WEIGHT,
    DOCUMENT_WEIGHT,
    FIRST_SECTION_WEIGHT,
    FURTHER_DIVISOR,
    FURTHER_FACTOR,
    HEADING_WEIGHT,
    LENGTH_FACTOR,
    LINK_DIVISOR,
    LINK_WEIGHT,
    PAIR_WEIGHT,
    SATURATION_BITS,
    SECTION_WEIGHT,
    SECTIONS_IN_FRONT,
    STEM_WEIGHT,
    TF_FACTOR,
    WORD_WEIGHT,
    collection_log2,
    heading_score,
    occurrence_score,
    pair_score,
    term_weight,
)
from contextfold.resolve.index import SAME_NAME_MAX, Index, IndexedSection, Postings
from contextfold.resolve.relevance.answer import WhyTerm
from contextfold.resolve.relevance.field_counts import (
    COUNT_MAX,
    FRONT_IN_SECTION,
    SECTION_IN_SECTION,
    UNMARKED,
    pair_key,
)

# Twice these numbers find nothing more in any of the public sets, and take longer. The limit on postings is at least
# the number of documents.
POSTINGS_MAX = 12_000
NOMINEES_MAX = 120
DOCUMENTS_MAX = 60

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
_FRONT_WEIGHTS = _weigh_fields(FRONT_IN_SECTION, _PATH, _TITLE)


class Term(NamedTuple):
    """A term of the question. `word` is its spelling there. `word_weights` has the weights of the question's words with
    the same stem. `postings` has those of all words with that stem, for each index. `cost` is the number of postings.
    `heading_weight` is the weight of the stem among headings and titles.
    """

    stem: str
    word: str
    stem_weight: int
    heading_weight: int
    word_weights: Mapping[str, int]
    cost: int
    postings: list[list[Postings]]


class RankedSection(NamedTuple):
    """A section with a term. `cache` is the number of its index, `section` its position in the document.

    The best section has the lowest `order`, unless the question names a file.
    """

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


class _BestLink(NamedTuple):
    """The text of a link to a document that says most of what was asked: the words of the question in it."""

    score: int
    words: tuple[str, ...]
    # The best section of the document, which is shown for it.
    section: int


class Ranking(NamedTuple):
    """The ranked documents and sections, the best first. Only sections with a term of the question are ranked.

    `sections_of` has all sections of each ranked document. `occurrences` has the weighted occurrences and fields of
    each term in a section, by index, document and section. `links` has the best link to each document that has one.
    """

    terms: list[Term]
    documents: list[RankedDocument]
    sections: list[RankedSection]
    sections_of: dict[tuple[int, int], list[IndexedSection]]
    occurrences: dict[tuple[int, int, int], list[tuple[Term, int]]]
    links: dict[tuple[int, int], _BestLink]
    unmatched: tuple[str, ...]
    document_count: int


# The scores of documents by number, for each index.
_Scores = list[dict[int, int]]
# The documents that scores are computed for, by index and segment: their ordinals in ascending order.
_Wanted = dict[tuple[int, int], list[int]]


def rank(question: Question, indexes: Sequence[Index]) -> Ranking:
    document_count = sum(index.document_count for index in indexes)
    collection = collection_log2(document_count)
    terms, unmatched = _look_up(question, indexes, collection)
    scores: _Scores = [{} for _ in indexes]
    left, read = max(POSTINGS_MAX, document_count), 0
    for term in terms:
        left -= term.cost
        if left < 0 and read:
            break
        _add_scores(term, indexes, scores)
        read += 1
    _add_pairs(question, indexes, collection, scores)
    if read < len(terms):
        scores, wanted = _nominate(scores, indexes)
        for term in terms[read:]:
            _add_scores(term, indexes, scores, wanted)
    ranking = Ranking(terms, [], [], {}, {}, {}, unmatched, document_count)
    best = {(cache, document): score for score, cache, document in _best(scores, DOCUMENTS_MAX)}
    named = [(cache, document) for cache, document in _named_documents(question, indexes) if document in scores[cache]]
    best.update({(cache, document): scores[cache][document] for cache, document in named})
    for place, score in best.items():
        _rank_document(ranking, indexes[place[0]], place, score >> SATURATION_BITS)
    documents = sorted(ranking.documents, key=lambda found: (-found.score, found.cache, found.document))
    sections = _prefer_further_documents(sorted(ranking.sections))
    return _put_first(named, ranking._replace(documents=documents, sections=sections))


def _named_documents(question: Question, indexes: Sequence[Index]) -> list[tuple[int, int]]:
    """The documents whose files the question names: index and number."""
    named: list[tuple[int, int]] = []
    for name in question.files:
        found = [(cache, number) for cache, index in enumerate(indexes) for number in index.documents_of_file(name)]
        named += found if len(found) <= SAME_NAME_MAX else []
    return list(dict.fromkeys(named))


def _put_first(named: Sequence[tuple[int, int]], ranking: Ranking) -> Ranking:
    """Put the named documents and the best section of each first. Otherwise the order stays."""
    if not named:
        return ranking
    documents = sorted(ranking.documents, key=lambda found: (found.cache, found.document) not in named)
    best: dict[tuple[int, int], RankedSection] = {}
    for section in ranking.sections:
        if (section.cache, section.document) in named:
            best.setdefault((section.cache, section.document), section)
    sections = [*best.values(), *(section for section in ranking.sections if section not in best.values())]
    return ranking._replace(documents=documents, sections=sections)


def _prefer_further_documents(sections: Sequence[RankedSection]) -> list[RankedSection]:
    """Order the sections anew: those with several better ones in their document count less.

    So a budget shows a section of a further document rather than one more of the same, if their scores are near.
    """
    better: dict[tuple[int, int], int] = {}
    reordered = []
    for section in sections:
        document = section.cache, section.document
        better[document] = better.get(document, -1) + 1
        if better[document] >= SECTIONS_IN_FRONT:
            section = section._replace(order=-(-section.order * FURTHER_FACTOR // FURTHER_DIVISOR))  # noqa: PLW2901
        reordered.append(section)
    return sorted(reordered)


def _best(scores: _Scores, count: int) -> list[tuple[int, int, int]]:
    """The documents with the highest scores: score, index and number. Equal scores are in the order of the latter."""
    every = ((-score, cache, document) for cache, found in enumerate(scores) for document, score in found.items())
    return [(-negative, cache, document) for negative, cache, document in nsmallest(count, every)]


def _nominate(scores: _Scores, indexes: Sequence[Index]) -> tuple[_Scores, _Wanted]:
    """The scores of the best documents, and where these documents are."""
    nominated: _Scores = [{} for _ in indexes]
    wanted: _Wanted = {}
    for score, cache, document in sorted(_best(scores, NOMINEES_MAX), key=lambda found: found[1:]):
        nominated[cache][document] = score
        segment, ordinal = indexes[cache].place_of(document)
        wanted.setdefault((cache, segment.number), []).append(ordinal)
    return nominated, wanted


def _look_up(question: Question, indexes: Sequence[Index], collection: int) -> tuple[list[Term], tuple[str, ...]]:
    """The terms that occur in any index, the rarest first, and the words of all other terms."""
    headings = collection_log2(sum(index.heading_count for index in indexes))
    terms: list[tuple[int, str, Term]] = []
    unmatched: list[str] = []
    for stem, words in question.terms:
        found = [index.postings(stem) for index in indexes]
        if not any(found):
            unmatched.append(words[0])
            continue
        # All words of a stem have the same number of the stem's documents in a segment.
        in_segments = {(cache, one.segment): one.stem_documents for cache, every in enumerate(found) for one in every}
        frequencies = dict.fromkeys(words, 0)
        cost = in_headings = 0
        for one in (one for every in found for one in every):
            cost += len(one.documents)
            in_headings += len(one.fields.translate(None, UNMARKED))
            if one.word in frequencies:
                frequencies[one.word] += len(one.documents)
        weights = {word: WORD_WEIGHT * term_weight(collection, count) for word, count in frequencies.items() if count}
        stem_weight = term_weight(collection, sum(in_segments.values()))
        heading_weight = term_weight(headings, in_headings)
        terms.append((cost, stem, Term(stem, words[0], stem_weight, heading_weight, weights, cost, found)))
    terms.sort(key=lambda found: found[:2])
    return [term for _, _, term in terms], tuple(unmatched)


def _add_scores(term: Term, indexes: Sequence[Index], scores: _Scores, wanted: _Wanted | None = None) -> None:
    """Add a term's part to the scores of all documents, or of the wanted ones. A question spends most of its time here.

    A document's part is that of the stem, with the occurrences of all its words, and those of the question's words.
    """
    for cache, (index, found) in enumerate(zip(indexes, scores, strict=True)):
        lengths = index.lengths
        # What `saturation` computes, without a call for each posting.
        factor, base = TF_FACTOR * index.average, AVERAGE_FACTOR * index.average
        occurrences: dict[int, int] = {}
        for postings in term.postings[cache]:
            first = index.segments[postings.segment].first_document
            counted: Iterable[tuple[int, int]] = zip(postings.documents, postings.counts, strict=True)
            if wanted is not None:
                counted = _only(postings, wanted.get((cache, postings.segment), ()))
            weight = term.word_weights.get(postings.word, 0)
            for ordinal, count in counted:
                document = first + ordinal
                occurrences[document] = occurrences.get(document, 0) + count
                if weight:
                    scaled = factor * count
                    score = weight * (
                        (scaled << SATURATION_BITS) // (scaled + base + LENGTH_FACTOR * lengths[document])
                    )
                    found[document] = found.get(document, 0) + score
        weight = STEM_WEIGHT * term.stem_weight
        for document, count in occurrences.items():
            scaled = factor * count
            score = weight * ((scaled << SATURATION_BITS) // (scaled + base + LENGTH_FACTOR * lengths[document]))
            found[document] = found.get(document, 0) + score


def _only(postings: Postings, ordinals: Sequence[int]) -> Iterable[tuple[int, int]]:
    """The wanted documents among the postings, each with its count."""
    documents, counts = postings.documents, postings.counts
    at = 0
    for ordinal in ordinals:
        at = bisect_left(documents, ordinal, at)
        if at < len(documents) and documents[at] == ordinal:
            yield ordinal, counts[at]


def _add_pairs(question: Question, indexes: Sequence[Index], collection: int, scores: _Scores) -> None:
    for first, second in question.pairs:
        by_index = [index.postings(pair_key(first, second)) for index in indexes]
        weight = term_weight(collection, sum(len(pair.documents) for pairs in by_index for pair in pairs))
        for index, pairs, found in zip(indexes, by_index, scores, strict=True):
            for pair in pairs:
                start = index.segments[pair.segment].first_document
                for ordinal, occurrences in zip(pair.documents, pair.counts, strict=True):
                    score = PAIR_WEIGHT * pair_score(weight, occurrences) << SATURATION_BITS
                    found[start + ordinal] = found.get(start + ordinal, 0) + score


def _rank_document(ranking: Ranking, index: Index, place: tuple[int, int], score: int) -> None:
    """Add a document and its sections with a term to the ranking."""
    cache, document = place
    sections = ranking.sections_of[place] = index.sections_of(document)
    found = _count_terms(ranking.terms, index, place)
    by_text = {
        section: sum(_text_scores(occurrences, sections[section], index)) for section, occurrences in found.items()
    }
    by_heading = {
        section: _heading_score(occurrences, sections[section], index) for section, occurrences in found.items()
    }
    with_title = (_titled_score(occurrences, sections[section], index) for section, occurrences in found.items())
    total = score + BEST_SECTION_WEIGHT * max(by_text.values(), default=0)
    total += BEST_HEADING_WEIGHT * max(with_title, default=0)
    own_scores = {section: by_text[section] + HEADING_WEIGHT * by_heading[section] for section in found}
    first = min(own_scores, key=lambda section: (-own_scores[section], section), default=None)
    score, words = _link_score(ranking.terms, index, document)
    ranking.documents.append(RankedDocument(cache, document, total + LINK_WEIGHT * score))
    if first is not None and score >= LINK_DIVISOR:
        ranking.links[place] = _BestLink(score // LINK_DIVISOR, words, first)
        own_scores[first] += score // LINK_DIVISOR
    for section, occurrences in found.items():
        own = own_scores[section]
        order = SECTION_WEIGHT * own + (DOCUMENT_WEIGHT + (section == first and FIRST_SECTION_WEIGHT)) * total
        ranking.sections.append(RankedSection(-order, cache, document, section, own))
        ranking.occurrences[cache, document, section] = occurrences


def _text_scores(occurrences: Sequence[tuple[Term, int]], section: IndexedSection, index: Index) -> list[int]:
    """The score of each term for its occurrences in a section, all fields together."""
    return [
        occurrence_score(term.stem_weight, value >> FIELD_BITS, section.words, index.section_average)
        for term, value in occurrences
    ]


def _heading_score(occurrences: Sequence[tuple[Term, int]], section: IndexedSection, index: Index) -> int:
    """The score of all terms for their occurrences in the heading of a section."""
    weights = [term.heading_weight for term, value in occurrences if value & _HEADING]
    length = section.heading_length
    return sum(heading_score(weight, len(weights), length, index.heading_average) for weight in weights)


def _titled_score(occurrences: Sequence[tuple[Term, int]], section: IndexedSection, index: Index) -> int:
    """The score of all terms for their occurrences in the heading of a section and the title together."""
    weights = [term.heading_weight for term, value in occurrences if value & (_TITLE | _HEADING)]
    length = section.titled_length
    return sum(heading_score(weight, len(weights), length, index.titled_average) for weight in weights)


def _link_score(terms: Sequence[Term], index: Index, document: int) -> tuple[int, tuple[str, ...]]:
    """The score of the text of a link to the document that says most of what was asked, and the asked words in it."""
    by_stem = {term.stem: term for term in terms}
    best: tuple[int, tuple[str, ...]] = 0, ()
    for stems in index.link_texts(document):
        named = [by_stem[stem] for stem in stems if stem in by_stem]
        length, average = len(stems), index.titled_average
        score = sum(heading_score(term.heading_weight, len(named), length, average) for term in named)
        best = max(best, (score, tuple(term.word for term in named)))
    return best


def _count_terms(terms: Sequence[Term], index: Index, place: tuple[int, int]) -> dict[int, list[tuple[Term, int]]]:
    """The occurrences of each term in each section of a document, by the section's position."""
    cache, document = place
    segment, ordinal = index.place_of(document)
    numbers = segment.sections_of(ordinal)
    front, first = numbers.start, numbers.start + 1
    found: dict[int, list[tuple[Term, int]]] = {}
    for term in terms:
        in_front = 0
        in_sections: dict[int, int] = {}
        for postings in term.postings[cache]:
            if postings.segment != segment.number:
                continue
            at = bisect_left(postings.sections, front)
            end = bisect_left(postings.sections, numbers.stop, at)
            for number, packed in zip(postings.sections[at:end], postings.fields[at:end], strict=True):
                if number == front:
                    in_front = _add_occurrences(in_front, _FRONT_WEIGHTS[packed])
                else:
                    value = _add_occurrences(in_sections.get(number, 0), _SECTION_WEIGHTS[packed])
                    in_sections[number] = value
        for number in numbers[1:] if in_front else in_sections:
            value = _add_occurrences(in_sections.get(number, 0), in_front)
            found.setdefault(number - first, []).append((term, value))
    return found


def _add_occurrences(one: int, other: int) -> int:
    """The sum of the occurrences, with the fields of both."""
    return (one >> FIELD_BITS) + (other >> FIELD_BITS) << FIELD_BITS | (one | other) & FIELD_MASK


def explain(ranking: Ranking, indexes: Sequence[Index], section: RankedSection) -> tuple[WhyTerm, ...]:
    """The contribution of each term and of the heading to a section's score. Their sum is the score."""
    _, cache, document, number, _ = section
    occurrences, found = ranking.occurrences[cache, document, number], ranking.sections_of[cache, document][number]
    explained = [
        WhyTerm(term.word, _FIELD_NAMES[value & FIELD_MASK], score)
        for (term, value), score in zip(occurrences, _text_scores(occurrences, found, indexes[cache]), strict=True)
    ]
    named = sum(1 for _, value in occurrences if value & _HEADING)
    if named:
        words = f"{named} of {found.heading_length} heading word{'s' if found.heading_length != 1 else ''}"
        by_heading = HEADING_WEIGHT * _heading_score(occurrences, found, indexes[cache])
        explained.append(WhyTerm(words, FIELDS[1:2], by_heading))
    link = ranking.links.get((cache, document))
    if link is not None and link.section == number:
        explained.append(WhyTerm(f"linked as {' '.join(link.words)}", ("link",), link.score))
    explained.sort(key=lambda found: (-found.score, found.term))
    return tuple(explained)
