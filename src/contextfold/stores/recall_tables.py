"""The tables of recall's index, as statements of SQLite. Whoever opens a store needs no more of the index."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

# `kind` and `ref` name the row of another table that a document is made from. `tokens` of a document follow from
# `space`, `project`, `words` and `packed`, so they can be removed from the lists.
TABLES: Final = (
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
