"""Writes folds as Markdown files into a temporary folder, for `context build --from-folds`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from contextfold.cli.fold.session_access import open_store, owner_of, project_of
from contextfold.cli.parse import Values
from contextfold.errors import NoDocuments
from contextfold.fold.ports.store import Summary

# This many digits of the project's hash distinguish two projects whose folders have the same name.
HASH_DIGITS = 8


@contextmanager
def folder_of_folds(values: Values) -> Iterator[tuple[str, str]]:
    """A folder with a document for each fold, and the time of the last one. Raises NoDocuments if there is none."""
    project = project_of(values) if "project" in values else None
    with open_store(values) as store:
        summaries = store.run(store.reader.store.summaries(owner_of(values), project.hash if project else None))
    if not summaries:
        raise NoDocuments("nothing was folded yet" if project is None else f"nothing was folded yet in {project.path}")
    with TemporaryDirectory(prefix="contextfold-folds-") as folder:
        for summary in summaries:
            path = Path(folder, _name(summary), f"{summary.branch_id}.md")
            path.parent.mkdir(exist_ok=True)
            path.write_text(_document(summary), encoding="utf-8", newline="\n")
        yield folder, max(summary.folded_at for summary in summaries)


def _name(summary: Summary) -> str:
    """The name of the folder for a project's folds."""
    name = os.path.basename(summary.project_path)
    safe = "".join(mark if mark.isascii() and (mark.isalnum() or mark in "-_") else "-" for mark in name)
    return f"{safe or 'root'}-{summary.project_hash[:HASH_DIGITS]}"


def _document(summary: Summary) -> str:
    title = " ".join(summary.description.split()) or summary.branch_id
    facts = f"Folded {summary.folded_at} in {summary.project_path}, session {summary.session_id}."
    return f"# {title}\n\n{facts} Full text: `context fold expand {summary.branch_id}`\n\n{summary.summary}\n"
