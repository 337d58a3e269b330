"""The statements of the SQLite store. Each function is one unit of work on a connection.

Those that write run in a transaction of the writer and decide before they change anything. Those that read use one
statement, or a transaction, where the result must be consistent. Knows no thread and no file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from contextfold.common.canonical import Malformed, encode
from contextfold.common.dataclass import dataclass, fields
from contextfold.common.sha256 import sha256
from contextfold.errors import StoreInvalid
from contextfold.fold.archive import ArchiveEntry, up_to
from contextfold.fold.events import Event, EventUnknown, SessionExpired, from_json, to_json
from contextfold.fold.ports.store import (
    SEARCH_MOST,
    ArchivedResult,
    Commit,
    CommitReceipt,
    EndedSession,
    KnownRevision,
    LeftOutDecision,
    ListedSession,
    ProxiedConversation,
    Recalled,
    RecallHit,
    RecallSource,
    SessionKey,
    SessionLog,
    StaleRevision,
    Summary,
    Trajectory,
    WatchedEvent,
)
from contextfold.stores.session_document import figures_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from contextfold.common.relevance.question import Question
    from contextfold.fold.recall.documents import DocumentTerms
    from contextfold.fold.recall.ranking import RecallScope

# The most events that a watcher gets at once.
EVENTS_MOST: Final = 256
QUERY_WORDS: Final = 32
# A sweep is done in steps, so that commits can go between them.
STEP_SESSIONS: Final = 64
STEP_ROWS: Final = 256
# Sorts after every time.
LATER_THAN_ALL: Final = "~"


# ---- one session


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
        connection.executemany(
            "INSERT INTO events (session, n, body) VALUES (?, ?, ?)", [(session, *row) for row in events]
        )
        if operation is not None:
            connection.execute(
                "INSERT INTO operations (session, operation, fingerprint, answer) VALUES (?, ?, ?, ?)",
                (session, operation, receipt.fingerprint, receipt.answer),
            )
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
    inserted = connection.execute(
        "INSERT INTO sessions (owner, project_hash, name_hash, session_id, revision, last_at)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (key.owner, key.project_hash, key.name_hash, commit.session_id, commit.revision, last_at),
    )
    assert inserted.lastrowid is not None
    return inserted.lastrowid


def load(connection: sqlite3.Connection, key: SessionKey, known: KnownRevision | None) -> SessionLog | None:
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


def receipt(connection: sqlite3.Connection, key: SessionKey, operation_id: str) -> CommitReceipt | None:
    session = _find(connection, key, _digest(operation_id))
    return session.receipt if session else None


def count(connection: sqlite3.Connection, owner: str | None) -> int:
    everybodys = "SELECT count(*) FROM sessions WHERE stage = 0"
    counted = connection.execute(everybodys + " AND owner = ?" * (owner is not None), (owner,) * (owner is not None))
    live: int = counted.fetchone()[0]
    return live


def sessions(
    connection: sqlite3.Connection, owner: str, after: tuple[str, str] | None, limit: int
) -> list[ListedSession]:
    rows = connection.execute(
        "SELECT project_hash, name_hash, session_id, last_at FROM sessions WHERE owner = ? AND stage = 0"
        " AND (last_at, session_id) < (?, ?) ORDER BY last_at DESC, session_id DESC LIMIT ?",
        (owner, *(after or (LATER_THAN_ALL, "")), max(limit, 0)),
    )
    return [ListedSession(SessionKey(owner, *row[:2]), *row[2:]) for row in rows]


def find(connection: sqlite3.Connection, owner: str, session_id: str) -> SessionKey | None:
    row = connection.execute(
        "SELECT project_hash, name_hash FROM sessions WHERE session_id = ? AND owner = ? AND stage = 0",
        (session_id, owner),
    ).fetchone()
    return SessionKey(owner, *row) if row else None


def _digest(operation_id: str) -> bytes:
    """A digest of an operation id, which callers choose and which may be long."""
    return sha256(operation_id.encode("utf-8", "surrogatepass")).digest()


def event_of(body: str) -> Event:
    try:
        return from_json(body)
    except (EventUnknown, Malformed) as problem:
        raise StoreInvalid(f"the state file has an event that cannot be read: {problem}") from problem


# ---- events of an owner


def last_seq(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    return row[0] if row else 0


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events after a position, and the position to continue from, which is later if events of other owners follow."""

    events: Sequence[WatchedEvent]
    position: int
    is_last: bool


def events_after(connection: sqlite3.Connection, owner: str, position: int) -> EventPage:
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
    is_last = len(rows) < EVENTS_MOST
    return EventPage(events, max(last, reached) if is_last else last, is_last)


# ---- summaries and archive

