"""`context store export`: writes the whole store to a new file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

from contextfold.app import open_store
from contextfold.cli.fold.session_access import write, write_json
from contextfold.cli.output import ProgressLine
from contextfold.cli.parse import Values
from contextfold.cli.terminal import several
from contextfold.error_codes import EXIT_OK
from contextfold.errors import StoreInvalid
from contextfold.settings import FoldSettings, fold_settings_from
from contextfold.stores.export_file import write_export


def run(values: Values) -> int:
    settings = fold_settings_from(os.environ, values)
    if settings.nats is None and not os.path.exists(settings.store):
        raise StoreInvalid(f"there is no store to export: {settings.store} does not exist")
    with ProgressLine("exporting") as line:
        counts = asyncio.run(_export(settings, Path(values["file"]), line))
    report_counts("exported", counts, values)
    return EXIT_OK


async def _export(settings: FoldSettings, path: Path, line: ProgressLine) -> Mapping[str, int]:
    store = open_store(settings, may_migrate=False)
    try:
        await store.reach()
        made_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        async with aclosing(store.export()) as records:
            return await write_export(path, records, made_at, lambda counts: line.show(summary_of(counts)))
    finally:
        await store.close()


def summary_of(counts: Mapping[str, int]) -> str:
    others = f"{counts.get('entry', 0):,} archive entries, {several(counts.get('left_out', 0), 'left-out result')}"
    return f"{several(counts.get('session', 0), 'session')}, {others}"


def report_counts(verb: str, counts: Mapping[str, int], values: Values) -> None:
    if "json" in values:
        write_json({verb: dict(counts)})
    else:
        write(f"{verb} {summary_of(counts)}\n")
