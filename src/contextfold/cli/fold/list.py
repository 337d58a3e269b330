"""`context fold list`: a session's branches as a tree."""

from __future__ import annotations

from contextfold.cli.fold.figures import headline
from contextfold.cli.fold.session_access import (
    Values,
    open_store,
    report_no_session,
    session_address,
    write,
    write_json,
)
from contextfold.cli.fold.tree import draw, legend, outline
from contextfold.cli.terminal import Screen, screen
from contextfold.error_codes import EXIT_OK
from contextfold.fold.service.session_views import branch_view, tree
from contextfold.fold.session import State
from contextfold.settings import between

LIMIT = "200"
LIMIT_MOST = 10_000  # branches that a session may have


def run(values: Values) -> int:
    # Programs get all there is unless they ask for less: what is cut off they would have to notice.
    given = values.get("limit", str(LIMIT_MOST) if "json" in values else LIMIT)
    limit = int(between(1, LIMIT_MOST)("--limit", given))
    with open_store(values) as store:
        address, state = store.find(session_address(values))
        session, context_limit = store.overview.row(state), store.fold.service.policy.context_limit(state)
    if "json" in values:
        write_json({"session": session, "branches": [branch_view(row) for row in tree(state)[-limit:]]})
    elif not state.revision:
        return report_no_session(address)
    else:
        write(_drawing(screen(), state, context_limit, limit))
    return EXIT_OK


def _drawing(shown: Screen, state: State, context_limit: int, limit: int) -> str:
    rows = tree(state)
    earlier = max(0, len(rows) - limit)
    if not shown.is_terminal:
        return outline(shown, state, rows[earlier:], earlier=earlier)
    return (
        shown.lines(*headline(shown, state, context_limit), "")
        + draw(shown, state, rows[earlier:], earlier=earlier)
        + (shown.lines("", legend(state), wraps=True) if rows else "")
    )
