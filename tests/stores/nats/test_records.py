"""The records on NATS: they can be encoded and read back, and unreadable ones are refused with one line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contextfold.errors import StoreInvalid
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import BranchCreated, Event, OperationCompleted
from contextfold.fold.store import CommitReceipt, Summary
from contextfold.stores.nats import records
from contextfold.stores.nats.records import ChunkReference, CommitRecord

AT = "2026-01-01T12:00:00Z"
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
numbers = st.integers(0, 1 << 53)
# Whether something is undone is determined when it is read.
not_undone = st.just(value=False)
entries = st.builds(
    ArchiveEntry,
    st.none() | texts,
    numbers,
    texts,
    texts,
    texts,
    numbers,
    texts,
    texts,
    st.booleans(),
    st.none() | texts,
    st.none() | numbers,
    undone=not_undone,
)
summaries = st.builds(Summary, texts, texts, texts, texts, texts, texts, numbers, texts, undone=not_undone)
receipts = st.dictionaries(texts, st.builds(CommitReceipt, texts, texts, repeated=st.just(False)), max_size=3)


def events_after(before: int) -> st.SearchStrategy[list[Event]]:
    return st.lists(texts, min_size=1, max_size=4).map(
        lambda types: [
            OperationCompleted(before + n, AT, None, text, 3, "hook", failed=False, redactions=0)
            for n, text in enumerate(types, 1)
        ]
    )


logged = numbers.flatmap(
    lambda before: st.builds(
        CommitRecord,
        texts,
        st.just(before),
        events_after(before),
        receipts,
        st.lists(summaries, max_size=2),
        st.lists(texts, max_size=2),
        st.lists(entries, max_size=3),
    )
)


@given(logged)
def test_a_commit_record_is_decoded_to_the_same_value(record: CommitRecord) -> None:
    assert records.parse_record(records.encode_core(record)) == record


@given(logged, texts)
def test_a_record_refers_to_texts_stored_in_chunks_and_does_not_contain_them(record: CommitRecord, mark: str) -> None:
    decoded = records.parse_record(records.encode_core(replace(record, texts=ChunkReference(mark, 3))))
    assert decoded == replace(record, entries=[], texts=ChunkReference(mark, 3))
    assert records.parse_entries(records.encode_entries(record.entries)) == list(record.entries)


@given(st.lists(entries, max_size=3), summaries)
def test_archive_records_are_decoded_to_the_same_values(written: list[ArchiveEntry], summary: Summary) -> None:
    assert records.parse_archived(records.encode_archived(written)) == (written, None, ())
    assert records.parse_summary(records.encode_summary(summary)) == summary
    assert records.parse_summary(records.RETRACTED) is None
    reference = records.encode_reference("texts", ChunkReference("m", 2), places=[1, 0])
    assert records.parse_archived(reference) == ([], ChunkReference("m", 2), [1, 0])


# Hypothesis takes the excluded value from the source code.
@given(st.binary(max_size=200).filter(lambda data: data != records.RETRACTED))
@example(b'{"format":0,"retracted":true}')
@example(b'{"format":true,"retracted":true}')
@example(b'{"format":1,"retracted":0}')
@example(b'{"format":1}')
@example(b'{"format":1,"session":"s","before":0,"events":[{}]}')
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    for read in (records.parse_record, records.parse_archived, records.parse_summary):
        with pytest.raises(StoreInvalid):
            read(data)


@pytest.mark.parametrize("data", [b"{}", b"", b"[1]", b"[[]]", b"\xff"])
def test_malformed_texts_are_refused(data: bytes) -> None:
    with pytest.raises(StoreInvalid, match="cannot be read"):
        records.parse_entries(data)


def test_a_record_of_a_newer_version_is_refused_with_that_reason() -> None:
    with pytest.raises(StoreInvalid, match="newer version"):
        records.parse_record(b'{"format":2}')


def test_a_very_long_text_is_cut_when_it_is_published() -> None:
    long = "x" * (records.PUBLISHED_MOST + 1)
    published = json.loads(records.encode_event("s", BranchCreated(2, AT, "br_1", None, "d", long, 20, 0)))
    assert published["prompt"] == "x" * records.PUBLISHED_MOST + records.CUT
