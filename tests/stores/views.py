"""Everything that a person or an agent can read of a store: sessions, ledgers, archives, left-out results, recall."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.overview import SAVINGS_GROUPS, Overview
from contextfold.fold.store import LOCAL_OWNER, Store
from contextfold.fold.tool_calls import RecallRequest
from contextfold.scrub.scrubber import standard_scrubber

READ_AT = datetime(2026, 3, 5, 13, tzinfo=UTC)
OWNERS = (LOCAL_OWNER, "ann")
QUESTIONS = ("ECONNRESET at checkout", "session lifetime", "login page", "discount", "pytest", "undone")
# Members that follow from others, or from the store's own numbers, and may change without anything being lost.
LEFT_OUT = ("events_cursor", "verdict", "prices", "context_limit", "usage_percent", "context_health", "counter")


async def read_views(store: Store) -> dict[str, Any]:
    service = FoldService(store, standard_scrubber(), clock=lambda: READ_AT)
    overview = Overview(service)
    views: dict[str, Any] = {}
    for owner in OWNERS:
        live: Any = await overview.sessions(owner, limit=50)
        ended: Any = await overview.ended_sessions(owner, limit=50)
        views[owner] = {
            "live": live,
            "ended": ended,
            "sessions": {
                row["session_id"]: await _read_session(overview, owner, row["session_id"])
                for row in (*live["sessions"], *ended["sessions"])
            },
            "savings": {group: await overview.savings_by(owner, group) for group in SAVINGS_GROUPS},
            "search": await overview.search(owner, "checkout", limit=50),
            "recall": {
                f"{question} {undone}": await _recall(service, owner, question, undone=undone)
                for question in QUESTIONS
                for undone in (False, True)
            },
            "left_out": [await store.left_out_text(owner, f"res_{number}") for number in range(3)],
        }
    kept: dict[str, Any] = _without(views, LEFT_OUT)
    return kept


async def _recall(service: FoldService, owner: str, question: str, *, undone: bool) -> list[str]:
    """The ids of what is found. How they are ranked may change."""
    answer = await service.recalls.answer(owner, RecallRequest(question, budget_tokens=20_000, undone=undone))
    return sorted(fold.id for fold in answer.folds)


async def _read_session(overview: Overview, owner: str, session_id: str) -> dict[str, Any]:
    session: Any = await overview.session(owner, session_id, limit=100)
    threads = [None, *(branch["id"] for branch in session["branches"])]
    return {
        "session": session,
        "savings": await overview.savings(owner, session_id),
        "threads": {
            thread or "": await overview.trajectory(owner, session_id, thread, budget_tokens=50_000, position=(0, 0))
            for thread in threads
        },
    }


def _without(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {name: _without(inner, names) for name, inner in value.items() if name not in names}
    return [_without(inner, names) for inner in value] if isinstance(value, list | tuple) else value
