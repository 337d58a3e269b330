"""Which documents answer a question best: the scorer of resolve v1, in integers, over documents of one section. Pure.

Documents are nominated by lists of an index, one for each stem and level, the rarest stem first and its highest level
first, until enough was read. The nominees are then scored by all their words. What an index does is defined by
`PostingLists`; every store gives the same lists, so every store gives the same ranking.

    stem      4 · idf · tf / (tf + K), where tf weighs occurrences by field, as v1 does for titles and headings
    word      1 · idf · tf / (tf + K) for the words as they were typed
    weak      6/5 · idf · n / (n + 1) for n occurrences in operations: always less than one in another field
    pair      2 · the smaller idf · n / (n + 3) for two neighbours in the description
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import NamedTuple, Protocol

from contextfold.common.dataclass import dataclass
from contextfold.common.relevance.question import Question, QuestionTerm
from contextfold.common.relevance.term_scores import (
    PAIR_WEIGHT,
    SATURATION_BITS,
    STEM_WEIGHT,
    WORD_WEIGHT,
    pair_score,
    saturation,
    term_weight,
)
from contextfold.common.relevance.words import stem_of
from contextfold.fold.recall.documents import (
    AVERAGE_WORDS,
    FIELDS,
    LEVELS,
    OPERATIONS,
    WordCounts,
    counts_of,
    pair_count,
)

TERMS_MAX = 32
POSTINGS_MAX = 20_000
NOMINEES_MAX = 200
HITS_MAX = 50
# What a level counts for before the words of a document are read: twice the middle of what they will score.
LEVEL_SCORES = (2, 4, 6, 7, 9)
WEAK_FACTOR, WEAK_DIVISOR = 6, 5
# They say that somebody remembers, not what. They are looked for only where a question has no other word.
REMEMBERING = frozenset(
    map(stem_of, ("see", "saw", "seen", "find", "found", "before", "earlier", "last", "time", "again"))
)


@dataclass(frozen=True, slots=True)
class RecallScope:
    """Which documents of an owner are meant: of one project or all, from a time on, undone ones too."""

    project_hash: str | None = None
    since: str = ""
    undone: bool = False


class IndexedDocument(NamedTuple):
    """What an index knows of a document: `id` decides between equal scores."""

    kind: str
    id: str
    words: int
    packed: str


class PostingLists(Protocol):
    """The documents of one owner, undone ones only if they were asked for."""

    def document_count(self) -> int:
        """How many documents there are, of every project and time."""

    def sizes(self, stem: str) -> Sequence[int]:
        """For each level, how many of these documents have the stem at it."""

    def numbers(self, stem: str, level: int) -> Iterable[int]:
        """The documents of the scope that have the stem at this level."""

    def documents(self, numbers: Sequence[int]) -> Mapping[int, IndexedDocument]: ...


@dataclass(frozen=True, slots=True)
class RecallReason:
    term: str
    fields: tuple[str, ...]
    score: int


@dataclass(frozen=True, slots=True)
class RankedFold:
    number: int
    score: int
    why: tuple[RecallReason, ...]


@dataclass(frozen=True, slots=True)
class RecallRanking:
    """The best documents. `matched` counts those in the lists that were read; `unmatched` words are in no document."""

    hits: tuple[RankedFold, ...]
    unmatched: tuple[str, ...]
    documents: int
    matched: int


class _WeightedTerm(NamedTuple):
    term: QuestionTerm
    weight: int
    sizes: Sequence[int]


def rank(question: Question, lists: PostingLists) -> RecallRanking:
    count = lists.document_count()
    terms: list[_WeightedTerm] = []
    unmatched: list[str] = []
    asked = [term for term in question.terms if term.stem not in REMEMBERING] or question.terms
    for term in asked[:TERMS_MAX]:
        sizes = lists.sizes(term.stem)
        if any(sizes):
            terms.append(_WeightedTerm(term, max(term_weight(count, sum(sizes)), 1), sizes))
        else:
            unmatched.append(term.words[0])
    terms.sort(key=lambda each: (sum(each.sizes), each.term.stem))
    nominated = _nominated(terms, lists)
    # Of equal ones the newest.
    nominees = [number for number, _ in nlargest(NOMINEES_MAX, nominated.items(), key=itemgetter(1, 0))]
    weights = {each.term.stem: each.weight for each in terms}
    pairs = [pair for pair in question.pairs if pair[0] in weights and pair[1] in weights]
    scored: list[tuple[int, str, int, RankedFold]] = []
    for number, document in lists.documents(nominees).items():
        why = _reasons(document, terms, {pair: min(weights[pair[0]], weights[pair[1]]) for pair in pairs})
        score = sum(reason.score for reason in why)
        scored.append((-score, document.id, number, RankedFold(number, score, why)))
    scored.sort(key=itemgetter(0, 1, 2))
    return RecallRanking(tuple(hit for *_, hit in scored[:HITS_MAX]), tuple(unmatched), count, len(nominated))


def _nominated(terms: Sequence[_WeightedTerm], lists: PostingLists) -> dict[int, int]:
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


def _reasons(
    document: IndexedDocument, terms: Sequence[_WeightedTerm], pairs: Mapping[tuple[str, str], int]
) -> tuple[RecallReason, ...]:
    names = FIELDS[document.kind]
    reasons = []
    for term, weight, _ in terms:
        found = counts_of(document.packed, term.stem)
        if found:
            fields = tuple(name for at, name in enumerate(names) if any(each.counts[at] for each in found))
            reasons.append(RecallReason(term.words[0], fields, _score(found, term.words, weight, document.words)))
    for (first, second), weight in pairs.items():
        if times := pair_count(document.packed, first, second):
            reasons.append(RecallReason(f"{first} {second}", (names[0],), PAIR_WEIGHT * pair_score(weight, times)))
    reasons.sort(key=lambda reason: (-reason.score, reason.term))
    return tuple(reasons)


def _score(found: Sequence[WordCounts], typed: Sequence[str], weight: int, words: int) -> int:
    stem = sum(each.strong for each in found)
    word = sum(each.strong for each in found if each.word in typed)
    weak = sum(each.counts[OPERATIONS] for each in found)
    strong = weight * (
        STEM_WEIGHT * saturation(stem, words, AVERAGE_WORDS) + WORD_WEIGHT * saturation(word, words, AVERAGE_WORDS)
    )
    return (strong >> SATURATION_BITS) + WEAK_FACTOR * weight * weak // (WEAK_DIVISOR * (weak + 1))
