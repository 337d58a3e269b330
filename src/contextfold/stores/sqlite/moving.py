"""The embedded store as a place that sessions are moved from or to. Owns the statements for that, and nothing else.

A source is never made and never changed. A target takes each part in one transaction, which first looks where the
session stands, so daemons on the same file need no arrangement. A session that comes as one that has ended gets no
log: whoever watches here has never seen it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from contextfold.errors import StoreUnavailable
from contextfold.fold.archive import Entry
from contextfold.fold.events import to_json
from contextfold.fold.moving import PAGE_CHARACTERS, PAGE_ENTRIES, Held, Kept, Part, Whole
from contextfold.fold.store import SessionKey, StaleRevision, Summary
from contextfold.stores.sqlite import schema
from contextfold.stores.sqlite import statements as sqlite_rows
from contextfold.stores.sqlite.threads import Readers, Work, Writer

PAGE_SESSIONS: Final = 256
PAGES_MOST: Final = 10_000_000  # of sessions, or of one session's entries: far more than a file can hold
CLOSE_TIMEOUT_S: Final = 30.0
ENDED_STAGE: Final = 3  # its log is gone, and so is its last event

T = TypeVar("T")


class SqliteMoving:
    def __init__(self, path: Path, connection: sqlite3.Connection | None) -> None:
        self._readers = Readers(lambda: schema.open_for_reading(path))
        self._writer = Writer(connection, guard=_guard) if connection else None

    @classmethod
    def open_source(cls, path: str | os.PathLike[str]) -> SqliteMoving:
        """The store in a file that is there; StoreInvalid if it is none of ours, or an older one."""
        place = Path(os.path.realpath(path))
        schema.refuse_older(place, len(schema.MIGRATIONS), schema.BUSY_TIMEOUT_S)
        return cls(place, None)

    @classmethod
    def open_target(cls, path: str | os.PathLike[str]) -> SqliteMoving:
        """The store in this file, made if it is missing."""
        place = Path(os.path.realpath(path))
        return cls(place, schema.open_for_writing(place))

    async def count(self) -> int:
        return await self._readers.read(_count)

    async def sessions(self) -> AsyncGenerator[Held, None]:
        last = 0
        for _ in range(PAGES_MOST):
            page = await self._page(last)
            if not page:
                return
            for last, held in page:  # noqa: B007 - the next page goes on there
                yield held

    async def look(self, key: SessionKey, session_id: str) -> Whole | None:
        return await self._readers.read(lambda connection: _look(connection, key, session_id))

    async def entries(self, key: SessionKey, session_id: str, after: int) -> AsyncGenerator[Sequence[Entry], None]:
        last = await self._readers.read(lambda connection: _place_of(connection, key, session_id, after))
        for _ in range(PAGES_MOST):
            if last is None:
                return
            page = await self._entries(last)
            if not page.entries:
                return
            yield page.entries
            last = page.end

    async def live(self, key: SessionKey) -> str | None:
        return await self._readers.read(lambda connection: _live(connection, key))

    async def take(self, part: Part) -> None:
        assert self._writer, "a source takes nothing"
        await self._writer.write(_taking(part))

    async def close(self) -> None:
        self._readers.stop(CLOSE_TIMEOUT_S)
        if self._writer:
            self._writer.stop(CLOSE_TIMEOUT_S)

    async def _page(self, after_id: int) -> list[tuple[int, Held]]:
        return await self._readers.read(lambda connection: _sessions(connection, after_id))

    async def _entries(self, after: _Place) -> _Page:
        return await self._readers.read(lambda connection: _entries(connection, after))


def _guard(connection: sqlite3.Connection) -> None:
    if schema.version_of(connection) != len(schema.MIGRATIONS):
        raise StoreUnavailable("the target was brought to another format meanwhile: use that version")


# ---- reading

_HELD = "owner, project_hash, name_hash, session_id, revision, last_at, CASE stage WHEN 0 THEN NULL ELSE ended_at END"


def _held(row: Sequence[object]) -> Held:
    owner, project_hash, name_hash, *told = row
    return Held(SessionKey(owner, project_hash, name_hash), *told)  # type: ignore[arg-type]  # as the table has them


def _count(connection: sqlite3.Connection) -> int:
    counted: int = connection.execute("SELECT count(*) FROM sessions").fetchone()[0]
    return counted


def _sessions(connection: sqlite3.Connection, after_id: int) -> list[tuple[int, Held]]:
    rows = connection.execute(
        f"SELECT id, {_HELD} FROM sessions WHERE id > ? ORDER BY id LIMIT ?",  # noqa: S608  # our own text
        (after_id, PAGE_SESSIONS),
    )
    return [(row[0], _held(row[1:])) for row in rows]


def _live(connection: sqlite3.Connection, key: SessionKey) -> str | None:
    row = connection.execute(
        "SELECT session_id FROM sessions WHERE owner = ? AND project_hash = ? AND name_hash = ? AND stage = 0",
        (key.owner, key.project_hash, key.name_hash),
    ).fetchone()
    return row[0] if row else None


def _find(connection: sqlite3.Connection, key: SessionKey, session_id: str) -> tuple[int, Held] | None:
    row = connection.execute(
        f"SELECT id, {_HELD} FROM sessions WHERE session_id = ? AND owner = ? AND project_hash = ?"  # noqa: S608
        " AND name_hash = ? ORDER BY id DESC LIMIT 1",
        (session_id, key.owner, key.project_hash, key.name_hash),
    ).fetchone()
    return (row[0], _held(row[1:])) if row else None


def _look(connection: sqlite3.Connection, key: SessionKey, session_id: str) -> Whole | None:
    connection.execute("BEGIN")  # so that all statements see the same commits
    try:
        found = _find(connection, key, session_id)
        if found is None:
            return None
        session, held = found
        events = connection.execute("SELECT body FROM events WHERE session = ? ORDER BY n", (session,)).fetchall()
        receipts = connection.execute(
            "SELECT lower(hex(operation)), fingerprint, answer FROM operations WHERE session = ? ORDER BY rowid",
            (session,),
        ).fetchall()
        return Whole(
            held,
            _archived_to(connection, session),
            [sqlite_rows.event_of(body) for (body,) in events] if held.is_live else (),
            [Kept(*row) for row in receipts] if held.is_live else (),
            _summaries(connection, session, held),
        )
    finally:
        connection.execute("COMMIT")


def _archived_to(connection: sqlite3.Connection, session: int) -> int:
    """Entries come in the order of their events."""
    row = connection.execute("SELECT n FROM archive WHERE session = ? ORDER BY id DESC LIMIT 1", (session,)).fetchone()
    return row[0] if row else 0


def _summaries(connection: sqlite3.Connection, session: int, held: Held) -> list[Summary]:
    rows = connection.execute(
        "SELECT project_path, branch_id, description, summary, tokens_folded, folded_at FROM summaries"
        " WHERE session = ? ORDER BY id",
        (session,),
    )
    return [Summary(held.key.project_hash, path, held.session_id, *told) for path, *told in rows]


@dataclass(frozen=True, slots=True)
class _Place:
    """A session's row, and the row of the archive to go on after."""

    session: int
    entry: int


