"""`context fold search`: what folded branches came to, straight from the store."""

from __future__ import annotations

import os
from collections.abc import Mapping

from contextfold.cli.render import plain, report, say, tell_on_terminal
from contextfold.errors import StoreInvalid
from contextfold.failures import EXIT_CODES, EXIT_OK
from contextfold.settings import between, fold_settings_from

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextfold.fold.store import Summary

LIMIT = "20"


def run(values: Mapping[str, str]) -> int:
    settings = fold_settings_from(os.environ, values)
    if not os.path.exists(settings.store):
        report(
            "there is no store yet", f"{settings.store} is not there; `context serve` makes it, --store names another"
        )
        return EXIT_CODES[StoreInvalid.code]
    from contextfold.app import FoldDesk
    from contextfold.fold.project import project_at
    from contextfold.fold.store import SEARCH_MOST
    from contextfold.serve.tokens import LOCAL_OWNER

    limit = int(between(1, SEARCH_MOST)("--limit", values.get("limit", LIMIT)))
    desk = FoldDesk(settings)
    try:
        project = project_at(os.path.abspath(values["project"])) if "project" in values else None
        found = desk.run(desk.service.search(values.get("owner", LOCAL_OWNER), values["query"], project, limit=limit))
    finally:
        desk.close()
    say(_json(found) if "json" in values else "".join(_told(summary) for summary in found))
    if not found:
        tell_on_terminal("no summary has all of these words")
    return EXIT_OK


def _json(found: list[Summary]) -> str:
    from contextfold.canonical import encode

    members = ("project_path", "session_id", "branch_id", "description", "summary", "tokens_folded", "folded_at")
    return encode({"summaries": [{name: getattr(one, name) for name in members} for one in found]}) + "\n"


def _told(summary: Summary) -> str:
    head = f"{summary.folded_at}  {plain(summary.project_path)}  {summary.branch_id}  {summary.tokens_folded} tokens"
    lines = [plain(line) for line in summary.summary.splitlines()]
    return "\n".join([head, f"  {plain(summary.description)}", *(f"  | {line}" for line in lines), "", ""])
