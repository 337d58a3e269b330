"""`context store export` writes the whole store to a new file. `context store import` reads it into an empty store."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

from contextfold.app import open_store
from contextfold.cli.fold.session_access import write, write_json
from contextfold.cli.output import ProgressLine
from contextfold.cli.parse import Values
from contextfold.cli.terminal import several
from contextfold.errors import EXIT_OK, StoreInvalid
from contextfold.fold.ports.store_export import ExportRecord, kind_of
from contextfold.settings import FoldSettings, read_fold_settings
from contextfold.stores.export_file import read_records, verify, write_export


def run_export(values: Values) -> int:
    settings = read_fold_settings(os.environ, values)
    if settings.nats is None and not os.path.exists(settings.store):
        raise StoreInvalid(f"there is no store to export: {settings.store} does not exist")
    with ProgressLine("exporting") as line:
        counts = asyncio.run(_export(settings, Path(values["file"]), line))
    _report("exported", counts, values)
    return EXIT_OK


def run_import(values: Values) -> int:
    settings = read_fold_settings(os.environ, values)
    path = Path(values["file"])
    # An invalid file must not create the store.
    counts = verify(path)
    with ProgressLine("importing") as line:
        asyncio.run(_import(settings, path, line))
    _report("imported", counts, values)
    return EXIT_OK


async def _export(settings: FoldSettings, path: Path, line: ProgressLine) -> Mapping[str, int]:
    store = open_store(settings, may_migrate=False)
    try:
        await store.reach()
        made_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        async with aclosing(store.export()) as records:
            return await write_export(path, records, made_at, lambda counts: line.show(_summary(counts)))
    finally:
        await store.close()


async def _import(settings: FoldSettings, path: Path, line: ProgressLine) -> None:
    store = open_store(settings)
    try:
        await store.reach()
        await store.import_all(_counted(read_records(path), line))
    finally:
        await store.close()


def _counted(records: Iterator[ExportRecord], line: ProgressLine) -> Iterator[ExportRecord]:
    counts: Counter[str] = Counter()
    for record in records:
        counts[kind_of(record)] += 1
        line.show(_summary(counts))
        yield record


def _summary(counts: Mapping[str, int]) -> str:
    others = f"{counts.get('entry', 0):,} archive entries, {several(counts.get('left_out', 0), 'left-out result')}"
    return f"{several(counts.get('session', 0), 'session')}, {others}"


def _report(verb: str, counts: Mapping[str, int], values: Values) -> None:
    if "json" in values:
        write_json({verb: dict(counts)})
    else:
        write(f"{verb} {_summary(counts)}\n")
