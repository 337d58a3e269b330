"""Makes postings from entries, and merges several runs and the previous index into one list.

A run has the terms of some documents, in a temporary file of a build.
"""

from __future__ import annotations

import heapq
import os
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby, repeat
from operator import itemgetter, sub

from contextfold.common.term_scores import OCCURRENCES_MAX, average_length, saturation
from contextfold.resolve.relevance.index_entries import (
    CLASS_LENGTHS,
    COUNTS_MASK,
    DOCUMENT_SHIFT,
    ENTRY_MASK,
    FRONT_IN_DOCUMENT,
    PAIR_MARK,
    SECTION_IN_DOCUMENT,
    STEM_END,
    length_class,
    stem_of_key,
)
from contextfold.resolve.relevance.index_format import IndexView, Postings

# A run has at most this many entries, which bounds the memory of a build.
RUN_MAX_ENTRIES = 3_000_000
RUN_PREFIX = "relevance-run-"
BUFFER_BYTES = 1 << 20
# All runs are read at the same time.
READ_BUFFER_BYTES = 1 << 16
KEY_LENGTH_BYTES = 4
ENTRY_COUNT_BYTES = 8


def write_run(folder: int, name: str, terms: Iterable[tuple[bytes, array[int]]]) -> None:
    with open(new_file(folder, RUN_PREFIX + name), "wb", buffering=BUFFER_BYTES) as file:
        for key, entries in terms:
            file.write(len(key).to_bytes(KEY_LENGTH_BYTES, "little"))
            file.write(key)
            file.write(len(entries).to_bytes(ENTRY_COUNT_BYTES, "little"))
            entries.tofile(file)


def new_file(folder: int, name: str) -> int:
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)


def runs_in(folder: int) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith(RUN_PREFIX))


def read_run(folder: int, name: str) -> Iterator[Term]:
    with open(os.open(name, os.O_RDONLY, dir_fd=folder), "rb", buffering=READ_BUFFER_BYTES) as file:
        while length := file.read(KEY_LENGTH_BYTES):
            key = file.read(int.from_bytes(length, "little"))
            entries: array[int] = array("Q")
            entries.frombytes(file.read(ENTRY_BYTES * int.from_bytes(file.read(ENTRY_COUNT_BYTES), "little")))
            yield key, entries


Term = tuple[bytes, "array[int] | Postings"]

# The new number of a document that is not copied from the previous index.
GONE = -1

# The positions of the two halves of an entry (the document, and the part that the index stores) and of its counts.
_IS_LITTLE = sys.byteorder == "little"
_DOCUMENT, _ENTRY = (slice(1 if _IS_LITTLE else 0, None, 2), slice(0 if _IS_LITTLE else 1, None, 2))
_COUNTS = slice(0 if _IS_LITTLE else 7, None, 8)
_SECTION_WEIGHTS = bytes(SECTION_IN_DOCUMENT)
CLASS_BITS = 8
ENTRY_BYTES = 8
# A loop over so few entries is faster than processing columns.
FEW_ENTRIES = 12


class Saturations(dict[int, int]):
    """The values tf / (tf + K) in 65536ths. A key has the weighted occurrences above a document's length class."""

    def __init__(self, document_words: int, document_count: int) -> None:
        super().__init__()
        self.average = average_length(document_words, document_count)

    def __missing__(self, key: int) -> int:
        occurrences, length = key >> CLASS_BITS, CLASS_LENGTHS[key & (1 << CLASS_BITS) - 1]
        found = self[key] = saturation(occurrences, length, self.average)
        return found


class PostingsMaker:
    """Makes postings for documents of known lengths."""

    def __init__(self, words: Sequence[int]) -> None:
        self.saturations = Saturations(sum(words), len(words))
        self._classes = bytes(map(length_class, words))

    def stem(self, words: list[tuple[bytes, array[int]]]) -> Iterator[Postings]:
        """The postings of the words of one stem, after the postings that they share."""
        if len(words) == 1:
            yield self._word(*words[0])[0]
            return
        made = [self._word(key, entries) for key, entries in words]
        seen = Counter(chain.from_iterable(postings.documents for postings, _ in made))
        several = sorted(document for document, count in seen.items() if count > 1)
        if several:
            yield self._shared_postings(stem_of_key(words[0][0]), len(seen), several, made)
        for postings, _ in made:
            yield postings._replace(stem_documents=len(seen))

    def _word(self, key: bytes, entries: array[int]) -> tuple[Postings, list[int]]:
        """The postings of a word from its entries, which are sorted by document and section; and its occurrences."""
        columns = _columns_of_few(entries) if len(entries) <= FEW_ENTRIES else _columns(entries)
        documents, ends, packed, occurrences = columns
        if max(occurrences) > OCCURRENCES_MAX:
            occurrences = [min(count, OCCURRENCES_MAX) for count in occurrences]
        values = occurrences
        if PAIR_MARK not in key:
            classes, saturations = self._classes, self.saturations
            values = [
                saturations[count << CLASS_BITS | classes[document]]
                for document, count in zip(documents, occurrences, strict=True)
            ]
        return Postings(key, len(documents), documents, values, ends, packed, None), occurrences

    def _shared_postings(
        self, stem: bytes, stem_documents: int, documents: list[int], words: list[tuple[Postings, list[int]]]
    ) -> Postings:
        """The excess of the words' values over the value of all their occurrences, for documents with several words."""
        occurrences, values = dict.fromkeys(documents, 0), dict.fromkeys(documents, 0)
        for postings, counts in words:
            for document, count, value in zip(postings.documents, counts, postings.values, strict=True):
                if document in occurrences:
                    occurrences[document] += count
                    values[document] += value
        classes, saturations = self._classes, self.saturations
        excess = [
            values[document] - saturations[occurrences[document] << CLASS_BITS | classes[document]]
            for document in documents
        ]
        return Postings(stem, stem_documents, documents, excess, (), (), None)


