"""`context store import`: verifies an exported file and imports it into an empty store."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from contextfold.app import open_store
from contextfold.cli.daemon.store_export import report_counts, summary_of
from contextfold.cli.output import ProgressLine
from contextfold.cli.parse import Values
from contextfold.error_codes import EXIT_OK
from contextfold.fold.ports.store_export import ExportRecord, kind_of
from contextfold.settings import FoldSettings, fold_settings_from
from contextfold.stores.export_file import read_records, verify


def run(values: Values) -> int:
    settings = fold_settings_from(os.environ, values)
    path = Path(values["file"])
    # An invalid file must not create the store.
    counts = verify(path)
    with ProgressLine("importing") as line:
        asyncio.run(_import(settings, path, line))
    report_counts("imported", counts, values)
    return EXIT_OK


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
        line.show(summary_of(counts))
        yield record
