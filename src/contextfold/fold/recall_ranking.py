"""The documents that recall searches, made of folded branches and left-out results, and their ranking. Pure.

A document has four fields. The first three were written for later reading; words of the fourth count less:

    of a fold       description   summary   prompt   operations
    of a result     call (its stub)                  text

The words of a document are stored as lines of stem, word and four hexadecimal counts. The level of each stem follows
from them, from 0 (only in the fourth field) to 4. An index has a list of documents for each stem and level, so that a
question finds the best documents without reading all of them: it nominates documents from these lists, the rarest stem
first and its highest level first, until enough were read. `PostingLists` is what an index must offer; every store
returns the same lists and so the same ranking.

The nominees are then scored by all their words, in integers, with the scorer of resolve v1; a document is one section:

    stem      4 · idf · tf / (tf + K), where tf weighs occurrences by field, as v1 does for titles and headings
    word      1 · idf · tf / (tf + K) for the words as they were typed
    weak      6/5 · idf · n / (n + 1) for n occurrences in operations: always less than one in another field
    pair      2 · the smaller idf · n / (n + 3) for two neighbours in the description
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple, Protocol

from contextfold.common.question import Question, QuestionTerm
from contextfold.common.term_scores import (
    PAIR_WEIGHT,
    SATURATION_BITS,
    STEM_WEIGHT,
    WORD_WEIGHT,
    collection_log2,
    pair_score,
    saturation,
    term_weight,
)
from contextfold.common.words import read_token, stem_of, tokens
from contextfold.fold.archive import ArchiveEntry

FOLD, RESULT = "fold", "result"
FIELDS = {FOLD: ("description", "summary", "prompt", "operations"), RESULT: ("call", "", "", "text")}
# The weights of an occurrence in the first three fields.
FIELD_WEIGHTS = (5, 2, 1)
OPERATIONS = len(FIELD_WEIGHTS)
# The average length of documents in words, and the largest length that counts: a word in the prompt of the longest
# document still counts more than a word in its operations.
AVERAGE_WORDS, WORDS_MAX = 120, 240
# The lower bounds of the levels above 1, in 65536ths of tf / (tf + K).
LEVEL_BOUNDS = (32_768, 42_598, 52_428)
LEVELS = len(LEVEL_BOUNDS) + 2
PAIR_JOINT = " "
HEX = "0123456789abcdef"
COUNT_MAX = 15
# The number of low bits of a document's number with a hash; the high bits are its time.
HASH_BITS = 24

# Of a long text only its beginning, where commands and paths are, and lines that look like errors are read.
HEAD_CHARACTERS = 2_000
ERROR_LINES, ERROR_LINE_CHARACTERS = 40, 240
# At most this many characters of all operations of a branch are read.
OPERATION_CHARACTERS = 1 << 18
OPERATION_WORDS = 800
# A longer word of an operation is data and is ignored.
OPERATION_WORD_CHARACTERS = 40
# At most this many characters of a prompt or summary are read.
STRONG_CHARACTERS = 1 << 16
TOKENS_CACHED = 1 << 15
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
_ERROR_LINE = re.compile(
    r"(?im)^.*(?:error|exception|fail|fatal|panic|refused|denied|cannot|not found|timed out|traceback|\bE[A-Z]{3,}).*$"
)
_TIME = re.compile(r"(?a)(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)Z")


class DocumentTerms(NamedTuple):
    """The stored form of a document. `words` is the length of its first three fields."""

    number: int
    words: int
    packed: str


def fold_fields(
    description: str, summary: str, entries: Iterable[ArchiveEntry], *, undone: bool
) -> tuple[str, str, str, str]:
    """The fields of a folded branch. Undone operations count only if the branch itself was undone."""
    prompt, parts, left = "", [], OPERATION_CHARACTERS
    for entry in entries:
        if entry.kind == "prompt":
            prompt = entry.text
        elif entry.kind == "operation" and left > 0 and (undone or not entry.undone):
            part = f"{entry.type}\n{select_notable_lines(entry.text[:left])}"
            parts.append(part)
            left -= len(entry.text)
    return description, summary[:STRONG_CHARACTERS], prompt[:STRONG_CHARACTERS], "\n".join(parts)


def result_fields(stub: str, text: str) -> tuple[str, str, str, str]:
    return stub, "", "", select_notable_lines(text[:OPERATION_CHARACTERS])


def select_notable_lines(text: str) -> str:
    """The beginning of a text, and the lines after it that look like errors."""
    if len(text) <= HEAD_CHARACTERS:
        return text
    lines: dict[str, None] = {}
    for found in _ERROR_LINE.finditer(text, HEAD_CHARACTERS):
        lines[found[0][:ERROR_LINE_CHARACTERS]] = None
        if len(lines) == ERROR_LINES:
            break
    return "\n".join((text[:HEAD_CHARACTERS], *lines))


def count_terms(number: int, fields: Sequence[str]) -> DocumentTerms:
    counts: dict[tuple[str, str], list[int]] = {}
    length = 0
    for field, text in enumerate(fields[:OPERATIONS]):
        for token, times in Counter(tokens(text)).items():
            read = _read(token)
            length += times * read.length
            for key in read.keys:
                counts.setdefault(key, [0, 0, 0, 0])[field] += times
    for key, times in _count_operation_words(fields[OPERATIONS]).items():
        counts.setdefault(key, [0, 0, 0, 0])[OPERATIONS] = times
    described = [stem for token in tokens(fields[0]) for stem, _ in _read(token).keys[: _read(token).length]]
    for pair, times in Counter(pairwise(described)).items():
        counts[PAIR_JOINT.join(pair), ""] = [times, 0, 0, 0]
    lines = []
    for (stem, word), found in sorted(counts.items()):
        digits = "".join([HEX[count] if count < COUNT_MAX else HEX[COUNT_MAX] for count in found])
        lines.append(f"{stem}\t{word if word != stem else ''}\t{digits}")
    return DocumentTerms(number, min(length, WORDS_MAX), "\n" + "\n".join(lines) + "\n")


def _count_operation_words(text: str) -> dict[tuple[str, str], int]:
    words: dict[tuple[str, str], int] = {}
    for token, times in Counter(tokens(text)).items():
        if len(token) <= OPERATION_WORD_CHARACTERS:
            for key in _read(token).keys:
                words[key] = words.get(key, 0) + times
        if len(words) >= OPERATION_WORDS:
            break
    return words


class _ReadToken(NamedTuple):
    """The stems and words of a token. The first `length` of them are words, the others are parts of an identifier."""

    length: int
    keys: tuple[tuple[str, str], ...]


# Most tokens occur many times in a store, so they are cached.
@lru_cache(TOKENS_CACHED)
def _read(token: str) -> _ReadToken:
    read = read_token(token)
    return _ReadToken(len(read.words), tuple((stem_of(word), word) for word in (*read.words, *read.parts)))


def document_number(at: str, *key: str) -> int:
    """A number for a document that is the same in every store. Later documents have larger numbers."""
    digest = sha256("\0".join(key).encode("utf-8", "surrogatepass")).digest()
    return first_number(at) | int.from_bytes(digest[: HASH_BITS // 8], "big")


def first_number(at: str) -> int:
    """The smallest number of a document of this time. An invalid time is before all others.

    Numbers are stored, and only their order matters: each part of the time has a fixed range, 32 for the days of a
    month.
    """
    found = _TIME.fullmatch(at)
    if found is None:
        return 0
    year, month, day, hour, minute, second = map(int, found.groups())
    return ((((year * 12 + month) * 32 + day) * 24 + hour) * 60 + minute) * 60 + second << HASH_BITS


def rate_stems(terms: DocumentTerms) -> Iterator[tuple[str, int]]:
    """Each stem of a document with its level."""
    strong: dict[str, int] = {}
    for line in terms.packed.split("\n")[1:-1]:
        stem, _, counts = line.split("\t")
        strong[stem] = strong.get(stem, 0) + _weigh_occurrences(counts[:OPERATIONS])
    levels = {occurrences: _level_of(occurrences, terms.words) for occurrences in set(strong.values())}
    return ((stem, levels[occurrences]) for stem, occurrences in strong.items() if PAIR_JOINT not in stem)


def _level_of(strong: int, words: int) -> int:
    if not strong:
        return 0
    return 1 + bisect_right(LEVEL_BOUNDS, saturation(strong, words, AVERAGE_WORDS))


class TermCounts(NamedTuple):
    """The occurrences of a stem in a document.

    `strong` has the weighted occurrences in the first three fields, `typed` those of the words in the question, `weak`
    the occurrences in the fourth field. `fields` has a bit for each field.
    """

    strong: int
    typed: int
    weak: int
    fields: int


def find_term(packed: str, stem: str, words: Sequence[str]) -> TermCounts | None:
    """Count a stem in a document; None if the document does not have it."""
    start = packed.find(f"\n{stem}\t")
    if start < 0:
        return None
    strong = typed = weak = fields = 0
    # The words of a stem are adjacent lines.
    while start >= 0:
        end = packed.index("\n", start + 1)
        digits = packed[end - OPERATIONS - 1 : end]
        occurrences = _weigh_occurrences(digits[:OPERATIONS])
        strong += occurrences
        if occurrences and (packed[start + len(stem) + 2 : end - OPERATIONS - 2] or stem) in words:
            typed += occurrences
        weak += HEX.index(digits[OPERATIONS])
        fields |= _field_bits(digits)
        start = end if packed.startswith(f"{stem}\t", end + 1) else -1
    return TermCounts(strong, typed, weak, fields)


def count_pair(packed: str, first: str, second: str) -> int:
    """The number of times that two stems are neighbours in the first field."""
    start = packed.find(f"\n{first}{PAIR_JOINT}{second}\t")
    return HEX.index(packed[packed.index("\n", start + 1) - OPERATIONS - 1]) if start >= 0 else 0


# There are few different counts, and each is read many times.
@lru_cache(TOKENS_CACHED)
def _weigh_occurrences(digits: str) -> int:
    """The weighted occurrences for the digits of the first three fields."""
    return sum(weight * int(digit, 16) for weight, digit in zip(FIELD_WEIGHTS, digits, strict=True))


@lru_cache(TOKENS_CACHED)
def _field_bits(digits: str) -> int:
    """A bit for each field whose digit is not 0."""
    return sum(1 << field for field, digit in enumerate(digits) if digit != "0")


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
