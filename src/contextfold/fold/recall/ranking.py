"""Ranks documents for a question with the scorer of resolve v1, in integers; a document is one section. Pure.

Documents are nominated from the lists of an index, one for each stem and level: the rarest stem first and its highest
level first, until enough documents were read. The nominees are then scored by all their words. `PostingLists` defines
the interface of an index; every store returns the same lists and so the same ranking.

    stem      4 · idf · tf / (tf + K), where tf weighs occurrences by field, as v1 does for titles and headings
    word      1 · idf · tf / (tf + K) for the words as they were typed
    weak      6/5 · idf · n / (n + 1) for n occurrences in operations: always less than one in another field
    pair      2 · the smaller idf · n / (n + 3) for two neighbours in the description
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from contextfold.common.relevance.question import Question, QuestionTerm
from contextfold.common.relevance.term_scores import (
    PAIR_WEIGHT,
    SATURATION_BITS,
    STEM_WEIGHT,
    WORD_WEIGHT,
    collection_log2,
    pair_score,
    saturation,
    term_weight,
)
from contextfold.common.relevance.words import stem_of
from contextfold.fold.recall.documents import AVERAGE_WORDS, FIELDS, LEVELS, TermCounts, count_pair, find_term

TERMS_MAX = 32
POSTINGS_MAX = 20_000
NOMINEES_MAX = 100
HITS_MAX = 30
# The scores of levels before the words of a document are read: twice the middle of the level's range.
LEVEL_SCORES = (2, 4, 6, 7, 9)
WEAK_FACTOR, WEAK_DIVISOR = 6, 5
# These words show that the question is about the past, not its subject. They count only if there is no other word.
_WORDS_OF_MEMORY = ("see", "saw", "seen", "find", "found", "before", "earlier", "last", "time", "again")
STEMS_OF_MEMORY = frozenset(map(stem_of, _WORDS_OF_MEMORY))


class RecallScope(NamedTuple):
    """The documents of an owner to search: of one project or all, since a time, with or without undone ones."""

    project_hash: str | None = None
    since: str = ""
    undone: bool = False


class IndexedDocument(NamedTuple):
    """A document in an index. `id` decides between equal scores."""

    kind: str
    id: str
    words: int
    packed: str


class PostingLists(Protocol):
    """The lists of one owner's documents, with undone ones only if the scope includes them."""

    def document_count(self) -> int:
        """The number of documents of all projects and times."""

    def sizes(self, stem: str) -> Sequence[int]:
        """The number of documents with the stem at each level."""

    def numbers(self, stem: str, level: int) -> Iterable[int]:
        """The documents of the scope with the stem at this level."""

    def documents(self, numbers: Sequence[int]) -> Mapping[int, IndexedDocument]: ...


class RecallReason(NamedTuple):
    term: str
    fields: tuple[str, ...]
    score: int


class RankedFold(NamedTuple):
    number: int
    score: int
    why: tuple[RecallReason, ...]


class RecallRanking(NamedTuple):
    """The best documents. `matched` is the number of documents in the lists that were read.

    `unmatched` has the words that are in no document. `score_most` is the highest possible score.
    """

    hits: tuple[RankedFold, ...]
    unmatched: tuple[str, ...]
    documents: int
    matched: int
    score_most: int


class _WeightedTerm(NamedTuple):
    term: QuestionTerm
    weight: int
    sizes: Sequence[int]


def rank(question: Question, lists: PostingLists) -> RecallRanking:
    count = lists.document_count()
    collection = collection_log2(count)
    terms: list[_WeightedTerm] = []
    unmatched: list[str] = []
    asked = [term for term in question.terms if term.stem not in STEMS_OF_MEMORY] or question.terms
    for term in asked[:TERMS_MAX]:
        sizes = lists.sizes(term.stem)
        if any(sizes):
            terms.append(_WeightedTerm(term, max(term_weight(collection, sum(sizes)), 1), sizes))
        else:
            unmatched.append(term.words[0])
    terms.sort(key=lambda each: (sum(each.sizes), each.term.stem))
    nominated = _nominate(terms, lists)
    nominees = _best(nominated, NOMINEES_MAX)
    weights = {each.term.stem: each.weight for each in terms}
    pairs = {
        pair: min(weights[pair[0]], weights[pair[1]])
        for pair in question.pairs
        if pair[0] in weights and pair[1] in weights
    }
    documents = lists.documents(nominees)
    found = {number: _reasons(document, terms, pairs) for number, document in documents.items()}
    ranked = [RankedFold(number, sum(reason.score for reason in why), why) for number, why in found.items()]
    ranked.sort(key=lambda each: (-each.score, documents[each.number].id, each.number))
    score_most = (STEM_WEIGHT + WORD_WEIGHT) * sum(weights.values())
    return RecallRanking(tuple(ranked[:HITS_MAX]), tuple(unmatched), count, len(nominated), score_most)


def _nominate(terms: Sequence[_WeightedTerm], lists: PostingLists) -> dict[int, int]:
    scores: dict[int, int] = {}
    left = POSTINGS_MAX
    for term, weight, sizes in terms:
        for level in reversed(range(LEVELS)):
            if not sizes[level]:
                continue
            if scores and sizes[level] > left:
                return scores
            left -= sizes[level]
            gain = weight * LEVEL_SCORES[level]
            for number in lists.numbers(term.stem, level):
                scores[number] = scores.get(number, 0) + gain
    return scores


def _best(scores: Mapping[int, int], count: int) -> list[int]:
    """The numbers with the highest scores, of equal ones the newest."""
    if not scores:
        return []
    least = sorted(scores.values(), reverse=True)[:count][-1]
    chosen = sorted(((score, number) for number, score in scores.items() if score >= least), reverse=True)
    return [number for _, number in chosen[:count]]


def _reasons(
    document: IndexedDocument, terms: Sequence[_WeightedTerm], pairs: Mapping[tuple[str, str], int]
) -> tuple[RecallReason, ...]:
    names = FIELDS[document.kind]
    reasons = []
    for term, weight, _ in terms:
        found = find_term(document.packed, term.stem, term.words)
        if found is not None:
            fields = tuple([name for bit, name in enumerate(names) if found.fields >> bit & 1])
            reasons.append(RecallReason(term.words[0], fields, _term_score(found, weight, document.words)))
    for (first, second), weight in pairs.items():
        if times := count_pair(document.packed, first, second):
            reasons.append(RecallReason(f"{first} {second}", (names[0],), PAIR_WEIGHT * pair_score(weight, times)))
    reasons.sort(key=lambda reason: (-reason.score, reason.term))
    return tuple(reasons)


def _term_score(found: TermCounts, weight: int, words: int) -> int:
    strong = weight * (
        STEM_WEIGHT * saturation(found.strong, words, AVERAGE_WORDS)
        + WORD_WEIGHT * saturation(found.typed, words, AVERAGE_WORDS)
    )
    weak = WEAK_FACTOR * weight * found.weak // (WEAK_DIVISOR * (found.weak + 1))
    return (strong >> SATURATION_BITS) + weak
