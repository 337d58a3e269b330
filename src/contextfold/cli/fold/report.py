"""`context fold report`: prints a live or ended session as a document, for example for a pull request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from contextfold.cli.fold.report_document import SessionReport, html, markdown
from contextfold.cli.fold.session_access import (
    OpenStore,
    SessionAddress,
    open_store,
    session_address,
    session_not_found,
    write,
    write_json,
)
from contextfold.cli.fold.tree import guides
from contextfold.cli.parse import Values
from contextfold.errors import EXIT_OK
from contextfold.fold.service.session_reader import FoundSession
from contextfold.fold.service.session_views import BranchRow, tree

# The report has only the last branches; a session may have 10,000.
FOLDS_MOST = 500
FORMATS = {"md": markdown, "html": html}


def run_report(values: Values) -> int:
    with open_store(values) as store:
        found = _find_session(store, values)
        report = _report(store, found)
    if "json" in values:
        write_json(report)
    else:
        write(FORMATS[values["format"]](report))
    return EXIT_OK


def _find_session(store: OpenStore, values: Values) -> FoundSession:
    """The session with the given id, else the project's live session, else its last session that ended."""
    address = session_address(values)
    if "id" in values:
        return store.run(store.lists.find_any(address.owner, values["id"]))
    at, state = store.find(address)
    if state.revision:
        return FoundSession(at.key, state)
    for session_id in _ended_ids(store, address):
        return store.run(store.lists.find_any(address.owner, session_id))
    raise session_not_found(address)


def _ended_ids(store: OpenStore, address: SessionAddress) -> Iterator[str]:
    for row in store.ended_rows(address.owner):
        if row["project_path"] == address.project.path and address.name in (None, row["name"]):
            yield row["session_id"]


def _report(store: OpenStore, found: FoundSession) -> SessionReport:
    row: Any = store.run(store.lists.row_of(found))
    rows = tree(found.state)
    shown = rows[-FOLDS_MOST:]
    folded = [row for row in shown if row.branch.status == "folded"]
    reader = store.reader
    stored = store.run(reader.summaries_of(found.key, found.state.session_id))
    summaries = [stored.get(row.branch.id, "") for row in folded]
    # Stored texts are already redacted. They are redacted again, because the rules may have improved since.
    texts = [
        _home_as_tilde(row["project_path"]),
        row["name"] or "",
        *(row.branch.description for row in shown),
        *summaries,
    ]
    scrubbed = store.run(reader.scrub(*texts))
    project, name, *clean = (one.text for one in scrubbed)
    descriptions = {row.branch.id: text for row, text in zip(shown, clean, strict=False)}
    return {
        "project": project,
        "name": name or None,
        "session": {**row, "project_path": project},
        "tree": [
            f"{guide}{row.branch.status:<9} {descriptions[row.branch.id]}{_figures(row)}"
            for row, guide in zip(shown, guides([row.depth for row in shown]), strict=True)
        ],
        "folds": [
            {
                "branch_id": row.branch.id,
                "description": descriptions[row.branch.id],
                "tokens": row.branch.tokens,
                "summary_tokens": row.branch.summary_tokens,
                "summary": text,
            }
            for row, text in zip(folded, clean[len(shown) :], strict=True)
        ],
        "branches_left_out": len(rows) - len(shown),
        "secrets_redacted": row["secrets_scrubbed"] + sum(len(one.rules) for one in scrubbed),
    }


def _figures(row: BranchRow) -> str:
    branch = row.branch
    folded = f" → {branch.summary_tokens:,}" if branch.status == "folded" else ""
    return f"  ({branch.tokens:,}{folded} tokens, {branch.operations:,} operations)"


def _home_as_tilde(path: str) -> str:
    """Replace the user's home folder at the beginning of a path by `~`, to hide the user's name."""
    home = os.path.expanduser("~").rstrip("/")
    return f"~{path.removeprefix(home)}" if home and path.startswith(home + "/") else path
