"""`context fold status`: prints the figures of a project's session, or of all sessions of an owner."""

from __future__ import annotations

from contextfold.cli.fold.session_access import (
    NO_LIVE_SESSION,
    open_store,
    owner_of,
    report_no_session,
    session_address,
    write,
    write_json,
    write_rows,
)
from contextfold.cli.terminal import Column, Line, Screen, screen
from contextfold.error_codes import EXIT_OK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from contextfold.cli.fold.session_access import SessionView
    from contextfold.cli.parse import Values

SESSION_ID_SHOWN = len("sess_") + 6


def run_status(values: Values) -> int:
    if "all" in values:
        return _run_all(values)
    with open_store(values) as store:
        address, state = store.find(session_address(values))
        if "json" in values:
            write_json(store.lists.row(state))
            return EXIT_OK
        if not state.revision:
            return report_no_session(address)
        from contextfold.cli.fold.figures import status

        text = status(screen(), state, store.lists.row(state))
    write(text)
    return EXIT_OK


def _run_all(values: Values) -> int:
    owner = owner_of(values)
    with open_store(values) as store:
        sessions = list(store.live_rows(owner))
    return write_rows(values, sessions, _table, note_if_empty=NO_LIVE_SESSION.format(owner))


def _table(shown: Screen, sessions: Sequence[SessionView]) -> str:
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
    return shown.table(columns, rows, when_narrow=(0, 3, 6))


def _cells(shown: Screen, session: SessionView) -> list[Line]:
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
