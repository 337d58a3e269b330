"""`context store export` and `context store import` between a file and NATS. Damaged or unwanted imports are refused.

That every kind of record is transferred is tested with the stores, in `tests/contract/test_stores_export.py`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from contextfold.settings import NatsOptions
from tests.cli.fold.folds import StoreAgent
from tests.support.machine import Call

REFUSED = 5
IO_FAILED = 6
HOSTILE_NAME = "'; DROP TABLE sessions; -- 😀 é e\u0301 \\ \" $1 ? .> *. /"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an ended session and live ones, one of them with hostile names. The tests only read it."""
    path, two_days_ago = tmp_path_factory.mktemp("filled") / "state.db", datetime.now(UTC) - timedelta(days=2)
    past_agent = StoreAgent(path, clock=lambda: two_days_ago)
    past_agent.branch("Long ago")
    past_agent.fold("It was so.")
    StoreAgent(path).end_idle()
    for agent in (
        StoreAgent(path),
        StoreAgent(path, f"/p/{HOSTILE_NAME}", owner=HOSTILE_NAME, session=HOSTILE_NAME),
    ):
        undone = agent.branch(HOSTILE_NAME)
        agent.record("Read", f"{HOSTILE_NAME} \0 \x1f \r\n \u2028")
        agent.fold("inner is done")
        agent.rollback(undone)
    return path


def records_of(call: Call, store: object, path: Path) -> list[str]:
    """Exports a store to a file, and returns the records of that file without its header and checksum."""
    exported = call("store", "export", path, "--store", store)
    assert exported.code == 0, exported.err
    return path.read_text().splitlines()[1:-1]


def test_everything_is_transferred_from_sqlite_to_nats_and_back(
    call: Call, tmp_path: Path, filled: Path, nats: NatsOptions
) -> None:
    records = records_of(call, filled, tmp_path / "0.jsonl")
    for number, target in enumerate((nats.servers[0], tmp_path / "restored.db")):
        imported = call("store", "import", tmp_path / f"{number}.jsonl", "--store", target, "--json")
        assert imported.code == 0, imported.err
        assert json.loads(imported.out)["imported"]["session"] == 3
        verified = call("store", "verify", "--store", target, "--json")
        assert verified.code == 0, verified.err
        assert json.loads(verified.out)["verified"]["session"] == 3
        assert records_of(call, target, tmp_path / f"{number + 1}.jsonl") == records


def test_an_import_into_a_store_that_is_not_empty_is_refused(
    call: Call, tmp_path: Path, filled: Path, nats: NatsOptions
) -> None:
    records = records_of(call, filled, tmp_path / "all.jsonl")
    for target in (tmp_path / "other.db", nats.servers[0]):
        assert call("store", "import", tmp_path / "all.jsonl", "--store", target).code == 0
        assert call("store", "import", tmp_path / "all.jsonl", "--store", target).code == REFUSED
        assert records_of(call, target, tmp_path / "again.jsonl") == records
        (tmp_path / "again.jsonl").unlink()


def test_a_damaged_or_missing_file_is_not_imported(call: Call, tmp_path: Path, filled: Path) -> None:
    path, target = tmp_path / "all.jsonl", tmp_path / "new.db"
    records_of(call, filled, path)
    whole = path.read_bytes()
    for damaged in (b"", b"something else\n", whole[:-10], whole.replace(b"inner is done", b"inner is DONE")):
        path.write_bytes(damaged)
        assert call("store", "import", path, "--store", target).code == REFUSED
        assert not target.exists()
    assert call("store", "import", tmp_path / "none.jsonl", "--store", target).code == IO_FAILED


def test_a_missing_store_is_not_exported(call: Call, tmp_path: Path) -> None:
    assert call("store", "export", tmp_path / "all.jsonl", "--store", tmp_path / "none.db").code == REFUSED
    assert list(tmp_path.iterdir()) == []
