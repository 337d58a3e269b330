"""Export and import between every pair of stores: random histories arrive equal, and damage is noticed."""

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

from contextfold.export_errors import ExportAltered, ExportInvalid, ExportNewer, ExportTruncated, TargetNotEmpty
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.ports.store import (
    ArchivedResult,
    Commit,
    LeftOutDecision,
    Operation,
    ProxiedConversation,
    SessionKey,
    Store,
)
from contextfold.fold.ports.store_export import (
    KINDS,
    ExportRecord,
    PortableStore,
    encode_header,
    encode_record,
    read_export,
)
from contextfold.stores.export_file import read_counts, read_records, verify, write_export
from contextfold.stores.memory import MemoryStore
from contextfold.stores.nats.store import NatsStore
from contextfold.stores.sqlite.store import SqliteStore
from tests.contract.sessions import NOON, commit_of, event_at, key_of, summary_of
from tests.contract.stores import options_on
from tests.support.machine import times
from tests.support.nats_servers import NatsServer, drop

EVENING, NEXT_DAY = "2026-01-01T20:00:00Z", "2026-01-02T20:00:00Z"
OWNERS = ("local", "ann@example.org")
PAIRS = [
    (source, target)
    for source in ("memory", "sqlite", "nats")
    for target in ("memory", "sqlite", "nats")
    if source != target or source == "nats"
]
# More than one part of an import into NATS.
LONG = "0123456789 é\n" * 400_000


@asynccontextmanager
async def opened(kind: str, folder: Path, server: Callable[[], NatsServer]) -> AsyncIterator[Any]:
    options = options_on(server()) if kind == "nats" else None
    path = Path(tempfile.mkdtemp(dir=folder)) / "state.db"
    store = MemoryStore() if kind == "memory" else NatsStore(options) if options else SqliteStore.open(path)
    try:
        yield store
    finally:
        await store.close()
        if options:
            await drop(options)


async def records_of(store: PortableStore) -> list[ExportRecord]:
    return [record async for record in store.export()]


# ---- histories


async def live_through(store: Store, seed: int) -> None:
    """Sessions of several owners, some ended, with everything a session can leave."""
    rng = random.Random(seed)
    for number in range(rng.randint(0, 4)):
        key = key_of(rng.choice(("p1", "p 2")), owner=rng.choice(OWNERS), name=rng.choice(("", "n1")) + str(number))
        at = rng.choice((NOON, NEXT_DAY))
        await _work(store, rng, key, f"sess_{seed}_{number}", at)
    await store.expire(EVENING, NEXT_DAY)
    for number in range(rng.randint(0, 3)):
        text = rng.choice(("", "text é", "x" * 5000))
        decision = LeftOutDecision(f"call {number}", f"hash{number}", f"res_{number}", "[stub “x”]", NOON)
        await store.keep_left_out(rng.choice(OWNERS), "conversation.1", [ArchivedResult(decision, text)])
        noted = ProxiedConversation(
            rng.choice((NOON, EVENING)), {f"call {number} “x”": rng.choice(("", "[1]"))}, rng.choice((0, 700))
        )
        await store.note_conversation(rng.choice(OWNERS), f"conversation.{number % 2}", noted)


def _branches_of(session_id: str) -> list[str]:
    """Ids of branches are never those of another session."""
    return [f"br_{number}_{session_id}" for number in (1, 2)]


async def _work(store: Store, rng: random.Random, key: SessionKey, session_id: str, at: str) -> None:
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


