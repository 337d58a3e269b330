"""Checks a whole state file: its pages, the checksum of every row, and what is derived from the rows.

The two indexes of words, `summary_words` and recall's, have no checksums that SQLite would verify. They are compared
with the rows that they were made from, and made again if they differ.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from contextfold.stores import recall_index
from contextfold.stores.sqlite.schema import CHECKED, REBUILD_RECALL, RECALL_SOURCES

# The most damaged rows of a table that are named.
NAMED_MAX: Final = 5


def check_pages(connection: sqlite3.Connection) -> str | None:
    """What is wrong with the pages of the file and with its indexes; None if nothing is."""
    # What it says may quote a damaged name.
    connection.text_factory = bytes
    try:
        (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    except UnicodeDecodeError:
        return "a name in the schema is not UTF-8"
    finally:
        connection.text_factory = str
    return None if found == b"ok" else ascii(found.decode("utf-8", "replace"))


def find_damage(connection: sqlite3.Connection) -> Iterator[str]:
    """Everything that is damaged, in words."""
    if (found := check_pages(connection)) is not None:
        yield f"pages: {found}"
    for table in CHECKED:
        if table != "recall_documents":
            yield from _find_damaged_rows(connection, table)
    lacking = connection.execute(
        "SELECT session_id FROM sessions s WHERE revision != (SELECT count(*) FROM events WHERE session = s.id) AND"
        " (stage = 0 OR figures = '' AND EXISTS (SELECT 1 FROM events WHERE session = s.id AND n = 1)) LIMIT ?",
        (NAMED_MAX,),
    )
    yield from (f"sessions: {session_id} lacks events" for (session_id,) in lacking)


def _find_damaged_rows(connection: sqlite3.Connection, table: str) -> Iterator[str]:
    columns = CHECKED[table]
    is_damaged = f"checksum != row_checksum({', '.join(columns)})"
    if table == "left_out":
        is_damaged += " OR text_checksum != row_checksum(text)"
    key = ", ".join(columns[:2])
    rows = connection.execute(f"SELECT {key} FROM {table} WHERE {is_damaged} LIMIT ?", (NAMED_MAX,))
    for row in rows:
        named = ", ".join(f"{name} {value!r}" for name, value in zip(columns, row, strict=False))
        yield f"{table}: the row with {named} is not as it was stored"


# ---- what is derived


def is_search_intact(connection: sqlite3.Connection) -> bool:
    """Whether the index for `search` has the words of the summaries. Needs a connection that may write."""
    try:
        connection.execute("INSERT INTO summary_words (summary_words, rank) VALUES ('integrity-check', 1)")
    except sqlite3.DatabaseError as problem:
        if problem.sqlite_errorname.startswith("SQLITE_CORRUPT"):
            return False
        raise
    return True


def is_recall_intact(connection: sqlite3.Connection) -> bool:
    """Whether recall's index is what its documents and their sources make it. Needs a connection that may write."""
    try:
        (differing,) = connection.execute(
            f"SELECT count(*) FROM (SELECT kind, ref, owner FROM recall_queue EXCEPT {RECALL_SOURCES})"
            " WHERE (kind, ref) IN (SELECT kind, ref FROM recall_documents) OR kind NOT IN ('fold', 'result')"
        ).fetchone()
        (missing,) = connection.execute(
            f"SELECT count(*) FROM ({RECALL_SOURCES}) AS source WHERE NOT EXISTS (SELECT 1 FROM recall_documents d"
            " JOIN recall_owners o ON d.space IN (o.id || 'f', o.id || 'u')"
            " WHERE d.kind = source.kind AND d.ref = source.ref AND o.owner = source.owner)"
            " AND NOT EXISTS (SELECT 1 FROM recall_queue q WHERE (q.kind, q.ref, q.owner) = (source.kind, source.ref,"
            " source.owner))"
        ).fetchone()
        connection.execute("INSERT INTO recall_lists (recall_lists) VALUES ('integrity-check')")
        return not differing and not missing and recall_index.has_its_lists(connection)
    except (sqlite3.DatabaseError, ValueError) as problem:
        if isinstance(problem, sqlite3.OperationalError) and problem.sqlite_errorname.startswith("SQLITE_BUSY"):
            raise
        return False


def restore_derived(connection: sqlite3.Connection) -> None:
    """Make again what is derived and damaged. Runs in a transaction."""
    # Made of a damaged summary, the index would not find it by its words any more, and nobody would notice.
    if not is_search_intact(connection) and not any(_find_damaged_rows(connection, "summaries")):
        connection.execute("INSERT INTO summary_words (summary_words) VALUES ('rebuild')")
    if not is_recall_intact(connection):
        for statement in REBUILD_RECALL:
            connection.execute(statement)
