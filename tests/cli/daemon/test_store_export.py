"""`context store export` and `context store import`: everything arrives, and what cannot be imported is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.daemon.filled_stores import NamedStore, all_of, file_at, fill, flags_of
from tests.support.machine import Call
from tests.support.nats_servers import NatsServer, drop, random_prefix

REFUSED = 5
IO_FAILED = 6


@pytest.fixture
def on_nats(nats_server: NatsServer) -> Iterator[Callable[[], NamedStore]]:
    made: list[NamedStore] = []

    def make() -> NamedStore:
        made.append(NamedStore(nats_server.url, {"nats-prefix": random_prefix()}))
        return made[-1]

    yield make
    for store in made:
        assert store.settings.nats
        from contextfold.stores.nats.wire.connection import NatsOptions

        asyncio.run(drop(NatsOptions(**store.settings.nats._asdict())))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that `fill` has filled, once for all tests; each of them reads it and changes nothing."""
    path = tmp_path_factory.mktemp("filled") / "state.db"
    file_at(path).do(fill)
    return path


def arguments(path: Path, store: NamedStore) -> list[object]:
    return [path, "--store", store.named, *flags_of(store)]


def test_everything_goes_from_a_file_to_nats_and_back(
    call: Call, tmp_path: Path, filled: Path, on_nats: Callable[[], NamedStore]
) -> None:
    first, second, third = file_at(filled), on_nats(), file_at(tmp_path / "restored.db")
    before = all_of(first)
    exports = [tmp_path / "1.jsonl.gz", tmp_path / "2.jsonl.gz", tmp_path / "3.jsonl.gz"]
    for source, target, path in ((first, second, exports[0]), (second, third, exports[1])):
        exported = call("store", "export", *arguments(path, source))
        assert exported.code == 0, exported.err
        imported = call("store", "import", *arguments(path, target), "--json")
        assert imported.code == 0, imported.err
        counts = json.loads(imported.out)["imported"]
        assert counts["session"] > 5
        assert counts["entry"] > 150
        assert all_of(target) == before
    assert call("store", "export", *arguments(exports[2], third)).code == 0
    assert all_of(first) == before


def test_a_store_that_holds_something_is_not_imported_into(
    call: Call, tmp_path: Path, filled: Path, on_nats: Callable[[], NamedStore]
) -> None:
    source, path = file_at(filled), tmp_path / "all.jsonl"
    assert call("store", "export", *arguments(path, source)).code == 0
    for target in (file_at(tmp_path / "other.db"), on_nats()):
        assert call("store", "import", *arguments(path, target)).code == 0
        before = all_of(target)
        assert call("store", "import", *arguments(path, target)).code == REFUSED
        assert all_of(target) == before


def test_a_damaged_file_makes_no_store(call: Call, tmp_path: Path, filled: Path) -> None:
    source, path, target = file_at(filled), tmp_path / "all.jsonl", tmp_path / "new.db"
    assert call("store", "export", *arguments(path, source)).code == 0
    whole = path.read_bytes()
    for damaged in (b"", b"something else\n", whole[:-10], whole.replace(b"inner is done", b"inner is DONE")):
        path.write_bytes(damaged)
        refused = call("store", "import", *arguments(path, file_at(target)))
        assert refused.code == REFUSED
        assert not target.exists()
    missing = call("store", "import", *arguments(tmp_path / "none.jsonl", file_at(target)))
    assert missing.code == IO_FAILED


def test_a_store_that_is_not_there_is_not_exported(call: Call, tmp_path: Path) -> None:
    missing = file_at(tmp_path / "none.db")
    assert call("store", "export", *arguments(tmp_path / "all.jsonl", missing)).code == REFUSED
    assert list(tmp_path.iterdir()) == []


def test_migrate_names_the_commands_that_replace_it(call: Call) -> None:
    refused = call("store", "migrate", "--from", "a.db", "--to", "b.db")
    assert refused.code == REFUSED
    assert "store export" in refused.err
    assert "store import" in refused.err
