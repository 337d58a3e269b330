"""Sweeps of the SQLite store in steps: ending idle sessions, and deleting what is no longer retained.

Each function is one short transaction, so that commits can go between them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final, NamedTuple

from contextfold.fold.events import SessionExpired, to_json
from contextfold.fold.store_clock import StoreClock
from contextfold.stores.sqlite.schema import ENDED, UNSEEN, insert_into, intact, update
from contextfold.stores.sqlite.statements import INSERT_EVENT

# A sweep is done in steps, so that commits can go between them.
STEP_SESSIONS: Final = 64
STEP_ROWS: Final = 256


_END = update(
    "sessions",
    "id = :row AND revision = :revision AND stage = 0 AND last_at <= :idle_since",
    stage=str(ENDED),
    ended_at=":at",
    revision=":revision + 1",
)


class IdleSession(NamedTuple):
    """A session to be ended if it still has this revision."""

    row: int
    session_id: str
    revision: int


def read_clock(connection: sqlite3.Connection) -> StoreClock:
    row = connection.execute(f"SELECT body FROM clock WHERE {intact('clock')}").fetchone()
    if row is not None:
        return StoreClock.from_json(row[0])
    (newest,) = connection.execute(
        "SELECT max(at) FROM (SELECT max(max(last_at, coalesce(ended_at, ''))) AS at FROM sessions UNION ALL"
        " SELECT max(decided_at) FROM left_out UNION ALL SELECT max(last_request_at) FROM conversations)"
    ).fetchone()
    return StoreClock.of_content(newest or "")


def write_clock(connection: sqlite3.Connection, clock: StoreClock) -> None:
    connection.execute("DELETE FROM clock")
    connection.execute(insert_into("clock", "body"), (clock.to_json(),))


def correct_future(connection: sqlite3.Connection, at: str) -> None:
    """Replace times in the future, which a wrong clock recorded, by the current time."""
    connection.execute(update("sessions", "stage = 0 AND last_at > :at", last_at=":at"), {"at": at})


def idle_sessions(connection: sqlite3.Connection, idle_since: str) -> list[IdleSession]:
    """Some of the sessions without activity since then."""
    rows = connection.execute(
        f"SELECT id, session_id, revision FROM sessions WHERE stage = 0 AND last_at <= ? AND {intact('sessions')}"
        " ORDER BY last_at, id LIMIT ?",
        (idle_since, STEP_SESSIONS),
    ).fetchall()
    return [IdleSession(*row) for row in rows]


def end_idle(connection: sqlite3.Connection, idle: Sequence[IdleSession], idle_since: str, at: str) -> int:
    """End those of the sessions that were not active meanwhile. Their receipts are for live sessions only."""
    ended = 0
    for session in idle:
        expired = SessionExpired(session.revision + 1, at, session.session_id)
        values = {**session._asdict(), "idle_since": idle_since, "at": at}
        if connection.execute(_END, values).rowcount:
            connection.execute(INSERT_EVENT, (session.row, expired.n, to_json(expired)))
            connection.execute("DELETE FROM operations WHERE session = ?", (session.row,))
            ended += 1
    return ended


def hide_ends(connection: sqlite3.Connection, idle_since: str) -> None:
    """Hide the ends of sessions that every watcher had time to see."""
    due = f"stage IN (1, 2) AND ended_at <= :at AND {intact('sessions')}"
    connection.execute(update("sessions", due, stage=str(UNSEEN)), {"at": idle_since})


def ended_before(connection: sqlite3.Connection, before: str, after_id: int) -> list[int]:
    """Some of the sessions that have ended and were last active before, ordered by row."""
    rows = connection.execute(
        f"SELECT id FROM sessions WHERE id > ? AND stage > 0 AND last_at < ? AND {intact('sessions')}"
        " ORDER BY id LIMIT ?",
        (after_id, before, STEP_SESSIONS),
    )
    return [session for (session,) in rows]


def delete_rows(connection: sqlite3.Connection, table: str, sessions: Sequence[int]) -> bool:
    """Delete some rows of these sessions, which never become live again. False if there are none."""
    return _delete_some(connection, table, f"session IN ({_marks(sessions)})", *sessions) > 0


def delete_archive(connection: sqlite3.Connection, sessions: Sequence[int]) -> bool:
    """Delete some of the archive of these sessions, as `delete_rows` does. The documents of their folds lose words.

    A fold that is already queued for recall may be read at this moment, so it is queued again.
    """
    folds = (
        "SELECT 'fold', m.id, s.owner FROM summaries m JOIN sessions s ON s.id = m.session"
        f" WHERE s.id IN ({_marks(sessions)}) AND EXISTS (SELECT 1 FROM archive WHERE session = s.id)"
    )
    queued = connection.execute(folds, sessions).fetchall()
    connection.executemany("DELETE FROM recall_queue WHERE kind = ? AND ref = ?", [row[:2] for row in queued])
    connection.executemany(insert_into("recall_queue", "kind", "ref", "owner"), queued)
    return delete_rows(connection, "archive", sessions)


def delete_prompts(connection: sqlite3.Connection, sessions: Sequence[int]) -> bool:
    """Delete some of the prompts in the logs of these sessions. False if there are none left."""
    with_prompt = (
        f'SELECT seq FROM events WHERE session IN ({_marks(sessions)}) AND body LIKE \'{{"event":"branch.created",%\''
        f" AND json_extract(body, '$.prompt') != '' AND {intact('events')} LIMIT {STEP_ROWS}"
    )
    without = update("events", f"seq IN ({with_prompt})", body="json_set(body, '$.prompt', '')")
    return connection.execute(without, sessions).rowcount > 0


def delete_sessions(connection: sqlite3.Connection, sessions: Sequence[int]) -> None:
    """Delete the sessions of which nothing else is stored any more."""
    connection.executemany(
        "DELETE FROM sessions WHERE id = ? AND stage > 0"
        " AND NOT EXISTS (SELECT 1 FROM archive WHERE session = sessions.id)"
        " AND NOT EXISTS (SELECT 1 FROM summaries WHERE session = sessions.id)"
        " AND NOT EXISTS (SELECT 1 FROM events WHERE session = sessions.id)",
        [(session,) for session in sessions],
    )


def delete_left_out(connection: sqlite3.Connection, since: str) -> bool:
    """Delete some rows of conversations without a decision or request since; False if there are none left."""
    idle = """(owner, conversation) IN (SELECT owner, conversation FROM left_out GROUP BY owner, conversation
            HAVING max(decided_at) < ?)
        AND NOT EXISTS (SELECT 1 FROM conversations AS noted WHERE noted.owner = left_out.owner
            AND noted.conversation = left_out.conversation AND noted.last_request_at >= ?)"""
    return _delete_some(connection, "left_out", idle, since, since) > 0


def delete_conversations(connection: sqlite3.Connection, since: str) -> bool:
    """Delete some conversations without a request since, whose left-out results are deleted already."""
    deleted = connection.execute(
        "DELETE FROM conversations WHERE (owner, conversation) IN (SELECT owner, conversation FROM conversations AS"
        f" noted WHERE last_request_at < ? AND {intact('conversations', 'noted')} AND NOT EXISTS"
        " (SELECT 1 FROM left_out WHERE left_out.owner = noted.owner AND left_out.conversation = noted.conversation)"
        " LIMIT ?)",
        (since, STEP_ROWS),
    ).rowcount
    return deleted > 0


def _delete_some(connection: sqlite3.Connection, table: str, condition: str, *values: object) -> int:
    """Delete rows, but not so many that commits would have to wait long. Returns the number of deleted rows."""
    # A damaged row is not deleted, because it may be another's or not as old as it seems.
    some = f"SELECT rowid FROM {table} WHERE {condition} AND {intact(table)} LIMIT ?"
    return connection.execute(f"DELETE FROM {table} WHERE rowid IN ({some})", (*values, STEP_ROWS)).rowcount


def _marks(values: Sequence[int]) -> str:
    return ", ".join("?" * len(values))
