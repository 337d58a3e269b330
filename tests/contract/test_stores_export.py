"""Export and import between every pair of stores: random histories are equal afterwards, and damage is detected."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextfold.errors import ExportInvalid, TargetNotEmpty
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.store import (
    ArchivedResult,
    ArchivedThread,
    Commit,
    LeftOutDecision,
    Operation,
    ProxiedConversation,
    SessionKey,
    Store,
)
from contextfold.fold.store_export import (
    KINDS,
    ExportRecord,
    encode_header,
    encode_record,
    read_export,
)
from contextfold.stores.export_file import read_records, verify, write_export
from contextfold.stores.nats.store import NatsStore
from contextfold.stores.sqlite.store import SqliteStore
from tests.contract.sessions import NOON, commit_of, event_at, key_of, summary_of
from tests.contract.stores import options_on
from tests.support.machine import times
from tests.support.nats_servers import NatsServer, delete_streams
from tests.support.temporary_store import TemporaryStore

EVENING, NEXT_DAY = "2026-01-01T20:00:00Z", "2026-01-02T20:00:00Z"
OWNERS = ("local", "ann@example.org")
PAIRS = [(source, target) for source in ("sqlite", "nats") for target in ("sqlite", "nats")]
# Longer than one part of an import into NATS.
LONG = "0123456789 é\n" * 400_000


@asynccontextmanager
async def open_store(kind: str, folder: Path, server: Callable[[], NatsServer]) -> AsyncIterator[Any]:
    options = options_on(server()) if kind == "nats" else None
    path = Path(tempfile.mkdtemp(dir=folder)) / "state.db"
    store = NatsStore(options) if options else SqliteStore(path)
    try:
        yield store
    finally:
        await store.close()
        if options:
            await delete_streams(options)


async def records_of(store: NatsStore | SqliteStore) -> list[ExportRecord]:
    return [record async for record in store.export()]


# ---- histories


async def write_history(store: Store, seed: int) -> None:
    """Writes sessions of several owners, some ended, with everything that a session can store."""
    rng = random.Random(seed)
    for number in range(rng.randint(0, 4)):
        key = key_of(rng.choice(("p1", "p 2")), owner=rng.choice(OWNERS), name=rng.choice(("", "n1")) + str(number))
        at = rng.choice((NOON, NEXT_DAY))
        await _write_session(store, rng, key, f"sess_{seed}_{number}", at)
    await store.expire(EVENING, NEXT_DAY)
    for number in range(rng.randint(0, 3)):
        text = rng.choice(("", "text é", "x" * 5000))
        decision = LeftOutDecision(f"call {number}", f"hash{number}", f"res_{number}", "[stub “x”]", NOON)
        await store.keep_left_out(rng.choice(OWNERS), "conversation.1", [ArchivedResult(decision, text)])
        conversation = ProxiedConversation(
            rng.choice((NOON, EVENING)), {f"call {number} “x”": rng.choice(("", "[1]"))}, rng.choice((0, 700))
        )
        await store.note_conversation(rng.choice(OWNERS), f"conversation.{number % 2}", conversation)


def _branches_of(session_id: str) -> list[str]:
    """The ids of the branches of a session; no other session has them."""
    return [f"br_{number}_{session_id}" for number in (1, 2)]


async def _write_session(store: Store, rng: random.Random, key: SessionKey, session_id: str, at: str) -> None:
    revision = 0
    branches = _branches_of(session_id)
    for step in range(rng.randint(1, 6)):
        count = rng.randint(1, 3)
        events = [event_at(revision + each, at, session_id) for each in range(1, count + 1)]
        entries = [
            ArchiveEntry(branch, event.n, at, "operation", rng.choice(("", "short", "long " * 4000)), 3, "tool", "hook")
            for event in events
            for branch in rng.sample([None, *branches], rng.randint(0, 2))
        ]
        summaries = [
            summary_of(
                key, branch, f"outcome {step}", session_id=session_id, at=f"2026-01-01T12:{revision:02}:{step:02}Z"
            )
            for branch in rng.sample(branches, rng.randint(0, 2))
        ]
        retracted = [branch for branch in branches if not summaries and rng.random() < 0.3]
        operation = Operation(f"op {step} é", f"arguments {step}") if rng.random() < 0.8 else None
        await store.commit(
            Commit(key, session_id, revision, events, operation, f"answer {step}", entries, summaries, retracted)
        )
        revision += count


async def read_everything(store: Store) -> list[object]:
    """Everything that the store port returns of what `write_history` writes."""
    values: list[object] = []
    for owner in OWNERS:
        live = await store.sessions(owner, limit=100)
        values += [live, await store.ended_sessions(owner, limit=100), await store.left_out(owner, "conversation.1")]
        values += [await store.conversation(owner, f"conversation.{number}") for number in range(2)]
        values += [await store.left_out_text(owner, f"res_{number}") for number in range(3)]
        values.append(
            sorted(await store.search(owner, "outcome", None, 100), key=lambda each: (each.session_id, each.branch_id))
        )
        for session in live:
            values.append(await store.load(session.key))
            values += [await store.receipt(session.key, f"op {step} é") for step in range(6)]
            values += [
                await store.trajectory(
                    ArchivedThread(owner, session.key.project_hash, branch, session.session_id), limit=100
                )
                for branch in (None, *_branches_of(session.session_id))
            ]
    return values


@pytest.mark.parametrize(("source", "target"), PAIRS)
async def test_random_histories_are_equal_after_an_import(
    source: str, target: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def server() -> NatsServer:
        server_: NatsServer = request.getfixturevalue("nats_server")
        return server_

    async def check_seed(seed: int) -> None:
        async with (
            open_store(source, tmp_path, server) as source_store,
            open_store(target, tmp_path, server) as target_store,
        ):
            await write_history(source_store, seed)
            path = tmp_path / f"{seed}.jsonl{'.gz' if seed % 2 else ''}"
            await write_export(path, source_store.export(), NOON)
            counts = verify(path)
            await target_store.import_all(read_records(path))
            assert await records_of(target_store) == await records_of(source_store)
            assert sum(counts.values()) == len(await records_of(source_store))
            assert await read_everything(target_store) == await read_everything(source_store)

    for seed in range(times(2, soak=100)):
        await check_seed(seed)


@pytest.mark.parametrize("target", ["sqlite", "nats"])
async def test_a_long_session_is_imported_completely(
    target: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with (
        open_store("sqlite", tmp_path, lambda: request.getfixturevalue("nats_server")) as source_store,
        open_store(target, tmp_path, lambda: request.getfixturevalue("nats_server")) as target_store,
    ):
        for session_id, at in (("sess_1", NOON), ("sess_2", NEXT_DAY)):
            key = key_of(session_id)
            await source_store.commit(commit_of(key, session_id=session_id, events=300, at=at))
            for n in range(301, 304):
                entries = [
                    ArchiveEntry("br_1", n, at, "operation", LONG),
                    ArchiveEntry(None, n, at, "child", "done"),
                ]
                await source_store.commit(commit_of(key, n - 1, session_id=session_id, at=at, entries=entries))
        await source_store.expire(EVENING, NEXT_DAY)
        await target_store.import_all(await records_of(source_store))
        assert await read_everything(target_store) == await read_everything(source_store)


@pytest.mark.parametrize("kind", ["sqlite", "nats"])
async def test_an_import_into_a_store_with_sessions_is_refused(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with open_store(kind, tmp_path, lambda: request.getfixturevalue("nats_server")) as store:
        await store.commit(commit_of(key_of()))
        await store.settle()
        before = await records_of(store)
        with pytest.raises(TargetNotEmpty):
            await store.import_all(before)
        assert await records_of(store) == before


async def test_an_import_that_fails_leaves_the_store_empty(tmp_path: Path) -> None:
    def failing(records: Sequence[ExportRecord]) -> Iterator[ExportRecord]:
        yield from records
        raise ExportInvalid("in the middle")

    source, target = TemporaryStore(), SqliteStore(tmp_path / "state.db")
    try:
        await source.commit(commit_of(key_of(), events=9))
        records = await records_of(source)
        with pytest.raises(ExportInvalid):
            await target.import_all(failing(records[:-1]))
        assert await records_of(target) == []
        await target.import_all(records)
        assert await records_of(target) == records
    finally:
        await target.close()


async def test_an_export_of_a_store_in_use_is_a_snapshot(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.db")
    try:
        for number in range(200):
            await store.commit(commit_of(key_of(f"p{number:03}"), session_id=f"sess_{number}"))
        exported = store.export()
        records = [await anext(exported)]
        await store.commit(commit_of(key_of("p199"), 1, session_id="sess_199"))
        records += [record async for record in exported]
        assert sum(getattr(record, "revision", 0) for record in records) == 200
    finally:
        await store.close()


# ---- files


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("exported") / "all.jsonl"

    async def run() -> None:
        store = TemporaryStore()
        for seed in range(4):
            await write_history(store, seed)
        await write_export(path, store.export(), NOON)

    asyncio.run(run())
    return path.read_bytes()


def lines_of(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


@settings(max_examples=times(80, soak=5000), deadline=None)
@given(st.data())
def test_a_flipped_bit_is_detected(exported: bytes, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(exported) - 1))
    bit = data.draw(st.integers(0, 7))
    altered = bytearray(exported)
    altered[position] ^= 1 << bit
    with pytest.raises(ExportInvalid):
        list(read_export(lines_of(bytes(altered))))


@settings(max_examples=times(40, soak=2000), deadline=None)
@given(st.data())
def test_a_truncated_file_is_detected(exported: bytes, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, len(exported) - 1))
    with pytest.raises(ExportInvalid):
        list(read_export(lines_of(exported[:length])))


def test_each_kind_of_damage_has_its_own_error(exported: bytes) -> None:
    lines = lines_of(exported)
    for damaged, error in (
        ([], "ends before its last line"),
        (lines[:-1], "ends before its last line"),
        ([*lines[:-1], lines[-1][:-1]], "ends in the middle of a line"),
        ([*lines, b"\n"], "has lines after its end"),
        ([lines[0], *lines[2:]], "belongs to no session"),
        ([*lines[:-2], lines[-1]], "was altered"),
        ([lines[0], lines[2], lines[1], *lines[3:]], "belongs to no session"),
        ([b"not JSON\n"], "is not an export of contextfold"),
        ([lines[0].replace(b'"version":4', b'"version":5'), *lines[1:]], "has export format 5"),
    ):
        with pytest.raises(ExportInvalid, match=error):
            list(read_export(damaged))


def test_a_truncated_or_altered_compressed_file_is_detected(exported: bytes, tmp_path: Path) -> None:
    async def write(path: Path) -> None:
        async def records() -> AsyncIterator[ExportRecord]:
            for record in read_export(lines_of(exported)):
                yield record

        await write_export(path, records(), NOON)

    path = tmp_path / "all.jsonl.gz"
    asyncio.run(write(path))
    compressed = path.read_bytes()
    assert verify(path)["session"] > 0
    assert len(compressed) < len(exported)
    path.write_bytes(compressed[:-20])
    with pytest.raises(ExportInvalid, match="is not complete"):
        verify(path)
    middle = len(compressed) // 2
    path.write_bytes(compressed[:middle] + bytes([compressed[middle] ^ 1]) + compressed[middle + 1 :])
    with pytest.raises(ExportInvalid):
        verify(path)


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text("mine")
    with pytest.raises(ExportInvalid):
        asyncio.run(write_export(path, TemporaryStore().export(), NOON))
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_without_a_session_before_it_is_refused() -> None:
    header = encode_header(dict.fromkeys(KINDS, 0), NOON)
    with pytest.raises(ExportInvalid, match="belongs to no session"):
        list(read_export([header, encode_record(event_at(2))]))
