"""`context fold list`: prints a session's branches as a tree, with status and tokens of each; or ended sessions."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, pairwise

from contextfold.cli.fold.session_access import (
    BRANCH_PREFIX,
    MAIN,
    OpenStore,
    SessionAddress,
    add_session_options,
    open_store,
    session_address,
    session_not_found,
    write,
    write_json,
    write_rows,
)
from contextfold.cli.fold.status import FOLDED_BEFORE, headline, project_cell, saved_text
from contextfold.cli.parser import CommandParser
from contextfold.cli.terminal import Column, Line, Part, Screen, right_columns, stdout_screen
from contextfold.fold.service.session_views import BranchRow, branch_view, tokens_saved, tree
from contextfold.fold.service.stored_sessions import SessionView
from contextfold.fold.session import Branch, State, Thread
from contextfold.settings import between

LIMIT = "200"
FEWER, IF_FOLDED = "fewer", "if folded"
# A session has at most this many branches.
LIMIT_MAX = 10_000


def declare_list(parser: CommandParser) -> None:
    parser.describe(
        """
        Draw the tree of a session's branches, each with how it stands, its tokens, and how many fewer a
        request has since its fold. In a pipe, a line each: id, status, tokens, fewer, description. With
        --ended: the sessions that have ended and are still stored, of this project and those below it, or
        with --all of every project.
        """,
        "context fold list",
        "context fold list --limit 1000",
        "context fold list --ended --all",
    )
    parser.add_argument(
        "--limit", metavar="N", help=f"the most branches or sessions to list, the latest ones (default: {LIMIT})"
    )
    parser.add_switch("--ended", "list ended sessions instead of branches")
    parser.add_switch("--all", "with --ended: list those of every project")
    add_session_options(parser)
    parser.set_defaults(run=run_list)


def run_list(args: argparse.Namespace) -> None:
    # With --json all branches are printed by default, because a program might not notice that some are missing.
    default = str(LIMIT_MAX) if args.json else LIMIT
    limit = int(between(1, LIMIT_MAX)("--limit", default if args.limit is None else args.limit))
    if args.ended:
        _list_ended(args, limit)
        return
    with open_store(args) as store:
        address = session_address(args)
        found = store.find(address)
        state = found.state
        if args.json:
            branches = [branch_view(state, row) for row in tree(state)[-limit:]]
            write_json({"session": store.sessions.row(found), "branches": branches})
            return
        if not state.revision:
            raise session_not_found(address)
        text = _draw_session(stdout_screen(), state, store, limit)
    write(text)


def _list_ended(args: argparse.Namespace, limit: int) -> None:
    address = session_address(args)
    with open_store(args) as store:
        mine = (row for row in store.sessions.ended_rows(address.owner) if args.all or _is_below(row, address))
        rows = list(islice(mine, limit))
    note = "no ended session is stored here; --all looks in every project"
    write_rows(args, rows, _ended_table, note_if_empty=note)


def _is_below(row: SessionView, address: SessionAddress) -> bool:
    """Whether the session's project is this folder, or is above or below it."""
    here, there = address.project.path, row["project_path"] or ""
    return there == here or there.startswith(here.rstrip("/") + "/") or here.startswith(there.rstrip("/") + "/")


def _ended_table(screen: Screen, rows: Sequence[SessionView]) -> str:
    columns = [Column("project", shrinks=True), Column("session"), Column("last activity")]
    columns += [*right_columns("tokens", "branches", "saved"), Column("model")]
    cells: list[list[Line]] = [
        [
            project_cell(row),
            [(row["session_id"], "dim")],
            [screen.moment(row["last_at"])],
            ["" if row["total_tokens"] is None else screen.figure(row["total_tokens"])],
            ["" if row["total_branches"] is None else screen.figure(row["total_branches"])],
            [saved_text(row["savings"])],
            [(row["model"] or "", "dim")],
        ]
        for row in rows
    ]
    return screen.table(columns, cells, when_narrow=(0, 1, 5))


def _draw_session(screen: Screen, state: State, store: OpenStore, limit: int) -> str:
    rows = tree(state)
    earlier = max(0, len(rows) - limit)
    if not screen.is_terminal:
        return outline(screen, state, rows[earlier:], earlier=earlier)
    before = f"{state.folded_before_tokens:,} tokens were folded {FOLDED_BEFORE}"
    return (
        screen.lines(*headline(screen, state, store.sessions.policy.context_limit(state)), "")
        + draw(screen, state, rows[earlier:], earlier=earlier)
        + (screen.lines("", legend(state), wraps=True) if rows else "")
        + (screen.lines("", [(before, "dim")]) if state.folded_before_tokens else "")
    )


# At least this many characters of an id are shown.
ID_MIN = len(BRANCH_PREFIX) + 4
FORK, LAST, DOWN, NOTHING = "├─ ", "└─ ", "│  ", "   "
# The indentation of one level in a pipe.
INDENT = "  "

# The mark of the innermost open branch.
HERE = "●"
MARKS = {"active": "○", "folded": "✓", "discarded": "✗"}
STYLES = {"active": "cyan", "folded": "green", "discarded": "dim"}


