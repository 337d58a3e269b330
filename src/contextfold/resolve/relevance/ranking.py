"""Which documents and sections answer a question best. Pure; knows indexes and scores, not files or budgets.

Two phases keep the work small. Documents are nominated by their postings, rarest term first; commoner terms, once
100,000 postings were read, change the order of 400 nominees only. Then the sections of the best 100 documents are
scored. Several indexes are ranked together as if they were one: document counts and frequencies are summed.
"""

from __future__ import annotations

from bisect import bisect_left

from contextfold.common.record import Record
from contextfold.resolve.relevance.index.index_format import SWAP, IndexView, Postings, integers
from contextfold.resolve.relevance.question import Question
from contextfold.resolve.relevance.term_keys import pair_key, word_of_key
from contextfold.resolve.relevance.term_scores import (
    AVERAGE_FACTOR,
    BEST_PIECE_WEIGHT,
    BEST_SECTION_WEIGHT,
    FRONT,
    FRONT_IN_SECTION,
    LENGTH_FACTOR,
    PAIR_WEIGHT,
    SATURATION_BITS,
    SECTION_IN_SECTION,
    SECTION_WEIGHT,
    STEM_WEIGHT,
    TF_FACTOR,
    WORD_WEIGHT,
    average_length,
    occurrence_score,
    pair_score,
    term_weight,
    unpack_counts,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

POSTINGS_MAX = 100_000
NOMINEES_MAX = 400
DOCUMENTS_MAX = 100
LANE_BYTES = 8  # of a document's score, where the scores of all documents are added up as one number
SAMPLED_FROM = 16  # times as many documents as are wanted: from there on a sample tells which scores are high
SAMPLE_SLACK = 8

# The fields in which a term occurred, as bits below the weighted occurrences of a section.
FIELDS = ("title", "heading", "body", "path", "identifier")
FIELD_BITS = len(FIELDS)
_TITLE, _HEADING, _BODY, _PATH, _IDENTIFIER = (1 << bit for bit in range(FIELD_BITS))
FIELD_MASK = (1 << FIELD_BITS) - 1


def _noted(weights: Sequence[int], count_field: int, marked_field: int) -> tuple[int, ...]:
    """For each packed counts: their weight in a section, above the bits of their fields."""
    noted = []
    for packed, weight in enumerate(weights):
        count, marked, parts = unpack_counts(packed)
        fields = (count_field if count else 0) | (marked_field if marked else 0) | (_IDENTIFIER if parts else 0)
        noted.append(weight << FIELD_BITS | fields)
    return tuple(noted)


_NOTED_SECTION = _noted(SECTION_IN_SECTION, _BODY, _HEADING)
_NOTED_FRONT = _noted(FRONT_IN_SECTION, _TITLE, _PATH)


class TermPostings(Record):
    """A term of the question in all indexes."""

    word: str  # as typed
    stem_weight: int
    cost: int  # how many postings there are to read
    by_index: list[list[tuple[int, Postings]]]  # what to add up in each index, with the weight of its values


class RankedSection(Record):
    cache: int  # which of the indexes that were asked
    document: int
    section: int
    score: int
    order: int  # what sections are ordered by
    terms: Mapping[int, int]  # the noted occurrences in the section, by the number of the term


class RankedDocument(Record):
    cache: int  # which of the indexes that were asked
    document: int
    score: int


class Ranking(Record):
    terms: list[TermPostings]
    documents: list[RankedDocument]  # best first
    sections: list[RankedSection]  # best first; only those that have a term
    unmatched: tuple[str, ...]
    document_count: int


class ScoredTerm(Record):
    """How much one term contributed to a section's score, and where in the section it occurred."""

    word: str
    fields: tuple[str, ...]
    score: int


def rank(question: Question, views: Sequence[IndexView]) -> Ranking:
    document_count = sum(view.head.document_count for view in views)
    terms, unmatched = _look_up(question, views, document_count)
    left, read = POSTINGS_MAX, 0
    for term in terms:
        left -= term.cost
        if left < 0 and read:
            break
        read += 1
    scores = [
        _scores(view, [weighted for term in terms[:read] for weighted in term.by_index[index]])
        for index, view in enumerate(views)
    ]
    _add_pairs(question, views, document_count, scores)
    nominees = _best(scores, NOMINEES_MAX)
    for term in terms[read:]:
        _rescore(term, nominees)
    nominees = {place: score >> SATURATION_BITS for place, score in nominees.items()}
    best = sorted(nominees, key=lambda place: (-nominees[place], place))[:DOCUMENTS_MAX]
    documents, sections = _with_sections(views, terms, {place: nominees[place] for place in best})
    return Ranking(terms, documents, sections, unmatched, document_count)


def _look_up(
    question: Question, views: Sequence[IndexView], document_count: int
) -> tuple[list[TermPostings], tuple[str, ...]]:
    """The terms that occur anywhere, rarest first; and the words of those that do not."""
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
        stem_weight = term_weight(document_count, frequency)
        weights = {
            word: WORD_WEIGHT * term_weight(document_count, count) for word, count in frequencies.items() if count
        }
        cost = sum(len(postings.documents) for found in by_index for postings in found if postings.ends)
        weighted = [[(_weight(postings, stem_weight, weights), postings) for postings in found] for found in by_index]
        terms.append((cost, stem, TermPostings(words[0], stem_weight, cost, weighted)))
    terms.sort(key=lambda found: found[:2])
    return [term for _, _, term in terms], tuple(unmatched)


def _weight(postings: Postings, stem_weight: int, word_weights: Mapping[bytes, int]) -> int:
    """What the values of these postings count: as a form of the stem, as the very word, or as what is too much."""
    if not postings.ends:
        return -STEM_WEIGHT * stem_weight
    return STEM_WEIGHT * stem_weight + word_weights.get(word_of_key(postings.key), 0)


def _scores(view: IndexView, weighted: Sequence[tuple[int, Postings]]) -> list[int]:
    """Every document's score. Most of a question's time goes by here."""
    count = view.head.document_count
    scores = [0] * count
    common = [(weight, postings.all_values) for weight, postings in weighted if postings.all_values is not None]
    if common:
        # Values of all documents are one number with a lane for each document; no lane can overflow into the next.
        total = sum([weight * int.from_bytes(_lanes(values, count), "little") for weight, values in common])
        scores = integers(memoryview(total.to_bytes(LANE_BYTES * count, "little")), "Q", swap=SWAP).tolist()
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


def _add_pairs(question: Question, views: Sequence[IndexView], document_count: int, scores: list[list[int]]) -> None:
    for first, second in question.pairs:
        key = pair_key(first, second)[:-1]
        by_index = [view.terms_of(key) for view in views]
        frequency = sum(len(found.documents) for postings in by_index for found in postings)
        weight = term_weight(document_count, frequency)
        for postings, found in zip(by_index, scores, strict=True):
            for pair in postings:
                for document, occurrences in zip(pair.documents, pair.values, strict=True):
                    found[document] += PAIR_WEIGHT * pair_score(weight, occurrences) << SATURATION_BITS


def _best(scores: list[list[int]], count: int) -> dict[tuple[int, int], int]:
    """The documents with the highest scores, those by index and number; equal scores in that order."""
    every = [score for found in scores for score in found] if len(scores) > 1 else scores[0]
    least = 1
    if len(every) > SAMPLED_FROM * count:
        # So low in a sample of the scores that more than `count` of all of them are higher; if not, all are looked at.
        sample = sorted(every[:: len(every) // count], reverse=True)
        least = max(sample[min(len(sample) - 1, 2 * count * len(sample) // len(every) + SAMPLE_SLACK)], 1)
    chosen = _from(scores, least)
    if len(chosen) < count and least > 1:
        chosen = _from(scores, 1)
    chosen.sort()
    return {(index, document): -negative for negative, index, document in chosen[:count]}


def _from(scores: list[list[int]], least: int) -> list[tuple[int, int, int]]:
    return [
        (-score, index, document)
        for index, found in enumerate(scores)
        for document, score in enumerate(found)
        if score >= least
    ]


def _rescore(term: TermPostings, nominees: dict[tuple[int, int], int]) -> None:
    """Add a common term's part to the scores of the nominees alone."""
    for index, weighted in enumerate(term.by_index):
        wanted = sorted(document for at, document in nominees if at == index)
        for weight, postings in weighted:
            documents, values = postings.documents, postings.values
            for document, at in _places(documents, wanted):
                nominees[index, document] += weight * values[at]


def _places(documents: Sequence[int], wanted: list[int]) -> list[tuple[int, int]]:
    """Which of the wanted documents are among these, and where; both are in ascending order."""
    found = []
    at, count = 0, len(documents)
    for document in wanted:
        at = bisect_left(documents, document, at)
        if at == count:
            break
        if documents[at] == document:
            found.append((document, at))
    return found


def _with_sections(
    views: Sequence[IndexView], terms: list[TermPostings], documents: dict[tuple[int, int], int]
) -> tuple[list[RankedDocument], list[RankedSection]]:
    noted = _noted_terms(terms, documents)
    weights = [term.stem_weight for term in terms]
    ranked: list[RankedDocument] = []
    sections: list[tuple[int, int, int, int, int, dict[int, int]]] = []
    averages = [average_length(view.head.section_words, view.head.section_count) for view in views]
    for place, score in documents.items():
        index, document = place
        scored = _score_sections(views[index], averages[index], weights, document, noted[place])
        total = score + BEST_SECTION_WEIGHT * max((found for _, found, _ in scored), default=0)
        ranked.append(RankedDocument(index, document, total))
        pieces = _best_pieces(views[index], scored)
        sections += [
            (-SECTION_WEIGHT * found - BEST_PIECE_WEIGHT * piece - total, index, document, section, found, parts)
            for (section, found, parts), piece in zip(scored, pieces, strict=True)
        ]
    ranked.sort(key=lambda found: (-found.score, found.cache, found.document))
    sections.sort()  # places differ, so that nothing behind them is compared
    return ranked, [
        RankedSection(index, document, section, found, -negative, parts)
        for negative, index, document, section, found, parts in sections
    ]


def _best_pieces(view: IndexView, scored: list[tuple[int, int, dict[int, int]]]) -> list[int]:
    """For each section the best score among the pieces under the same heading, itself included."""
    headings = view.column("section_headings")
    best: dict[int, int] = {}
    for section, score, _ in scored:
        row = headings[section]
        if score > best.get(row, 0):
            best[row] = score
    return [best[headings[section]] for section, _, _ in scored]


def _noted_terms(
    terms: list[TermPostings], documents: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], dict[int, dict[int, int]]]:
    """For each document, for each of its sections (and its front), the noted occurrences of each term."""
    noted: dict[tuple[int, int], dict[int, dict[int, int]]] = {place: {} for place in documents}
    for index in range(len(terms[0].by_index) if terms else 0):
        of_index = {document: found for (at, document), found in noted.items() if at == index}
        wanted = sorted(of_index)
        for number, term in enumerate(terms):
            for _, postings in term.by_index[index]:
                if postings.ends:
                    _note_word(number, postings, wanted, of_index)
    return noted


def _note_word(number: int, postings: Postings, wanted: list[int], noted: dict[int, dict[int, dict[int, int]]]) -> None:
    """Note a word's occurrences in the documents that are wanted, which are in ascending order."""
    ends, section_numbers, counts = postings.ends, postings.section_numbers, postings.counts
    for document, at in _places(postings.documents, wanted):
        sections = noted[document]
        for entry in range(ends[at - 1] if at else 0, ends[at]):
            section = section_numbers[entry]
            found = (_NOTED_SECTION if section else _NOTED_FRONT)[counts[entry]]
            of_section = sections.get(section)
            if of_section is None:
                sections[section] = {number: found}
            elif number in of_section:
                of_section[number] = _together(of_section[number], found)
            else:
                of_section[number] = found


def _together(one: int, other: int) -> int:
    """The sum of the occurrences, with the fields of both."""
    return (one >> FIELD_BITS) + (other >> FIELD_BITS) << FIELD_BITS | (one | other) & FIELD_MASK


def _score_sections(
    view: IndexView, average: int, weights: list[int], document: int, noted: dict[int, dict[int, int]]
) -> list[tuple[int, int, dict[int, int]]]:
    """The sections with any term, each with its score and the occurrences behind it."""
    numbers = view.sections_of(document)
    lengths = view.column("section_words")
    front = noted.pop(FRONT, {})
    factor, base = TF_FACTOR * average, AVERAGE_FACTOR * average
    scored = []
    for section in range(FRONT + 1, len(numbers) + 1) if front else noted:
        found = noted.get(section)
        if found is None:
            found = front
        else:
            for number, value in front.items():
                found[number] = _together(value, found[number]) if number in found else value
        score = 0
        rest = base + LENGTH_FACTOR * lengths[numbers[section - 1]]
        for number, value in found.items():
            scaled = factor * (value >> FIELD_BITS)
            score += weights[number] * scaled // (scaled + rest)
        if score:
            scored.append((numbers[section - 1], score, found))
    return scored


def explain(ranking: Ranking, views: Sequence[IndexView], section: RankedSection) -> tuple[ScoredTerm, ...]:
    """What each term contributed to a section's score; the contributions add up to it."""
    view = views[section.cache]
    average = average_length(view.head.section_words, view.head.section_count)
    length = view.column("section_words")[section.section]
    explained = []
    for number, value in section.terms.items():
        term = ranking.terms[number]
        fields = tuple(name for bit, name in enumerate(FIELDS) if value >> bit & 1)
        score = occurrence_score(term.stem_weight, value >> FIELD_BITS, length, average)
        explained.append(ScoredTerm(term.word, fields, score))
    explained.sort(key=lambda found: (-found.score, found.word))
    return tuple(explained)
