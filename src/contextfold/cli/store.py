"""`context store export` writes the whole store to a new file, and `context store import` reads it into an empty store.

`context store verify` checks every record, and `context store delete` deletes all.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

from contextfold.app import delete_store, find_damage, open_store
from contextfold.cli.fold.session_access import write, write_json
from contextfold.cli.output import ProgressLine, ask_yes_no, can_ask, escape, print_note
from contextfold.cli.parser import CommandParser, UsageError
from contextfold.cli.setting_options import add_setting, add_store_options, read_setting_options
from contextfold.common.answer_format import format_count
from contextfold.errors import SettingsError, StoreInvalid
from contextfold.fold.events import timestamp
from contextfold.fold.store_export import ExportRecord, kind_of
from contextfold.settings import NATS, FoldSettings, default_cache_root, read_fold_settings
from contextfold.stores.export_file import read_records, verify, write_export

MEGABYTE = 1_000_000


def declare_export(parser: CommandParser) -> None:
    parser.describe(
        """
        Write all sessions of every owner, live and ended, with their receipts, archive, summaries and
        left-out results to one new file: a backup, or the way to another store. Daemons may keep running.
        The file is compressed if its name ends in .gz. docs/daemon.md describes the format.
        """,
        "context store export backup.jsonl.gz",
        "context store export backup.jsonl --store nats://n1:4222,nats://n2:4222",
    )
    parser.add_argument("file", metavar="FILE", help="the file to write; it must not exist")
    _add_options(parser)
    parser.set_defaults(run=run_export)


def declare_import(parser: CommandParser) -> None:
    parser.describe(
        """
        Verify an exported file, store everything in it and compare. The store must be empty; a file is
        created if it is missing. Into a file it is all or nothing. An import into NATS that was interrupted
        says what to delete before it is repeated.
        """,
        "context store import backup.jsonl.gz --store nats://n1:4222",
        "context store import backup.jsonl.gz --store sqlite:restored.db --json",
    )
    parser.add_argument("file", metavar="FILE", help="the exported file")
    _add_options(parser)
    parser.set_defaults(run=run_import)


def declare_verify(parser: CommandParser) -> None:
    parser.describe(
        """
        Read everything in the store and check it. Every record in a file has a checksum; what is damaged is
        named, and the exit code is 5. Indexes of words are derived, and made again if they are damaged.
        On NATS, every record is read and parsed; the servers check their own files. Daemons may keep
        running.
        """,
        "context store verify",
        "context store verify --store nats://n1:4222 --json",
    )
    _add_options(parser)
    parser.set_defaults(run=run_verify)


def declare_delete(parser: CommandParser) -> None:
    parser.describe(
        """
        Delete the file with all sessions, archives, summaries and left-out results, of every owner, and say
        what else contextfold keeps on this machine. It asks once. A file that a daemon uses is not deleted.
        """,
        "context store delete --dry-run",
        "context store delete --yes",
    )
    parser.add_switch("--dry-run", "say what would be deleted, and delete nothing")
    parser.add_switch("--yes", "do not ask for confirmation")
    add_store_options(parser)
    parser.set_defaults(run=run_delete)


def _add_options(parser: CommandParser) -> None:
    parser.add_switch("--json", "print JSON, for programs")
    add_store_options(parser)
    for name in NATS:
        add_setting(parser, name, is_advanced=True)


def run_export(args: argparse.Namespace) -> None:
    settings = read_fold_settings(os.environ, read_setting_options(args))
    if settings.nats is None and not os.path.exists(settings.store):
        raise StoreInvalid(f"there is no store to export: {settings.store} does not exist")
    with ProgressLine("exporting") as line:
        counts = asyncio.run(_export(settings, Path(args.file), line))
    _report("exported", counts, args)


def run_verify(args: argparse.Namespace) -> None:
    settings = read_fold_settings(os.environ, read_setting_options(args))
    if settings.nats is None and not os.path.exists(settings.store):
        raise StoreInvalid(f"there is no store to verify: {settings.store} does not exist")
    damage = find_damage(settings)
    if damage:
        if args.json:
            write_json({"damaged": damage})
        else:
            write("".join(f"{line}\n" for line in damage))
        raise StoreInvalid(
            f"{settings.store} is damaged: put a backup in its place, or move it away to start with a new file"
        )
    with ProgressLine("verifying") as line:
        counts = asyncio.run(_read_all(settings, line))
    _report("verified", counts, args)


def run_delete(args: argparse.Namespace) -> None:
    settings = read_fold_settings(os.environ, read_setting_options(args))
    if settings.nats is not None:
        raise SettingsError(
            "a store on NATS is not deleted from here, because other daemons may use it: delete its streams with "
            "`nats stream rm`; docs/nats.md names them"
        )
    if not os.path.exists(settings.store):
        print_note(f"nothing to delete: {settings.store} does not exist")
        return
    size = os.stat(settings.store).st_size / MEGABYTE
    write(f"{escape(settings.store)} ({size:.1f} MB): all sessions, archives, summaries and left-out results\n")
    if args.dry_run:
        print_note("nothing was deleted; leave out --dry-run to do it")
        return
    if not args.yes:
        if not can_ask():
            raise UsageError("nobody can be asked here; say --yes to delete it")
        if not ask_yes_no("Delete it?"):
            print_note("nothing was deleted")
            return
    delete_store(settings)
    write("deleted\n")
    caches = default_cache_root(os.environ)
    if os.path.isdir(caches):
        print_note(f"the caches in {caches} were made from your documents; delete that folder if you want")
    print_note("a connected agent program stays connected; `context uninstall HOST` ends that")


def run_import(args: argparse.Namespace) -> None:
    settings = read_fold_settings(os.environ, read_setting_options(args))
    path = Path(args.file)
    # An invalid file must not create the store.
    counts = verify(path)
    with ProgressLine("importing") as line:
        asyncio.run(_import(settings, path, line))
    _report("imported", counts, args)


async def _export(settings: FoldSettings, path: Path, line: ProgressLine) -> Mapping[str, int]:
    store = open_store(settings, may_migrate=False)
    try:
        await store.reach()
        made_at = timestamp(datetime.now(UTC))
        async with aclosing(store.export()) as records:
            return await write_export(path, records, made_at, lambda counts: line.show(_summary(counts)))
    finally:
        await store.close()


async def _read_all(settings: FoldSettings, line: ProgressLine) -> Mapping[str, int]:
    store, counts = open_store(settings, may_migrate=False), Counter[str]()
    try:
        await store.reach()
        async with aclosing(store.export()) as records:
            async for record in records:
                counts[kind_of(record)] += 1
                line.show(_summary(counts))
    finally:
        await store.close()
    return counts


async def _import(settings: FoldSettings, path: Path, line: ProgressLine) -> None:
    store = open_store(settings)
    try:
        await store.reach()
        await store.import_all(_count_records(read_records(path), line))
    finally:
        await store.close()


def _count_records(records: Iterator[ExportRecord], line: ProgressLine) -> Iterator[ExportRecord]:
    counts: Counter[str] = Counter()
    for record in records:
        counts[kind_of(record)] += 1
        line.show(_summary(counts))
        yield record


def _summary(counts: Mapping[str, int]) -> str:
    others = f"{counts.get('entry', 0):,} archive entries, {format_count(counts.get('left_out', 0), 'left-out result')}"
    return f"{format_count(counts.get('session', 0), 'session')}, {others}"


def _report(verb: str, counts: Mapping[str, int], args: argparse.Namespace) -> None:
    if args.json:
        write_json({verb: dict(counts)})
    else:
        write(f"{verb} {_summary(counts)}\n")
