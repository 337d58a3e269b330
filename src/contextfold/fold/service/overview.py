"""Reads for the dashboard and the terminal: sessions, trees, timelines, trajectories, the ledger; also rolls back.

Knows no protocol and no screen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence

from contextfold.common.canonical import Encodable, encode
from contextfold.common.dataclass import dataclass
from contextfold.common.event_loop import pause
from contextfold.errors import BranchNotFound
from contextfold.fold.accounting import total_tokens
from contextfold.fold.events import BranchDiscarded, members
from contextfold.fold.ledger.ended_ledger import ledger_parts, plain_figures
from contextfold.fold.ledger.savings import LedgerSums, sums_result, verdict
from contextfold.fold.ports.stored_records import KnownRevision, SessionKey
from contextfold.fold.service.callers import Target
from contextfold.fold.service.session_reader import SessionLists, SessionReader
from contextfold.fold.service.session_views import (
    TimelinePoint,
    branch_view,
    height_of,
    open_rows,
    point_after,
    point_view,
    row_of,
    tree,
)
from contextfold.fold.session import EMPTY, REPLAY_STEP_EVENTS, State, advance, drafted, replay
from contextfold.fold.timeline_points import POINTS_MAX, thinned
from contextfold.fold.verbs import RollBack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextfold.fold.service.fold_service import FoldService

# The groups of savings, and the number of sessions that are read at a time for them.
SAVINGS_GROUPS = ("session", "project", "day", "model")
SESSIONS_READ = 100
# The number of cached timelines.
TIMELINES_MAX = 64
# A search reads the names and branches of this many sessions, the latest first.
SEARCHED_SESSIONS_MAX = 300
# A cached timeline has more points than are shown, so that repeated thinning loses no peak.
POINTS_CACHED = 4 * POINTS_MAX
SUMMARY_FIELDS = ("project_path", "session_id", "branch_id", "description", "summary", "tokens_folded", "folded_at")

Shape = Mapping[str, Encodable]


@dataclass(frozen=True, slots=True)
class _Timeline:
    state: State = EMPTY
    points: Sequence[TimelinePoint] = ()


class Overview(SessionLists):
    def __init__(self, service: SessionReader) -> None:
        super().__init__(service)
        self._timelines: OrderedDict[str, _Timeline] = OrderedDict()

    async def session(self, owner: str, session_id: str, *, before: int | None = None, limit: int) -> Shape:
        """A session and a part of its tree: the last rows, or the last rows before a given one."""
        events_cursor = await self._store.cursor()
        found = await self.find_any(owner, session_id)
        state = found.state
        rows = tree(state)
        end = len(rows) if before is None else min(before, len(rows))
        first = max(0, end - limit)
        return {
            "session": await self.row_of(found),
            "open_branches": [branch_view(row) for row in open_rows(state)],
            "branches": [branch_view(row) for row in rows[first:end]],
            "first_row": first,
            "total_rows": len(rows),
            "counter": self._service.policy.counter,
            "events_cursor": events_cursor,
        }

    async def timeline(self, owner: str, session_id: str) -> Shape:
        """The figures of a session over time; empty for an ended session.

        The points are cached, so only newer events are read.
        """
        found = await self.find_any(owner, session_id)
        # With the lock, concurrent callers read a long log only once.
        async with self._reading:
            points = [] if found.ended else await self._points(found.key, session_id)
        return {
            "context_limit": self._service.policy.context_limit(found.state),
            "points": [point_view(point) for point in thinned(points, height=height_of)],
        }

    async def _points(self, key: SessionKey, session_id: str) -> Sequence[TimelinePoint]:
        cached = self._timelines.get(session_id) or _Timeline()
        known = KnownRevision(session_id, cached.state.revision) if cached.state.revision else None
        log = await self._store.load(key, known)
        draft, points = drafted(cached.state), list(cached.points)
        events = log.events if log and log.session_id == session_id else ()
        for begin_at in range(0, len(events), REPLAY_STEP_EVENTS):
            for event in events[begin_at : begin_at + REPLAY_STEP_EVENTS]:
                advance(draft, (event,))
                points.append(point_after(draft))
            await pause(0)
        if len(points) > POINTS_CACHED:
            points = thinned(points, POINTS_CACHED // 2, height=height_of)
        self._keep(session_id, _Timeline(draft, points))
        return points

    async def savings(self, owner: str, session_id: str) -> Shape:
        """The savings or costs of folding in the session's requests. The ledger is cached."""
        return await self.savings_of(await self.find_any(owner, session_id))

    async def savings_by(self, owner: str, group: str) -> Shape:
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
                async with self._reading:
                    ledger = await self._ledger(listed.key, state.session_id)
                parts = ledger.model_sums if group == "model" else ledger.days
                # A session without requests is a group, too, unless the groups are days or models.
                add(state.session_id, state.project_path, parts or ({} if is_divided else {"": LedgerSums()}))
        cursor = None
        while ended := await self._store.ended_sessions(owner, after=cursor, limit=SESSIONS_READ):
            cursor = (ended[-1].last_at, ended[-1].session_id)
            for session in ended:
                figures = plain_figures(session)
                add(session.session_id, str(figures.get("project_path", "")), ledger_parts(session, group))
        total = LedgerSums()
        for part in sums.values():
            total = total.plus(part)
        rows = [
            {group: name, **({"project_path": paths[name]} if group == "session" else {}), **sums_result(part)}
            for name, part in sorted(sums.items())
        ]
        return {"by": group, "groups": rows, "total": {**sums_result(total), "verdict": verdict(total)}}

    def _keep(self, session_id: str, timeline: _Timeline) -> None:
        self._timelines[session_id] = timeline
        self._timelines.move_to_end(session_id)
        if len(self._timelines) > TIMELINES_MAX:
            self._timelines.popitem(last=False)

    async def trajectory(
        self, owner: str, session_id: str, branch_id: str | None, *, budget_tokens: int, position: tuple[int, int]
    ) -> Shape:
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
    ) -> Shape:
        """The effects of a rollback, with a limited number of the branches that it would discard."""
        state = (await self.find(owner, session_id)).state
        events = RollBack(branch_id, restore_state).decide(state, state.last_at)
        after = replay(events, state)
        discarded = [event.branch_id for event in events if isinstance(event, BranchDiscarded)]
        return {
            "rolled_back_to": branch_id,
            "branches_discarded": [branch_view(row_of(state, later)) for later in discarded[::-1][:most]],
            "total_discarded": len(discarded),
            "reopened": [branch_view(row_of(state, opened)) for opened in after.path if opened not in state.path],
            "tokens_recovered": max(0, total_tokens(state) - total_tokens(after)),
            "total_tokens_after": total_tokens(after),
        }

    async def search(self, owner: str, query: str, *, limit: int) -> Shape:
        """Summaries of folded branches, and whether their sessions are live."""
        summaries = await self._service.search(owner, query, None, limit=limit)
        sessions = {one.session_id for one in summaries}
        live = {session_id: await self._store.find(owner, session_id) is not None for session_id in sessions}
        return {
            "summaries": [
                {**{name: getattr(one, name) for name in SUMMARY_FIELDS}, "live": live[one.session_id]}
                for one in summaries
            ]
        }

    async def search_all(self, owner: str, query: str, *, limit: int) -> Shape:
        """Live sessions by project or name, open and discarded branches by description, summaries of folded ones.

        Every word of the query must occur; case does not matter. Sessions and branches are those of the sessions with
        the latest activity, at most SEARCHED_SESSIONS_MAX.
        """
        words = query.casefold().split()
        sessions: list[Shape] = []
        branches: list[Shape] = []
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


class ServiceOverview(Overview):
    """The overview of a folding service: it also follows events and rolls back."""

    def __init__(self, service: FoldService) -> None:
        super().__init__(service)
        self._changes = service

    async def follow(
        self, owner: str, after: str, session_id: str | None = None
    ) -> AsyncGenerator[tuple[str, str, str]]:
        """Yield events after a cursor as (cursor, kind, JSON), without end."""
        async for seen in self._changes.store.watch(owner, after):
            if session_id in (None, seen.session_id):
                yield seen.cursor, seen.event.kind, encode({"session_id": seen.session_id, **members(seen.event)})

    async def roll_back(
        self, owner: str, session_id: str, branch_id: str, *, restore_state: bool, operation_id: str | None = None
    ) -> str:
        found = await self.find(owner, session_id)
        target = Target(found.key, found.state.project_path, found.state.name)
        outcome = await self._changes.change(target, RollBack(branch_id, restore_state), operation_id)
        return outcome.answer


def _has_words(text: str, words: Sequence[str]) -> bool:
    folded = text.casefold()
    return all(word in folded for word in words)
