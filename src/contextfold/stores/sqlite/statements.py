"""The statements of the SQLite store: each function is one unit of work on a connection.

Those that write run in a transaction of the writer and decide before they change anything. A query uses one statement,
or a transaction, where the result must be consistent. Knows no thread and no file. What ends and deletes sessions is in
`sweeps`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from contextfold.common.canonical import Malformed, encode
from contextfold.common.question import Question
from contextfold.errors import StoreInvalid
from contextfold.fold.archive import ArchiveEntry, limit_characters
from contextfold.fold.events import Event, EventUnknown, from_json, to_json
from contextfold.fold.recall_ranking import RESULT, DocumentTerms, RecallScope
from contextfold.fold.store import (
    SEARCH_MAX,
    ArchivedResult,
    ArchivedThread,
    Commit,
    CommitReceipt,
    EndedSession,
    KnownRevision,
    LeftOutDecision,
    ListedSession,
    ProxiedConversation,
    Recalled,
    RecallSource,
    SessionKey,
    SessionLog,
    StaleRevision,
    Summary,
    Trajectory,
    WatchedEvent,
    hash_operation_id,
)
from contextfold.stores import recall_index
from contextfold.stores.sqlite.schema import INTACT_TEXT, LIVE, insert_into, intact, row_checksum, update

QUERY_WORDS: Final = 32
REPAIR: Final = "`context store verify` says what is damaged; put a backup in place of the file"
# Sorts after every time.
LATER_THAN_ALL: Final = "~"
# The most events that a watcher gets at once.
EVENTS_MAX: Final = 256


# The members of records as columns, and the statements that insert them.
# The members of a Summary, of `summaries m JOIN sessions s`.
_OF_SESSION = ("project_hash", "session_id")
SUMMARY_NAMES = tuple(name for name in Summary._fields if name not in _OF_SESSION)
_SUMMARY_COLUMNS = ", ".join(f"{'s' if name in _OF_SESSION else 'm'}.{name}" for name in Summary._fields)
_OF_INTACT_SESSION = f"s.id = m.session AND {intact('sessions', 's')} AND {intact('summaries', 'm')}"
_SUMMARIES = f"FROM summaries m JOIN sessions s ON {_OF_INTACT_SESSION}"
ENTRY_COLUMNS = "branch_id, n, at, kind, text, tokens, type, source, failed, child_id, undone_from"
ENTRY_NAMES = tuple(ENTRY_COLUMNS.split(", "))
DECISION_NAMES = LeftOutDecision._fields
DECISION_COLUMNS = ", ".join(DECISION_NAMES)
_KEY = ("owner", "project_hash", "name_hash")
INSERT_SESSION = insert_into("sessions", *_KEY, "session_id", "revision", "last_at", "stage", "ended_at", "figures")
INSERT_EVENT = insert_into("events", "session", "n", "body")
INSERT_RECEIPT = insert_into("operations", "session", "operation", "fingerprint", "answer")
INSERT_ENTRY = insert_into("archive", "session", *ENTRY_NAMES)
INSERT_SUMMARY = (
    insert_into("summaries", "session", *SUMMARY_NAMES)
    + " ON CONFLICT (session, branch_id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in (*SUMMARY_NAMES, "checksum") if name != "branch_id")
)
_RETRACT = update("summaries", "session = ? AND branch_id = ?", undone="1")
_ADVANCE = update("sessions", "id = :row", revision=":revision", last_at="max(last_at, :at)")
_INSERT_LEFT_OUT = (
    insert_into("left_out", "owner", "conversation", *DECISION_NAMES, "text", "text_checksum")
    + " ON CONFLICT (owner, conversation, call_id, text_hash) DO NOTHING"
)


_INTACT = intact("sessions")


# ---- one session


def load(connection: sqlite3.Connection, key: SessionKey, known: KnownRevision | None = None) -> SessionLog | None:
    known = known or KnownRevision("", 0)
    rows = connection.execute(
        "SELECT s.session_id, s.revision, e.body FROM sessions s LEFT JOIN events e"
        f" ON e.session = s.id AND e.n > CASE s.session_id WHEN ? THEN ? ELSE 0 END AND {intact('events', 'e')}"
        " WHERE s.owner = ? AND s.project_hash = ? AND s.name_hash = ? AND s.stage = 0"
        f" AND {intact('sessions', 's')} ORDER BY e.n",
        (known.session_id, known.revision, *key),
    ).fetchall()
    if not rows:
        return None
    session_id, revision, _ = rows[0]
    events = [event_of(body) for _, _, body in rows if body is not None]
    if len(events) != max(0, revision - known.revision * (known.session_id == session_id)):
        raise lacks_events(session_id)
    return SessionLog(session_id, events)


def event_of(body: str) -> Event:
    try:
        return from_json(body)
    except (EventUnknown, Malformed) as problem:
        raise StoreInvalid(f"the state file has an event that cannot be read: {problem}") from problem


def prepare_commit(commit: Commit) -> Callable[[sqlite3.Connection], CommitReceipt]:
    """The commit as a unit of work. Its rows are prepared here, so that the transaction is as short as possible."""
    commit.check()
    receipt = CommitReceipt(commit.operation.fingerprint if commit.operation else "", commit.answer)
    last_at = max(event.at for event in commit.events)
    events = [(event.n, to_json(event)) for event in commit.events]
    entries = [entry_row(entry) for entry in commit.entries]
    summaries = [summary_row(summary) for summary in commit.summaries]
    operation = hash_operation_id(commit.operation.id) if commit.operation else None

    def work(connection: sqlite3.Connection) -> CommitReceipt:
        found = _find_live_session(connection, commit.key, operation)
        if found is not None and found.receipt is not None:
            return found.receipt
        # Without a live session the commit begins one, if it was decided on none.
        live = (found.session_id, found.revision) if found else (commit.session_id, 0)
        if live != (commit.session_id, commit.expected_revision):
            raise StaleRevision
        session = _advance_session(connection, found, commit, last_at)
        connection.executemany(INSERT_EVENT, [(session, *row) for row in events])
        if operation is not None:
            connection.execute(INSERT_RECEIPT, (session, operation, receipt.fingerprint, receipt.answer))
        if entries:
            connection.executemany(INSERT_ENTRY, [(session, *row) for row in entries])
        for branch_id in commit.retracted:
            connection.execute(_RETRACT, (session, branch_id))
        if summaries:
            connection.executemany(INSERT_SUMMARY, [(session, *row) for row in summaries])
        return receipt

    return work


class _LiveSession(NamedTuple):
    row: int
    session_id: str
    revision: int
    receipt: CommitReceipt | None


def _find_live_session(connection: sqlite3.Connection, key: SessionKey, operation: bytes | None) -> _LiveSession | None:
    row = connection.execute(
        "SELECT s.id, s.session_id, s.revision, o.fingerprint, o.answer FROM sessions s"
        f" LEFT JOIN operations o ON o.session = s.id AND o.operation = ? AND {intact('operations', 'o')}"
        " WHERE s.owner = ? AND s.project_hash = ? AND s.name_hash = ? AND s.stage = 0"
        f" AND {intact('sessions', 's')}",
        (operation, *key),
    ).fetchone()
    if row is None:
        return None
    row_id, session_id, revision, fingerprint, answer = row
    receipt = None if fingerprint is None else CommitReceipt(fingerprint, answer, repeated=True)
    return _LiveSession(row_id, session_id, revision, receipt)


def _advance_session(connection: sqlite3.Connection, live: _LiveSession | None, commit: Commit, last_at: str) -> int:
    if live is not None:
        connection.execute(_ADVANCE, {"revision": commit.revision, "at": last_at, "row": live.row})
        return live.row
    row = (*commit.key, commit.session_id, commit.revision, last_at, LIVE, None, "")
    inserted = connection.execute(INSERT_SESSION, row)
    assert inserted.lastrowid is not None
    return inserted.lastrowid


def receipt(connection: sqlite3.Connection, key: SessionKey, operation_id: str) -> CommitReceipt | None:
    session = _find_live_session(connection, key, hash_operation_id(operation_id))
    return session.receipt if session else None


def summary_row(summary: Summary) -> tuple[object, ...]:
    return tuple(getattr(summary, name) for name in SUMMARY_NAMES)


def entry_row(entry: ArchiveEntry) -> tuple[object, ...]:
    return tuple(getattr(entry, name) for name in ENTRY_NAMES)


# ---- the sessions of an owner


def sessions(
    connection: sqlite3.Connection, owner: str, *, after: tuple[str, str] | None = None, limit: int
) -> list[ListedSession]:
    rows = connection.execute(
        f"SELECT project_hash, name_hash, session_id, last_at FROM sessions WHERE owner = ? AND stage = 0 AND {_INTACT}"
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
        "SELECT project_hash, name_hash, session_id, last_at, ended_at, figures FROM sessions WHERE owner = ?"
        f" AND stage > 0 AND {_INTACT} AND (last_at, session_id) < (?, ?){only}"
        " ORDER BY last_at DESC, session_id DESC LIMIT ?",
        (owner, *(after or (LATER_THAN_ALL, "")), *([session_id] if only else []), max(limit, 0)),
    )
    return [EndedSession(SessionKey(owner, *row[:2]), *row[2:]) for row in rows]


def ended_log(connection: sqlite3.Connection, key: SessionKey, session_id: str) -> list[Event]:
    row = connection.execute(
        "SELECT id FROM sessions WHERE session_id = ? AND owner = ? AND project_hash = ? AND name_hash = ?"
        f" AND stage > 0 AND {_INTACT} ORDER BY id DESC LIMIT 1",
        (session_id, *key),
    ).fetchone()
    return ended_log_of(connection, *row) if row else []


def ended_log_of(connection: sqlite3.Connection, session: int) -> list[Event]:
    """The log of an ended session, which is given by its row."""
    rows = connection.execute(
        "SELECT s.session_id, s.revision, e.body FROM sessions s JOIN events e"
        f" ON e.session = s.id AND {intact('events', 'e')}"
        f" WHERE s.id = ? AND s.figures = '' AND {intact('sessions', 's')} ORDER BY e.n",
        (session,),
    ).fetchall()
    events = [event_of(body) for _, _, body in rows]
    # An earlier version deleted the log of an ended session from its beginning, and the last event a day later.
    if not events or events[0].n != 1:
        return []
    session_id, revision, _ = rows[0]
    if len(events) != revision:
        raise lacks_events(session_id)
    return events


def lacks_events(session_id: str) -> StoreInvalid:
    return StoreInvalid(f"the state file is damaged: session {session_id} lacks events. {REPAIR}")


def find(connection: sqlite3.Connection, owner: str, session_id: str) -> SessionKey | None:
    row = connection.execute(
        f"SELECT project_hash, name_hash FROM sessions WHERE session_id = ? AND owner = ? AND stage = 0 AND {_INTACT}",
        (session_id, owner),
    ).fetchone()
    return SessionKey(owner, *row) if row else None


def count(connection: sqlite3.Connection, owner: str | None = None) -> int:
    everybodys = "SELECT count(*) FROM sessions WHERE stage = 0"
    counted = connection.execute(everybodys + " AND owner = ?" * (owner is not None), (owner,) * (owner is not None))
    live: int = counted.fetchone()[0]
    return live


# ---- the events of an owner


def last_seq(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    return row[0] if row else 0


def cursor(connection: sqlite3.Connection) -> str:
    return str(last_seq(connection))


def events_after(connection: sqlite3.Connection, owner: str, position: int) -> tuple[list[WatchedEvent], int]:
    """Up to EVENTS_MAX events after a position, and the position to continue from.

    The latter is beyond the last of them if events of other owners follow.
    """
    # This is read first: everything up to there is visible to the second statement. CROSS JOIN makes SQLite follow the
    # order of the events and not the owner's sessions.
    reached = last_seq(connection)
    rows = connection.execute(
        "SELECT e.seq, s.project_hash, s.name_hash, s.session_id, e.body FROM events e"
        " CROSS JOIN sessions s ON s.id = e.session WHERE e.seq > ? AND s.owner = ?"
        # Of an ended session only the end is seen.
        " AND (s.stage = 0 OR s.stage < 3 AND e.n = s.revision)"
        f" AND {intact('events', 'e')} AND {intact('sessions', 's')} ORDER BY e.seq LIMIT ?",
        (position, owner, EVENTS_MAX),
    ).fetchall()
    events = [
        WatchedEvent(str(seq), SessionKey(owner, project_hash, name_hash), session_id, event_of(body))
        for seq, project_hash, name_hash, session_id, body in rows
    ]
    last = rows[-1][0] if rows else position
    return events, last if len(rows) == EVENTS_MAX else max(last, reached)


# ---- summaries and archive


def search(
    connection: sqlite3.Connection, owner: str, query: str, project_hash: str | None, limit: int
) -> list[Summary]:
    words = fts_query(query)
    if not words or limit < 1:
        return []
    found = f"""FROM summary_words JOIN summaries m ON m.id = summary_words.rowid
        JOIN sessions s ON {_OF_INTACT_SESSION}
        WHERE summary_words MATCH ? AND m.undone = 0 AND s.owner = ? AND s.project_hash = coalesce(?, s.project_hash)
        ORDER BY bm25(summary_words), m.folded_at DESC, m.id DESC LIMIT ?"""
    return _select_summaries(connection, found, words, owner, project_hash, min(limit, SEARCH_MAX))


def fts_query(query: str) -> str:
    """The query in FTS5's syntax. Every word is a quoted phrase, so that nothing in it is an operator.

    A word without a letter or digit is omitted, because FTS5 matches nothing with a phrase without a token.
    """
    legible = query.replace("\0", " ").encode("utf-8", "ignore").decode()
    words = [word for word in legible.split() if any(map(str.isalnum, word))][:QUERY_WORDS]
    phrases = " AND ".join('"' + word.replace('"', '""') + '"' for word in words)
    return phrases and phrases + " *"


def summaries(connection: sqlite3.Connection, owner: str, project_hash: str | None) -> list[Summary]:
    stored = f"""{_SUMMARIES} WHERE m.undone = 0 AND s.owner = ? AND s.project_hash = coalesce(?, s.project_hash)
        ORDER BY s.session_id, m.branch_id"""
    return _select_summaries(connection, stored, owner, project_hash)


def summaries_of(connection: sqlite3.Connection, session: int) -> list[Summary]:
    """Every summary of a session, which is given by its row; ordered by branch."""
    return _select_summaries(connection, f"{_SUMMARIES} WHERE s.id = ? ORDER BY m.branch_id", session)


def _select_summaries(connection: sqlite3.Connection, tables_and_conditions: str, *values: object) -> list[Summary]:
    rows = connection.execute(f"SELECT {_SUMMARY_COLUMNS} {tables_and_conditions}", values)
    return [Summary(*(*others, bool(undone))) for *others, undone in rows]


_OF_BRANCH = f"""FROM archive JOIN sessions ON sessions.id = archive.session AND {intact("sessions", "sessions")}
    WHERE owner = ? AND project_hash = ? AND branch_id = ?"""
_INTACT_ENTRY = intact("archive", "archive")
_OF_MAIN = """FROM archive WHERE branch_id IS NULL AND session = (SELECT id FROM sessions
    WHERE owner = ? AND project_hash = ? AND session_id = ? ORDER BY id DESC LIMIT 1)"""


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
            f"SELECT undone_from, n {archived} AND kind = 'rollback' AND {_INTACT_ENTRY} ORDER BY n", whose
        ).fetchall()
        rows = connection.execute(
            f"SELECT {ENTRY_COLUMNS} {archived} AND n > ? AND {_INTACT_ENTRY} ORDER BY n LIMIT ?",
            (*whose, after_n, max(limit, 0)),
        )
        # Rows are fetched one by one, so that texts after the limit are not read.
        entries = list(limit_characters(map(entry_of, rows), characters))
        rows.close()
        return Trajectory(entries, rollbacks)
    finally:
        connection.execute("COMMIT")


def entry_of(row: Sequence[Any]) -> ArchiveEntry:
    branch_id, n, at, kind, text, tokens, type_, source, failed, child_id, undone_from = row
    return ArchiveEntry(branch_id, n, at, kind, text, tokens, type_, source, bool(failed), child_id, undone_from)


# ---- results that requests leave out


def left_out(connection: sqlite3.Connection, owner: str, conversation: str) -> list[LeftOutDecision]:
    rows = connection.execute(
        f"SELECT {DECISION_COLUMNS} FROM left_out WHERE owner = ? AND conversation = ? AND {intact('left_out')}"
        " ORDER BY call_id, text_hash",
        (owner, conversation),
    )
    return [LeftOutDecision(*row) for row in rows]


def left_out_text(connection: sqlite3.Connection, owner: str, result_id: str) -> str | None:
    row = connection.execute(
        f"SELECT text FROM left_out WHERE owner = ? AND result_id = ? AND {intact('left_out')} AND {INTACT_TEXT}"
        " ORDER BY id LIMIT 1",
        (owner, result_id),
    ).fetchone()
    return row[0] if row else None


def keep_left_out(
    connection: sqlite3.Connection, owner: str, conversation: str, items: Sequence[ArchivedResult]
) -> None:
    for item in items:
        decision = (getattr(item.decision, name) for name in DECISION_NAMES)
        values = (owner, conversation, *decision, item.text, row_checksum(item.text))
        connection.execute(_INSERT_LEFT_OUT, values)


def find_conversation(connection: sqlite3.Connection, owner: str, conversation: str) -> ProxiedConversation | None:
    row = connection.execute(
        "SELECT last_request_at, outcomes, cache_life_s FROM conversations WHERE owner = ? AND conversation = ?"
        f" AND {intact('conversations')}",
        (owner, conversation),
    ).fetchone()
    return conversation_of(*row) if row else None


def conversation_of(last_request_at: str, outcomes: str, cache_life_s: int) -> ProxiedConversation:
    return ProxiedConversation(last_request_at, dict(json.loads(outcomes)), cache_life_s)


_NOTE_CONVERSATION = insert_into(
    "conversations", "owner", "conversation", "last_request_at", "outcomes", "cache_life_s"
).replace("INSERT", "INSERT OR REPLACE", 1)


def note_conversation(
    connection: sqlite3.Connection, owner: str, conversation: str, noted: ProxiedConversation
) -> None:
    known = find_conversation(connection, owner, conversation)
    merged = known.merge(noted) if known else noted
    outcomes = encode([list(pair) for pair in merged.outcomes.items()])
    connection.execute(
        _NOTE_CONVERSATION,
        (owner, conversation, merged.last_request_at, outcomes, merged.cache_life_s),
    )


# ---- recall


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
            (text,) = connection.execute(f"SELECT text FROM left_out WHERE id = ? AND {INTACT_TEXT}", (ref,)).fetchone()
            document = ArchivedResult(document, text)
        sources.append(RecallSource(f"{number}.{kind}.{ref}", whose, document))
    return sources


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


def recall(connection: sqlite3.Connection, owner: str, question: Question, scope: RecallScope) -> Recalled:
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
        stored = f"SELECT {DECISION_COLUMNS} FROM left_out WHERE id = ? AND {intact('left_out')}"
        row = connection.execute(stored, (ref,)).fetchone()
        return LeftOutDecision(*row) if row else None
    found = _select_summaries(connection, f"{_SUMMARIES} WHERE m.id = ?", ref)
    return found[0] if found else None


# ---- the store itself


def write_check(connection: sqlite3.Connection, size: int) -> None:
    connection.execute("INSERT OR REPLACE INTO write_check VALUES (1, randomblob(?))", (size,))
