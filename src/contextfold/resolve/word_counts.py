"""The word counts of every document, which let `resolve` skip reading the documents. Pure; reads no file.

It is derived data. A table has the fingerprints of all documents' files as they were when the build had written them.
Postings, in blocks, have the number of occurrences of each word in each document. Both have checksums and are bound to
the machine's byte order. If anything is wrong with them, `resolve` reads the documents: it takes longer, and the
result is the same.

    table     magic, SHA-256 of the rest, length of a JSON head, the head, sections of fixed order
    postings  blocks of some 16 KB, each with whole terms of one segment, in byte order
    segment   at most 65,536 successive documents, indexed together to bound the memory of a build

The version of a document decides whether a segment ends after it. So a changed document changes only its own segment,
and a build over an existing cache copies the blocks of all others.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import or_
from typing import NamedTuple

from contextfold.common.canonical import Malformed, decode, encode
from contextfold.common.text import count_words
from contextfold.common.tokens import tokens_of
from contextfold.resolve.cache_format import FINGERPRINT_FIELDS, FRAME, HASH_PREFIX, UNTRUSTED, ManifestEntry
from contextfold.resolve.selection import Measures

TABLE_FILE = "pack/table"
POSTINGS_FILE = "pack/postings"
# A build reads the file system's time from the timestamps of this file, then removes it.
CLOCK_FILE = "pack/clock"

MAGIC = b"contextfold pack 1\n"
DIGEST_BYTES = 32
HEAD_LENGTH_BYTES = 8
BLOCK_DIGEST_BYTES = 8
BLOCK_TARGET_BYTES = 16 * 1024
# A posting is one integer: the document's ordinal in its segment in the high bits, the term's count in the low bits.
COUNT_BITS = 16
POSTING_COUNT_MAX = (1 << COUNT_BITS) - 1
# After its least number of documents, a segment ends after 1024 more on average. The largest numbers of documents and
# postings bound the memory of a build.
SEGMENT_MIN_DOCUMENTS = 256
SEGMENT_ENDS_IN = 1024
SEGMENT_MAX_DOCUMENTS = 1 << 16
SEGMENT_MAX_POSTINGS = 2_000_000
# The version of these rules. Counts made by other rules are read, but a build copies no segment of them.
SEGMENTATION = 2
# No path contains a NUL, so no id and no file name does. No word contains a newline.
SEPARATOR = b"\0"
TERM_SEPARATOR = b"\n"


# Reads some bytes of the file of postings: an offset and a length.
ReadPart = Callable[[int, int], bytes]


class Blocks(NamedTuple):
    """The blocks of a file of postings, in columns: a resolve needs few of many.

    `first_terms` has the first term of each block.
    """

    offsets: array[int]
    lengths: array[int]
    digests: bytearray
    first_terms: list[bytes]

    def append(self, first_term: bytes, length: int, digest: bytes) -> None:
        self.offsets.append(self.offsets[-1] + self.lengths[-1] if self.offsets else 0)
        self.lengths.append(length)
        self.digests.extend(digest)
        self.first_terms.append(first_term)

    def digest(self, at: int) -> bytes:
        return bytes(self.digests[at * BLOCK_DIGEST_BYTES : (at + 1) * BLOCK_DIGEST_BYTES])

    def read(self, at: int, read_part: ReadPart) -> bytes:
        """The bytes of a block. Raises Malformed if it is damaged."""
        block = read_part(self.offsets[at], self.lengths[at])
        if _block_digest(block) != self.digest(at):
            raise Malformed("a block of the packed index is damaged")
        return block


class Segment(NamedTuple):
    first_document: int
    first_block: int
    end_block: int


class WordCountsBuilder:
    """Counts the words of documents and turns them into blocks of postings, to be written in the order returned."""

    def __init__(self) -> None:
        self._tokens: array[int] = array("Q")
        self._total_words: array[int] = array("Q")
        self._blocks = Blocks(array("Q"), array("Q"), bytearray(), [])
        self._segments: list[Segment] = []
        self._first_document = 0
        self._begin_segment()

    def _begin_segment(self) -> None:
        self._postings: defaultdict[bytes, array[int]] = defaultdict(lambda: array("I"))
        self._posting_count = 0

    @property
    def document_count(self) -> int:
        return len(self._tokens)

    @property
    def is_between_segments(self) -> bool:
        return self.document_count == self._first_document

    def add(self, entry: ManifestEntry, content: bytes) -> Iterator[bytes]:
        """Add the next document; yield the blocks that are complete."""
        counts: Mapping[bytes, int] = count_words(content)
        ordinal = self.document_count - self._first_document
        self._tokens.append(tokens_of(len(content)))
        self._total_words.append(sum(counts.values()))
        if max(counts.values(), default=0) > POSTING_COUNT_MAX:
            counts = self._without_overflow(ordinal, counts)
        # This runs for every word of every document and takes a third of a build's processor time; `map` is faster
        # than a `for` statement.
        postings = map(or_, repeat(ordinal << COUNT_BITS), counts.values())
        deque(map(array.append, map(self._postings.__getitem__, counts), postings), maxlen=0)
        self._posting_count += len(counts)
        if (
            (ordinal + 1 >= SEGMENT_MIN_DOCUMENTS and ends_a_segment(entry.digest))
            or ordinal + 1 == SEGMENT_MAX_DOCUMENTS
            or self._posting_count >= SEGMENT_MAX_POSTINGS
        ):
            yield from self.finish()

    def adopt(self, counts: WordCounts, number: int, read_part: ReadPart) -> list[bytes]:
        """Copy a whole segment of other counts. Raises Malformed and copies nothing if one of its blocks is damaged."""
        assert self.is_between_segments
        segment, documents = counts.segments[number], counts.documents_of(number)
        block_numbers = range(segment.first_block, segment.end_block)
        blocks = [counts.blocks.read(at, read_part) for at in block_numbers]
        first_block = len(self._blocks.offsets)
        for at, block in zip(block_numbers, blocks, strict=True):
            self._blocks.append(counts.blocks.first_terms[at], len(block), counts.blocks.digest(at))
        self._tokens.extend(counts.tokens[documents.start : documents.stop])
        self._total_words.extend(counts.total_words[documents.start : documents.stop])
        self._end_segment(first_block)
        return blocks

    def _without_overflow(self, ordinal: int, counts: Mapping[bytes, int]) -> dict[bytes, int]:
        """Write several postings for a count that is too large for one; readers add up all postings of a document."""
        small = {}
        for term, count in counts.items():
            full, small[term] = divmod(count, POSTING_COUNT_MAX)
            self._postings[term].extend([ordinal << COUNT_BITS | POSTING_COUNT_MAX] * full)
        return small

    def finish(self) -> Iterator[bytes]:
        """End the current segment, if it has documents, and yield its blocks."""
        if self.is_between_segments and self._segments:
            return
        first_block = len(self._blocks.offsets)
        terms: list[bytes] = []
        runs: list[bytes] = []
        size = 0
        for term, postings in sorted(self._postings.items()):
            terms.append(term)
            runs.append(postings.tobytes())
            size += len(term) + len(runs[-1])
            if size >= BLOCK_TARGET_BYTES:
                yield self._block(terms, runs)
                terms, runs, size = [], [], 0
        if terms:
            yield self._block(terms, runs)
        self._end_segment(first_block)
        self._begin_segment()

    def _end_segment(self, first_block: int) -> None:
        self._segments.append(Segment(self._first_document, first_block, len(self._blocks.offsets)))
        self._first_document = self.document_count

    def _block(self, terms: list[bytes], runs: list[bytes]) -> bytes:
        ends, end = array("Q"), 0
        for run in runs:
            end += len(run)
            ends.append(end)
        names = TERM_SEPARATOR.join(terms)
        block = b"".join((array("Q", (len(terms), len(names))).tobytes(), ends.tobytes(), names, *runs))
        self._blocks.append(terms[0], len(block), _block_digest(block))
        return block

    def table(self, entries: Sequence[ManifestEntry], seen: array[int]) -> WordCounts:
        """The table of all documents. `seen` has the fingerprints of FRAME, then those of the documents' files."""
        frame_length = len(FRAME) * FINGERPRINT_FIELDS
        return WordCounts(
            frame=seen[:frame_length],
            fingerprints=seen[frame_length:],
            tokens=self._tokens,
            total_words=self._total_words,
            files=[entry.file.encode() for entry in entries],
            ids=[entry.id.encode() for entry in entries],
            versions=b"".join([entry.digest for entry in entries]),
            segments=self._segments,
            blocks=self._blocks,
        )


