"""Export of a SQLite store as records, and import of records into an empty one.

Each is one transaction on a connection of its own, because the writer's work has a timeout.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Final

from contextfold.errors import ImportDiffers, TargetNotEmpty
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import to_json
from contextfold.fold.store import ArchivedResult, LeftOutDecision, SessionKey, Summary
from contextfold.fold.store_export import (
    ExportedConversation,
    ExportedLeftOut,
    ExportedReceipt,
    ExportedSession,
    ExportRecord,
    encode_record,
    hash_records,
)
from contextfold.stores.sqlite import state_file, statements

# The stage of an imported session that has ended: its log is gone, and so is its last event.
_ENDED: Final = 3


def export_records(path: str) -> Iterator[ExportRecord]:
    """All records, from one consistent snapshot."""
    connection = state_file.connect(path, state_file.BUSY_TIMEOUT_S)
    with state_file.transaction(connection, "BEGIN"):
        yield from _all_records(connection)


def _all_records(connection: sqlite3.Connection) -> Iterator[ExportRecord]:
    sessions = connection.execute(
        "SELECT id, owner, project_hash, name_hash, session_id, revision, last_at,"
        " CASE stage WHEN 0 THEN NULL ELSE ended_at END, figures FROM sessions"
        " ORDER BY owner, project_hash, name_hash, session_id, id"
    ).fetchall()
    for row, owner, project_hash, name_hash, *others in sessions:
        session = ExportedSession(SessionKey(owner, project_hash, name_hash), *others)
        yield session
        yield from _of_session(connection, row, session)
    # In the order of an index, so that no text is part of a sort.
    left_out = connection.execute(
        f"SELECT owner, conversation, text, {statements.DECISION_COLUMNS} FROM left_out"  # noqa: S608 - only our own names
        " ORDER BY owner, conversation, call_id, text_hash"
    )
    for owner, conversation, text, *decision in left_out:
        yield ExportedLeftOut(owner, conversation, ArchivedResult(LeftOutDecision(*decision), text))
    conversations = connection.execute(
        "SELECT owner, conversation, last_request_at, outcomes, cache_life_s FROM conversations"
        " ORDER BY owner, conversation"
    )
    for owner, conversation, *noted in conversations:
        yield ExportedConversation(owner, conversation, statements.conversation_of(*noted))


def _of_session(connection: sqlite3.Connection, row: int, session: ExportedSession) -> Iterator[ExportRecord]:
    if session.is_live:
        for (body,) in connection.execute("SELECT body FROM events WHERE session = ? ORDER BY n", (row,)):
            yield statements.event_of(body)
        receipts = connection.execute(
            "SELECT lower(hex(operation)), fingerprint, answer FROM operations WHERE session = ? ORDER BY operation",
            (row,),
        )
        for receipt in receipts:
            yield ExportedReceipt(*receipt)
    yield from statements.summaries_of(connection, row)
    # The ids are sorted first, so that no text is part of a sort.
    entries = connection.execute(
        "SELECT id FROM archive WHERE session = ? ORDER BY n, branch_id, id", (row,)
    ).fetchall()
    for entry in entries:
        columns = connection.execute(f"SELECT {statements.ENTRY_COLUMNS} FROM archive WHERE id = ?", entry)  # noqa: S608 - only our own names
        yield statements.entry_of(columns.fetchone())


def import_records(path: str, records: Iterable[ExportRecord]) -> None:
    """Import into an empty store and compare. A failure leaves the store empty."""
    connection = state_file.connect(path, state_file.BUSY_TIMEOUT_S)
    with state_file.transaction(connection, "BEGIN IMMEDIATE"):
        for table in ("sessions", "left_out", "conversations"):
            if connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone():  # noqa: S608 - only our own names
                raise TargetNotEmpty("the store has sessions already: import into a new file")
        given, stored = hashlib.sha256(), hashlib.sha256()
        _insert(connection, hash_records(records, given))
        for record in _all_records(connection):
            stored.update(encode_record(record))
        if stored.digest() != given.digest():
            raise ImportDiffers("what was imported is not equal to the file; nothing was stored")


def _insert(connection: sqlite3.Connection, records: Iterable[ExportRecord]) -> None:
    row: int | None = None
    for record in records:
        match record:
            case ExportedSession(key=key):
                columns = (
                    *(key.owner, key.project_hash, key.name_hash, record.session_id, record.revision, record.last_at),
                    *(0 if record.is_live else _ENDED, record.ended_at, record.figures),
                )
                row = connection.execute(statements.INSERT_SESSION, columns).lastrowid
            case ExportedReceipt():
                receipt = (row, bytes.fromhex(record.operation), record.fingerprint, record.answer)
                connection.execute(statements.INSERT_RECEIPT, receipt)
            case Summary():
                connection.execute(statements.INSERT_SUMMARY, (row, *statements.summary_row(record)))
            case ArchiveEntry():
                connection.execute(statements.INSERT_ENTRY, (row, *statements.entry_row(record)))
            case ExportedConversation():
                statements.note_conversation(connection, record.owner, record.conversation, record.noted)
            case ExportedLeftOut():
                statements.keep_left_out(connection, record.owner, record.conversation, [record.result])
            case _:
                connection.execute(statements.INSERT_EVENT, (row, record.n, to_json(record)))
