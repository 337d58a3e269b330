"""Recall's index in a SQLite connection: the documents of owners, and a list of them for each stem and level.

The lists are those of a full-text table, which is given tokens instead of a text. It stores lists compactly, updates
them cheaply, and returns their sizes without reading documents. A token has owner, state, level and stem, so the lists
of different owners are separate, and so are their sizes. Knows no store and no transaction.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final
from zlib import decompress

from contextfold.common.question import Question
from contextfold.fold.recall_ranking import (
    LEVELS,
    DocumentTerms,
    IndexedDocument,
    RecallScope,
    first_number,
    rank,
    rate_stems,
)
from contextfold.fold.store import LeftOutDecision, Recalled, RecallHit, RecallSource, Summary
from contextfold.stores.sqlite.schema import insert_into, intact, row_checksum

# The tokenizer splits at every other character of ASCII.
_WORD_MARKS: Final = str.maketrans({"'": "\ue000", "_": "\ue001"})
_FOLDED, _UNDONE = "f", "u"
_INTACT: Final = intact("recall_documents")


def put(connection: sqlite3.Connection, row: tuple[str, int], source: RecallSource, terms: DocumentTerms) -> None:
    """Add a document or replace it. `row` is the kind and the number of the row that it is made from."""
    remove(connection, row)
    document = source.document
    assert document is not None, "a deleted document has no terms"
    if isinstance(document, Summary):
        undone, document_id, project_hash = document.undone, document.branch_id, document.project_hash
    else:
        undone, document_id, project_hash = False, document.decision.result_id, document.decision.project_hash
    connection.execute("INSERT OR IGNORE INTO recall_owners (owner) VALUES (?)", (source.owner,))
    space = f"{_owner_number(connection, source.owner)}{_UNDONE if undone else _FOLDED}"
    project = _project_token(project_hash)
    number = terms.number
    # Two documents of the same second may have hashes with the same beginning.
    while connection.execute("SELECT 1 FROM recall_documents WHERE number = ?", (number,)).fetchone():
        number += 1
    connection.execute(
        insert_into("recall_documents", "number", "kind", "ref", "space", "project", "id", "words", "packed"),
        (number, *row, space, project, document_id, terms.words, zlib.compress(terms.packed.encode())),
    )
    connection.execute(
        "INSERT INTO recall_lists (rowid, tokens) VALUES (?, ?)", (number, _tokens(space, project, terms))
    )


def remove(connection: sqlite3.Connection, row: tuple[str, int]) -> None:
    indexed = connection.execute(
        f"SELECT number, words, packed, space, project FROM recall_documents WHERE kind = ? AND ref = ? AND {_INTACT}",
        row,
    ).fetchone()
    if indexed is None:
        return

    number, words, packed, space, project = indexed
    tokens = _tokens(space, project, DocumentTerms(number, words, decompress(packed).decode()))
    connection.execute(
        "INSERT INTO recall_lists (recall_lists, rowid, tokens) VALUES ('delete', ?, ?)", (number, tokens)
    )
    connection.execute("DELETE FROM recall_documents WHERE number = ?", (number,))


def recall(
    connection: sqlite3.Connection,
    owner: str,
    question: Question,
    scope: RecallScope,
    source_of: Callable[[str, int], Summary | LeftOutDecision | None],
) -> Recalled:
    """Rank the documents. `source_of` returns what a row contains now, or None if it was deleted."""
    ranking = rank(question, RecallLists(connection, owner, scope))
    hits = []
    for hit in ranking.hits:
        stored = f"SELECT kind, ref FROM recall_documents WHERE number = ? AND {_INTACT}"
        row = connection.execute(stored, (hit.number,)).fetchone()
        source = source_of(*row)
        if source is not None:
            hits.append(RecallHit(hit, source))
    return Recalled(hits, ranking)


def has_its_lists(connection: sqlite3.Connection) -> bool:
    """Whether the lists have the tokens of every document and nothing else. Fails if a document is damaged."""
    expected = found = 0
    documents = connection.execute(
        f"SELECT number, space, project, words, packed FROM recall_documents WHERE {_INTACT}"
    )
    for number, space, project, words, packed in documents:
        terms = DocumentTerms(number, words, decompress(packed).decode())
        expected += sum(row_checksum(token, number) for token in set(_tokens(space, project, terms).split(" ")))
    connection.execute("CREATE VIRTUAL TABLE temp.recall_tokens USING fts5vocab (main, recall_lists, instance)")
    try:
        for token, number in connection.execute("SELECT term, doc FROM recall_tokens"):
            found += row_checksum(token, number)
    finally:
        connection.execute("DROP TABLE temp.recall_tokens")
    return expected == found


class RecallLists:
    """The lists of one owner, for `fold.recall_ranking`."""

    def __init__(self, connection: sqlite3.Connection, owner: str, scope: RecallScope) -> None:
        self._connection = connection
        number = _owner_number(connection, owner)
        states = (_FOLDED, _UNDONE) if scope.undone else (_FOLDED,)
        self._spaces = [f"{number}{state}" for state in states] if number else []
        self._in_project = "" if scope.project_hash is None else f'"{_project_token(scope.project_hash)}" AND '
        self._first = first_number(scope.since) if scope.since else 0

    def document_count(self) -> int:
        return sum(size for _, size in self._sizes(self._spaces))

    def sizes(self, stem: str) -> Sequence[int]:
        tokens = {token: level for level in range(LEVELS) for token in self._tokens(stem, level)}
        sizes = [0] * LEVELS
        for token, size in self._sizes(list(tokens)):
            sizes[tokens[token]] += size
        return sizes

    def numbers(self, stem: str, level: int) -> Iterable[int]:
        wanted = " OR ".join(f'"{token}"' for token in self._tokens(stem, level))
        rows = self._connection.execute(
            "SELECT rowid FROM recall_lists WHERE recall_lists MATCH ? AND rowid >= ?",
            (f"{self._in_project}({wanted})", self._first),
        )
        return [number for (number,) in rows]

    def documents(self, numbers: Sequence[int]) -> Mapping[int, IndexedDocument]:
        marks = ", ".join("?" * len(numbers))
        rows = self._connection.execute(
            f"SELECT number, kind, id, words, packed FROM recall_documents WHERE number IN ({marks}) AND {_INTACT}",
            numbers,
        )

        return {
            number: IndexedDocument(kind, document_id, words, decompress(packed).decode())
            for number, kind, document_id, words, packed in rows
        }

    def _tokens(self, stem: str, level: int) -> list[str]:
        return [_token(space, level, stem) for space in self._spaces]

    def _sizes(self, tokens: Sequence[str]) -> Iterable[tuple[str, int]]:
        """The tokens that any document has, each with the number of those."""
        marks = ", ".join("?" * len(tokens))
        return self._connection.execute(f"SELECT term, doc FROM recall_sizes WHERE term IN ({marks})", tokens)


def _tokens(space: str, project: str, terms: DocumentTerms) -> str:
    return " ".join((space, project, *(_token(space, level, stem) for stem, level in rate_stems(terms))))


def _token(space: str, level: int, stem: str) -> str:
    return f"{space}{level}{stem.translate(_WORD_MARKS)}"


def _project_token(project_hash: str) -> str:
    return "p" + sha256(project_hash.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _owner_number(connection: sqlite3.Connection, owner: str) -> int | None:
    row = connection.execute("SELECT id FROM recall_owners WHERE owner = ?", (owner,)).fetchone()
    return row[0] if row else None
