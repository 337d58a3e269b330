"""Reads for the dashboard: sessions, trees, timelines, trajectories, the ledger. Knows no protocol and no screen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from contextfold.common.bounded_cache import BoundedCache
from contextfold.common.canonical import JsonObject
from contextfold.errors import ArgumentInvalid, BranchNotFound, SessionNotFound, StoreInvalid
from contextfold.fold.ended_session import ended_ledger
from contextfold.fold.events import Event
from contextfold.fold.ledger import POINTS_CACHED, SavingsLedger, thin_points
from contextfold.fold.misses import MissLog, misses_of
from contextfold.fold.service.conversations import Run
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.session_views import (
    FoundSession,
    RunTotals,
    SavingsTotals,
    SessionSums,
    branch_view,
    ended_row,
    ended_sums,
    preview_rollback,
    row_of,
    savings_view,
    session_row,
    summary_view,
    sums_of,
    tree,
)
from contextfold.fold.service.stored_sessions import read_summary
from contextfold.fold.session import EMPTY, REPLAY_STEP_EVENTS, Replay
from contextfold.fold.store import ArchivedThread, EndedSession, KnownRevision, ListedSession, SessionKey, Store
from contextfold.fold.verbs import RollBack

# The number of sessions whose figures are cached. Those of one page of the list must fit.
FOLLOWED_MAX = 128
# The number of ended sessions whose sums are cached, about 1 kB each.
ENDED_SUMS_MAX = 10_000
# The groups of savings, and the number of sessions that are read at a time for them.
SAVINGS_GROUPS = ("session", "project", "day", "model")
SESSIONS_READ = 100
# A search reads the names and branches of this many sessions, the latest first.
SEARCHED_SESSIONS_MAX = 300
# The sums of a run wait at most this long until its reports are written.
RUN_SETTLED_S = 5.0


class TimelinePoint(NamedTuple):
    """The figures after an event."""

    n: int
    at: str
    total_tokens: int
    main_thread_tokens: int


class _Timeline:
    """The state of a session, and its figures after each event."""

    def __init__(self) -> None:
        self._replay = Replay()
        self._points: list[TimelinePoint] = []

    def take(self, event: Event) -> None:
        self._replay.apply((event,))
        state = self._replay.state
        self._points.append(TimelinePoint(state.revision, state.last_at, state.total_tokens, state.main.tokens))

    def points(self) -> list[TimelinePoint]:
        """As many points as a screen can show. More are cached, so that repeated thinning loses no peak."""
        points = thin_points(self._points, height=_height)
        if len(self._points) > POINTS_CACHED:
            self._points = thin_points(self._points, POINTS_CACHED // 2, height=_height)
        return points


def _timeline_of(log: Sequence[Event]) -> _Timeline:
    timeline = _Timeline()
    for event in log:
        timeline.take(event)
    return timeline


def _height(point: TimelinePoint) -> int:
    return point.total_tokens


class LogFigures(Protocol):
    """Figures that are computed from the events of a session, one after the other."""

    def take(self, event: Event) -> None: ...


Figures = TypeVar("Figures", bound=LogFigures)
Read = TypeVar("Read")


class FollowedLogs(Generic[Figures]):
    """The figures of the latest sessions. They are cached, so that only newer events are read."""

    def __init__(self, store: Store, make: Callable[[], Figures]) -> None:
        self._store, self._make = store, make
        # The figures and the number of the last event, by session. The one that was used last is the last one.
        self._followed: dict[str, tuple[Figures, int]] = {}
        self._reading = asyncio.Lock()

    async def read(self, key: SessionKey, session_id: str) -> Figures:
        # With the lock, concurrent callers read a long log only once.
        async with self._reading:
            figures, revision = self._followed.pop(session_id, (self._make(), 0))
            log = await self._store.load(key, KnownRevision(session_id, revision) if revision else None)
            events = log.events if log and log.session_id == session_id else ()
            for count, event in enumerate(events, 1):
                figures.take(event)
                if count % REPLAY_STEP_EVENTS == 0:
                    await asyncio.sleep(0)
            self._followed[session_id] = (figures, events[-1].n if events else revision)
            if len(self._followed) > FOLLOWED_MAX:
                del self._followed[next(iter(self._followed))]
            return figures


class Overview:
    """Lists of sessions with their figures, and views of one session."""

    def __init__(self, service: FoldService, on_unreadable: Callable[[str], object] = lambda _: None) -> None:
        """`on_unreadable` is called with the id of each session that a list meets and whose log cannot be read."""
        self._service, self._store, self._on_unreadable = service, service.store, on_unreadable
        self._ledgers: FollowedLogs[SavingsLedger] = FollowedLogs(service.store, self._new_ledger)
        self._timelines = FollowedLogs(service.store, _Timeline)
        self._ended_sums = BoundedCache[str, SessionSums](ENDED_SUMS_MAX)
        self._misses = FollowedLogs(service.store, lambda: MissLog(service.policy.ledger_prices))

    def _new_ledger(self) -> SavingsLedger:
        return SavingsLedger(self._service.policy.ledger_prices)

    async def sessions(self, owner: str, *, cursor: str | None = None, limit: int) -> JsonObject:
        """Live sessions, the latest activity first. One whose log cannot be read is only named."""
        await self._service.settle_reports(owner)
        events_cursor = await self._store.cursor()
        page = await self._store.sessions(owner, after=_position(cursor) if cursor else None, limit=limit + 1)
        rows = {
            listed.session_id: await self._unless_damaged(listed, self._live_row(listed.key)) for listed in page[:limit]
        }
        return {
            "owner": owner,
            "sessions": [row for row in rows.values() if row],
            "unreadable": [session_id for session_id, row in rows.items() if row is None],
            "total": await self._store.count(owner),
            "next_cursor": _cursor(page[limit - 1]) if len(page) > limit else None,
            "events_cursor": events_cursor,
        }

    async def ended_sessions(self, owner: str, *, cursor: str | None = None, limit: int) -> JsonObject:
        """Ended sessions in the same order, with their last figures, until they are deleted.

        One whose log cannot be read has no figures, and is named.
        """
        after = _position(cursor) if cursor else None
        page = await self._store.ended_sessions(owner, after=after, limit=limit + 1)
        rows: list[JsonObject] = []
        unreadable: list[str] = []
        for session in page[:limit]:
            log = await self._read_ended_log(session)
            rows.append(await asyncio.to_thread(ended_row, session, log or (), self._service.policy))
            if log is None:
                unreadable.append(session.session_id)
        return {
            "owner": owner,
            "sessions": rows,
            "unreadable": unreadable,
            "next_cursor": _cursor(page[limit - 1]) if len(page) > limit else None,
        }

    async def _find_any(self, owner: str, session_id: str) -> FoundSession:
        """A live session, or the last state of an ended one."""
        try:
            return await self._service.find(owner, session_id)
        except SessionNotFound:
            for ended in await self._store.ended_sessions(owner, limit=1, session_id=session_id):
                log = await self._store.ended_log(ended.key, session_id)
                return await asyncio.to_thread(FoundSession.of_ended, ended, log)
            raise

    async def _read_ended_log(self, session: EndedSession) -> Sequence[Event] | None:
        return await self._unless_damaged(session, self._store.ended_log(session.key, session.session_id))

    async def _unless_damaged(self, listed: ListedSession | EndedSession, reading: Awaitable[Read]) -> Read | None:
        """What is read of a session for a list; None if its log cannot be read, so that the others are listed."""
        try:
            return await reading
        except StoreInvalid:
            self._on_unreadable(listed.session_id)
            return None

    async def _live_row(self, key: SessionKey) -> JsonObject:
        """The row of a session; empty if it is idle."""
        state = await self._service.look(key)
        return await self._row(FoundSession(key, state)) if state.revision else {}

    async def _live_sums(self, key: SessionKey) -> SessionSums | None:
        state = await self._service.look(key)
        return sums_of(state, await self._ledger(FoundSession(key, state))) if state.session_id else None

    async def _row(self, found: FoundSession) -> JsonObject:
        return session_row(found, self._service.policy, await self._ledger(found))

    async def _ledger(self, found: FoundSession) -> SavingsLedger:
        if found.ended:
            prices = self._service.policy.ledger_prices
            return await asyncio.to_thread(ended_ledger, found.ended, found.ended_log, prices)
        if not found.state.requests:
            return self._new_ledger()
        return await self._ledgers.read(found.key, found.state.session_id or "")

    async def session(self, owner: str, session_id: str, *, before: int | None = None, limit: int) -> JsonObject:
        """A session and a part of its tree: the last rows, or the last rows before a given one."""
        events_cursor = await self._store.cursor()
        found = await self._find_any(owner, session_id)
        state = found.state
        rows = tree(state)
        end = len(rows) if before is None else min(before, len(rows))
        first = max(0, end - limit)
        return {
            "session": await self._row(found),
            "open_branches": [branch_view(state, row_of(state, open_id)) for open_id in state.path],
            "branches": [branch_view(state, row) for row in rows[first:end]],
            "first_row": first,
            "total_rows": len(rows),
            "counter": self._service.policy.counter,
            "events_cursor": events_cursor,
        }

    async def timeline(self, owner: str, session_id: str) -> JsonObject:
        """The figures of a session over time; empty for a session whose log an earlier version deleted."""
        found = await self._find_any(owner, session_id)
        if found.ended:
            timeline = await asyncio.to_thread(_timeline_of, found.ended_log)
        else:
            timeline = await self._timelines.read(found.key, session_id)
        points = timeline.points()
        return {
            "context_limit": self._service.policy.context_limit(found.state),
            "points": [point._asdict() for point in points],
        }

    async def savings(self, owner: str, session_id: str) -> JsonObject:
        """The savings or costs of folding in the session's requests."""
        found = await self._find_any(owner, session_id)
        return savings_view(found, await self._ledger(found))

    async def misses(self, owner: str, session_id: str) -> JsonObject:
        """Why the provider's cache did not hold a part of the session's requests."""
        found = await self._find_any(owner, session_id)
        if found.ended:
            misses = await asyncio.to_thread(misses_of, found.ended_log, self._service.policy.ledger_prices)
        else:
            misses = await self._misses.read(found.key, session_id)
        return {"session_id": session_id, **misses.result()}

    async def savings_by(self, owner: str, group: str) -> JsonObject:
        """The savings or costs of folding in the owner's live and ended sessions, by session, project, day or model."""
        await self._service.settle_reports(owner)
        totals = SavingsTotals(group)
        cursor: tuple[str, str] | None = None
        while page := await self._store.sessions(owner, after=cursor, limit=SESSIONS_READ):
            cursor = (page[-1].last_at, page[-1].session_id)
            for listed in page:
                sums = await self._unless_damaged(listed, self._live_sums(listed.key))
                if sums:
                    totals.add(sums)
        cursor = None
        while ended := await self._store.ended_sessions(owner, after=cursor, limit=SESSIONS_READ):
            cursor = (ended[-1].last_at, ended[-1].session_id)
            for session in ended:
                totals.add(await self._sums_of_ended(session))
        return totals.result()

    async def _sums_of_ended(self, session: EndedSession) -> SessionSums:
        """The sums of an ended session. They do not change any more, so those of the latest sessions are cached."""
        sums = self._ended_sums.get(session.session_id)
        if sums is None:
            log, prices = await self._read_ended_log(session), self._service.policy.ledger_prices
            sums = await asyncio.to_thread(ended_sums, session, log or (), prices)
            self._ended_sums.put(session.session_id, sums)
        return sums

    async def run(self, owner: str, name: str) -> JsonObject | None:
        """What the requests of a run sent and saved, when its reports are written; None if nothing is known of it."""
        await self._service.settle_reports(owner, timeout_s=RUN_SETTLED_S)
        known = await self._service.conversations.find_run(owner, name)
        run = known or Run()
        totals = RunTotals(name, run.failed_requests)
        page = await self._store.sessions(owner, limit=SEARCHED_SESSIONS_MAX)
        # The session that was active last comes first.
        for listed in page:
            await self._unless_damaged(listed, self._add_to_run(totals, name, listed.key))
        if known is None and not totals.conversations:
            return None
        return {
            "run": name,
            "project_path": run.project.path if run.project else None,
            "program": run.program or None,
            **totals.result(),
        }

    async def _add_to_run(self, totals: RunTotals, name: str, key: SessionKey) -> None:
        state = await self._service.look(key)
        if name in state.runs:
            ledger = await self._ledger(FoundSession(key, state))
            log = await self._store.load(key)
            totals.add(state, ledger, log.events if log else ())

    async def trajectory(
        self, owner: str, session_id: str, branch_id: str | None, *, budget_tokens: int, position: tuple[int, int]
    ) -> JsonObject:
        """A page of the trajectory of a branch or of the main thread. A folded branch's first page has its summary."""
        found = await self._find_any(owner, session_id)
        if branch_id is not None and branch_id not in found.state.branches:
            raise BranchNotFound(branch_id, session_id)
        page = await self._service.page(found.key, branch_id, session_id, budget_tokens, position)
        branch = summary = None
        if branch_id is not None:
            branch = branch_view(found.state, row_of(found.state, branch_id))
            if branch["status"] == "folded" and position == (0, 0):
                summary = await read_summary(self._store, ArchivedThread(owner, found.key.project_hash, branch_id))
        entries = {name: value for name, value in page.items() if name != "branch_id"}
        return {"branch": branch, "summary": summary, **entries}

    async def preview(
        self, owner: str, session_id: str, branch_id: str, *, restore_state: bool, most: int | None = None
    ) -> JsonObject:
        """The effects of a rollback, with a limited number of the branches that it would discard."""
        state = (await self._service.find(owner, session_id)).state
        events = RollBack(branch_id, restore_state).decide(state, state.last_at)
        return preview_rollback(state, branch_id, events, most=most)

    async def search(self, owner: str, query: str, *, limit: int) -> JsonObject:
        """Summaries of folded branches, and whether their sessions are live."""
        summaries = await self._store.search(owner, query, None, limit)
        sessions = {summary.session_id for summary in summaries}
        live = {session_id: await self._store.find(owner, session_id) is not None for session_id in sessions}
        return {
            "summaries": [{**summary_view(summary), "live": live[summary.session_id]} for summary in summaries],
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
            state = await self._unless_damaged(listed, self._service.look(listed.key)) or EMPTY
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


def _cursor(listed: ListedSession | EndedSession) -> str:
    return f"{listed.last_at}/{listed.session_id}"


def _position(cursor: str) -> tuple[str, str]:
    last_at, slash, session_id = cursor.partition("/")
    if not slash:
        raise ArgumentInvalid("cursor", "must be the next_cursor of an earlier answer")
    return last_at, session_id