INSERT_SUMMARY = """INSERT INTO summaries
    (session, branch_id, project_path, tokens_folded, folded_at, description, summary, undone)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (session, branch_id) DO UPDATE SET
        project_path = excluded.project_path, tokens_folded = excluded.tokens_folded, undone = excluded.undone,
        folded_at = excluded.folded_at, description = excluded.description, summary = excluded.summary"""
# The members of a Summary, of `summaries m JOIN sessions s`.
_SUMMARY_COLUMNS = """s.project_hash, m.project_path, s.session_id, m.branch_id, m.description, m.summary,
    m.tokens_folded, m.folded_at, m.undone"""


def summary_row(summary: Summary) -> tuple[object, ...]:
    return (
        summary.branch_id,
        summary.project_path,
        summary.tokens_folded,
        summary.folded_at,
        summary.description,
        summary.summary,
        summary.undone,
    )


def summary_of(row: tuple[Any, ...]) -> Summary:
    members = (*row[:-1], bool(row[-1]))
    return Summary(*members)


def search(
    connection: sqlite3.Connection, owner: str, query: str, project_hash: str | None, limit: int
) -> list[Summary]:
    words = phrases(query)
    if not words or limit < 1:
        return []
    rows = connection.execute(
        f"SELECT {_SUMMARY_COLUMNS} FROM summary_words"  # noqa: S608 - only our own names
        " JOIN summaries m ON m.id = summary_words.rowid JOIN sessions s ON s.id = m.session"
        " WHERE summary_words MATCH ? AND m.undone = 0 AND s.owner = ? AND s.project_hash = coalesce(?,"
        " s.project_hash) ORDER BY bm25(summary_words), m.folded_at DESC, m.id DESC LIMIT ?",
        (words, owner, project_hash, min(limit, SEARCH_MOST)),
    )
    return list(map(summary_of, rows))


def summaries(connection: sqlite3.Connection, owner: str, project_hash: str | None) -> list[Summary]:
    rows = connection.execute(
        f"SELECT {_SUMMARY_COLUMNS} FROM summaries m JOIN sessions s ON s.id = m.session"  # noqa: S608 - only our own names
        " WHERE m.undone = 0 AND s.owner = ? AND s.project_hash = coalesce(?, s.project_hash)"
        " ORDER BY s.session_id, m.branch_id",
        (owner, project_hash),
    )
    return list(map(summary_of, rows))


def phrases(query: str) -> str:
    """The query in FTS5's syntax. Every word is a quoted phrase, so that nothing in it is an operator.

    A word without a letter or digit is omitted, because FTS5 matches nothing with a phrase without a token.
    """
    legible = query.replace("\0", " ").encode("utf-8", "ignore").decode()
    words = [word for word in legible.split() if any(map(str.isalnum, word))][:QUERY_WORDS]
    phrases = " AND ".join('"' + word.replace('"', '""') + '"' for word in words)
    return phrases and phrases + " *"


INSERT_ENTRY = """INSERT INTO archive
    (session, branch_id, n, at, kind, text, tokens, type, source, failed, child_id, undone_from)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_OF_BRANCH = """FROM archive JOIN sessions ON sessions.id = archive.session
    WHERE owner = ? AND project_hash = ? AND branch_id = ?"""
_OF_MAIN = """FROM archive WHERE branch_id IS NULL AND session = (SELECT id FROM sessions
    WHERE owner = ? AND project_hash = ? AND session_id = ? ORDER BY id DESC LIMIT 1)"""
ENTRY_COLUMNS = "branch_id, n, at, kind, text, tokens, type, source, failed, child_id, undone_from"


def entry_row(entry: ArchiveEntry) -> tuple[object, ...]:
    others = (entry.tokens, entry.type, entry.source, entry.failed, entry.child_id, entry.undone_from)
    return (entry.branch_id, entry.n, entry.at, entry.kind, entry.text, *others)


def entry_of(row: tuple[Any, ...]) -> ArchiveEntry:
    branch_id, n, at, kind, text, tokens, type_, source, failed, child_id, undone_from = row
    return ArchiveEntry(branch_id, n, at, kind, text, tokens, type_, source, bool(failed), child_id, undone_from)


@dataclass(frozen=True, slots=True)
class TrajectoryQuery:
    """A part of a branch's trajectory."""

    owner: str
    project_hash: str
    branch_id: str | None
    session_id: str
    after_n: int
    limit: int
    characters: int | None


