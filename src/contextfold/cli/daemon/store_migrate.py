"""`context store migrate`: every session from one store to another, each compared once it is there."""

from __future__ import annotations

import asyncio
import os

from contextfold.app import open_for_moving
from contextfold.cli.commands import OF_NATS
from contextfold.cli.fold.session_access import Values, tell, tell_json
from contextfold.cli.output import ProgressLine
from contextfold.cli.terminal import screen, several
from contextfold.common.network_address import NATS_SCHEMES
from contextfold.error_codes import EXIT_OK
from contextfold.errors import ArgumentInvalid, StoreInvalid
from contextfold.fold.moving import Progress, move
from contextfold.settings import FoldSettings, fold_settings_from
from contextfold.settings_table import SettingsError

MEGABYTE = 1_000_000


def run(values: Values) -> int:
    source, target = _settings_of("from", values), _settings_of("to", values)
    if source.nats is None and not os.path.exists(source.store):
        raise StoreInvalid(f"there is no store to move from: {source.store} is not there")
    if _is_same(source, target):
        raise ArgumentInvalid("--to", "names the store that --from names: give another one")
    line = ProgressLine("moving")
    try:
        done = asyncio.run(_move(source, target, line))
    finally:
        line.clear()
    if "json" in values:
        tell_json(
            {
                "moved": done.moved,
                "already_there": done.already_there,
                "verified": done.done,
                "entries_copied": done.entries,
                "bytes_copied": done.text_bytes,
            }
        )
    else:
        tell(_done(done))
    return EXIT_OK


async def _move(source: FoldSettings, target: FoldSettings, line: ProgressLine) -> Progress:
    given = await open_for_moving(source, is_source=True)
    try:
        taken = await open_for_moving(target, is_source=False)
        try:
            return await move(given, taken, lambda progress: line.tell(_told(progress)))
        finally:
            await taken.close()
    finally:
        await given.close()


def _settings_of(side: str, values: Values) -> FoldSettings:
    """Flags of NATS are for the side that is there, and wrong if none is."""
    given = {name: values[name] for name in ("config",) if name in values}
    if _is_on_nats(values[side]) or not any(_is_on_nats(values[each]) for each in ("from", "to")):
        given |= {option.key: values[option.key] for option in OF_NATS if option.key in values}
    try:
        return fold_settings_from(os.environ, {**given, "store": values[side]})
    except SettingsError as problem:
        raise SettingsError(str(problem).replace("--store", f"--{side}")) from None


def _is_on_nats(place: str) -> bool:
    return place.partition("://")[0].lower() in NATS_SCHEMES


def _is_same(source: FoldSettings, target: FoldSettings) -> bool:
    if source.nats and target.nats:
        told = [(side.prefix, side.domain) for side in (source.nats, target.nats)]
        return told[0] == told[1] and bool(set(source.nats.servers) & set(target.nats.servers))
    if source.nats or target.nats:
        return False
    return os.path.exists(target.store) and os.path.samefile(source.store, target.store)


def _told(progress: Progress) -> str:
    sessions = f"{progress.done:,} of {progress.total:,} sessions"
    return f"{sessions}, {progress.entries:,} entries, {progress.text_bytes / MEGABYTE:,.1f} MB"


def _done(progress: Progress) -> str:
    shown = screen()
    verdict = f"{several(progress.moved, 'session')} moved, {progress.already_there:,} already there, verified"
    entries = f"{shown.figure(progress.entries)} {'entry' if progress.entries == 1 else 'entries'}"
    copied = f"; {entries} with {shown.figure(progress.text_bytes)} bytes copied"
    return shown.lines([("✓ " if shown.is_drawn else "", "green"), verdict, (copied, "dim")], wraps=True)
