"""Which documents and sections answer a question best. Pure; knows indexes and scores, not files or budgets.

Two phases keep the work small. Documents are nominated by their postings, rarest term first; commoner terms, once
30,000 postings were read, change the order of 200 nominees only. Then the sections of the best 60 documents are
scored. Several indexes are ranked together as if they were one: document counts and frequencies are summed.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain
from operator import itemgetter

from contextfold.common.record import Record
from contextfold.common.relevance.question import Question
from contextfold.common.relevance.term_scores import (
    AVERAGE_FACTOR,
    BEST_PIECE_WEIGHT,
    BEST_SECTION_WEIGHT,
    CLASS_MASK,
    FRONT,
    FRONT_IN_SECTION,
    LENGTH_FACTOR,
    OCCURRENCES_SHIFT,
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
from contextfold.resolve.relevance.index.index_format import IndexView, Postings
from contextfold.resolve.relevance.term_keys import pair_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

POSTINGS_MAX = 30_000
NOMINEES_MAX = 200
DOCUMENTS_MAX = 60
DICT_FROM = 16  # from so many postings per wanted document on, searching is quicker than reading them all

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
    by_index: list[list[Postings]]  # for each index, the words of the stem
    word_weights: dict[bytes, int]  # of the words that were typed


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
    scores = [[0] * view.head.document_count for view in views]
    left = POSTINGS_MAX
    common: list[TermPostings] = []
    for number, term in enumerate(terms):
        left -= term.cost
        if left < 0 and number:
            common = terms[number:]
            break
        for view, postings, found in zip(views, term.by_index, scores, strict=True):
            _add_term(view.saturations, term, postings, found)
    _add_pairs(question, views, document_count, scores)
    nominees = _best(scores, NOMINEES_MAX)
    for term in common:
        _rescore(views, term, nominees)
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
        by_index = [view.words_of(stem.encode()) for view in views]
        if not any(by_index):
            unmatched.append(words[0])
            continue
        frequency = sum(postings[0].stem_documents for postings in by_index if postings)
        typed = {word.encode() for word in words}
        frequencies: dict[bytes, int] = {}
        for postings in by_index:
            for found in postings:
                if found.word in typed:
                    frequencies[found.word] = frequencies.get(found.word, 0) + len(found.documents)
        weights = {word: term_weight(document_count, count) for word, count in frequencies.items()}
        cost = sum(len(found.documents) for postings in by_index for found in postings)
        term = TermPostings(words[0], term_weight(document_count, frequency), cost, by_index, weights)
        terms.append((cost, stem, term))
    terms.sort(key=lambda found: found[:2])
    return [term for _, _, term in terms], tuple(unmatched)


def _add_term(saturations: Mapping[int, int], term: TermPostings, words: list[Postings], scores: list[int]) -> None:
    """Add a term's part of the score to every document that has it. Most of a question's time goes by here."""
    stem_weight = STEM_WEIGHT * term.stem_weight
    if len(words) == 1:
        _add_impacts(saturations, stem_weight + _word_weight(term, words[0]), words[0], scores)
        return
    for postings in words:
        if weight := _word_weight(term, postings):
            _add_impacts(saturations, weight, postings, scores)
    together: dict[int, int] = {}
    for postings in words:
        impacts = dict(zip(postings.documents, postings.impacts, strict=True))
        for document in together.keys() & impacts.keys():
            impacts[document] = together[document] + (impacts[document] & ~CLASS_MASK)
        together.update(impacts)
    for document, saturated in zip(together, map(saturations.__getitem__, together.values()), strict=True):
        scores[document] += stem_weight * saturated


def _word_weight(term: TermPostings, postings: Postings) -> int:
    return WORD_WEIGHT * term.word_weights.get(postings.word, 0)


def _add_impacts(saturations: Mapping[int, int], weight: int, postings: Postings, scores: list[int]) -> None:
    saturated = map(saturations.__getitem__, postings.impacts)
    for document, fraction in zip(postings.documents, saturated, strict=True):
        scores[document] += weight * fraction


def _add_pairs(question: Question, views: Sequence[IndexView], document_count: int, scores: list[list[int]]) -> None:
    for first, second in question.pairs:
        key = pair_key(first, second)[:-1]
        by_index = [view.words_of(key) for view in views]
        frequency = sum(len(found.documents) for postings in by_index for found in postings)
        weight = term_weight(document_count, frequency)
        for postings, found in zip(by_index, scores, strict=True):
            for pair in postings:
                for document, impact in zip(pair.documents, pair.impacts, strict=True):
                    score = pair_score(weight, impact >> OCCURRENCES_SHIFT)
                    found[document] += PAIR_WEIGHT * score << SATURATION_BITS


def _best(scores: list[list[int]], count: int) -> dict[tuple[int, int], int]:
    """The documents with the highest scores, those by index and number; equal scores in that order."""
    positive = sorted(filter(None, chain.from_iterable(scores)), reverse=True)
    if not positive:
        return {}
    least = positive[min(count, len(positive)) - 1]
    chosen = [
        (-score, index, document)
        for index, found in enumerate(scores)
        for document, score in enumerate(found)
        if score >= least
    ]
    chosen.sort()
    return {(index, document): -negative for negative, index, document in chosen[:count]}


def _rescore(views: Sequence[IndexView], term: TermPostings, nominees: dict[tuple[int, int], int]) -> None:
    """Add a common term's part to the scores of the nominees alone."""
    for index, words in enumerate(term.by_index):
        wanted = sorted(document for at, document in nominees if at == index)
        saturations = views[index].saturations
        together: dict[int, int] = {}
        for postings in words:
            weight = _word_weight(term, postings)
            for document, impact in _impacts(postings, wanted):
                known = together.get(document)
                together[document] = impact if known is None else known + (impact & ~CLASS_MASK)
                nominees[index, document] += weight * saturations[impact]
        for document, impact in together.items():
            nominees[index, document] += STEM_WEIGHT * term.stem_weight * saturations[impact]


def _impacts(postings: Postings, wanted: list[int]) -> list[tuple[int, int]]:
    """The impacts of a word in the documents that are wanted, of those that have it."""
    documents, count = postings.documents, len(postings.documents)
    if count <= DICT_FROM * len(wanted):
        known = dict(zip(documents, postings.impacts, strict=True))
        return [(document, known[document]) for document in known.keys() & wanted]
    found = []
    at = 0
    for document in wanted:
        at = bisect_left(documents, document, at)
        if at == count:
            break
        if documents[at] == document:
            found.append((document, postings.impacts[at]))
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
    sections.sort(key=itemgetter(0, 1, 2, 3))
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
    places = sorted(noted)
    for number, term in enumerate(terms):
        for index, words in enumerate(term.by_index):
            wanted = [document for at, document in places if at == index]
            for postings in words:
                _note_word(number, postings, wanted, {document: noted[index, document] for document in wanted})
    return noted


def _note_word(number: int, postings: Postings, wanted: list[int], noted: dict[int, dict[int, dict[int, int]]]) -> None:
    """Note a word's occurrences in the documents that are wanted, which are in ascending order."""
    documents, entry_counts = postings.documents, postings.entry_counts
    section_numbers, counts = postings.section_numbers, postings.counts
    at = entries_at = 0
    for document in wanted:
        next_at = bisect_left(documents, document, at)
        if next_at == len(documents):
            break
        if documents[next_at] != document:
            continue
        entries_at += sum(entry_counts[at:next_at])
        at = next_at
        sections = noted[document]
        for entry in range(entries_at, entries_at + entry_counts[at]):
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
