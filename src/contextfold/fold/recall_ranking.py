"""The documents that recall searches, made of folded branches and left-out results, and their ranking. Pure.

A document has five fields. The first three were written for later reading; words of the last count less:

    of a fold       description   summary   prompt   date   operations
    of a result     call (its stub)                  date   text

The words of a document are stored as lines of stem, word, chunks and five hexadecimal counts. The chunks are bits: the
first CHUNK_WORDS words of the document are chunk 0, and so on. The level of each stem follows from the counts, from 0
(only in the last field) to 4. An index has a list of documents for each stem and level, so that a
question finds the best documents without reading all of them: it nominates documents from these lists, the rarest stem
first and its highest level first, until enough were read. `PostingLists` is what an index must offer; every store
returns the same lists and so the same ranking.

The nominees are then scored by all their words, in integers, with the arithmetic of resolve v1; a passage is what a
section is there:

    stem      4 · idf · tf / (tf + K), where tf weighs occurrences by field, as v1 does for titles and headings
    word      1 · idf · tf / (tf + K) for the words as they were typed
    passage   3 · idf for the words in the best passage, which is two neighbouring chunks, or 2 · idf if it is one of
              operations; this idf counts passages of the nominees, so that a word of every document, like a name,
              still tells passages apart
    weak      6/5 · idf · n / (n + 1) for n occurrences in operations: always less than one in another field
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from hashlib import sha256
from typing import NamedTuple, Protocol

from contextfold.common.question import Question, QuestionTerm
from contextfold.common.term_scores import (
    SATURATION_BITS,
    STEM_WEIGHT,
    WORD_WEIGHT,
    collection_log2,
    saturation,
    term_weight,
)
from contextfold.common.words import read_token, stem_of, tokens
from contextfold.fold.archive import ArchiveEntry

FOLD, RESULT = "fold", "result"
FIELDS = {FOLD: ("description", "summary", "prompt", "date", "operations"), RESULT: ("call", "", "", "date", "text")}
# The weights of an occurrence in all fields but the last.
FIELD_WEIGHTS = (5, 2, 1, 1)
OPERATIONS = len(FIELD_WEIGHTS)
# The average length of documents in words, and the largest length that counts: a word in the prompt of the longest
# document still counts more than a word in its operations.
AVERAGE_WORDS, WORDS_MAX = 120, 240
# The lower bounds of the levels above 1, in 65536ths of tf / (tf + K).
LEVEL_BOUNDS = (32_768, 42_598, 52_428)
LEVELS = len(LEVEL_BOUNDS) + 2
# The words of a chunk. The chunks of operations begin with this number; the last one before it, and the last one of
# all, have the rest of a longer text.
CHUNK_WORDS, OPERATION_CHUNK, CHUNKS_MAX = 16, 128, 256
PASSAGE_WEIGHT, OPERATION_PASSAGE_WEIGHT = 3, 2
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
STEMS_OF_MEMORY = frozenset(map(stem_of, ("see", "find", "before", "earlier", "last", "time", "again")))
# A question about what was done and the text about it often differ in the tense. No rule finds the stem of these forms.
_FORMS = """
    begin began begun  break broke broken  bring brought  build built  buy bought  catch caught  choose chose chosen
    come came  do done  draw drew drawn  drive drove driven  eat ate eaten  fall fell fallen  feel felt  find found
    fly flew flown  forget forgot forgotten  get got gotten  give gave given  go went gone  grow grew grown  hear heard
    hide hid hidden  hold held  keep kept  know knew known  lead led  leave left  lose lost  make made  mean meant
    meet met  pay paid  run ran  say said  see saw seen  seek sought  sell sold  send sent  shake shook shaken
    sing sang sung  sit sat  sleep slept  speak spoke spoken  spend spent  stand stood  steal stole stolen
    stick stuck  strike struck  swim swam swum  take took taken  teach taught  tell told  think thought
    throw threw thrown  understand understood  wake woke woken  wear wore worn  win won  write wrote written
    child children  foot feet  man men  woman women  person people