@dataclass(frozen=True, slots=True)
class _Page:
    entries: Sequence[Entry]
    end: _Place


def _place_of(connection: sqlite3.Connection, key: SessionKey, session_id: str, after: int) -> _Place | None:
    found = _find(connection, key, session_id)
    if found is None:
        return None
    row = connection.execute(
        "SELECT coalesce(max(id), 0) FROM archive WHERE session = ? AND n <= ?", (found[0], after)
    ).fetchone()
    return _Place(found[0], row[0])


def _entries(connection: sqlite3.Connection, after: _Place) -> _Page:
    rows = connection.execute(
        f"SELECT id, {sqlite_rows.ENTRY_COLUMNS} FROM archive WHERE session = ? AND id > ? ORDER BY id",  # noqa: S608
        (after.session, after.entry),
    )
    entries: list[Entry] = []
    end, characters = after.entry, 0
    for number, *columns in rows:  # row by row: what is not wanted is never read
        entry = sqlite_rows.entry_of(tuple(columns))
        is_full = characters >= PAGE_CHARACTERS or len(entries) >= PAGE_ENTRIES
        if is_full and entry.n != entries[-1].n:
            break
        entries.append(entry)
        end, characters = number, characters + len(entry.text)
    rows.close()
    return _Page(entries, _Place(after.session, end))


# ---- taking


def _taking(part: Part) -> Work[None]:
    """The part as work. Its rows are made here, so that the file is held no longer than writing takes."""
    events = [(event.n, to_json(event)) for event in part.events]
    receipts = [(bytes.fromhex(kept.operation), kept.fingerprint, kept.answer) for kept in part.receipts]
    entries = [sqlite_rows.entry_row(entry) for entry in part.entries]
    summaries = [sqlite_rows.summary_row(summary) for summary in part.summaries]

    def work(connection: sqlite3.Connection) -> None:
        found = _find(connection, part.held.key, part.held.session_id)
        _refuse_stale(connection, part, found)
        session = _prepare(connection, part, found)
        connection.executemany(
            "INSERT INTO events (session, n, body) VALUES (?, ?, ?)", [(session, *row) for row in events]
        )
        connection.executemany(
            "INSERT INTO operations (session, operation, fingerprint, answer) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (session, operation) DO NOTHING",
            [(session, *row) for row in receipts],
        )
        connection.executemany(sqlite_rows.INSERT_ENTRY, [(session, *row) for row in entries])
        connection.executemany(
            "DELETE FROM summaries WHERE session = ? AND branch_id = ?",
            [(session, branch_id) for branch_id in part.retracted],
        )
        connection.executemany(sqlite_rows.INSERT_SUMMARY, [(session, *row) for row in summaries])

    return work


def _refuse_stale(connection: sqlite3.Connection, part: Part, found: tuple[int, Held] | None) -> None:
    if found is None:
        stands, fits = 0, not part.held.is_live or _live(connection, part.held.key) is None
    elif part.held.is_live:
        stands, fits = found[1].revision, found[1].is_live
    else:
        stands, fits = _archived_to(connection, found[0]), True
    if not fits or stands != part.after:
        raise StaleRevision


def _prepare(connection: sqlite3.Connection, part: Part, found: tuple[int, Held] | None) -> int:
    """The session's row as it is after this part."""
    held = part.held
    revision = part.after + len(part.events) if held.is_live else held.revision
    stage = 0 if held.is_live else ENDED_STAGE
    if found is None:
        key = held.key
        made = connection.execute(
            "INSERT INTO sessions (owner, project_hash, name_hash, session_id, revision, last_at, stage, ended_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (key.owner, key.project_hash, key.name_hash, held.session_id, revision, held.last_at, stage, held.ended_at),
        )
        assert made.lastrowid is not None
        return made.lastrowid
    session, there = found
    if there.is_live:
        connection.execute(
            "UPDATE sessions SET revision = ?, last_at = ?, stage = ?, ended_at = ? WHERE id = ?",
            (revision, held.last_at, stage, held.ended_at, session),
        )
        if not held.is_live:
            for table in ("events", "operations"):
                connection.execute(f"DELETE FROM {table} WHERE session = ?", (session,))  # noqa: S608
    return session
