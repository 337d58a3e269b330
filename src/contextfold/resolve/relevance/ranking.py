"""Ranks documents and sections for a question. Pure; knows indexes and scores, not files or budgets.

There are two phases. First, documents are nominated by their postings, the rarest term first. When as many postings
were read as there are documents, more frequent terms only change the order of the best 120 documents. Then the sections
of the best 60 documents are scored. Several indexes are ranked as one: their counts and frequencies are added.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
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


class Place(NamedTuple):
    """Where a document is: the number of its index among those that are asked, and its number there."""

    cache: int
    document: int


class RankedSection(NamedTuple):
    """A section with a term. `section` is its position in the document.

    The best section has the lowest `order`, unless the question names a file.
    """

    order: int
    place: Place
    section: int
    score: int


class RankedDocument(NamedTuple):
    place: Place
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
    each term in a section, by document and section. `links` has the best link to each document that has one.
    """

    terms: list[Term]
    documents: list[RankedDocument]
    sections: list[RankedSection]
    sections_of: dict[Place, list[IndexedSection]]
    occurrences: dict[tuple[Place, int], list[tuple[Term, int]]]
    links: dict[Place, _BestLink]
    unmatched: tuple[str, ...]
    document_count: int

    def indexed_section(self, ranked: RankedSection) -> IndexedSection:
        return self.sections_of[ranked.place][ranked.section]


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
    best = {ranked.place: ranked.score for ranked in _best_documents(scores, DOCUMENTS_MAX)}
    named = [place for place in _find_named_documents(question, indexes) if place.document in scores[place.cache]]
    best.update({place: scores[place.cache][place.document] for place in named})
    for place, score in best.items():
        _rank_document(ranking, indexes[place.cache], place, score >> SATURATION_BITS)
    documents = sorted(ranking.documents, key=lambda ranked: (-ranked.score, ranked.place))
    sections = _prefer_further_documents(sorted(ranking.sections))
    return _put_named_first(named, ranking._replace(documents=documents, sections=sections))


def _find_named_documents(question: Question, indexes: Sequence[Index]) -> list[Place]:
    """The documents whose files the question names."""
    named: list[Place] = []
    for name in question.files:
        found = [
            Place(cache, number) for cache, index in enumerate(indexes) for number in index.documents_of_file(name)
        ]
        named += found if len(found) <= SAME_NAME_MAX else []
    return list(dict.fromkeys(named))


def _put_named_first(named: Sequence[Place], ranking: Ranking) -> Ranking:
    """Put the named documents and the best section of each first. Otherwise the order stays."""
    documents = sorted(ranking.documents, key=lambda ranked: ranked.place not in named)
    best: dict[Place, RankedSection] = {}
    for section in ranking.sections:
        if section.place in named:
            best.setdefault(section.place, section)
    sections = [*best.values(), *(section for section in ranking.sections if section not in best.values())]
    return ranking._replace(documents=documents, sections=sections)


