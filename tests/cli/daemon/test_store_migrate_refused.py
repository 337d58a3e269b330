"""`context store migrate`: what cannot arrive is refused, and a difference is found."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import pytest

from tests.cli.daemon.migrating import (
    argv,
    at_work,
    changed,
    file,
    filled,
    migrated,
    on_nats,
    other,
    path_of,
    refused,
    small,
    template,
)
from tests.cli.daemon.moves import Place, all_of, file_at
from tests.stores.sqlite.files import OLD_FILE
from tests.support.machine import Call
from tests.support.nats_servers import connected

__all__ = ["file", "filled", "on_nats", "other", "small", "template"]

# ---- what cannot arrive


def test_another_session_in_its_place_is_left_alone(call: Call, filled: Place, other: Place) -> None:
    other.do(at_work("mine"))
    before = all_of(other)
    ran = call(*argv(filled, other))
    assert (ran.code, ran.out) == (5, b"")
    assert "the target has another live session" in ran.err
    assert all_of(other) == before


def test_a_session_that_went_on_at_the_target_is_left_alone(call: Call, small: Place, other: Place) -> None:
    migrated(call, small, other)
    other.do(at_work("more"))
    assert "went on at the target" in refused(call, small, other)


@pytest.mark.parametrize("more", [("mine",), ("mine", "too")])
def test_a_session_that_went_on_in_both_places_is_left_alone(
    call: Call, small: Place, other: Place, more: tuple[str, ...]
) -> None:
    migrated(call, small, other)
    other.do(at_work("theirs"))
    small.do(at_work(*more))
    assert "is at the target too" in refused(call, small, other)


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE archive SET text = text || ' ' WHERE id = (SELECT max(id) FROM archive)", "archive entries"),
        ("UPDATE archive SET failed = 1 - failed WHERE id = (SELECT min(id) FROM archive)", "archive entries"),
        ("DELETE FROM archive WHERE id = (SELECT min(id) FROM archive)", "archive entries"),
        ("UPDATE events SET body = replace(body, 'Begin Open', 'Begin') WHERE body LIKE '%Begin Open%'", "events"),
        ("UPDATE operations SET answer = answer || ' ' WHERE rowid = 1", "receipts"),
        ("DELETE FROM operations WHERE rowid = 1", "receipts"),
        ("UPDATE summaries SET summary = 'all is well' WHERE id = 1", "summaries"),
        ("UPDATE sessions SET last_at = '2001-01-01T00:00:00Z' WHERE stage > 0", "last moments"),
    ],
)
def test_a_difference_is_found(call: Call, filled: Place, file: Place, statement: str, told: str) -> None:
    migrated(call, filled, file)
    changed(file, statement)
    ran = call(*argv(filled, file))
    assert (ran.code, ran.out) == (5, b"")
    assert f"its {told} are not the source's" in ran.err


@pytest.mark.parametrize("statement", ["UPDATE archive SET text = 'x'", "UPDATE summaries SET summary = 'x'"])
def test_a_difference_is_found_wherever_it_is(call: Call, filled: Place, other: Place, statement: str) -> None:
    migrated(call, filled, other)
    changed(filled, statement)
    ran = call(*argv(filled, other))
    assert (ran.code, ran.out) == (5, b"")
    assert "are not the source's" in ran.err


def test_an_entry_that_is_lost_on_nats_is_missed(call: Call, small: Place, on_nats: Place) -> None:
    prefix = on_nats.flags["nats-prefix"]
    migrated(call, small, on_nats)

    async def lose() -> None:
        connection = await connected(on_nats.named)
        purge = json.dumps({"filter": f"{prefix}_archive.*.*.*.entries.>"}).encode()
        answer = await connection.request(f"$JS.API.STREAM.PURGE.{prefix}_archive", purge)
        await connection.close()
        assert json.loads(answer.data)["purged"] == 1

    asyncio.run(lose())
    ran = call(*argv(small, on_nats))
    assert (ran.code, ran.out) == (5, b"")
    assert "its archive entries are not the source's" in ran.err


def test_a_source_that_is_not_there_is_not_made(call: Call, tmp_path: Path, other: Place) -> None:
    ran = call(*argv(file_at(tmp_path / "none.db"), other))
    assert (ran.code, ran.out) == (5, b"")
    assert "is not there" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_nats_does_not_have_is_not_made(call: Call, file: Place, on_nats: Place) -> None:
    ran = call(*argv(on_nats, file))
    assert (ran.code, ran.out) == (5, b"")
    assert "NATS has no stream" in ran.err
    assert call(*argv(on_nats, file)).err == ran.err
    assert not path_of(file).exists()


def test_nats_that_does_not_answer_is_told(call: Call, small: Place) -> None:
    ran = call(*argv(small, Place("nats://127.0.0.1:1", {})))
    assert (ran.code, ran.out) == (6, b"")
    assert ran.err.startswith("error: State store is unavailable\nreason: NATS: ")


def test_nats_is_not_moved_onto_itself(call: Call) -> None:
    ran = call("store", "migrate", "--from", "nats://one:4222,nats://two", "--to", "nats://two:4222")
    assert (ran.code, ran.out) == (1, b"")
    assert "--to names the store that --from names" in ran.err


def test_a_store_is_not_moved_onto_itself(call: Call, small: Place, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(path_of(small))
    for place in (small, file_at(tmp_path / "link.db"), Place(str(path_of(small)), {})):
        ran = call(*argv(small, place))
        assert (ran.code, ran.out) == (1, b"")
        assert "--to names the store that --from names" in ran.err


def test_what_is_no_store_is_refused(call: Call, small: Place, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no store at all, but long enough to be looked at" * 10)
    text = file_at(tmp_path / "text.db")
    for ran in (call(*argv(text, small)), call(*argv(small, text))):
        assert (ran.code, ran.out) == (5, b"")
        assert "is not a SQLite file" in ran.err


def test_a_file_of_an_older_version_is_not_touched(call: Call, tmp_path: Path, file: Place) -> None:
    older = file_at(tmp_path / "older.db")
    path_of(older).write_bytes(gzip.decompress(OLD_FILE.read_bytes()))
    before = path_of(older).read_bytes()
    ran = call(*argv(older, file))
    assert (ran.code, ran.out) == (5, b"")
    assert "was written by an older contextfold" in ran.err
    assert path_of(older).read_bytes() == before


@pytest.mark.parametrize("side", ["--from", "--to"])
def test_a_place_of_an_unknown_kind_is_refused_by_its_flag(call: Call, small: Place, side: str) -> None:
    words = ["--from", small.named, "--to", small.named]
    words[words.index(side) + 1] = "redis://localhost"
    ran = call("store", "migrate", *words)
    assert (ran.code, ran.out) == (1, b"")
    assert ran.err.startswith(f"error: {side} must be a file")


def test_flags_of_nats_are_refused_where_no_side_is_there(call: Call, small: Place, file: Place) -> None:
    ran = call(*argv(small, file, "--nats-prefix", "mine"))
    assert (ran.code, ran.out) == (1, b"")
    assert "--nats-prefix is for a store on NATS" in ran.err
