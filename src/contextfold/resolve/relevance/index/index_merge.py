"""Terms from several sources become one sorted sequence of postings. Pure; sources are iterators, output is values.

A build reads new documents in runs: each run has its own sorted terms. A rebuild adds the terms of the previous index,
without the documents that are gone or changed and with the others renumbered. Merged, both give the same postings.
"""

from __future__ import annotations

import heapq
import sys
from array import array
from collections import Counter
from itertools import accumulate, groupby
from operator import itemgetter, sub

from contextfold.common.relevance.term_scores import (
    FRONT,
    FRONT_IN_DOCUMENT,
    OCCURRENCES_MAX,
    OCCURRENCES_SHIFT,
    SECTION_IN_DOCUMENT,
)
from contextfold.resolve.relevance.index.index_format import IndexView, Postings
from contextfold.resolve.relevance.term_keys import (
    COUNTS_MASK,
    DOCUMENT_SHIFT,
    ENTRY_MASK,
    ENTRY_SHIFT,
    stem_of_key,
    word_of_key,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Term = tuple[bytes, "array[int] | Postings"]

GONE = -1  # the new number of a document that is not taken over

# The bytes of an entry by rising value, as this machine's order puts them: packed counts, section number, document.
_BYTES = range(8) if sys.byteorder == "little" else range(7, -1, -1)
_COUNTS, _SECTION_LOW, _SECTION_MIDDLE, _SECTION_HIGH = (slice(at, None, 8) for at in _BYTES[:4])
_DOCUMENT = slice(1 if sys.byteorder == "little" else 0, None, 2)
_SECTION_WEIGHTS = bytes(SECTION_IN_DOCUMENT)


def postings_of(key: bytes, entries: array[int], length_classes: Sequence[int]) -> Postings:
    """The postings of a word from its entries, which are sorted by document and section.

    Works on whole columns of the entries' bytes, because a build spends much of its time here.
    """
    if len(entries) == 1:
        return _posting_of_one(key, entries[0], length_classes)
    raw = entries.tobytes()
    numbers = memoryview(raw).cast("I")[_DOCUMENT].tolist()
    counts = raw[_COUNTS]
    sections: Sequence[int] = raw[_SECTION_LOW]
    if any(raw[_SECTION_MIDDLE]) or any(raw[_SECTION_HIGH]):
        sections = [entry >> ENTRY_SHIFT & ENTRY_MASK for entry in entries]
    weights: bytes | bytearray = counts.translate(_SECTION_WEIGHTS)
    if FRONT in sections:
        weights = bytearray(weights)
        for at, section in enumerate(sections):
            if section == FRONT:
                weights[at] = FRONT_IN_DOCUMENT[counts[at]]
    per_document = Counter(numbers)
    documents = list(per_document)
    occurrences: Iterable[int] = weights
    if len(documents) < len(numbers):
        totals = list(accumulate(weights, initial=0))
        up_to = [totals[end] for end in accumulate(per_document.values())]
        occurrences = map(sub, up_to, [0, *up_to])
    impacts = [
        min(count, OCCURRENCES_MAX) << OCCURRENCES_SHIFT | length_classes[document]
        for document, count in zip(documents, occurrences, strict=False)
    ]
    return Postings(word_of_key(key), len(documents), documents, impacts, list(per_document.values()), sections, counts)


def _posting_of_one(key: bytes, entry: int, length_classes: Sequence[int]) -> Postings:
    """Half of all words occur once."""
    document, section, packed = entry >> DOCUMENT_SHIFT, entry >> ENTRY_SHIFT & ENTRY_MASK, entry & COUNTS_MASK
    weight = (FRONT_IN_DOCUMENT if section == FRONT else SECTION_IN_DOCUMENT)[packed]
    impact = weight << OCCURRENCES_SHIFT | length_classes[document]
    return Postings(word_of_key(key), 1, (document,), (impact,), (1,), (section,), (packed,))


def entries_of(postings: Postings) -> array[int]:
    """The entries that `postings_of` made the postings from."""
    entries: array[int] = array("Q")
    at = 0
    for document, count in zip(postings.documents, postings.entry_counts, strict=True):
        base = document << DOCUMENT_SHIFT
        for position in range(at, at + count):
            entries.append(base | postings.section_numbers[position] << ENTRY_SHIFT | postings.counts[position])
        at += count
    return entries


def taken_over(previous: IndexView, new_numbers: Sequence[int]) -> Iterator[Term]:
    """The terms of an earlier index with the documents that are still there, under their new numbers."""
    unmoved = all(number in (at, GONE) for at, number in enumerate(new_numbers))
    gone = frozenset(at for at, number in enumerate(new_numbers) if number == GONE)
    for number in range(previous.head.term_count):
        postings = previous.postings(number)
        if gone and not gone.isdisjoint(postings.documents):
            kept = _without(postings, gone)
            if kept is None:
                continue
            postings = kept
        if not unmoved:
            renumbered = list(map(new_numbers.__getitem__, postings.documents))
            postings = postings._replace(documents=renumbered)
        yield previous.key(number), postings


def _without(postings: Postings, gone: frozenset[int]) -> Postings | None:
    remaining = [at for at, document in enumerate(postings.documents) if document not in gone]
    if not remaining:
        return None
    ends = list(accumulate(postings.entry_counts, initial=0))
    entries = [entry for at in remaining for entry in range(ends[at], ends[at + 1])]
    return postings._replace(
        documents=[postings.documents[at] for at in remaining],
        impacts=[postings.impacts[at] for at in remaining],
        entry_counts=[postings.entry_counts[at] for at in remaining],
        section_numbers=[postings.section_numbers[entry] for entry in entries],
        counts=bytes(postings.counts[entry] for entry in entries),
    )


def merge(sources: Sequence[Iterable[Term]], length_classes: Sequence[int]) -> Iterator[tuple[bytes, Postings]]:
    """Every term once, in the order of keys, each with the number of documents of its stem."""
    merged = heapq.merge(*sources, key=itemgetter(0)) if len(sources) > 1 else iter(sources[0] if sources else ())
    terms = ((key, [found for _, found in group]) for key, group in groupby(merged, key=itemgetter(0)))
    complete = ((key, _joined(key, found, length_classes)) for key, found in terms)
    for _, group in groupby(complete, key=lambda term: stem_of_key(term[0])):
        words = list(group)
        if len(words) == 1:
            stem_documents = len(words[0][1].documents)
        else:
            stem_documents = len(set().union(*(postings.documents for _, postings in words)))
        for key, postings in words:
            if postings.stem_documents == stem_documents:
                yield key, postings
            else:
                yield key, postings._replace(stem_documents=stem_documents)


def _joined(key: bytes, found: list[array[int] | Postings], length_classes: Sequence[int]) -> Postings:
    if len(found) == 1:
        return found[0] if isinstance(found[0], Postings) else postings_of(key, found[0], length_classes)
    entries: array[int] = array("Q")
    for part in found:
        entries.extend(entries_of(part) if isinstance(part, Postings) else part)
    # Runs follow each other in the order of documents; what is taken over lies between them.
    if isinstance(found[-1], Postings):
        entries = array("Q", sorted(entries))
    return postings_of(key, entries, length_classes)
