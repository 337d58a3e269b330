"""`context fold status`: prints the figures of a project's session, or of all sessions of an owner."""

from __future__ import annotations

from contextfold.cli.fold.session_access import (
    open_store,
    owner_of,
    report_no_session,
    session_address,
    write,
    write_json,
)
from contextfold.cli.output import print_note
from contextfold.cli.terminal import Column, Line, Screen, screen
from contextfold.error_codes import EXIT_OK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from contextfold.cli.fold.session_access import OpenStore
    from contextfold.cli.parse import Values

    # A session's row in the format of the `/v1` API.
    Session = Mapping[str, Any]

PAGE_SESSIONS = 100
PAGES_MOST = 1_000
SESSION_ID_SHOWN = len("sess_") + 6


def run(values: Values) -> int:
    if "all" in values:
        return _run_all(values)
    with open_store(values) as store:
        address, state = store.find(session_address(values))
        if "json" in values:
            write_json(store.lists.row(state))
            return EXIT_OK
        if not state.revision:
            return report_no_session(address)
        from contextfold.cli.fold.figures import figures_of, status

        text = status(screen(), state, figures_of(state, store.reader.policy))
    write(text)
    return EXIT_OK


def _run_all(values: Values) -> int:
    owner = owner_of(values)
    with open_store(values) as store:
        sessions = list(sessions_of(store, owner))
    if "json" in values:
        write_json({"sessions": sessions})
    elif sessions:
        write(_table(screen(), sessions))
    else:
        print_note(f"no live session of {owner}; an agent's first call of a folding tool begins one")
    return EXIT_OK


def sessions_of(store: OpenStore, owner: str) -> Iterator[Session]:
    """Every live session, the latest activity first."""
    cursor = None
    for _ in range(PAGES_MOST):
        page: Any = store.run(store.lists.sessions(owner, cursor=cursor, limit=PAGE_SESSIONS))
        yield from page["sessions"]
        cursor = page["next_cursor"]
        if cursor is None:
            return


def _table(shown: Screen, sessions: Sequence[Session]) -> str:
    columns = [
        Column("project", shrinks=True),
        Column("session"),
        Column("tokens", is_right=True),
        Column("", is_right=True),
        Column("open", is_right=True),
        Column("saved", is_right=True),
        Column("health"),
        Column("last"),
    ]
    rows = [_cells(shown, session) for session in sessions]
    if shown.is_narrow:
        shown_columns = (0, 3, 6)
        columns = [columns[at] for at in shown_columns]
        rows = [[row[at] for at in shown_columns] for row in rows]
    return shown.table(columns, rows)


def _cells(shown: Screen, session: Session) -> list[Line]:
    from contextfold.cli.fold.figures import HEALTH_STYLES, HEALTH_WORDS

    warning = session["context_health"]["warning"]
    saved = session["tokens_saved"]
    name = [(f" · {session['name']}", "dim")] if session["name"] else []
    return [
        [(session["project_path"], "bold"), *name],
        [(shown.short(session["session_id"], SESSION_ID_SHOWN), "dim")],
        [shown.figure(session["total_tokens"])],
        [f"{session['usage_percent']}%"],
        [str(session["branch_depth"])],
        [(shown.figure(saved), "green" if saved > 0 else "")],
        [(HEALTH_WORDS[warning] if shown.is_terminal else warning, HEALTH_STYLES[warning])],
        [shown.moment(session["last_at"])],
    ]