def ends_a_segment(version: bytes) -> bool:
    return int.from_bytes(version[:4], "little") % SEGMENT_ENDS_IN == 0


def _block_digest(block: bytes) -> bytes:
    return hashlib.sha256(block).digest()[:BLOCK_DIGEST_BYTES]


def _postings_in(block: bytes, term: bytes) -> array[int]:
    """The postings of a term in a block; empty if the block does not have the term."""
    term_count, names_length = _integers("Q", block[:16])
    names_at = 16 + 8 * term_count
    runs_at = names_at + names_length
    terms = block[names_at:runs_at].split(TERM_SEPARATOR)
    position = bisect_left(terms, term)
    if position == len(terms) or terms[position] != term:
        return array("I")
    ends = _integers("Q", block[16:names_at])
    start = ends[position - 1] if position else 0
    return _integers("I", block[runs_at + start : runs_at + ends[position]])


def _halves(postings: array[int]) -> tuple[array[int], array[int]]:
    """The ordinals and the counts of postings, which are their high and low 16 bits."""
    halves = _integers("H", postings.tobytes())
    low, high = (0, 1) if sys.byteorder == "little" else (1, 0)
    return halves[high::2], halves[low::2]


def _integers(typecode: str, raw: bytes | memoryview) -> array[int]:
    integers: array[int] = array(typecode)
    integers.frombytes(raw)
    return integers


