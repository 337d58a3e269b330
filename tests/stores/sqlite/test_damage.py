"""Damage of the state file: a single bit that flips changes no answer without a word."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from contextfold.errors import FoldError, StoreInvalid
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import timestamp
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.store import ArchivedResult, ArchivedThread, LeftOutDecision, ProxiedConversation
from contextfold.fold.store_export import encode_record
from contextfold.fold.tool_calls import RecallRequest
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.stores.sqlite.state_file import connect, verify_file
from contextfold.stores.sqlite.store import SqliteStore
from tests.contract.sessions import NOON, commit_of, key_of, summary_of
from tests.stores.sqlite.files import HERE
from tests.support.machine import SOURCE, Call

FLIPS = int(os.environ.get("CONTEXTFOLD_FLIPS", "120"))
KILLS = 8
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
ERRORS = {"StoreInvalid", "StoreUnavailable"}
SCRUBBER = standard_scrubber()
EVENING = "2026-01-01T20:00:00Z"
WORDS = ["comma", "token", "retry", "parser", "socket", "budget", "expired", "header", "merge", "cursor"]


async def _fill(path: Path) -> None:
    """Live and ended sessions with folds, trajectories, receipts, left-out results and an index of them."""
    store = SqliteStore(path)
    for number in range(8):
        key = key_of(f"p{number % 4}", name=f"n{number}")
        word, at = WORDS[number % len(WORDS)], NOON if number < 4 else EVENING
        entries = [ArchiveEntry(f"br_{number}", n, NOON, "operation", f"{word} {n} " * 40) for n in range(1, 6)]
        summaries = [summary_of(key, f"br_{number}", f"the {word} was wrong", session_id=f"sess_{number}")]
        commit = commit_of(key, session_id=f"sess_{number}", at=at, events=6, entries=entries, summaries=summaries)
        await store.commit(commit)
    decisions = [LeftOutDecision(f"call_{n}", f"hash{n}", f"res_{n}", f"[{n} left out]", NOON, 9, 3) for n in range(6)]
    results = [ArchivedResult(each, f"result {WORDS[n]} " * 60) for n, each in enumerate(decisions)]
    await store.keep_left_out("local", "c", results)
    await store.note_conversation("local", "c", ProxiedConversation(NOON, {"call": "outcome"}))
    await store.expire(NOON, EVENING)
    await FoldService(store, SCRUBBER).recalls.answer("local", RecallRequest("comma"))
    await store.close()


async def _answers(path: Path) -> list[Callable[[], Awaitable[Any]]]:
    """Every question that the store answers, each on its own."""
    store = SqliteStore(path)
    keys = [key_of(f"p{number % 4}", name=f"n{number}") for number in range(8)]
    threads = [ArchivedThread("local", f"p{number % 4}", f"br_{number}") for number in range(8)]
    recalls = FoldService(store, SCRUBBER).recalls

    async def export() -> list[bytes]:
        return [encode_record(record) async for record in store.export()]

    return [
        *(lambda key=key: store.load(key) for key in keys),
        *(lambda key=key: store.receipt(key, "op") for key in keys),
        *(lambda thread=thread: store.trajectory(thread, limit=99) for thread in threads),
        lambda: store.sessions("local", limit=99),
        lambda: store.ended_sessions("local", limit=99),
        lambda: store.find("local", "sess_6"),
        lambda: store.summaries("local", None),
        *(lambda word=word: store.search("local", word, None, 99) for word in WORDS),
        *(lambda word=word: recalls.answer("local", RecallRequest(word)) for word in WORDS),
        lambda: store.left_out("local", "c"),
        *(lambda number=number: store.left_out_text("local", f"res_{number}") for number in range(6)),
        lambda: store.conversation("local", "c"),
        export,
        store.close,
    ]


async def _ask(path: Path) -> list[str]:
    outcomes = []
    try:
        questions = await _answers(path)
    except FoldError as problem:
        return [type(problem).__name__]
    for question in questions:
        try:
            async with asyncio.timeout(10):
                outcomes.append(repr(await question()))
        except FoldError as problem:
            outcomes.append(type(problem).__name__)
    return outcomes


def test_no_flipped_bit_changes_an_answer_silently(tmp_path: Path) -> None:
    intact, path = tmp_path / "intact.db", tmp_path / "state.db"
    asyncio.run(_fill(intact))
    content = intact.read_bytes()
    expected = asyncio.run(_ask(intact))
    assert not ERRORS & set(expected)
    # Most of a small file is empty space. A flip there changes nothing.
    used = [position for position, byte in enumerate(content) if byte]
    choose = random.Random(13)
    silent, noticed = [], 0
    for _ in range(FLIPS):
        position, bit = choose.choice(used), choose.randrange(8)
        path.write_bytes(content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :])
        outcomes = asyncio.run(_ask(path))
        noticed += bool(ERRORS & set(outcomes))
        # A file that cannot be opened has one outcome for all questions.
        if not set(outcomes) <= ERRORS and any(
            now not in (then, *ERRORS) for now, then in zip(outcomes, expected, strict=True)
        ):
            silent.append((position, bit))
        for leftover in tmp_path.glob("state.db-*"):
            leftover.unlink()
    assert silent == []
    assert noticed > FLIPS / 2


def test_a_damaged_summary_is_not_hidden_from_a_search(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    asyncio.run(_fill(path))
    path.write_bytes(path.read_bytes().replace(b"the token was", b"the to+en was", 1))

    async def search() -> object:
        store = SqliteStore(path)
        try:
            return await store.search("local", "token", None, 9)
        finally:
            await store.close()

    with pytest.raises(StoreInvalid):
        asyncio.run(search())


def test_verify_names_what_is_damaged_and_restores_what_is_derived(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    asyncio.run(_fill(path))
    verified = call("store", "verify", "--store", path, "--json")
    assert verified.code == 0, verified.err
    assert json.loads(verified.out)["verified"]["entry"] == 40
    with closing(connect(str(path), 5.0)) as connection:
        connection.execute("DELETE FROM recall_lists_data WHERE id > 10")
        connection.execute("UPDATE summary_words_data SET block = zeroblob(length(block)) WHERE id > 10")
    expected = asyncio.run(_ask(path))
    assert not ERRORS & set(expected)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"retry 3 retry 3 ", b"retry 3 retsy 3 ", 1))
    damaged = call("store", "verify", "--store", path)
    assert damaged.code == 5
    assert damaged.out.decode().startswith("archive: the row with session 3, branch_id 'br_2'")
    assert "put a backup in its place" in damaged.err


def _export(path: Path) -> bytes:
    async def export() -> bytes:
        store = SqliteStore(path)
        try:
            return b"".join([encode_record(record) async for record in store.export()])
        finally:
            await store.close()

    return asyncio.run(export())


@pytest.mark.parametrize(
    ("format_", "questions"), [(6, {"checkout": 6, "login token": 12, "result number": 4}), (8, {"checkout": 6})]
)
def test_an_earlier_file_loses_nothing_when_its_migration_is_killed(
    tmp_path: Path, format_: int, questions: Mapping[str, int]
) -> None:
    """The files and their exports were made by the last version before checksums, and before logs were kept."""
    path = tmp_path / "state.db"
    path.write_bytes(gzip.decompress((HERE / f"format-{format_}.db.gz").read_bytes()))
    exported = gzip.decompress((HERE / f"format-{format_}.jsonl.gz").read_bytes())
    code = f"from contextfold.stores.sqlite.store import SqliteStore\nprint(flush=True)\nSqliteStore({str(path)!r})"
    for kill in range(KILLS):
        opening = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=ENVIRONMENT)
        assert opening.stdout
        opening.stdout.readline()
        with suppress(subprocess.TimeoutExpired):
            opening.wait(kill * 0.004)
        opening.kill()
        opening.communicate()
        copied = tmp_path / "copies" / str(kill) / "state.db"
        copied.parent.mkdir(parents=True)
        for name in path.parent.glob("state.db*"):
            shutil.copy(name, copied.with_name(name.name))
        assert _export(copied) == exported
        assert verify_file(str(copied)) == []
    assert _export(path) == exported
    assert [len(found) for found in asyncio.run(_recall(path, list(questions)))] == list(questions.values())


async def _recall(path: Path, questions: Sequence[str]) -> list[list[str]]:
    store = SqliteStore(path)
    try:
        recalls = FoldService(store, SCRUBBER).recalls
        answers = [await recalls.answer("local", RecallRequest(text, budget_tokens=9_000)) for text in questions]
        return [[fold.id for fold in answer.folds] for answer in answers]
    finally:
        await store.close()


def test_an_event_missing_from_an_ended_session_is_named_and_hides_no_other_session(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    async def fill() -> None:
        store = SqliteStore(path)
        for number in range(2):
            await store.commit(commit_of(key_of(f"p{number}"), session_id=f"sess_{number}", events=5))
        await store.expire(NOON, "2026-01-02T12:00:00Z")
        await store.close()

    asyncio.run(fill())
    with closing(connect(str(path), 5.0)) as connection:
        connection.execute("DELETE FROM events WHERE session = 1 AND n = 3")
    verified = call("store", "verify", "--store", path)
    assert (verified.code, verified.out) == (5, b"sessions: sess_0 lacks events\n")
    listed = json.loads(call("fold", "list", "--ended", "--all", "--store", path, "--json").out)["sessions"]
    assert {row["session_id"]: row["operations"] for row in listed} == {"sess_0": None, "sess_1": 3}
    assert call("fold", "report", "sess_0", "--store", path).code == 5


def test_a_list_names_the_live_session_that_it_leaves_out(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    async def fill() -> None:
        store = SqliteStore(path)
        for number in range(2):
            at = timestamp(datetime.now(UTC))
            await store.commit(commit_of(key_of(f"p{number}"), session_id=f"sess_{number}", at=at, events=5))
        await store.close()

    asyncio.run(fill())
    with closing(connect(str(path), 5.0)) as connection:
        connection.execute("DELETE FROM events WHERE session = 1 AND n = 3")
    listed = call("fold", "status", "--all", "--store", path, "--json")
    assert [row["session_id"] for row in json.loads(listed.out)["sessions"]] == ["sess_1"]
    for told in (listed, call("fold", "savings", "--by", "session", "--store", path)):
        assert told.code == 0
        assert "sess_0" in told.err
