"""Terms from several sources become one sorted sequence of postings. Pure; sources are iterators, output is values.

A build reads new documents in runs: each run has its own sorted terms. A rebuild adds the terms of the previous index,
without the documents that are gone or changed and with the others renumbered. Merged, both give the same postings.
"""

from __future__ import annotations

import heapq
from array import array
from itertools import groupby
from operator import itemgetter

from contextfold.resolve.relevance.document_terms import (
    COUNTS_MASK,
    DOCUMENT_SHIFT,
    ENTRY_MASK,
    ENTRY_SHIFT,
    stem_of_key,
    word_of_key,
)
from contextfold.resolve.relevance.index_format import IndexView, Postings
from contextfold.resolve.relevance.term_scores import (
    FRONT,
    FRONT_IN_DOCUMENT,
    OCCURRENCES_MAX,
    SECTION_IN_DOCUMENT,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Term = tuple[bytes, "array[int] | Postings"]

GONE = -1  # the new number of a document that is not taken over


def postings_of(key: bytes, entries: Sequence[int]) -> Postings:
    """The postings of a word from its entries, which are sorted by document and section."""
    documents: list[int] = []
    occurrences: list[int] = []
    entry_counts: list[int] = []
    sections: list[int] = []
    counts = bytearray()
    current, weight, entries_here = -1, 0, 0
    for entry in entries:
        document = entry >> DOCUMENT_SHIFT
        section = entry >> ENTRY_SHIFT & ENTRY_MASK
        packed = entry & COUNTS_MASK
        if document != current:
            if entries_here:
                occurrences.append(min(weight, OCCURRENCES_MAX))
                entry_counts.append(entries_here)
            documents.append(document)
            current, weight, entries_here = document, 0, 0
        weight += SECTION_IN_DOCUMENT[packed] if section != FRONT else FRONT_IN_DOCUMENT[packed]
        entries_here += 1
        sections.append(section)
        counts.append(packed)
    if entries_here:
        occurrences.append(min(weight, OCCURRENCES_MAX))
        entry_counts.append(entries_here)
    return Postings(word_of_key(key), len(documents), documents, occurrences, entry_counts, sections, counts)


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
    entries = [entry for entry in entries_of(postings) if entry >> DOCUMENT_SHIFT not in gone]
    return postings_of(postings.word, entries)._replace(word=postings.word) if entries else None


def merge(sources: Sequence[Iterable[Term]]) -> Iterator[tuple[bytes, Postings]]:
    """Every term once, in the order of keys, each with the number of documents of its stem."""
    merged = heapq.merge(*sources, key=itemgetter(0)) if len(sources) > 1 else iter(sources[0] if sources else ())
    terms = ((key, [found for _, found in group]) for key, group in groupby(merged, key=itemgetter(0)))
    complete = ((key, _joined(key, found)) for key, found in terms)
    for _, group in groupby(complete, key=lambda term: stem_of_key(term[0])):
        words = list(group)
        if len(words) == 1:
            stem_documents = len(words[0][1].documents)
        else:
            stem_documents = len(set().union(*(postings.documents for _, postings in words)))
        for key, postings in words:
            yield key, postings._replace(stem_documents=stem_documents)


def _joined(key: bytes, found: list[array[int] | Postings]) -> Postings:
    if len(found) == 1:
        return found[0] if isinstance(found[0], Postings) else postings_of(key, found[0])
    entries: list[int] = []
    for part in found:
        entries.extend(entries_of(part) if isinstance(part, Postings) else part)
    entries.sort()
    return postings_of(key, entries)