async def view_of(store: Store) -> list[object]:
    """What the port returns about everything that `live_through` can make."""
    view: list[object] = []
    for owner in OWNERS:
        live = await store.sessions(owner, limit=100)
        view += [live, await store.ended_sessions(owner, limit=100), await store.left_out(owner, "conversation.1")]
        view += [await store.conversation(owner, f"conversation.{number}") for number in range(2)]
        view += [await store.left_out_text(owner, f"res_{number}") for number in range(3)]
        view.append(
            sorted(await store.search(owner, "outcome", None, 100), key=lambda each: (each.session_id, each.branch_id))
        )
        for session in live:
            view.append(await store.load(session.key))
            view += [await store.receipt(session.key, f"op {step} é") for step in range(6)]
            view += [
                await store.trajectory(
                    owner, session.key.project_hash, branch, session_id=session.session_id, limit=100
                )
                for branch in (None, *_branches_of(session.session_id))
            ]
    return view


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_random_histories_arrive_equal(
    source: str, target: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def server() -> NatsServer:
        found: NatsServer = request.getfixturevalue("nats_server")
        return found

    async def one(seed: int) -> None:
        async with opened(source, tmp_path, server) as given, opened(target, tmp_path, server) as taken:
            await live_through(given, seed)
            path = tmp_path / f"{seed}.jsonl{'.gz' if seed % 2 else ''}"
            await write_export(path, given.export(), NOON)
            counts = verify(path)
            await taken.import_all(read_records(path))
            assert await records_of(taken) == await records_of(given)
            assert sum(counts.values()) == len(await records_of(given))
            assert await view_of(taken) == await view_of(given)

    async def whole() -> None:
        for seed in range(times(2, soak=100)):
            await one(seed)

    asyncio.run(whole())


@pytest.mark.parametrize("target", ["sqlite", "nats"])
def test_a_long_session_arrives_in_parts(target: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async def whole() -> None:
        async with (
            opened("memory", tmp_path, lambda: request.getfixturevalue("nats_server")) as given,
            opened(target, tmp_path, lambda: request.getfixturevalue("nats_server")) as taken,
        ):
            for session_id, at in (("sess_1", NOON), ("sess_2", NEXT_DAY)):
                key = key_of(session_id)
                await given.commit(commit_of(key, session_id=session_id, events=300, at=at))
                for n in range(301, 304):
                    entries = [
                        ArchiveEntry("br_1", n, at, "operation", LONG),
                        ArchiveEntry(None, n, at, "child", "done"),
                    ]
                    await given.commit(commit_of(key, n - 1, session_id=session_id, at=at, entries=entries))
            await given.expire(EVENING, NEXT_DAY)
            await taken.import_all(await records_of(given))
            assert await view_of(taken) == await view_of(given)

    asyncio.run(whole())


@pytest.mark.parametrize("kind", ["memory", "sqlite", "nats"])
def test_only_an_empty_store_is_imported_into(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async def whole() -> None:
        async with opened(kind, tmp_path, lambda: request.getfixturevalue("nats_server")) as store:
            await store.commit(commit_of(key_of()))
            await store.settle()
            before = await records_of(store)
            with pytest.raises(TargetNotEmpty):
                await store.import_all(before)
            assert await records_of(store) == before

    asyncio.run(whole())


def test_a_failure_in_the_middle_leaves_a_file_empty(tmp_path: Path) -> None:
    def failing(records: Sequence[ExportRecord]) -> Iterator[ExportRecord]:
        yield from records
        raise ExportTruncated("in the middle")

    async def whole() -> None:
        source, target = MemoryStore(), SqliteStore.open(tmp_path / "state.db")
        try:
            await source.commit(commit_of(key_of(), events=9))
            records = await records_of(source)
            with pytest.raises(ExportTruncated):
                await target.import_all(failing(records[:-1]))
            assert await records_of(target) == []
            await target.import_all(records)
            assert await records_of(target) == records
        finally:
            await target.close()

    asyncio.run(whole())


def test_a_store_in_use_is_exported_as_of_one_moment(tmp_path: Path) -> None:
    async def whole() -> None:
        store = SqliteStore.open(tmp_path / "state.db")
        try:
            for number in range(200):
                await store.commit(commit_of(key_of(f"p{number:03}"), session_id=f"sess_{number}"))
            exported = store.export()
            some = [await anext(exported)]
            await store.commit(commit_of(key_of("p199"), 1, session_id="sess_199"))
            some += [record async for record in exported]
            assert sum(getattr(record, "revision", 0) for record in some) == 200
        finally:
            await store.close()

    asyncio.run(whole())


# ---- files


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("exported") / "all.jsonl"

    async def whole() -> None:
        store = MemoryStore()
        for seed in range(4):
            await live_through(store, seed)
        await write_export(path, store.export(), NOON)

    asyncio.run(whole())
    return path.read_bytes()


def lines_of(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


@settings(max_examples=times(80, soak=5000), deadline=None)
@given(st.data())
def test_a_flipped_bit_is_noticed(exported: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(exported) - 1))
    bit = data.draw(st.integers(0, 7))
    altered = bytearray(exported)
    altered[place] ^= 1 << bit
    with pytest.raises(ExportInvalid):
        list(read_export(lines_of(bytes(altered))))


@settings(max_examples=times(40, soak=2000), deadline=None)
@given(st.data())
def test_a_truncated_file_is_noticed(exported: bytes, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, len(exported) - 1))
    with pytest.raises(ExportInvalid):
        list(read_export(lines_of(exported[:length])))


def test_each_damage_has_its_own_error(exported: bytes) -> None:
    lines = lines_of(exported)
    for damaged, error in (
        ([], ExportTruncated),
        (lines[:-1], ExportTruncated),
        ([*lines[:-1], lines[-1][:-1]], ExportTruncated),
        ([*lines, b"\n"], ExportAltered),
        ([lines[0], *lines[2:]], ExportAltered),
        ([lines[0], lines[2], lines[1], *lines[3:]], ExportAltered),
        ([b"not JSON\n"], ExportInvalid),
        ([lines[0].replace(b'"version":3', b'"version":4'), *lines[1:]], ExportNewer),
    ):
        with pytest.raises(error):
            list(read_export(damaged))


def test_a_compressed_file_that_is_cut_or_altered_is_noticed(exported: bytes, tmp_path: Path) -> None:
    async def write(path: Path) -> None:
        async def records() -> AsyncIterator[ExportRecord]:
            for record in read_export(lines_of(exported)):
                yield record

        await write_export(path, records(), NOON)

    path = tmp_path / "all.jsonl.gz"
    asyncio.run(write(path))
    whole = path.read_bytes()
    assert read_counts(path)["session"] > 0
    assert len(whole) < len(exported)
    path.write_bytes(whole[:-20])
    with pytest.raises(ExportTruncated):
        verify(path)
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    with pytest.raises(ExportInvalid):
        verify(path)


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text("mine")
    with pytest.raises(ExportInvalid):
        asyncio.run(write_export(path, MemoryStore().export(), NOON))
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_before_any_session_is_refused() -> None:
    header = encode_header(dict.fromkeys(KINDS, 0), NOON)
    with pytest.raises(ExportAltered):
        list(read_export([header, encode_record(event_at(2))]))