class WordCounts(NamedTuple):
    """The table. Documents are numbered in the order of their ids.

    `frame` has the fingerprints of FRAME, `fingerprints` those of the documents' files. `versions` has DIGEST_BYTES
    for each document.
    """

    frame: array[int]
    fingerprints: array[int]
    tokens: array[int]
    total_words: array[int]
    files: list[bytes]
    ids: list[bytes]
    versions: bytes
    segments: list[Segment]
    blocks: Blocks
    segmentation: int = SEGMENTATION

    def documents_of(self, segment: int) -> range:
        """The numbers of the documents in a segment."""
        is_last = segment + 1 == len(self.segments)
        end = len(self.files) if is_last else self.segments[segment + 1].first_document
        return range(self.segments[segment].first_document, end)

    @property
    def is_consistent(self) -> bool:
        """Whether the lengths of all lists fit the number of documents."""
        count = len(self.files)
        return (
            len(self.ids) == count
            and len(self.tokens) == len(self.total_words) == count
            and len(self.fingerprints) // FINGERPRINT_FIELDS == count
            and len(self.versions) == count * DIGEST_BYTES
            and len(self.frame) == len(FRAME) * FINGERPRINT_FIELDS
            and len(self.blocks.offsets) == len(self.blocks.first_terms) == len(self.blocks.lengths)
            and len(self.blocks.digests) == len(self.blocks.offsets) * BLOCK_DIGEST_BYTES
        )

    def entry(self, number: int) -> ManifestEntry:
        digest = self.versions[DIGEST_BYTES * number : DIGEST_BYTES * (number + 1)]
        return ManifestEntry(self.ids[number].decode(), HASH_PREFIX + digest.hex(), self.files[number].decode())

    def describes(self, entries: Sequence[ManifestEntry]) -> bool:
        """Whether these are the counts of exactly these documents."""
        return len(entries) == len(self.files) and all(
            self.entry(number) == entry for number, entry in enumerate(entries)
        )

    def changed_since(self, seen: array[int]) -> list[int]:
        """The numbers of the documents whose current fingerprints differ from the recorded ones."""
        if seen == self.fingerprints:
            return []
        step, recorded = FINGERPRINT_FIELDS, self.fingerprints
        return [at // step for at in range(0, len(seen), step) if seen[at : at + step] != recorded[at : at + step]]

    def measure(self, terms: Sequence[bytes], read_part: ReadPart) -> Measures:
        """Count the terms in every document. Raises Malformed if a block is damaged."""
        matches: dict[int, int] = {}
        for term in terms:
            for segment in self.segments:
                at = bisect_right(self.blocks.first_terms, term, segment.first_block, segment.end_block) - 1
                if at < segment.first_block:
                    continue
                block = self.blocks.read(at, read_part)
                try:
                    postings = _postings_in(block, term)
                except (ValueError, IndexError) as problem:
                    raise Malformed("a block of the packed index is laid out otherwise") from problem
                ordinals, counts = _halves(postings)
                first = segment.first_document
                for ordinal, count in zip(ordinals, counts, strict=True):
                    matches[first + ordinal] = matches.get(first + ordinal, 0) + count
        return Measures(self.tokens, self.total_words, matches)

    def to_bytes(self) -> bytes:
        sections = [
            self.fingerprints.tobytes(),
            self.tokens.tobytes(),
            self.total_words.tobytes(),
            SEPARATOR.join(self.files),
            SEPARATOR.join(self.ids),
            self.versions,
            self.blocks.offsets.tobytes(),
            self.blocks.lengths.tobytes(),
            bytes(self.blocks.digests),
            TERM_SEPARATOR.join(self.blocks.first_terms),
        ]
        head = encode(
            {
                "byte_order": sys.byteorder,
                "frame": self.frame.tolist(),
                "segments": self.segments,
                "segmentation": self.segmentation,
                "sections": [len(section) for section in sections],
            }
        ).encode()
        body = b"".join((len(head).to_bytes(HEAD_LENGTH_BYTES, "little"), head, *sections))
        return MAGIC + hashlib.sha256(body).digest() + body


def older_than(moment_ns: int, seen: array[int]) -> array[int]:
    """Replace the fingerprints of files that are not older than `moment_ns` by UNTRUSTED.

    Such a file could still change without a change of its timestamps.
    """
    trustworthy: array[int] = array("q")
    for at in range(0, len(seen), FINGERPRINT_FIELDS):
        row = seen[at : at + FINGERPRINT_FIELDS]
        size, mtime_ns, ctime_ns, _ = row
        older = max(mtime_ns, ctime_ns) < moment_ns
        trustworthy.extend(row if older and size >= 0 else UNTRUSTED)
    return trustworthy


def decode_word_counts(raw: bytes | memoryview) -> WordCounts:
    """Decode a table. Raises Malformed if it is damaged or this machine cannot read it."""
    body_at = len(MAGIC) + DIGEST_BYTES
    body = memoryview(raw)[body_at:]
    if raw[: len(MAGIC)] != MAGIC or raw[len(MAGIC) : body_at] != hashlib.sha256(body).digest():
        raise Malformed("the packed index is damaged, or of another version")
    try:
        counts = _decode_body(body)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as problem:
        raise Malformed("the packed index is laid out otherwise") from problem
    if not counts.is_consistent:
        raise Malformed("the packed index contradicts itself")
    return counts


def _decode_body(body: memoryview) -> WordCounts:
    at = HEAD_LENGTH_BYTES + int.from_bytes(body[:HEAD_LENGTH_BYTES], "little")
    head = decode(bytes(body[HEAD_LENGTH_BYTES:at]))
    if not isinstance(head, dict):
        raise TypeError("no head")
    if head["byte_order"] != sys.byteorder:
        raise Malformed("the packed index is of a machine with another byte order")
    sections = []
    for length in head["sections"]:
        sections.append(body[at : at + length])
        at += length
    fingerprints, tokens, total_words, files, ids, versions, offsets, lengths, digests, first_terms = sections
    return WordCounts(
        frame=array("q", head["frame"]),
        fingerprints=_integers("q", fingerprints),
        tokens=_integers("Q", tokens),
        total_words=_integers("Q", total_words),
        files=bytes(files).split(SEPARATOR) if files else [],
        ids=bytes(ids).split(SEPARATOR) if files else [],
        versions=bytes(versions),
        segments=[Segment(*segment) for segment in head["segments"]],
        blocks=Blocks(
            _integers("Q", offsets),
            _integers("Q", lengths),
            bytearray(digests),
            bytes(first_terms).split(TERM_SEPARATOR) if offsets else [],
        ),
        segmentation=head.get("segmentation", 1),
    )