"""
_MONTHS = (
    "January February March April May June July August September October November December".split()  # noqa: SIM905
)
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
    description: str, summary: str, at: str, entries: Iterable[ArchiveEntry], *, undone: bool
) -> tuple[str, ...]:
    """The fields of a folded branch. Undone operations count only if the branch itself was undone."""
    prompt, parts, left = "", [], OPERATION_CHARACTERS
    for entry in entries:
        if entry.kind == "prompt":
            prompt = entry.text
        elif entry.kind == "operation" and left > 0 and (undone or not entry.undone):
            part = f"{entry.type}\n{select_notable_lines(entry.text[:left])}"
            parts.append(part)
            left -= len(entry.text)
    strong = (summary[:STRONG_CHARACTERS], prompt[:STRONG_CHARACTERS], name_date(at))
    return description, *strong, "\n".join(parts)


def result_fields(stub: str, at: str, text: str) -> tuple[str, ...]:
    return stub, "", "", name_date(at), select_notable_lines(text[:OPERATION_CHARACTERS])


def name_date(at: str) -> str:
    """The words of a date that a question may have, like `31 January 2026`; empty for an invalid time."""
    found = _TIME.fullmatch(at)
    if found is None:
        return ""
    year, month, day = map(int, found.groups()[:3])
    return f"{day} {_MONTHS[month - 1]} {year}" if 1 <= month <= len(_MONTHS) else ""


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
    chunks: dict[tuple[str, str], int] = {}
    length = chunk = 0
    for field, text in enumerate(fields[:OPERATIONS]):
        words = 0
        for token in tokens(text):
            read = _read(token)
            bit = 1 << min(chunk + words // CHUNK_WORDS, OPERATION_CHUNK - 2)
            words += read.length
            for key in read.keys:
                counts.setdefault(key, [0] * (OPERATIONS + 1))[field] += 1
                chunks[key] = chunks.get(key, 0) | bit
        length += words
        # No passage goes from one field to the next.
        chunk += words // CHUNK_WORDS + 2
    _count_operation_words(fields[OPERATIONS], counts, chunks)
    lines = []
    for (stem, word), found in sorted(counts.items()):
        digits = "".join([HEX[count] if count < COUNT_MAX else HEX[COUNT_MAX] for count in found])
        lines.append(f"{stem}\t{word if word != stem else ''}\t{chunks.get((stem, word), 0):x}\t{digits}")
    return DocumentTerms(number, min(length, WORDS_MAX), "\n" + "\n".join(lines) + "\n")


def _count_operation_words(
    text: str, counts: dict[tuple[str, str], list[int]], chunks: dict[tuple[str, str], int]
) -> None:
    """Add the words of operations, at most OPERATION_WORDS different ones."""
    seen: set[tuple[str, str]] = set()
    words = 0
    for token in tokens(text):
        if len(token) > OPERATION_WORD_CHARACTERS:
            continue
        read = _read(token)
        bit = 1 << min(OPERATION_CHUNK + words // CHUNK_WORDS, CHUNKS_MAX - 1)
        words += read.length
        for key in read.keys:
            if key in seen or len(seen) < OPERATION_WORDS:
                seen.add(key)
                counts.setdefault(key, [0] * (OPERATIONS + 1))[OPERATIONS] += 1
                chunks[key] = chunks.get(key, 0) | bit


class _ReadToken(NamedTuple):
    """The stems and words of a token. The first `length` of them are words, the others are parts of an identifier."""

    length: int
    keys: tuple[tuple[str, str], ...]


# Most tokens occur many times in a store, so they are cached.
@lru_cache(TOKENS_CACHED)
def _read(token: str) -> _ReadToken:
    read = read_token(token)
    return _ReadToken(len(read.words), tuple((_base_of(stem_of(word)), word) for word in (*read.words, *read.parts)))


def _base_of(stem: str) -> str:
    """The stem of the word of which this is an irregular form."""
    return _irregular_stems().get(stem, stem)


@cache
def _irregular_stems() -> dict[str, str]:
    """The stem of each irregular form, and the stem of its word."""
    groups = filter(None, map(str.split, _FORMS.split("  ")))
    return {stem_of(form): stem_of(forms[0]) for forms in groups for form in forms[1:]}


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
        stem, _, _, counts = line.split("\t")
        strong[stem] = strong.get(stem, 0) + _weigh_occurrences(counts[:OPERATIONS])
    levels = {occurrences: _level_of(occurrences, terms.words) for occurrences in set(strong.values())}
    return ((stem, levels[occurrences]) for stem, occurrences in strong.items())


def _level_of(strong: int, words: int) -> int:
    if not strong:
        return 0
    return 1 + bisect_right(LEVEL_BOUNDS, saturation(strong, words, AVERAGE_WORDS))


class TermCounts(NamedTuple):
    """The occurrences of a stem in a document.

    `strong` has the weighted occurrences in all fields but the last, `typed` those of the words in the question, `weak`
    the occurrences in the last field. `fields` has a bit for each field, `chunks` one for each chunk.
    """

    strong: int
    typed: int
    weak: int
    fields: int
    chunks: int


def find_term(packed: str, stem: str, words: Sequence[str]) -> TermCounts | None:
    """Count a stem in a document; None if the document does not have it."""
    start = packed.find(f"\n{stem}\t")
    if start < 0:
        return None
    strong = typed = weak = fields = chunks = 0
    # The words of a stem are adjacent lines.
    while start >= 0:
        end = packed.index("\n", start + 1)
        _, word, bits, digits = packed[start + 1 : end].split("\t")
        occurrences = _weigh_occurrences(digits[:OPERATIONS])
        strong += occurrences
        if (word or stem) in words:
            typed += occurrences
        weak += HEX.index(digits[OPERATIONS])
        fields |= _field_bits(digits)
        chunks |= int(bits, 16)
        start = end if packed.startswith(f"{stem}\t", end + 1) else -1
    return TermCounts(strong, typed, weak, fields, chunks)


# There are few different counts, and each is read many times.
@lru_cache(TOKENS_CACHED)
def _weigh_occurrences(digits: str) -> int:
    """The weighted occurrences for the digits of all fields but the last."""
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


class _CountedTerm(NamedTuple):
    """A term of the question that a document has."""

    term: _WeightedTerm
    counts: TermCounts


def rank(question: Question, lists: PostingLists) -> RecallRanking:
    count = lists.document_count()
    collection = collection_log2(count)
    terms: list[_WeightedTerm] = []
    unmatched: list[str] = []
    for term in _asked_terms(question):
        sizes = lists.sizes(term.stem)
        if any(sizes):
            terms.append(_WeightedTerm(term, max(term_weight(collection, sum(sizes)), 1), sizes))
        else:
            unmatched.append(term.words[0])
    terms.sort(key=lambda each: (sum(each.sizes), each.term.stem))
    nominated = _nominate(terms, lists)
    nominees = _best(nominated, NOMINEES_MAX)
    documents = lists.documents(nominees)
    counted = {number: _count_in(document, terms) for number, document in documents.items()}
    in_passages = _weigh_in_passages(counted.values())
    found = {number: _explain(document, counted[number], in_passages) for number, document in documents.items()}
    ranked = [RankedFold(number, sum(reason.score for reason in why), why) for number, why in found.items()]
    ranked.sort(key=lambda each: (-each.score, documents[each.number].id, each.number))
    score_most = (STEM_WEIGHT + WORD_WEIGHT) * sum(each.weight for each in terms)
    score_most += PASSAGE_WEIGHT * sum(in_passages.values())
    return RecallRanking(tuple(ranked[:HITS_MAX]), tuple(unmatched), count, len(nominated), score_most)


def _asked_terms(question: Question) -> Sequence[QuestionTerm]:
    """The terms of a question, one for all forms of a word; only those about its subject, if there are any."""
    forms: dict[str, tuple[str, ...]] = {}
    for stem, words in question.terms:
        forms[_base_of(stem)] = (*forms.get(_base_of(stem), ()), *words)
    terms = [QuestionTerm(stem, words) for stem, words in forms.items()]
    return ([term for term in terms if term.stem not in STEMS_OF_MEMORY] or terms)[:TERMS_MAX]


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


def _count_in(document: IndexedDocument, terms: Sequence[_WeightedTerm]) -> list[_CountedTerm]:
    found = ((each, find_term(document.packed, each.term.stem, each.term.words)) for each in terms)
    return [_CountedTerm(each, counts) for each, counts in found if counts is not None]


def _weigh_in_passages(found: Iterable[Sequence[_CountedTerm]]) -> dict[str, int]:
    """The idf of each stem in the passages of the nominees that have any term."""
    frequencies: dict[str, int] = {}
    passages = 0
    for counted in found:
        every = 0
        for each in counted:
            here = _passages_of(each.counts.chunks)
            every |= here
            stem = each.term.term.stem
            frequencies[stem] = frequencies.get(stem, 0) + here.bit_count()
        passages += every.bit_count()
    collection = collection_log2(passages)
    return {stem: term_weight(collection, frequency) for stem, frequency in frequencies.items()}


def _passages_of(chunks: int) -> int:
    """The passages with any of these chunks, as bits. A passage is a chunk and the next one."""
    return chunks | chunks >> 1


def _best_passage(counted: Sequence[_CountedTerm], weights: Mapping[str, int]) -> int:
    """The passage with the most weight of terms, as a bit; of equal ones the first, 0 if there is none."""
    sums: dict[int, int] = {}
    for each in counted:
        left = _passages_of(each.counts.chunks)
        while left:
            passage = left & -left
            sums[passage] = sums.get(passage, 0) + _passage_weight(passage) * weights[each.term.term.stem]
            left ^= passage
    return max(sums, key=lambda passage: (sums[passage], -passage), default=0)


def _passage_weight(passage: int) -> int:
    return OPERATION_PASSAGE_WEIGHT if passage >> OPERATION_CHUNK else PASSAGE_WEIGHT


def _explain(
    document: IndexedDocument, counted: Sequence[_CountedTerm], weights: Mapping[str, int]
) -> tuple[RecallReason, ...]:
    """What each term adds to the score of a document."""
    names = FIELDS[document.kind]
    passage = _best_passage(counted, weights)
    reasons = []
    for each in counted:
        (term, weight, _), counts = each
        fields = tuple([name for bit, name in enumerate(names) if counts.fields >> bit & 1])
        score = _term_score(counts, weight, document.words)
        if _passages_of(counts.chunks) & passage:
            score += _passage_weight(passage) * weights[term.stem]
        reasons.append(RecallReason(term.words[0], fields, score))
    reasons.sort(key=lambda reason: (-reason.score, reason.term))
    return tuple(reasons)


def _term_score(found: TermCounts, weight: int, words: int) -> int:
    strong = weight * (
        STEM_WEIGHT * saturation(found.strong, words, AVERAGE_WORDS)
        + WORD_WEIGHT * saturation(found.typed, words, AVERAGE_WORDS)
    )
    weak = WEAK_FACTOR * weight * found.weak // (WEAK_DIVISOR * (found.weak + 1))
    return (strong >> SATURATION_BITS) + weak
