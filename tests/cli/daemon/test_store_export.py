"""`context store export` and `context store import`: all data is transferred, and invalid imports are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.daemon.filled_stores import NamedStore, contents_of, fill, options_of, sqlite_store
from tests.support.machine import Call
from tests.support.nats_servers import NatsServer, delete_streams, random_prefix

REFUSED = 5
IO_FAILED = 6


@pytest.fixture
def on_nats(nats_server: NatsServer) -> Iterator[Callable[[], NamedStore]]:
    stores: list[NamedStore] = []

    def make() -> NamedStore:
        stores.append(NamedStore(nats_server.url, {"nats-prefix": random_prefix()}))
        return stores[-1]

    yield make
    for store in stores:
        assert store.settings.nats

        asyncio.run(delete_streams(store.settings.nats))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that `fill` has filled. The tests share it and only read it."""
    path = tmp_path_factory.mktemp("filled") / "state.db"
    sqlite_store(path).run(fill)
    return path


def arguments(path: Path, store: NamedStore) -> list[object]:
    return [path, "--store", store.name, *options_of(store)]


def test_everything_is_transferred_from_sqlite_to_nats_and_back(
    call: Call, tmp_path: Path, filled: Path, on_nats: Callable[[], NamedStore]
) -> None:
    first, second, third = sqlite_store(filled), on_nats(), sqlite_store(tmp_path / "restored.db")
    before = contents_of(first)
    exports = [tmp_path / "1.jsonl.gz", tmp_path / "2.jsonl.gz", tmp_path / "3.jsonl.gz"]
    for source, target, path in ((first, second, exports[0]), (second, third, exports[1])):
        exported = call("store", "export", *arguments(path, source))
        assert exported.code == 0, exported.err
        imported = call("store", "import", *arguments(path, target), "--json")
        assert imported.code == 0, imported.err
        counts = json.loads(imported.out)["imported"]
        assert counts["session"] > 5
        assert counts["entry"] > 150
        assert contents_of(target) == before
    assert call("store", "export", *arguments(exports[2], third)).code == 0
    assert contents_of(first) == before


def test_an_import_into_a_store_that_is_not_empty_is_refused(
    call: Call, tmp_path: Path, filled: Path, on_nats: Callable[[], NamedStore]
) -> None:
    source, path = sqlite_store(filled), tmp_path / "all.jsonl"
    assert call("store", "export", *arguments(path, source)).code == 0
    for target in (sqlite_store(tmp_path / "other.db"), on_nats()):
        assert call("store", "import", *arguments(path, target)).code == 0
        before = contents_of(target)
        assert call("store", "import", *arguments(path, target)).code == REFUSED
        assert contents_of(target) == before


def test_a_damaged_or_missing_file_is_not_imported(call: Call, tmp_path: Path, filled: Path) -> None:
    source, path, target = sqlite_store(filled), tmp_path / "all.jsonl", tmp_path / "new.db"
    assert call("store", "export", *arguments(path, source)).code == 0
    whole = path.read_bytes()
    for damaged in (b"", b"something else\n", whole[:-10], whole.replace(b"inner is done", b"inner is DONE")):
        path.write_bytes(damaged)
        refused = call("store", "import", *arguments(path, sqlite_store(target)))
        assert refused.code == REFUSED
        assert not target.exists()
    missing = call("store", "import", *arguments(tmp_path / "none.jsonl", sqlite_store(target)))
    assert missing.code == IO_FAILED


def test_a_missing_store_is_not_exported(call: Call, tmp_path: Path) -> None:
    missing = sqlite_store(tmp_path / "none.db")
    assert call("store", "export", *arguments(tmp_path / "all.jsonl", missing)).code == REFUSED
    assert list(tmp_path.iterdir()) == []
