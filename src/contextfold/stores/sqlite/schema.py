"""The tables of the SQLite state file, as the migrations that make them, and the checksums of their rows.

SQLite's pages have no checksum: a bit that flips on the disk changes a text or a number, and nobody notices. So each
row has one, in a column `checksum` that every INSERT and UPDATE sets and every SELECT of the row verifies, by the two
functions that `add_functions` adds to a connection. Knows no file.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

# The columns of each table that its checksum is made of. The text of a left-out result may be long and is often not
# read with the rest, so it has a checksum of its own.
CHECKED: Final[Mapping[str, Sequence[str]]] = {
    table: tuple(columns.split())
    for table, columns in {
        "sessions": "owner project_hash name_hash session_id revision last_at stage ended_at figures",
        "events": "session n body",
        "operations": "session operation fingerprint answer",
        "archive": "session branch_id n at kind tokens type source failed child_id undone_from text",
        "summaries": "session branch_id project_path tokens_folded folded_at description summary undone",
        "left_out": "owner conversation call_id text_hash result_id decided_at stub tokens messages"
        " project_hash project_path session_id",
        "conversations": "owner conversation last_request_at outcomes cache_life_s",
        "clock": "body",
        "recall_documents": "number kind ref space project id words packed",
    }.items()
}
INTACT_TEXT: Final = "intact(text_checksum, text)"


def intact(table: str, alias: str = "") -> str:
    """A condition that is true for an intact row. A query that meets a damaged one fails."""
    dot = f"{alias}." if alias else ""
    return f"intact({', '.join(dot + name for name in ('checksum', *CHECKED[table]))})"


def insert_into(table: str, *columns: str) -> str:
    """A statement that adds a row with its checksum."""
    names = ", ".join(columns)
    if table not in CHECKED:
        return f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})"
    row = ", ".join(f"? AS {name}" for name in columns)
    checksum = f"row_checksum({', '.join(CHECKED[table])})"
    # Without the condition, SQLite would take a clause `ON CONFLICT` behind it for one of a join.
    return f"INSERT INTO {table} ({names}, checksum) SELECT {names}, {checksum} FROM (SELECT {row}) WHERE true"


def update(table: str, where: str, **expressions: str) -> str:
    """A statement that changes columns, and with them the checksum. Values in expressions have names, like `:at`."""
    values = ", ".join(expressions.get(name, name) for name in CHECKED[table])
    changes = "".join(f"{name} = {expression}, " for name, expression in expressions.items())
    return f"UPDATE {table} SET {changes}checksum = row_checksum({values}) WHERE {where}"


def row_checksum(*values: object) -> int:
    checksum = 0
    for value in values:
        data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        checksum = zlib.crc32(data, zlib.crc32(b"%s %d " % (type(value).__name__.encode(), len(data)), checksum))
    return checksum


def add_functions(connection: sqlite3.Connection) -> None:
    def check(checksum: object, *values: object) -> bool:
        if checksum != row_checksum(*values):
            # SQLite passes on only that a function failed: see `state_file.is_damage`.
            raise ValueError
        return True

    connection.create_function("row_checksum", -1, row_checksum, deterministic=True)
    connection.create_function("intact", -1, check, deterministic=True)


# The statements of one migration. The first migration creates the tables; each later one changes them.
Migration = Sequence[str]

# The tables of recall's index (`stores.recall_index`).
# `kind` and `ref` name the row of another table that a document is made from. `tokens` of a document follow from
# `space`, `project`, `words` and `packed`, so they can be removed from the lists.
RECALL_TABLES: Final = (
    "CREATE TABLE recall_owners (id INTEGER PRIMARY KEY, owner TEXT NOT NULL UNIQUE)",
    """CREATE TABLE recall_documents (
        number INTEGER PRIMARY KEY,
        kind TEXT NOT NULL,
        ref INTEGER NOT NULL,
        space TEXT NOT NULL,
        project TEXT NOT NULL,
        id TEXT NOT NULL,
        words INTEGER NOT NULL,
        packed BLOB NOT NULL
    )""",
    "CREATE UNIQUE INDEX recall_of_source ON recall_documents (kind, ref)",
    "CREATE VIRTUAL TABLE recall_lists USING fts5 (tokens, content='', detail=none, columnsize=0, tokenize='ascii')",
    "CREATE VIRTUAL TABLE recall_sizes USING fts5vocab (recall_lists, row)",
)

# The rows of other tables that recall's documents and its queue are about, as (kind, row, owner).
RECALL_SOURCES: Final = """SELECT 'fold' AS kind, m.id AS ref, s.owner FROM summaries m
    JOIN sessions s ON s.id = m.session UNION ALL SELECT 'result', id, owner FROM left_out"""
# Empties recall's index and queues all of its sources. The next question or sweep makes the documents.
REBUILD_RECALL: Final = (
    "INSERT INTO recall_lists (recall_lists) VALUES ('delete-all')",
    "DELETE FROM recall_documents",
    "DELETE FROM recall_owners",
    "DELETE FROM recall_queue",
    f"INSERT INTO recall_queue (kind, ref, owner) {RECALL_SOURCES}",
)

# The index of words has the texts of `summaries`.
_ADD_WORDS: Final = """INSERT INTO summary_words (rowid, description, summary)
    VALUES (new.id, new.description, new.summary);"""
_REMOVE_WORDS: Final = """INSERT INTO summary_words (summary_words, rowid, description, summary)
    VALUES ('delete', old.id, old.description, old.summary);"""

# The stages of a session's row: it is live; it has ended, and watchers see that; it has ended, and nobody sees that any
# more. Before format 9 the log was deleted in stage 1, except its end, which was left in stage 2 and deleted before 3.
LIVE, ENDED, UNSEEN = 0, 1, 3

# A session's row outlives the session: its archive, its summaries and its log refer to it. The owner is stored only
# there, so every query for a session's data has to name the owner.
MIGRATIONS: Final[Sequence[Migration]] = (
    (
        """CREATE TABLE sessions (
            id INTEGER PRIMARY KEY,
            owner TEXT NOT NULL,
            project_hash TEXT NOT NULL,
            name_hash TEXT NOT NULL,
            session_id TEXT NOT NULL,
            revision INTEGER NOT NULL,
            last_at TEXT NOT NULL,
            stage INTEGER NOT NULL DEFAULT 0,
            ended_at TEXT
        )""",
        "CREATE UNIQUE INDEX session_live ON sessions (owner, project_hash, name_hash) WHERE stage = 0",
        "CREATE INDEX session_age ON sessions (stage, last_at)",
        # AUTOINCREMENT: a number is never used twice, even after the last event was deleted, so cursors stay valid.
        """CREATE TABLE events (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            session INTEGER NOT NULL,
            n INTEGER NOT NULL,
            body TEXT NOT NULL
        )""",
        "CREATE UNIQUE INDEX event_of_session ON events (session, n)",
        """CREATE TABLE operations (
            session INTEGER NOT NULL,
            operation BLOB NOT NULL,
            fingerprint TEXT NOT NULL,
            answer TEXT NOT NULL
        )""",
        "CREATE UNIQUE INDEX operation_of_session ON operations (session, operation)",
        # The text is the last column: it may be megabytes, and the columns before it are read without it.
        """CREATE TABLE archive (
            id INTEGER PRIMARY KEY,
            session INTEGER NOT NULL,
            branch_id TEXT,
            n INTEGER NOT NULL,
            at TEXT NOT NULL,
            kind TEXT NOT NULL,
            tokens INTEGER NOT NULL,
            type TEXT NOT NULL,
            source TEXT NOT NULL,
            failed INTEGER NOT NULL,
            child_id TEXT,
            undone_from INTEGER,
            text TEXT NOT NULL
        )""",
        "CREATE INDEX archive_of_branch ON archive (branch_id, n) WHERE branch_id IS NOT NULL",
        "CREATE INDEX archive_rollbacks ON archive (branch_id, n) WHERE kind = 'rollback'",
        "CREATE INDEX archive_of_session ON archive (session)",
        """CREATE TABLE summaries (
            id INTEGER PRIMARY KEY,
            session INTEGER NOT NULL,
            branch_id TEXT NOT NULL,
            project_path TEXT NOT NULL,
            tokens_folded INTEGER NOT NULL,
            folded_at TEXT NOT NULL,
            description TEXT NOT NULL,
            summary TEXT NOT NULL
        )""",
        "CREATE UNIQUE INDEX summary_of_branch ON summaries (session, branch_id)",
        """CREATE VIRTUAL TABLE summary_words USING fts5 (
            description, summary, content='summaries', content_rowid='id', tokenize='unicode61 remove_diacritics 2'
        )""",
        f"CREATE TRIGGER summary_added AFTER INSERT ON summaries BEGIN {_ADD_WORDS} END",
        f"CREATE TRIGGER summary_removed AFTER DELETE ON summaries BEGIN {_REMOVE_WORDS} END",
        f"CREATE TRIGGER summary_replaced AFTER UPDATE ON summaries BEGIN {_REMOVE_WORDS} {_ADD_WORDS} END",
    ),
    (
        # For lists of an owner's sessions, for a session by its id, and for the trajectory of a main thread.
        "CREATE INDEX session_of_owner ON sessions (owner, last_at, session_id) WHERE stage = 0",
        "CREATE INDEX session_by_id ON sessions (session_id)",
        "CREATE INDEX archive_of_main ON archive (session, n, kind) WHERE branch_id IS NULL",
    ),
    (
        "ALTER TABLE sessions ADD COLUMN figures TEXT NOT NULL DEFAULT ''",
        "CREATE INDEX session_ended ON sessions (owner, last_at, session_id) WHERE stage > 0",
        """CREATE TABLE left_out (
            id INTEGER PRIMARY KEY,
            owner TEXT NOT NULL,
            conversation TEXT NOT NULL,
            call_id TEXT NOT NULL,
            text_hash TEXT NOT NULL,
            result_id TEXT NOT NULL,
            decided_at TEXT NOT NULL,
            stub TEXT NOT NULL,
            text TEXT NOT NULL
        )""",
        "CREATE UNIQUE INDEX left_out_decision ON left_out (owner, conversation, call_id, text_hash)",
        "CREATE INDEX left_out_age ON left_out (owner, conversation, decided_at)",
        "CREATE INDEX left_out_result ON left_out (owner, result_id)",
        # One row that the readiness check replaces: a commit of ordinary size that changes no session.
        "CREATE TABLE write_check (id INTEGER PRIMARY KEY, filler BLOB NOT NULL)",
    ),
    (
        "ALTER TABLE left_out ADD COLUMN tokens INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE left_out ADD COLUMN messages INTEGER NOT NULL DEFAULT 0",
        # The outcomes are a JSON list of pairs, in the order in which they were first seen.
        """CREATE TABLE conversations (
            owner TEXT NOT NULL,
            conversation TEXT NOT NULL,
            last_request_at TEXT NOT NULL,
            outcomes TEXT NOT NULL,
            PRIMARY KEY (owner, conversation)
        ) WITHOUT ROWID""",
        "CREATE INDEX conversation_age ON conversations (last_request_at)",
    ),
    (
        "ALTER TABLE summaries ADD COLUMN undone INTEGER NOT NULL DEFAULT 0",
        *(
            f"ALTER TABLE left_out ADD COLUMN {name} TEXT NOT NULL DEFAULT ''"
            for name in ("project_hash", "project_path", "session_id")
        ),
        "DROP TRIGGER summary_replaced",
        "CREATE TRIGGER summary_replaced AFTER UPDATE OF description, summary ON summaries"
        f" BEGIN {_REMOVE_WORDS} {_ADD_WORDS} END",
        *RECALL_TABLES,
        # What recall's index has to read again. It may be queued several times.
        """CREATE TABLE recall_queue (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            kind TEXT NOT NULL,
            ref INTEGER NOT NULL,
            owner TEXT NOT NULL
        )""",
        "CREATE INDEX recall_queued ON recall_queue (kind, ref)",
        "CREATE INDEX recall_queue_of_owner ON recall_queue (owner, id)",
        *(
            f"""CREATE TRIGGER recall_{table}_{name} AFTER {event} ON {table} BEGIN
                INSERT INTO recall_queue (kind, ref, owner) VALUES ('{kind}', {row}.id, {owner.format(row=row)});
            END"""
            for table, kind, owner in (
                ("summaries", "fold", "(SELECT owner FROM sessions WHERE id = {row}.session)"),
                ("left_out", "result", "{row}.owner"),
            )
            for name, event, row in (
                ("added", "INSERT", "new"),
                ("changed", "UPDATE", "new"),
                ("gone", "DELETE", "old"),
            )
        ),
        "INSERT INTO recall_queue (kind, ref, owner) SELECT 'fold', m.id, s.owner FROM summaries m"
        " JOIN sessions s ON s.id = m.session",
        "INSERT INTO recall_queue (kind, ref, owner) SELECT 'result', id, owner FROM left_out",
    ),
    ("ALTER TABLE conversations ADD COLUMN cache_life_s INTEGER NOT NULL DEFAULT 0",),
    # The time that the store has seen (`fold.store_clock`), in one row.
    ("CREATE TABLE clock (id INTEGER PRIMARY KEY, body TEXT NOT NULL)",),
    (
        # A change of the checksum alone is no change for recall.
        *(
            statement
            for table, kind, owner in (
                ("summaries", "fold", "(SELECT owner FROM sessions WHERE id = new.session)"),
                ("left_out", "result", "new.owner"),
            )
            for statement in (
                f"DROP TRIGGER recall_{table}_changed",
                f"""CREATE TRIGGER recall_{table}_changed AFTER UPDATE OF {", ".join(CHECKED[table])} ON {table} BEGIN
                    INSERT INTO recall_queue (kind, ref, owner) VALUES ('{kind}', new.id, {owner});
                END""",
            )
        ),
        *(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0" for table in CHECKED),
        "ALTER TABLE left_out ADD COLUMN text_checksum INTEGER NOT NULL DEFAULT 0",
        "UPDATE left_out SET text_checksum = row_checksum(text)",
        *(update(table, "true") for table in CHECKED),
    ),
    # An ended session keeps its log, which an earlier version would delete. So that version must not open the file; the
    # tables are the same, and what it stored of ended sessions stays as it is (`fold.ended_session`).
    (),
    # The words of documents have dates and chunks (`fold.recall_ranking`), so all are indexed again.
    REBUILD_RECALL,
)
# The version of the tables.
FORMAT: Final = len(MIGRATIONS)
