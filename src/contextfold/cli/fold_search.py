"""`context fold search`: what folded branches came to, straight from the store."""

from __future__ import annotations

import os
from collections.abc import Mapping

from contextfold.cli.parse import UsageError
from contextfold.cli.render import plain, say, tell_on_terminal
from contextfold.failures import EXIT_OK
from contextfold.settings import fold_settings_from

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextfold.fold.store import Summary

LIMIT = "20"
LIMIT_MAX = 1_000


def run(values: Mapping[str, str]) -> int:
    limit = values.get("limit", LIMIT)
    if not (limit.isascii() and limit.isdigit() and len(limit) <= len(str(LIMIT_MAX)) and 1 <= int(limit) <= LIMIT_MAX):
        raise UsageError(f"--limit must be a whole number from 1 to {LIMIT_MAX}, not {limit!r}")
    settings = fold_settings_from(os.environ, values)
    if not os.path.exists(settings.store):
        from contextfold.errors import StoreInvalid

        raise StoreInvalid(f"there is no store at {settings.store}; `context serve` makes one, --store names another")
    from contextfold.app import LOCAL_OWNER, FoldDesk
    from contextfold.fold.project import project_at

    desk = FoldDesk(settings)
    try:
        project = project_at(os.path.abspath(values["project"])) if "project" in values else None
        found = desk.run(
            desk.service.search(values.get("owner", LOCAL_OWNER), values["query"], project, limit=int(limit))
        )
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