def trajectory(connection: sqlite3.Connection, query: TrajectoryQuery) -> Trajectory | None:
    archived, thread = (_OF_MAIN, query.session_id) if query.branch_id is None else (_OF_BRANCH, query.branch_id)
    whose = (query.owner, query.project_hash, thread)
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
            (*whose, query.after_n, max(query.limit, 0)),
        )
        # Rows are fetched one by one, so that texts after the limit are not read.
        entries = list(up_to(map(entry_of, rows), query.characters))
        rows.close()
        return Trajectory(entries, rollbacks)
    finally:
        connection.execute("COMMIT")


# ---- results that requests leave out


DECISION_NAMES = tuple(each.name for each in fields(LeftOutDecision))
DECISION_COLUMNS = ", ".join(DECISION_NAMES)
# The owner, the conversation, the decision, the text.
_DECISION_MARKS = ", ".join("?" * (len(DECISION_NAMES) + 3))


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
    connection.executemany(
        f"INSERT INTO left_out (owner, conversation, {DECISION_COLUMNS}, text)"  # noqa: S608 - only our own names
        f" VALUES ({_DECISION_MARKS}) ON CONFLICT (owner, conversation, call_id, text_hash) DO NOTHING",
        [
            (owner, conversation, *(getattr(item.decision, name) for name in DECISION_NAMES), item.text)
            for item in items
        ],
    )


def left_out_text(connection: sqlite3.Connection, owner: str, result_id: str) -> str | None:
    row = connection.execute(
        "SELECT text FROM left_out WHERE owner = ? AND result_id = ? ORDER BY id LIMIT 1", (owner, result_id)
    ).fetchone()
    return row[0] if row else None


def conversation(connection: sqlite3.Connection, owner: str, name: str) -> ProxiedConversation | None:
    row = connection.execute(
        "SELECT last_request_at, outcomes, cache_life_s FROM conversations WHERE owner = ? AND conversation = ?",
        (owner, name),
    ).fetchone()
    return conversation_of(*row) if row else None


def conversation_of(last_request_at: str, outcomes: str, cache_life_s: int) -> ProxiedConversation:
    import json

    return ProxiedConversation(last_request_at, dict(json.loads(outcomes)), cache_life_s)


def note_conversation(connection: sqlite3.Connection, owner: str, name: str, noted: ProxiedConversation) -> None:
    known = conversation(connection, owner, name)
    merged = known.merged(noted) if known else noted
    outcomes = encode([list(pair) for pair in merged.outcomes.items()])
    connection.execute(
        "INSERT OR REPLACE INTO conversations (owner, conversation, last_request_at, outcomes, cache_life_s)"
        " VALUES (?, ?, ?, ?, ?)",
        (owner, name, merged.last_request_at, outcomes, merged.cache_life_s),
    )


def forget_left_out(connection: sqlite3.Connection, since: str) -> bool:
    """Delete some rows of conversations without a decision or request since; False if there are none left."""
    deleted = connection.execute(
        "DELETE FROM left_out WHERE id IN (SELECT id FROM left_out WHERE (owner, conversation) IN (SELECT owner,"
        " conversation FROM left_out GROUP BY owner, conversation HAVING max(decided_at) < ?) AND NOT EXISTS"
        " (SELECT 1 FROM conversations AS noted WHERE noted.owner = left_out.owner"
        " AND noted.conversation = left_out.conversation AND noted.last_request_at >= ?) LIMIT ?)",
        (since, since, STEP_ROWS),
    ).rowcount
    return deleted > 0


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


def unindexed(connection: sqlite3.Connection, owner: str | None, limit: int) -> list[RecallSource]:
    queued = connection.execute(
        "SELECT id, kind, ref, owner FROM recall_queue"
        + " WHERE owner = ?" * (owner is not None)
        + " ORDER BY id LIMIT ?",
        (*((owner,) if owner is not None else ()), limit),
    ).fetchall()
    sources = []
    for number, kind, ref, whose in queued:
        source = _recall_source(connection, kind, ref)
        summary = source if isinstance(source, Summary) else None
        result = None
        if isinstance(source, LeftOutDecision):
            (text,) = connection.execute("SELECT text FROM left_out WHERE id = ?", (ref,)).fetchone()
            result = ArchivedResult(source, text)
        sources.append(RecallSource(f"{number}.{kind}.{ref}", whose, summary, result))
    return sources


def index(connection: sqlite3.Connection, documents: Sequence[tuple[RecallSource, DocumentTerms | None]]) -> None:
    from contextfold.stores import recall_index

    for source, terms in documents:
        number, kind, ref = source.ref.split(".")
        # Not queued any more: another process has done it, or it has changed since and is queued again.
        if not connection.execute("DELETE FROM recall_queue WHERE id = ?", (int(number),)).rowcount:
            continue
        row = (kind, int(ref))
        if terms is None:
            recall_index.remove(connection, row)
        elif source.summary:
            whose = (source.owner, source.summary.project_hash)
            recall_index.put(connection, row, whose, source.summary.branch_id, terms, undone=source.summary.undone)
        elif source.result:
            decision = source.result.decision
            whose = (source.owner, decision.project_hash)
            recall_index.put(connection, row, whose, decision.result_id, terms, undone=False)


