"""The statements of the SQLite store that change it, and what only they and the daemon read (`queries` has the rest).

Each function is one unit of work on a connection. Those that write run in a transaction of the writer and decide before
they change anything. Knows no thread and no file.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from contextfold.common.canonical import encode
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import SessionExpired, from_json, to_json
from contextfold.fold.ports.store import (
    ArchivedResult,
    Commit,
    CommitReceipt,
    LeftOutDecision,
    ProxiedConversation,
    RecallSource,
    SessionKey,
    StaleRevision,
    Summary,
    WatchedEvent,
)
from contextfold.fold.recall.documents import DocumentTerms
from contextfold.stores import recall_index
from contextfold.stores.session_document import figures_of
from contextfold.stores.sqlite.queries import (
    DECISION_COLUMNS,
    DECISION_NAMES,
    ENTRY_NAMES,
    SUMMARY_NAMES,
    event_of,
    last_seq,
)

# The most events that a watcher gets at once.
EVENTS_MOST: Final = 256
# A sweep is done in steps, so that commits can go between them.
STEP_SESSIONS: Final = 64
STEP_ROWS: Final = 256


def _insert(table: str, *columns: str) -> str:
    """A statement that adds a row."""
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - only our own names


def _delete_some(
    connection: sqlite3.Connection, table: str, condition: str, *values: object, most: int = STEP_ROWS
) -> int:
    """Delete rows, but not so many that commits would have to wait long. Returns the number of deleted rows."""
    some = f"SELECT rowid FROM {table} WHERE {condition} LIMIT ?"  # noqa: S608 - only our own names
    return connection.execute(f"DELETE FROM {table} WHERE rowid IN ({some})", (*values, most)).rowcount  # noqa: S608 - only our own names


_KEY = ("owner", "project_hash", "name_hash")
INSERT_SESSION = _insert("sessions", *_KEY, "session_id", "revision", "last_at", "stage", "ended_at", "figures")
INSERT_EVENT = _insert("events", "session", "n", "body")
INSERT_RECEIPT = _insert("operations", "session", "operation", "fingerprint", "answer")
INSERT_ENTRY = _insert("archive", "session", *ENTRY_NAMES)
INSERT_SUMMARY = (
    _insert("summaries", "session", *SUMMARY_NAMES)
    + " ON CONFLICT (session, branch_id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in SUMMARY_NAMES if name != "branch_id")
)
_INSERT_LEFT_OUT = (
    _insert("left_out", "owner", "conversation", *DECISION_NAMES, "text")
    + " ON CONFLICT (owner, conversation, call_id, text_hash) DO NOTHING"
)


# ---- one session


def summary_row(summary: Summary) -> tuple[object, ...]:
    return tuple(getattr(summary, name) for name in SUMMARY_NAMES)


def entry_row(entry: ArchiveEntry) -> tuple[object, ...]:
    return tuple(getattr(entry, name) for name in ENTRY_NAMES)


def committing(commit: Commit) -> Callable[[sqlite3.Connection], CommitReceipt]:
    """The commit as a unit of work. Its rows are prepared here, so that the transaction is as short as possible."""
    receipt = CommitReceipt(commit.operation.fingerprint if commit.operation else "", commit.answer)
    last_at = max(event.at for event in commit.events)
    events = [(event.n, to_json(event)) for event in commit.events]
    entries = [entry_row(entry) for entry in commit.entries]
    summaries = [summary_row(summary) for summary in commit.summaries]
    operation = _digest(commit.operation.id) if commit.operation else None

    def work(connection: sqlite3.Connection) -> CommitReceipt:
        found = _find(connection, commit.key, operation)
        if found is not None and found.receipt is not None:
            return found.receipt
        live = (found.session_id, found.revision) if found else (commit.session_id, 0)
        if live != (commit.session_id, commit.expected_revision):
            raise StaleRevision
        session = _advance(connection, found, commit, last_at)
        connection.executemany(INSERT_EVENT, [(session, *row) for row in events])
        if operation is not None:
            connection.execute(INSERT_RECEIPT, (session, operation, receipt.fingerprint, receipt.answer))
        if entries:
            connection.executemany(INSERT_ENTRY, [(session, *row) for row in entries])
        for branch_id in commit.retracted:
            connection.execute(
                "UPDATE summaries SET undone = 1 WHERE session = ? AND branch_id = ?", (session, branch_id)
            )
        if summaries:
            connection.executemany(INSERT_SUMMARY, [(session, *row) for row in summaries])
        return receipt

    return work


@dataclass(frozen=True, slots=True)
class _LiveSession:
    session: int
    session_id: str
    revision: int
    receipt: CommitReceipt | None


def _find(connection: sqlite3.Connection, key: SessionKey, operation: bytes | None) -> _LiveSession | None:
    row = connection.execute(
        "SELECT s.id, s.session_id, s.revision, o.fingerprint, o.answer FROM sessions s"
        " LEFT JOIN operations o ON o.session = s.id AND o.operation = ?"
        " WHERE s.owner = ? AND s.project_hash = ? AND s.name_hash = ? AND s.stage = 0",
        (operation, key.owner, key.project_hash, key.name_hash),
    ).fetchone()
    if row is None:
        return None
    session, session_id, revision, fingerprint, answer = row
    receipt = None if fingerprint is None else CommitReceipt(fingerprint, answer, repeated=True)
    return _LiveSession(session, session_id, revision, receipt)


def _advance(connection: sqlite3.Connection, live: _LiveSession | None, commit: Commit, last_at: str) -> int:
    if live is not None:
        connection.execute(
            "UPDATE sessions SET revision = ?, last_at = max(last_at, ?) WHERE id = ?",
            (commit.revision, last_at, live.session),
        )
        return live.session
    key = commit.key
    row = (key.owner, key.project_hash, key.name_hash, commit.session_id, commit.revision, last_at, 0, None, "")
    inserted = connection.execute(INSERT_SESSION, row)
    assert inserted.lastrowid is not None
    return inserted.lastrowid


def receipt(connection: sqlite3.Connection, key: SessionKey, operation_id: str) -> CommitReceipt | None:
    session = _find(connection, key, _digest(operation_id))
    return session.receipt if session else None


def _digest(operation_id: str) -> bytes:
    """A digest of an operation id, which callers choose and which may be long."""
    return sha256(operation_id.encode("utf-8", "surrogatepass")).digest()


# ---- events of an owner


def events_after(connection: sqlite3.Connection, owner: str, position: int) -> tuple[list[WatchedEvent], int]:
    """Up to EVENTS_MOST events after a position, and the position to continue from.

    The latter is beyond the last of them if events of other owners follow.
    """
    # This is read first: everything up to there is visible to the second statement. CROSS JOIN makes SQLite follow the
    # order of the events and not the owner's sessions.
    reached = last_seq(connection)
    rows = connection.execute(
        "SELECT e.seq, s.project_hash, s.name_hash, s.session_id, e.body FROM events e"
        " CROSS JOIN sessions s ON s.id = e.session WHERE e.seq > ? AND s.owner = ? ORDER BY e.seq LIMIT ?",
        (position, owner, EVENTS_MOST),
    ).fetchall()
    events = [
        WatchedEvent(str(seq), SessionKey(owner, project_hash, name_hash), session_id, event_of(body))
        for seq, project_hash, name_hash, session_id, body in rows
    ]
    last = rows[-1][0] if rows else position
    return events, last if len(rows) == EVENTS_MOST else max(last, reached)


# ---- results that requests leave out


def left_out(connection: sqlite3.Connection, owner: str, conversation: str) -> list[LeftOutDecision]:
    rows = connection.execute(
        f"SELECT {DECISION_COLUMNS} FROM left_out WHERE owner = ? AND conversation = ?"  # noqa: S608 - only our own names
        " ORDER BY call_id, text_hash",
        (owner, conversation),
    )
    return [LeftOutDecision(*row) for row in rows]


def keep_left_out(
    connection: sqlite3.Connection, owner: str, conversation: str, items: Sequence[ArchivedResult]
) -> None:
    for item in items:
        decision = (getattr(item.decision, name) for name in DECISION_NAMES)
        connection.execute(_INSERT_LEFT_OUT, (owner, conversation, *decision, item.text))


def find_conversation(connection: sqlite3.Connection, owner: str, conversation: str) -> ProxiedConversation | None:
    row = connection.execute(
        "SELECT last_request_at, outcomes, cache_life_s FROM conversations WHERE owner = ? AND conversation = ?",
        (owner, conversation),
    ).fetchone()
    return conversation_of(*row) if row else None


def conversation_of(last_request_at: str, outcomes: str, cache_life_s: int) -> ProxiedConversation:
    return ProxiedConversation(last_request_at, dict(json.loads(outcomes)), cache_life_s)


def note_conversation(
    connection: sqlite3.Connection, owner: str, conversation: str, noted: ProxiedConversation
) -> None:
    known = find_conversation(connection, owner, conversation)
    merged = known.merged(noted) if known else noted
    outcomes = encode([list(pair) for pair in merged.outcomes.items()])
    connection.execute(
        "INSERT OR REPLACE INTO conversations (owner, conversation, last_request_at, outcomes, cache_life_s)"
        " VALUES (?, ?, ?, ?, ?)",
        (owner, conversation, merged.last_request_at, outcomes, merged.cache_life_s),
    )


def forget_left_out(connection: sqlite3.Connection, since: str) -> bool:
    """Delete some rows of conversations without a decision or request since; False if there are none left."""
    idle = """(owner, conversation) IN (SELECT owner, conversation FROM left_out GROUP BY owner, conversation
            HAVING max(decided_at) < ?)
        AND NOT EXISTS (SELECT 1 FROM conversations AS noted WHERE noted.owner = left_out.owner
            AND noted.conversation = left_out.conversation AND noted.last_request_at >= ?)"""
    return _delete_some(connection, "left_out", idle, since, since) > 0


def forget_conversations(connection: sqlite3.Connection, since: str) -> bool:
    """Delete some conversations without a request since, whose left-out results are deleted already."""
    deleted = connection.execute(
        "DELETE FROM conversations WHERE (owner, conversation) IN (SELECT owner, conversation FROM conversations AS"
        " noted WHERE last_request_at < ? AND NOT EXISTS (SELECT 1 FROM left_out WHERE left_out.owner = noted.owner"
        " AND left_out.conversation = noted.conversation) LIMIT ?)",
        (since, STEP_ROWS),
    ).rowcount
    return deleted > 0


# ---- recall


def index(connection: sqlite3.Connection, documents: Sequence[tuple[RecallSource, DocumentTerms | None]]) -> None:
    for source, terms in documents:
        number, kind, ref = source.ref.split(".")
        # Not queued any more: another process has done it, or it has changed since and is queued again.
        if not connection.execute("DELETE FROM recall_queue WHERE id = ?", (int(number),)).rowcount:
            continue
        row = (kind, int(ref))
        if terms is None:
            recall_index.remove(connection, row)
        else:
            recall_index.put(connection, row, source, terms)


# ---- sweeps, in steps


@dataclass(frozen=True, slots=True)
class IdleSession:
    """A session to be ended if it still has this revision."""

    row: int
    session_id: str
    revision: int
    figures: str


def correct_future(connection: sqlite3.Connection, at: str) -> None:
    """Replace times in the future, which a wrong clock recorded, by the current time."""
    connection.execute("UPDATE sessions SET last_at = ? WHERE stage = 0 AND last_at > ?", (at, at))


def idle_sessions(connection: sqlite3.Connection, idle_since: str) -> list[IdleSession]:
    """Some of the sessions without activity since then. Their figures are computed outside of the transaction."""
    rows = connection.execute(
        "SELECT id, session_id, revision FROM sessions WHERE stage = 0 AND last_at <= ? ORDER BY last_at, id LIMIT ?",
        (idle_since, STEP_SESSIONS),
    ).fetchall()
    return [IdleSession(row, session_id, revision, _figures(connection, row)) for row, session_id, revision in rows]


def _figures(connection: sqlite3.Connection, session: int) -> str:
    bodies = connection.execute("SELECT body FROM events WHERE session = ? ORDER BY n", (session,))
    return figures_of(lambda: [from_json(body) for (body,) in bodies])


def end_idle(connection: sqlite3.Connection, idle: Sequence[IdleSession], idle_since: str, at: str) -> int:
    ended = 0
    for session in idle:
        expired = SessionExpired(session.revision + 1, at, session.session_id)
        changed = connection.execute(
            "UPDATE sessions SET stage = 1, ended_at = ?, revision = ?, figures = ?"
            " WHERE id = ? AND revision = ? AND stage = 0 AND last_at <= ?",
            (at, expired.n, session.figures, session.row, session.revision, idle_since),
        ).rowcount
        if changed:
            connection.execute(INSERT_EVENT, (session.row, expired.n, to_json(expired)))
            ended += 1
    return ended


def clear_ended(connection: sqlite3.Connection) -> bool:
    """Delete some of the log and receipts of ended sessions, except the last event. False if there is nothing left."""
    ended = connection.execute("SELECT id, revision FROM sessions WHERE stage = 1 LIMIT ?", (STEP_SESSIONS,)).fetchall()
    left = STEP_ROWS
    for session, revision in ended:
        left -= _delete_some(connection, "events", "session = ? AND n < ?", session, revision, most=left)
        left -= _delete_some(connection, "operations", "session = ?", session, most=left)
        if left == 0:
            break
        connection.execute("UPDATE sessions SET stage = 2 WHERE id = ?", (session,))
    return bool(ended)


def delete_last_events(connection: sqlite3.Connection, idle_since: str) -> bool:
    """Delete some of the last events that every watcher had time to see. False if there are none."""
    sessions = connection.execute(
        "SELECT id FROM sessions WHERE stage = 2 AND ended_at <= ? LIMIT ?", (idle_since, STEP_SESSIONS)
    ).fetchall()
    connection.executemany("DELETE FROM events WHERE session = ?", sessions)
    connection.executemany("UPDATE sessions SET stage = 3 WHERE id = ?", sessions)
    return bool(sessions)


def ended_before(connection: sqlite3.Connection, before: str, after_id: int) -> list[int]:
    """Some of the sessions that have ended and were last active before, ordered by row."""
    rows = connection.execute(
        "SELECT id FROM sessions WHERE id > ? AND stage > 0 AND last_at < ? ORDER BY id LIMIT ?",
        (after_id, before, STEP_SESSIONS),
    )
    return [session for (session,) in rows]


def forget(connection: sqlite3.Connection, table: str, sessions: Sequence[int]) -> bool:
    """Delete some rows of these sessions, which never become live again. False if there are none."""
    marks = ", ".join("?" * len(sessions))
    if table == "archive":
        # The documents of their folds lose words. A fold that is already queued for recall may be read at this moment,
        # so it is queued again.
        folds = (
            f"SELECT 'fold', m.id, s.owner FROM summaries m JOIN sessions s ON s.id = m.session WHERE s.id IN ({marks})"  # noqa: S608 - only marks
            " AND EXISTS (SELECT 1 FROM archive WHERE session = s.id)"
        )
        queued = connection.execute(folds, sessions).fetchall()
        connection.executemany("DELETE FROM recall_queue WHERE kind = ? AND ref = ?", [row[:2] for row in queued])
        connection.executemany(_insert("recall_queue", "kind", "ref", "owner"), queued)
    return _delete_some(connection, table, f"session IN ({marks})", *sessions) > 0


def forget_rows(connection: sqlite3.Connection, sessions: Sequence[int], since: str) -> None:
    """Delete the sessions that have no archive and no summaries any more and were last active before."""
    connection.executemany(
        "DELETE FROM sessions WHERE id = ? AND stage = 3 AND last_at < ?"
        " AND NOT EXISTS (SELECT 1 FROM archive WHERE session = sessions.id)"
        " AND NOT EXISTS (SELECT 1 FROM summaries WHERE session = sessions.id)",
        [(session, since) for session in sessions],
    )


def write_check(connection: sqlite3.Connection, size: int) -> None:
    connection.execute("INSERT OR REPLACE INTO write_check VALUES (1, randomblob(?))", (size,))
