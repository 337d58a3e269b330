"""The queries of the SQLite store that commands make, too. Each function is one unit of work on a connection.

A query uses one statement, or a transaction, where the result must be consistent. Knows no thread and no file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from contextfold.common.canonical import Malformed
from contextfold.common.relevance.question import Question
from contextfold.errors import StoreInvalid
from contextfold.fold.archive import ArchiveEntry, up_to
from contextfold.fold.events import Event, EventUnknown, from_json
from contextfold.fold.ports.stored_records import (
    SEARCH_MOST,
    ArchivedResult,
    ArchivedThread,
    EndedSession,
    KnownRevision,
    LeftOutDecision,
    ListedSession,
    Recalled,
    RecallSource,
    SessionKey,
    SessionLog,
    Summary,
    Trajectory,
)
from contextfold.fold.recall.packed_terms import RESULT
from contextfold.fold.recall.ranking import RecallScope
from contextfold.stores import recall_index

QUERY_WORDS: Final = 32
# Sorts after every time.
LATER_THAN_ALL: Final = "~"


# ---- sessions


def load(connection: sqlite3.Connection, key: SessionKey, known: KnownRevision | None = None) -> SessionLog | None:
    known = known or KnownRevision("", 0)
    rows = connection.execute(
        "SELECT s.session_id, e.body FROM sessions s LEFT JOIN events e"
        " ON e.session = s.id AND e.n > CASE s.session_id WHEN ? THEN ? ELSE 0 END"
        " WHERE s.owner = ? AND s.project_hash = ? AND s.name_hash = ? AND s.stage = 0 ORDER BY e.n",
        (known.session_id, known.revision, key.owner, key.project_hash, key.name_hash),
    ).fetchall()
    if not rows:
        return None
    return SessionLog(rows[0][0], [event_of(body) for _, body in rows if body is not None])


def event_of(body: str) -> Event:
    # Many queries read no event.

    try:
        return from_json(body)
    except (EventUnknown, Malformed) as problem:
        raise StoreInvalid(f"the state file has an event that cannot be read: {problem}") from problem


def count(connection: sqlite3.Connection, owner: str | None = None) -> int:
    everybodys = "SELECT count(*) FROM sessions WHERE stage = 0"
    counted = connection.execute(everybodys + " AND owner = ?" * (owner is not None), (owner,) * (owner is not None))
    live: int = counted.fetchone()[0]
    return live


def sessions(
    connection: sqlite3.Connection, owner: str, *, after: tuple[str, str] | None = None, limit: int
) -> list[ListedSession]:
    rows = connection.execute(
        "SELECT project_hash, name_hash, session_id, last_at FROM sessions WHERE owner = ? AND stage = 0"
        " AND (last_at, session_id) < (?, ?) ORDER BY last_at DESC, session_id DESC LIMIT ?",
        (owner, *(after or (LATER_THAN_ALL, "")), max(limit, 0)),
    )
    return [ListedSession(SessionKey(owner, *row[:2]), *row[2:]) for row in rows]


def ended_sessions(
    connection: sqlite3.Connection,
    owner: str,
    *,
    after: tuple[str, str] | None = None,
    limit: int,
    session_id: str | None = None,
) -> list[EndedSession]:
    only = " AND session_id = ?" if session_id is not None else ""
    rows = connection.execute(
        "SELECT project_hash, name_hash, session_id, last_at, ended_at, figures FROM sessions WHERE owner = ?"  # noqa: S608 - only our own text
        f" AND stage > 0 AND (last_at, session_id) < (?, ?){only} ORDER BY last_at DESC, session_id DESC LIMIT ?",
        (owner, *(after or (LATER_THAN_ALL, "")), *([session_id] if only else []), max(limit, 0)),
    )
    return [EndedSession(SessionKey(owner, *row[:2]), *row[2:]) for row in rows]


def find(connection: sqlite3.Connection, owner: str, session_id: str) -> SessionKey | None:
    row = connection.execute(
        "SELECT project_hash, name_hash FROM sessions WHERE session_id = ? AND owner = ? AND stage = 0",
        (session_id, owner),
    ).fetchone()
    return SessionKey(owner, *row) if row else None


def last_seq(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    return row[0] if row else 0


def cursor(connection: sqlite3.Connection) -> str:
    return str(last_seq(connection))


# ---- summaries and archive

# The members of a Summary, of `summaries m JOIN sessions s`.
_OF_SESSION = ("project_hash", "session_id")
SUMMARY_NAMES = tuple(each.name for each in fields(Summary) if each.name not in _OF_SESSION)
_SUMMARY_COLUMNS = ", ".join(f"{'s' if each.name in _OF_SESSION else 'm'}.{each.name}" for each in fields(Summary))


_SUMMARIES = "FROM summaries m JOIN sessions s ON s.id = m.session"


def _selected_summaries(connection: sqlite3.Connection, tables_and_conditions: str, *values: object) -> list[Summary]:
    rows = connection.execute(f"SELECT {_SUMMARY_COLUMNS} {tables_and_conditions}", values)
    return [Summary(*(*others, bool(undone))) for *others, undone in rows]


def search(
    connection: sqlite3.Connection, owner: str, query: str, project_hash: str | None, limit: int
) -> list[Summary]:
    words = phrases(query)
    if not words or limit < 1:
        return []
    found = """FROM summary_words JOIN summaries m ON m.id = summary_words.rowid JOIN sessions s ON s.id = m.session
        WHERE summary_words MATCH ? AND m.undone = 0 AND s.owner = ? AND s.project_hash = coalesce(?, s.project_hash)
        ORDER BY bm25(summary_words), m.folded_at DESC, m.id DESC LIMIT ?"""
    return _selected_summaries(connection, found, words, owner, project_hash, min(limit, SEARCH_MOST))


def summaries(connection: sqlite3.Connection, owner: str, project_hash: str | None) -> list[Summary]:
    stored = f"""{_SUMMARIES} WHERE m.undone = 0 AND s.owner = ? AND s.project_hash = coalesce(?, s.project_hash)
        ORDER BY s.session_id, m.branch_id"""
    return _selected_summaries(connection, stored, owner, project_hash)


def summaries_of(connection: sqlite3.Connection, session: int) -> list[Summary]:
    """Every summary of a session, which is given by its row; ordered by branch."""
    return _selected_summaries(connection, f"{_SUMMARIES} WHERE s.id = ? ORDER BY m.branch_id", session)


def phrases(query: str) -> str:
    """The query in FTS5's syntax. Every word is a quoted phrase, so that nothing in it is an operator.

    A word without a letter or digit is omitted, because FTS5 matches nothing with a phrase without a token.
    """
    legible = query.replace("\0", " ").encode("utf-8", "ignore").decode()
    words = [word for word in legible.split() if any(map(str.isalnum, word))][:QUERY_WORDS]
    phrases = " AND ".join('"' + word.replace('"', '""') + '"' for word in words)
    return phrases and phrases + " *"


_OF_BRANCH = """FROM archive JOIN sessions ON sessions.id = archive.session
    WHERE owner = ? AND project_hash = ? AND branch_id = ?"""
_OF_MAIN = """FROM archive WHERE branch_id IS NULL AND session = (SELECT id FROM sessions
    WHERE owner = ? AND project_hash = ? AND session_id = ? ORDER BY id DESC LIMIT 1)"""
ENTRY_COLUMNS = "branch_id, n, at, kind, text, tokens, type, source, failed, child_id, undone_from"
ENTRY_NAMES = tuple(ENTRY_COLUMNS.split(", "))


def entry_of(row: Sequence[Any]) -> ArchiveEntry:
    branch_id, n, at, kind, text, tokens, type_, source, failed, child_id, undone_from = row
    return ArchiveEntry(branch_id, n, at, kind, text, tokens, type_, source, bool(failed), child_id, undone_from)


def trajectory(
    connection: sqlite3.Connection,
    thread: ArchivedThread,
    *,
    after_n: int = 0,
    limit: int,
    characters: int | None = None,
) -> Trajectory | None:
    archived, name = (_OF_MAIN, thread.session_id) if thread.branch_id is None else (_OF_BRANCH, thread.branch_id)
    whose = (thread.owner, thread.project_hash, name)
    # In a transaction, so that all statements see the same commits.
    connection.execute("BEGIN")
    try:
        if connection.execute(f"SELECT 1 {archived} LIMIT 1", whose).fetchone() is None:
            return None
        rollbacks = connection.execute(
            f"SELECT undone_from, n {archived} AND kind = 'rollback' ORDER BY n", whose
        ).fetchall()
        rows = connection.execute(
            f"SELECT {ENTRY_COLUMNS} {archived} AND n > ? ORDER BY n LIMIT ?",
            (*whose, after_n, max(limit, 0)),
        )
        # Rows are fetched one by one, so that texts after the limit are not read.
        entries = list(up_to(map(entry_of, rows), characters))
        rows.close()
        return Trajectory(entries, rollbacks)
    finally:
        connection.execute("COMMIT")


# ---- left-out results and recall

DECISION_NAMES = tuple(each.name for each in fields(LeftOutDecision))
DECISION_COLUMNS = ", ".join(DECISION_NAMES)


def left_out_text(connection: sqlite3.Connection, owner: str, result_id: str) -> str | None:
    row = connection.execute(
        "SELECT text FROM left_out WHERE owner = ? AND result_id = ? ORDER BY id LIMIT 1", (owner, result_id)
    ).fetchone()
    return row[0] if row else None


def unindexed(connection: sqlite3.Connection, owner: str | None, limit: int) -> list[RecallSource]:
    queued = connection.execute(
        "SELECT id, kind, ref, owner FROM recall_queue"
        + " WHERE owner = ?" * (owner is not None)
        + " ORDER BY id LIMIT ?",
        (*((owner,) if owner is not None else ()), limit),
    ).fetchall()
    sources = []
    for number, kind, ref, whose in queued:
        document: Summary | ArchivedResult | LeftOutDecision | None = _recall_source(connection, kind, ref)
        if isinstance(document, LeftOutDecision):
            (text,) = connection.execute("SELECT text FROM left_out WHERE id = ?", (ref,)).fetchone()
            document = ArchivedResult(document, text)
        sources.append(RecallSource(f"{number}.{kind}.{ref}", whose, document))
    return sources


def recall(connection: sqlite3.Connection, owner: str, question: Question, scope: RecallScope) -> Recalled:
    # Most commands recall nothing.

    # In a transaction, so that all statements see the same commits.
    connection.execute("BEGIN")
    try:
        return recall_index.recall(
            connection, owner, question, scope, lambda kind, ref: _recall_source(connection, kind, ref)
        )
    finally:
        connection.execute("COMMIT")


def _recall_source(connection: sqlite3.Connection, kind: str, ref: int) -> Summary | LeftOutDecision | None:
    if kind == RESULT:
        row = connection.execute(f"SELECT {DECISION_COLUMNS} FROM left_out WHERE id = ?", (ref,)).fetchone()  # noqa: S608 - only our own names
        return LeftOutDecision(*row) if row else None
    stored = _selected_summaries(connection, f"{_SUMMARIES} WHERE m.id = ?", ref)
    return stored[0] if stored else None
