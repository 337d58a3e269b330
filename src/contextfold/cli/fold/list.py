"""`context fold list`: prints a session's branches as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from contextfold.cli.fold.savings import saved_text
from contextfold.cli.fold.session_access import (
    OpenStore,
    SessionAddress,
    SessionView,
    open_store,
    session_address,
    session_not_found,
    write,
    write_json,
    write_rows,
)
from contextfold.cli.fold.status import headline, project_cell
from contextfold.cli.fold.tree import draw, legend, outline
from contextfold.cli.parse import Values
from contextfold.cli.terminal import Column, Line, Screen, right_columns, screen
from contextfold.errors import EXIT_OK
from contextfold.fold.service.session_views import branch_view, tree
from contextfold.fold.session import State
from contextfold.settings import between

LIMIT = "200"
# A session has at most this many branches.
LIMIT_MOST = 10_000


def run_list(values: Values) -> int:
    # With --json all branches are printed by default, because a program might not notice that some are missing.
    given = values.get("limit", str(LIMIT_MOST) if "json" in values else LIMIT)
    limit = int(between(1, LIMIT_MOST)("--limit", given))
    if "ended" in values:
        return _list_ended(values, limit)
    with open_store(values) as store:
        address, state = store.find(session_address(values))
        if "json" in values:
            branches = [branch_view(row) for row in tree(state)[-limit:]]
            write_json({"session": store.lists.row(state), "branches": branches})
            return EXIT_OK
        if not state.revision:
            raise session_not_found(address)

        text = _drawing(screen(), state, store, limit)
    write(text)
    return EXIT_OK


def _list_ended(values: Values, limit: int) -> int:
    address = session_address(values)
    with open_store(values) as store:
        mine = (row for row in store.ended_rows(address.owner) if "all" in values or _is_below(row, address))
        rows = list(islice(mine, limit))
    note = "no ended session is stored here; --all looks in every project"
    return write_rows(values, rows, _ended_table, note_if_empty=note)


def _is_below(row: SessionView, address: SessionAddress) -> bool:
    """Whether the session's project is this folder, or is above or below it."""
    here, there = address.project.path, row["project_path"] or ""
    return there == here or there.startswith(here.rstrip("/") + "/") or here.startswith(there.rstrip("/") + "/")


def _ended_table(shown: Screen, rows: Sequence[SessionView]) -> str:
    columns = [Column("project", shrinks=True), Column("session"), Column("last activity")]
    columns += [*right_columns("tokens", "branches", "saved"), Column("model")]
    cells: list[list[Line]] = [
        [
            project_cell(row),
            [(row["session_id"], "dim")],
            [shown.moment(row["last_at"])],
            ["" if row["total_tokens"] is None else shown.figure(row["total_tokens"])],
            ["" if row["total_branches"] is None else shown.figure(row["total_branches"])],
            [saved_text(row["savings"])],
            [(row["model"] or "", "dim")],
        ]
        for row in rows
    ]
    return shown.table(columns, cells, when_narrow=(0, 1, 5))


def _drawing(shown: Screen, state: State, store: OpenStore, limit: int) -> str:
    rows = tree(state)
    earlier = max(0, len(rows) - limit)
    if not shown.is_terminal:
        return outline(shown, state, rows[earlier:], earlier=earlier)

    return (
        shown.lines(*headline(shown, state, store.reader.policy.context_limit(state)), "")
        + draw(shown, state, rows[earlier:], earlier=earlier)
        + (shown.lines("", legend(state), wraps=True) if rows else "")
    )