def _prefer_further_documents(sections: Sequence[RankedSection]) -> list[RankedSection]:
    """Order the sections anew: those with several better ones in their document count less.

    So a budget shows a section of a further document rather than one more of the same, if their scores are near.
    """
    better: Counter[Place] = Counter()
    reordered = []
    for section in sections:
        is_further = better[section.place] >= SECTIONS_IN_FRONT
        order = -(-section.order * FURTHER_FACTOR // FURTHER_DIVISOR) if is_further else section.order
        reordered.append(section._replace(order=order))
        better[section.place] += 1
    return sorted(reordered)


def _best_documents(scores: _Scores, count: int) -> list[RankedDocument]:
    """The documents with the highest scores. Equal scores are in the order of their places."""
    every = ((-score, cache, document) for cache, in_index in enumerate(scores) for document, score in in_index.items())
    return [RankedDocument(Place(cache, document), -negative) for negative, cache, document in nsmallest(count, every)]


def _nominate(scores: _Scores, indexes: Sequence[Index]) -> tuple[_Scores, _Wanted]:
    """The scores of the best documents, and where these documents are."""
    nominated: _Scores = [{} for _ in indexes]
    wanted: _Wanted = {}
    for (cache, document), score in sorted(_best_documents(scores, NOMINEES_MAX)):
        nominated[cache][document] = score
        segment, ordinal = indexes[cache].locate(document)
        wanted.setdefault((cache, segment.number), []).append(ordinal)
    return nominated, wanted


def _look_up(question: Question, indexes: Sequence[Index], collection: int) -> tuple[list[Term], tuple[str, ...]]:
    """The terms that occur in any index, the rarest first, and the words of all other terms."""
    headings = collection_log2(sum(index.heading_count for index in indexes))
    terms: list[Term] = []
    unmatched: list[str] = []
    for stem, words in question.terms:
        by_index = [index.postings(stem) for index in indexes]
        if not any(by_index):
            unmatched.append(words[0])
            continue
        # All words of a stem have the same number of the stem's documents in a segment.
        in_segments: dict[tuple[int, int], int] = {}
        frequencies = dict.fromkeys(words, 0)
        cost = in_headings = 0
        for cache, in_index in enumerate(by_index):
            for postings in in_index:
                in_segments[cache, postings.segment] = postings.stem_documents
                cost += len(postings.documents)
                in_headings += len(postings.fields.translate(None, UNMARKED))
                if postings.word in frequencies:
                    frequencies[postings.word] += len(postings.documents)
        weights = {word: WORD_WEIGHT * term_weight(collection, count) for word, count in frequencies.items() if count}
        stem_weight = term_weight(collection, sum(in_segments.values()))
        heading_weight = term_weight(headings, in_headings)
        terms.append(Term(stem, words[0], stem_weight, heading_weight, weights, cost, by_index))
    return sorted(terms, key=lambda term: (term.cost, term.stem)), tuple(unmatched)


def _add_scores(term: Term, indexes: Sequence[Index], scores: _Scores, wanted: _Wanted | None = None) -> None:
    """Add a term's part to the scores of all documents, or of the wanted ones. A question spends most of its time here.

    A document's part is that of the stem, with the occurrences of all its words, and those of the question's words.
    """
    for cache, (index, in_index) in enumerate(zip(indexes, scores, strict=True)):
        lengths = index.lengths
        # What `saturation` computes, without a call for each posting.
        factor, base = TF_FACTOR * index.average, AVERAGE_FACTOR * index.average
        occurrences: dict[int, int] = {}
        for postings in term.postings[cache]:
            first = index.segments[postings.segment].first_document
            counted: Iterable[tuple[int, int]] = zip(postings.documents, postings.counts, strict=True)
            if wanted is not None:
                counted = _find_counts(postings, wanted.get((cache, postings.segment), ()))
            weight = term.word_weights.get(postings.word, 0)
            for ordinal, count in counted:
                document = first + ordinal
                occurrences[document] = occurrences.get(document, 0) + count
                if weight:
                    scaled = factor * count
                    score = weight * (
                        (scaled << SATURATION_BITS) // (scaled + base + LENGTH_FACTOR * lengths[document])
                    )
                    in_index[document] = in_index.get(document, 0) + score
        weight = STEM_WEIGHT * term.stem_weight
        for document, count in occurrences.items():
            scaled = factor * count
            score = weight * ((scaled << SATURATION_BITS) // (scaled + base + LENGTH_FACTOR * lengths[document]))
            in_index[document] = in_index.get(document, 0) + score


def _find_counts(postings: Postings, ordinals: Sequence[int]) -> Iterable[tuple[int, int]]:
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
        for index, pairs, in_index in zip(indexes, by_index, scores, strict=True):
            for pair in pairs:
                start = index.segments[pair.segment].first_document
                for ordinal, occurrences in zip(pair.documents, pair.counts, strict=True):
                    score = PAIR_WEIGHT * pair_score(weight, occurrences) << SATURATION_BITS
                    in_index[start + ordinal] = in_index.get(start + ordinal, 0) + score


def _rank_document(ranking: Ranking, index: Index, place: Place, score: int) -> None:
    """Add a document and its sections with a term to the ranking. `score` is that of the document's words."""
    sections = ranking.sections_of[place] = index.sections_of(place.document)
    found = _count_terms(ranking.terms, index, place)
    own_scores: dict[int, int] = {}
    best_text = best_heading = 0
    for number, occurrences in found.items():
        section = sections[number]
        text = sum(_text_scores(occurrences, section, index))
        own_scores[number] = text + HEADING_WEIGHT * _section_heading_score(occurrences, section, index)
        best_text = max(best_text, text)
        with_title = _terms_in(occurrences, _TITLE | _HEADING)
        best_heading = max(best_heading, _heading_score(with_title, section.titled_length, index.titled_average))
    total = score + BEST_SECTION_WEIGHT * best_text + BEST_HEADING_WEIGHT * best_heading
    best = min(own_scores, key=lambda number: (-own_scores[number], number), default=None)
    link_score, link_words = _link_score(ranking.terms, index, place.document)
    ranking.documents.append(RankedDocument(place, total + LINK_WEIGHT * link_score))
    if best is not None and link_score >= LINK_DIVISOR:
        ranking.links[place] = _BestLink(link_score // LINK_DIVISOR, link_words, best)
        own_scores[best] += link_score // LINK_DIVISOR
    for number, occurrences in found.items():
        share = DOCUMENT_WEIGHT + FIRST_SECTION_WEIGHT if number == best else DOCUMENT_WEIGHT
        order = SECTION_WEIGHT * own_scores[number] + share * total
        ranking.sections.append(RankedSection(-order, place, number, own_scores[number]))
        ranking.occurrences[place, number] = occurrences


def _text_scores(occurrences: Sequence[tuple[Term, int]], section: IndexedSection, index: Index) -> list[int]:
    """The score of each term for its occurrences in a section, all fields together."""
    return [
        occurrence_score(term.stem_weight, value >> FIELD_BITS, section.words, index.section_average)
        for term, value in occurrences
    ]


def _section_heading_score(occurrences: Sequence[tuple[Term, int]], section: IndexedSection, index: Index) -> int:
    return _heading_score(_terms_in(occurrences, _HEADING), section.heading_length, index.heading_average)


def _terms_in(occurrences: Sequence[tuple[Term, int]], fields: int) -> list[Term]:
    """The terms that occur in any of these fields."""
    return [term for term, value in occurrences if value & fields]


def _heading_score(terms: Sequence[Term], length: int, average: int) -> int:
    """The score of these terms in a heading of so many different stems."""
    return sum(heading_score(term.heading_weight, len(terms), length, average) for term in terms)


def _link_score(terms: Sequence[Term], index: Index, document: int) -> tuple[int, tuple[str, ...]]:
    """The score of the text of a link to the document that says most of what was asked, and the asked words in it."""
    by_stem = {term.stem: term for term in terms}
    best: tuple[int, tuple[str, ...]] = 0, ()
    for stems in index.link_texts(document):
        named = [by_stem[stem] for stem in stems if stem in by_stem]
        score = _heading_score(named, len(stems), index.titled_average)
        best = max(best, (score, tuple(term.word for term in named)))
    return best


def _count_terms(terms: Sequence[Term], index: Index, place: Place) -> dict[int, list[tuple[Term, int]]]:
    """The occurrences of each term in each section of a document, by the section's position."""
    segment, ordinal = index.locate(place.document)
    numbers = segment.sections_of(ordinal)
    front, first = numbers.start, numbers.start + 1
    found: dict[int, list[tuple[Term, int]]] = {}
    for term in terms:
        in_front = 0
        in_sections: dict[int, int] = {}
        for postings in term.postings[place.cache]:
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


def explain(ranking: Ranking, indexes: Sequence[Index], ranked: RankedSection) -> tuple[WhyTerm, ...]:
    """The contribution of each term and of the heading to a section's score. Their sum is the score."""
    occurrences, section = ranking.occurrences[ranked.place, ranked.section], ranking.indexed_section(ranked)
    index = indexes[ranked.place.cache]
    explained = [
        WhyTerm(term.word, _FIELD_NAMES[value & FIELD_MASK], score)
        for (term, value), score in zip(occurrences, _text_scores(occurrences, section, index), strict=True)
    ]
    if in_heading := len(_terms_in(occurrences, _HEADING)):
        words = f"{in_heading} of {section.heading_length} heading word{'s' if section.heading_length != 1 else ''}"
        by_heading = HEADING_WEIGHT * _section_heading_score(occurrences, section, index)
        explained.append(WhyTerm(words, ("heading",), by_heading))
    link = ranking.links.get(ranked.place)
    if link is not None and link.section == ranked.section:
        explained.append(WhyTerm(f"linked as {' '.join(link.words)}", ("link",), link.score))
    explained.sort(key=lambda term: (-term.score, term.term))
    return tuple(explained)