def recall(connection: sqlite3.Connection, owner: str, question: Question, scope: RecallScope) -> Recalled:
    # Most commands recall nothing.
    from contextfold.fold.recall.ranking import rank
    from contextfold.stores import recall_index

    # In a transaction, so that all statements see the same commits.
    connection.execute("BEGIN")
    try:
        ranking = rank(question, recall_index.RecallLists(connection, owner, scope))
        rows = recall_index.sources(connection, (hit.number for hit in ranking.hits))
        hits_and_sources = ((hit, _recall_source(connection, *rows[hit.number])) for hit in ranking.hits)
        hits = [RecallHit(hit, source) for hit, source in hits_and_sources if source is not None]
        return Recalled(hits, ranking.unmatched, ranking.documents, ranking.matched, ranking.score_most)
    finally:
        connection.execute("COMMIT")


def _recall_source(connection: sqlite3.Connection, kind: str, ref: int) -> Summary | LeftOutDecision | None:
    from contextfold.fold.recall.documents import RESULT

    if kind == RESULT:
        row = connection.execute(f"SELECT {DECISION_COLUMNS} FROM left_out WHERE id = ?", (ref,)).fetchone()  # noqa: S608 - only our own names
        return LeftOutDecision(*row) if row else None
    row = connection.execute(
        f"SELECT {_SUMMARY_COLUMNS} FROM summaries m JOIN sessions s ON s.id = m.session WHERE m.id = ?",  # noqa: S608 - only our own names
        (ref,),
    ).fetchone()
    return summary_of(row) if row else None


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
            connection.execute(
                "INSERT INTO events (session, n, body) VALUES (?, ?, ?)", (session.row, expired.n, to_json(expired))
            )
            ended += 1
    return ended


def ended_sessions(
    connection: sqlite3.Connection,
    owner: str,
    after: tuple[str, str] | None,
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


def clear_ended(connection: sqlite3.Connection) -> bool:
    """Delete some of the log and receipts of ended sessions, except the last event. False if there is nothing left."""
    ended = connection.execute("SELECT id, revision FROM sessions WHERE stage = 1 LIMIT ?", (STEP_SESSIONS,)).fetchall()
    left = STEP_ROWS
    for session, revision in ended:
        left -= connection.execute(
            "DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE session = ? AND n < ? LIMIT ?)",
            (session, revision, left),
        ).rowcount
        left -= connection.execute(
            "DELETE FROM operations WHERE rowid IN (SELECT rowid FROM operations WHERE session = ? LIMIT ?)",
            (session, left),
        ).rowcount
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
        _queue_folds(connection, [session for session in sessions if _has_archive(connection, session)])
    deleted = connection.execute(
        f"DELETE FROM {table} WHERE rowid IN"  # noqa: S608 - only our own names
        f" (SELECT rowid FROM {table} WHERE session IN ({marks}) LIMIT ?)",
        (*sessions, STEP_ROWS),
    ).rowcount
    return deleted > 0


def _has_archive(connection: sqlite3.Connection, session: int) -> bool:
    return connection.execute("SELECT 1 FROM archive WHERE session = ? LIMIT 1", (session,)).fetchone() is not None


def _queue_folds(connection: sqlite3.Connection, sessions: Sequence[int]) -> None:
    """Queue the folds of these sessions for recall, because their documents lose words.

    A fold that is already queued may be read at this moment, so it is queued again.
    """
    for session in sessions:
        connection.execute(
            "DELETE FROM recall_queue WHERE kind = 'fold' AND ref IN (SELECT id FROM summaries WHERE session = ?)",
            (session,),
        )
        connection.execute(
            "INSERT INTO recall_queue (kind, ref, owner) SELECT 'fold', m.id, s.owner FROM summaries m"
            " JOIN sessions s ON s.id = m.session WHERE m.session = ?",
            (session,),
        )


def forget_rows(connection: sqlite3.Connection, sessions: Sequence[int], since: str) -> None:
    """Delete the sessions that have no archive and no summaries any more and were last active before."""
    connection.executemany(
        "DELETE FROM sessions WHERE id = ? AND stage = 3 AND last_at < ?"
        " AND NOT EXISTS (SELECT 1 FROM archive WHERE session = sessions.id)"
        " AND NOT EXISTS (SELECT 1 FROM summaries WHERE session = sessions.id)",
        [(session, since) for session in sessions],
    )