def branch_look(branch: Branch, state: State) -> tuple[str, str, str]:
    """The mark of a branch's status, the style of the mark, and that of the description."""
    if state.path[-1:] == (branch.id,):
        return HERE, f"bold {STYLES[branch.status]}", "bold"
    return MARKS[branch.status], STYLES[branch.status], "dim strike" if branch.status == "discarded" else ""


def id_length(branch_ids: Iterable[str]) -> int:
    """The length of the shortest prefixes that distinguish these ids."""
    # The ids have no path components; what counts are characters.
    shared = (len(os.path.commonprefix(pair)) + 1 for pair in pairwise(sorted(branch_ids)))  # noqa: RUF071
    return max(ID_MIN, *shared, 0)


def draw(screen: Screen, state: State, rows: Sequence[BranchRow], *, earlier: int) -> str:
    """Draw the last rows of a tree, below the main thread. `earlier` is the number of rows left out above them."""
    length = id_length(state.branches)
    figure = screen.figure
    rendered_rows: list[list[Line]] = [
        [[("main thread", "" if state.path else "bold")], [(MAIN, "dim")], [], *_figures(figure, state.main), []]
    ]
    if earlier:
        rendered_rows.append([[(f"⋮  {earlier:,} earlier; --limit N shows more", "dim italic")], *[[]] * 5])
    for row, guide in zip(rows, guides([row.depth for row in rows]), strict=True):
        rendered_rows.append(_cells(screen, state, row, guide, length))
    numbers = right_columns("failed", "tokens", fewer_title(state))
    columns = [Column("branch", shrinks=True), Column("id"), Column("status"), *numbers]
    # On a narrow screen only the mark shows the status; the legend below the tree explains it.
    empty = {at for at in (3, 5) if not any(cells[at] for cells in rendered_rows)}
    spared = {2, 3, 5} if screen.is_narrow else empty
    columns = [column for at, column in enumerate(columns) if at not in spared]
    return screen.table(
        columns, [[cell for at, cell in enumerate(cells) if at not in spared] for cells in rendered_rows]
    )


def outline(screen: Screen, state: State, rows: Sequence[BranchRow], *, earlier: int) -> str:
    """The tree for a pipe: one line for each branch, with the description indented by its depth."""
    columns = [
        Column("id"),
        Column("status"),
        *right_columns("tokens", fewer_title(state).replace(" ", "-")),
        Column("description"),
    ]
    cells: list[Sequence[Line]] = [[[MAIN], ["-"], [str(state.main.tokens)], ["0"], ["main thread"]]]
    for row in rows:
        branch = row.branch
        figures: list[Line] = [[str(branch.tokens)], [str(tokens_saved(state, branch))]]
        cells.append([[branch.id], [branch.status], *figures, [INDENT * (row.depth + 1) + branch.description]])
    left_out = [[f"{earlier} earlier branches are left out; --limit N shows more"]] if earlier else []
    return screen.lines(*left_out) + screen.table(columns, cells)


def fewer_title(state: State) -> str:
    """The name of the tokens that folds spare each request. Not "saved", which is the cost of all requests."""
    return FEWER if state.requests else IF_FOLDED


def legend(state: State) -> Line:
    """The meaning of the marks, and the number of branches with each."""
    parts: list[Part] = []
    for word, mark in MARKS.items():
        count = sum(branch.status == word for branch in state.branches.values())
        marks = f"{HERE} {mark}" if word == "active" and count > 1 else HERE if word == "active" else mark
        if count:
            parts += [(marks, STYLES[word]), (f" {count:,} {word}   ", "dim")]
    return parts


def guides(depths: Sequence[int]) -> list[str]:
    """The lines before each row of a tree, given the depths of all rows from top to bottom."""
    drawn: list[str] = []
    # The depths at which a later row follows.
    below: set[int] = set()
    for depth in reversed(depths):
        stems = "".join(DOWN if level in below else NOTHING for level in range(depth))
        drawn.append(stems + (FORK if depth in below else LAST))
        below = {level for level in below if level < depth} | {depth}
    return drawn[::-1]


def fewer_part(screen: Screen, state: State, branch: Branch) -> Part:
    fewer = tokens_saved(state, branch)
    return (screen.figure(fewer), "green" if fewer > 0 else "yellow")


def _cells(screen: Screen, state: State, row: BranchRow, guide: str, length: int) -> list[Line]:
    branch = row.branch
    mark, style, text_style = branch_look(branch, state)
    return [
        [(guide, "dim"), (mark, style), " ", (branch.description, text_style)],
        [(branch.id[:length], "dim")],
        [(branch.status, style)],
        *_figures(screen.figure, branch, "dim" if branch.status == "discarded" else text_style),
        [fewer_part(screen, state, branch)] if tokens_saved(state, branch) else [],
    ]


def _figures(figure: Callable[[int], str], thread: Thread | Branch, style: str = "") -> tuple[Line, Line]:
    failed = [(figure(thread.failed), "red")] if thread.failed else []
    return failed, [(figure(thread.tokens), style)]
