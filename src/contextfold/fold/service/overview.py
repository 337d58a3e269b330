"""Reads for the dashboard and the terminal: sessions, trees, timelines, trajectories, the ledger.

Knows no protocol and no screen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from contextfold.common.canonical import Encodable, JsonObject
from contextfold.errors import BranchNotFound
from contextfold.fold.ended_session import ledger_parts, plain_figures
from contextfold.fold.events import BranchDiscarded, Event
from contextfold.fold.ledger import POINTS_CACHED, LedgerSums, thin_points, total_of
from contextfold.fold.service.session_reader import FollowedLogs, FoundSession, SessionLists, SessionReader
from contextfold.fold.service.session_views import (
    branch_view,
    row_of,
    sums_result,
    tree,
    verdict,
)
from contextfold.fold.session import EMPTY, advance, drafted, replay
from contextfold.fold.verbs import RollBack

# The groups of savings, and the number of sessions that are read at a time for them.
SAVINGS_GROUPS = ("session", "project", "day", "model")
SESSIONS_READ = 100
# A search reads the names and branches of this many sessions, the latest first.
SEARCHED_SESSIONS_MAX = 300
SUMMARY_FIELDS = ("project_path", "session_id", "branch_id", "description", "summary", "tokens_folded", "folded_at")


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """The figures after an event."""

    n: int
    at: str
    total_tokens: int
    main_thread_tokens: int


class _Timeline:
    """The state of a session, and its figures after each event."""

    def __init__(self) -> None:
        self._state = drafted(EMPTY)
        self._points: list[TimelinePoint] = []

    def take(self, event: Event) -> None:
        advance(self._state, (event,))
        state = self._state
        self._points.append(TimelinePoint(state.revision, state.last_at, state.total_tokens, state.main.tokens))

    def points(self) -> list[TimelinePoint]:
        """As many points as a screen can show. More are cached, so that repeated thinning loses no peak."""
        points = thin_points(self._points, height=_height)
        if len(self._points) > POINTS_CACHED:
            self._points = thin_points(self._points, POINTS_CACHED // 2, height=_height)
        return points


def _height(point: TimelinePoint) -> int:
    return point.total_tokens


class Overview(SessionLists):
    def __init__(self, service: SessionReader) -> None:
        super().__init__(service)
        self._timelines = FollowedLogs(service.store, _Timeline)

    async def session(self, owner: str, session_id: str, *, before: int | None = None, limit: int) -> JsonObject:
        """A session and a part of its tree: the last rows, or the last rows before a given one."""
        events_cursor = await self._store.cursor()
        found = await self.find_any(owner, session_id)
        state = found.state
        rows = tree(state)
        end = len(rows) if before is None else min(before, len(rows))
        first = max(0, end - limit)
        return {
            "session": await self.row_of(found),
            "open_branches": [branch_view(row_of(state, open_id)) for open_id in state.path],
            "branches": [branch_view(row) for row in rows[first:end]],
            "first_row": first,
            "total_rows": len(rows),
            "counter": self._service.policy.counter,
            "events_cursor": events_cursor,
        }

    async def timeline(self, owner: str, session_id: str) -> JsonObject:
        """The figures of a session over time; empty for an ended session."""
        found = await self.find_any(owner, session_id)
        points = [] if found.ended else (await self._timelines.read(found.key, session_id)).points()
        return {
            "context_limit": self._service.policy.context_limit(found.state),
            "points": [{each.name: getattr(point, each.name) for each in fields(point)} for point in points],
        }

    async def savings(self, owner: str, session_id: str) -> JsonObject:
        """The savings or costs of folding in the session's requests."""
        return await self.savings_of(await self.find_any(owner, session_id))

    async def savings_by(self, owner: str, group: str) -> JsonObject:
        """The savings or costs of folding in the owner's live and ended sessions, by session, project, day or model."""
        is_divided = group in ("day", "model")
        sums: dict[str, LedgerSums] = {}
        paths: dict[str, Encodable] = {}

        def add(session_id: str, project_path: str, parts: Mapping[str, LedgerSums]) -> None:
            for key, part in parts.items():
                name = {"day": key, "model": key, "project": project_path}.get(group, session_id)
                sums[name] = sums.get(name, LedgerSums()).plus(part)
                paths[name] = project_path

        cursor: tuple[str, str] | None = None
        while page := await self._store.sessions(owner, after=cursor, limit=SESSIONS_READ):
            cursor = (page[-1].last_at, page[-1].session_id)
            for listed in page:
                state = await self._readable(listed.key)
                if not state.session_id:
                    continue
                ledger = await self._ledger(FoundSession(listed.key, state))
                parts = ledger.model_sums if group == "model" else ledger.days
                # A session without requests is a group, too, unless the groups are days or models.
                add(state.session_id, state.project_path, parts or ({} if is_divided else {"": LedgerSums()}))
        cursor = None
        while ended := await self._store.ended_sessions(owner, after=cursor, limit=SESSIONS_READ):
            cursor = (ended[-1].last_at, ended[-1].session_id)
            for session in ended:
                figures = plain_figures(session)
                add(session.session_id, str(figures.get("project_path", "")), ledger_parts(session, group))
        total = total_of(sums.values())
        rows = [
            {group: name, **({"project_path": paths[name]} if group == "session" else {}), **sums_result(part)}
            for name, part in sorted(sums.items())
        ]
        return {"by": group, "groups": rows, "total": {**sums_result(total), "verdict": verdict(total)}}

    async def trajectory(
        self, owner: str, session_id: str, branch_id: str | None, *, budget_tokens: int, position: tuple[int, int]
    ) -> JsonObject:
        """A page of the trajectory of a branch or of the main thread. A folded branch's first page has its summary."""
        found = await self.find_any(owner, session_id)
        if branch_id is not None and branch_id not in found.state.branches:
            raise BranchNotFound(branch_id, session_id)
        page = await self._service.page(found.key, branch_id, session_id, budget_tokens, position)
        branch = branch_view(row_of(found.state, branch_id)) if branch_id is not None else None
        is_folded = branch_id is not None and found.state.branches[branch_id].status == "folded"
        summary = (
            await self._service.summary_of(found.key, branch_id)
            if branch_id is not None and is_folded and position == (0, 0)
            else None
        )
        entries = {name: value for name, value in page.items() if name != "branch_id"}
        return {"branch": branch, "summary": summary, **entries}

    async def preview(
        self, owner: str, session_id: str, branch_id: str, *, restore_state: bool, most: int | None = None
    ) -> JsonObject:
        """The effects of a rollback, with a limited number of the branches that it would discard."""
        state = (await self._service.find(owner, session_id)).state
        events = RollBack(branch_id, restore_state).decide(state, state.last_at)
        after = replay(events, state)
        discarded = [event.branch_id for event in events if isinstance(event, BranchDiscarded)]
        return {
            "rolled_back_to": branch_id,
            "branches_discarded": [branch_view(row_of(state, later)) for later in discarded[::-1][:most]],
            "total_discarded": len(discarded),
            "reopened": [branch_view(row_of(state, opened)) for opened in after.path if opened not in state.path],
            "tokens_recovered": max(0, state.total_tokens - after.total_tokens),
            "total_tokens_after": after.total_tokens,
        }

    async def search(self, owner: str, query: str, *, limit: int) -> JsonObject:
        """Summaries of folded branches, and whether their sessions are live."""
        summaries = await self._store.search(owner, query, None, limit)
        sessions = {one.session_id for one in summaries}
        live = {session_id: await self._store.find(owner, session_id) is not None for session_id in sessions}
        return {
            "summaries": [
                {**{name: getattr(one, name) for name in SUMMARY_FIELDS}, "live": live[one.session_id]}
                for one in summaries
            ]
        }

    async def search_all(self, owner: str, query: str, *, limit: int) -> JsonObject:
        """Live sessions by project or name, open and discarded branches by description, summaries of folded ones.

        Every word of the query must occur; case does not matter. Sessions and branches are those of the sessions with
        the latest activity, at most SEARCHED_SESSIONS_MAX.
        """
        words = query.casefold().split()
        sessions: list[JsonObject] = []
        branches: list[JsonObject] = []
        page = await self._store.sessions(owner, limit=SEARCHED_SESSIONS_MAX) if words else ()
        for listed in page:
            state = await self._readable(listed.key)
            about = {"session_id": state.session_id, "project_path": state.project_path, "name": state.name}
            if _has_words(f"{state.project_path} {state.name or ''}", words):
                sessions.append({**about, "last_at": state.last_at, "host": state.host or None})
            branches += [
                {**about, "branch_id": branch.id, "description": branch.description, "status": branch.status}
                for branch in state.branches.values()
                if branch.status != "folded" and _has_words(branch.description, words)
            ]
        return {
            "sessions": sessions[:limit],
            "branches": branches[:limit],
            **await self.search(owner, query, limit=limit),
        }


def _has_words(text: str, words: Sequence[str]) -> bool:
    folded = text.casefold()
    return all(word in folded for word in words)