def _columns(entries: array[int]) -> tuple[list[int], list[int], list[int], list[int]]:
    """The documents, the ends of their entries, the stored entries, and the occurrences in each document.

    It processes whole columns of bytes, because a build spends much of its time here.
    """
    raw = entries.tobytes()
    numbers = memoryview(raw).cast("I")[_DOCUMENT].tolist()
    packed = memoryview(raw).cast("I")[_ENTRY].tolist()
    weights = bytearray(raw[_COUNTS].translate(_SECTION_WEIGHTS))
    if min(packed) <= COUNTS_MASK:
        for at, entry in enumerate(packed):
            if entry <= COUNTS_MASK:
                weights[at] = FRONT_IN_DOCUMENT[entry]
    per_document = Counter(numbers)
    documents = list(per_document)
    ends = list(accumulate(per_document.values()))
    if len(documents) == len(numbers):
        return documents, ends, packed, list(weights)
    up_to = list(map(list(accumulate(weights, initial=0)).__getitem__, ends))
    return documents, ends, packed, list(map(sub, up_to, [0, *up_to]))


def _columns_of_few(entries: array[int]) -> tuple[list[int], list[int], list[int], list[int]]:
    """The same, for a word with few entries, as most words are."""
    documents: list[int] = []
    ends: list[int] = []
    packed: list[int] = []
    occurrences: list[int] = []
    for entry in entries:
        document, stored = entry >> DOCUMENT_SHIFT, entry & ENTRY_MASK
        packed.append(stored)
        weight = FRONT_IN_DOCUMENT[stored] if stored <= COUNTS_MASK else SECTION_IN_DOCUMENT[stored & COUNTS_MASK]
        if documents and documents[-1] == document:
            ends[-1] = len(packed)
            occurrences[-1] += weight
        else:
            documents.append(document)
            ends.append(len(packed))
            occurrences.append(weight)
    return documents, ends, packed, occurrences


def entries_of(postings: Postings, new_numbers: Sequence[int]) -> array[int]:
    """The entries of postings, for the unchanged documents, under their new numbers."""
    ends = list(postings.ends)
    numbers = list(map(new_numbers.__getitem__, postings.documents))
    ranges = [
        (number, start, end) for number, start, end in zip(numbers, [0, *ends], ends, strict=False) if number != GONE
    ]
    packed = list(postings.entries)
    if len(ranges) < len(numbers):
        packed = list(chain.from_iterable(packed[start:end] for _, start, end in ranges))
    # It sets whole columns, because a rebuild spends much of its time here.
    halves = array("I", bytes(ENTRY_BYTES * len(packed)))
    halves[_ENTRY] = array("I", packed)
    halves[_DOCUMENT] = array("I", chain.from_iterable(repeat(number, end - start) for number, start, end in ranges))
    entries: array[int] = array("Q")
    entries.frombytes(halves.tobytes())
    return entries


def copy_terms(previous: IndexView, new_numbers: Sequence[int], average: int) -> Iterator[Term]:
    """The terms of the previous index with the unchanged documents, under their new numbers.

    If all documents of a stem are unchanged and the average length is the same, its postings are copied. Other terms
    are returned as entries, from which postings are made again.
    """
    unmoved = all(number in (at, GONE) for at, number in enumerate(new_numbers))
    gone = frozenset(at for at, number in enumerate(new_numbers) if number == GONE)
    head = previous.head
    numbered = ((number, previous.key(number)) for number in range(head.term_count))
    is_as_long = average_length(head.document_words, head.document_count) == average
    for _, group in groupby(numbered, key=lambda term: stem_of_key(term[1])):
        terms = [previous.postings(number, key) for number, key in group]
        if is_as_long and (not gone or all(gone.isdisjoint(postings.documents) for postings in terms)):
            for postings in terms:
                if not unmoved:
                    moved = list(map(new_numbers.__getitem__, postings.documents))
                    values = list(map(postings.value, range(len(moved))))
                    postings = postings._replace(documents=moved, values=values, all_values=None)  # noqa: PLW2901
                yield postings.key, postings
            continue
        for postings in terms:
            if STEM_END in postings.key and (entries := entries_of(postings, new_numbers)):
                yield postings.key, entries


def merge(sources: Sequence[Iterable[Term]], make: PostingsMaker) -> Iterator[Postings]:
    """Every term once, in the order of keys."""
    merged = heapq.merge(*sources, key=itemgetter(0)) if len(sources) > 1 else iter(sources[0] if sources else ())
    for _, group in groupby(merged, key=lambda term: stem_of_key(term[0])):
        terms = list(group)
        kept = [found for _, found in terms if isinstance(found, Postings)]
        if len(kept) == len(terms):
            yield from kept
        else:
            yield from make.stem(_join_entries(terms))


def _join_entries(terms: list[Term]) -> list[tuple[bytes, array[int]]]:
    """The words of a stem, each with its entries from all sources."""
    if len(terms) == 1 and isinstance(terms[0][1], array):
        return [(terms[0][0], terms[0][1])]
    words: dict[bytes, array[int]] = {}
    for key, found in terms:
        if STEM_END not in key:
            continue
        entries = entries_of(found, range(max(found.documents) + 1)) if isinstance(found, Postings) else found
        if key not in words:
            words[key] = entries
        elif words[key][-1] < entries[0]:
            words[key] += entries
        else:
            words[key] = array("Q", sorted(words[key] + entries))
    return list(words.items())
