"""Reads for the dashboard and the terminal: sessions, trees, timelines, trajectories, the ledger; also rolls back.

Knows no protocol and no screen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import reduce

from contextfold.common.canonical import Encodable, Malformed, decode, encode
from contextfold.common.dataclass import dataclass
from contextfold.common.event_loop import CallLock, pause
from contextfold.errors import ArgumentInvalid, BranchNotFound, SessionNotFound, StoreInvalid
from contextfold.fold.accounting import total_tokens
from contextfold.fold.ended_session import ended_state
from contextfold.fold.events import BranchDiscarded, members
from contextfold.fold.ledger.savings import (
    LedgerBook,
    LedgerSums,
    SavingsLedger,
    ledger_result,
    sums_from,
    sums_result,
    verdict,
)
from contextfold.fold.ports.store import EndedSession, KnownRevision, ListedSession, SessionKey
from contextfold.fold.service.callers import Target
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.session_views import (
    POINTS_MAX,
    TimelinePoint,
    branch_view,
    height_of,
    open_rows,
    point_after,
    point_view,
    row_of,
    session_view,
    thinned,
    tree,
)
from contextfold.fold.service.sessions import REPLAY_STEP_EVENTS
from contextfold.fold.session import EMPTY, State, replay, states
from contextfold.fold.verbs import RollBack

# The groups of savings, and the number of sessions that are read at a time for them.
SAVINGS_GROUPS = ("session", "project", "day", "model")
SESSIONS_READ = 100
# The number of cached timelines and ledgers. The ledgers of one page of the list must fit.
TIMELINES_MAX = 64
LEDGERS_MAX = 128
# A search reads the names and branches of this many sessions, the latest first.
SEARCHED_SESSIONS_MAX = 300
# A cached timeline has more points than are shown, so that repeated thinning loses no peak.
POINTS_CACHED = 4 * POINTS_MAX
ENDED_FIELDS = (
    "project_path",
    "name",
    "started_at",
    "total_tokens",
    "main_thread_tokens",
    "folded_tokens",
    "total_branches",
    "folded_branches",
    "operations",
    "model",
    "host",
)
SUMMARY_FIELDS = ("project_path", "session_id", "branch_id", "description", "summary", "tokens_folded", "folded_at")

Shape = Mapping[str, Encodable]


@dataclass(frozen=True, slots=True)
class _Timeline:
    state: State = EMPTY
    points: Sequence[TimelinePoint] = ()


@dataclass(slots=True)
class _CachedLedger:
    """A ledger, and the number of its last event."""

    book: LedgerBook
    revision: int = 0


@dataclass(frozen=True, slots=True)
class FoundSession:
    key: SessionKey
    state: State
    # Set if the session has ended; its state is then the last one.
    ended: EndedSession | None = None

    @property
    def target(self) -> Target:
        return Target(self.key, self.state.project_path, self.state.name)


class Overview:
    def __init__(self, service: FoldService) -> None:
        self._service = service
        self._store = service.store
        self._timelines: OrderedDict[str, _Timeline] = OrderedDict()
        self._books: OrderedDict[str, _CachedLedger] = OrderedDict()
        self._reading = CallLock()

    async def sessions(self, owner: str, *, cursor: str | None = None, limit: int) -> Shape:
        """Live sessions, the latest activity first."""
        # A waiting report may begin a session.
        await self._service.reports.all_settled(owner)
        events_cursor = await self._store.cursor()
        page = await self._store.sessions(owner, after=_position(cursor) if cursor else None, limit=limit + 1)
        states = [await self._readable(listed.key) for listed in page[:limit]]
        return {
            "owner": owner,
            "sessions": [
                await self._row_with_savings(listed.key, state)
                for listed, state in zip(page, states, strict=False)
                if state.revision
            ],
            "total": await self._store.count(owner),
            "next_cursor": _cursor(page[limit - 1]) if len(page) > limit else None,
            "events_cursor": events_cursor,
        }

    async def ended_sessions(self, owner: str, *, cursor: str | None = None, limit: int) -> Shape:
        """Ended sessions in the same order, with their last figures, until they are deleted."""
        after = _position(cursor) if cursor else None
        page = await self._store.ended_sessions(owner, after=after, limit=limit + 1)
        return {
            "owner": owner,
            "sessions": [_ended_row(session) for session in page[:limit]],
            "next_cursor": _cursor(page[limit - 1]) if len(page) > limit else None,
        }

    async def session(self, owner: str, session_id: str, *, before: int | None = None, limit: int) -> Shape:
        """A session and a part of its tree: the last rows, or the last rows before a given one."""
        events_cursor = await self._store.cursor()
        found = await self.find_any(owner, session_id)
        state = found.state
        rows = tree(state)
        end = len(rows) if before is None else min(before, len(rows))
        first = max(0, end - limit)
        return {
            "session": await self._row_of(found),
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
        state, points = cached.state, list(cached.points)
        events = log.events if log and log.session_id == session_id else ()
        for begin_at in range(0, len(events), REPLAY_STEP_EVENTS):
            for after in states(events[begin_at : begin_at + REPLAY_STEP_EVENTS], state):
                state = after
                points.append(point_after(state))
            await pause(0)
        if len(points) > POINTS_CACHED:
            points = thinned(points, POINTS_CACHED // 2, height=height_of)
        self._keep(session_id, _Timeline(replay((), state), points))
        return points

    async def savings(self, owner: str, session_id: str) -> Shape:
        """The savings or costs of folding in the session's requests. The ledger is cached."""
        found = await self.find_any(owner, session_id)
        if found.ended:
            return {"session_id": session_id, **ledger_result(self._ended_ledger(found.ended))}
        async with self._reading:
            ledger = await self._ledger(found.key, session_id)
        return {"session_id": session_id, **ledger_result(ledger)}

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
                figures = _figures(session)
                add(session.session_id, str(figures.get("project_path", "")), _ledger_parts(session, group))
        total = LedgerSums()
        for part in sums.values():
            total = total.plus(part)
        rows = [
            {group: name, **({"project_path": paths[name]} if group == "session" else {}), **sums_result(part)}
            for name, part in sorted(sums.items())
        ]
        return {"by": group, "groups": rows, "total": {**sums_result(total), "verdict": verdict(total)}}

    async def _ledger(self, key: SessionKey, session_id: str) -> SavingsLedger:
        cached = self._books.pop(session_id, None) or _CachedLedger(LedgerBook(self._service.policy.ledger_prices))
        log = await self._store.load(key, KnownRevision(session_id, cached.revision) if cached.revision else None)
        events = log.events if log and log.session_id == session_id else ()
        for count, event in enumerate(events, 1):
            cached.book.take(event)
            cached.revision = event.n
            if count % REPLAY_STEP_EVENTS == 0:
                await pause(0)
        self._books[session_id] = cached
        if len(self._books) > LEDGERS_MAX:
            self._books.popitem(last=False)
        return cached.book.ledger()

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

    async def roll_back(
        self, owner: str, session_id: str, branch_id: str, *, restore_state: bool, operation_id: str | None = None
    ) -> str:
        found = await self.find(owner, session_id)
        outcome = await self._service.roll_back(found.target, RollBack(branch_id, restore_state), operation_id)
        return outcome.answer

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

    async def follow(
        self, owner: str, after: str, session_id: str | None = None
    ) -> AsyncGenerator[tuple[str, str, str]]:
        """Yield events after a cursor as (cursor, kind, JSON), without end."""
        async for seen in self._store.watch(owner, after):
            if session_id in (None, seen.session_id):
                yield seen.cursor, seen.event.kind, encode({"session_id": seen.session_id, **members(seen.event)})

    async def find(self, owner: str, session_id: str) -> FoundSession:
        key = await self._store.find(owner, session_id)
        state = await self._service.look(key) if key else EMPTY
        if key is None or state.session_id != session_id:
            raise SessionNotFound(session_id)
        return FoundSession(key, state)

    async def find_any(self, owner: str, session_id: str) -> FoundSession:
        """A live session, or the last state of an ended one."""
        try:
            return await self.find(owner, session_id)
        except SessionNotFound:
            for ended in await self._store.ended_sessions(owner, limit=1, session_id=session_id):
                state = ended_state(_stored(ended), session_id=session_id, last_at=ended.last_at)
                return FoundSession(ended.key, state, ended)
            raise

    async def _readable(self, key: SessionKey) -> State:
        """The state of a session for a list; empty if its log cannot be read, so that the list omits it."""
        try:
            return await self._service.look(key)
        except StoreInvalid:
            return EMPTY

    def row(self, state: State) -> dict[str, Encodable]:
        return session_view(state, self._service.policy)

    async def _row_of(self, found: FoundSession) -> Shape:
        if found.ended is None:
            return await self._row_with_savings(found.key, found.state)
        sums = self._ended_ledger(found.ended).sums
        savings = sums_result(sums) if sums.requests else None
        return {**self.row(found.state), "ended_at": found.ended.ended_at, "savings": savings}

    def _ended_ledger(self, session: EndedSession) -> SavingsLedger:
        """The stored part of an ended session's ledger: its sums by day and by model."""
        days, models = _ledger_parts(session), _ledger_parts(session, "model")
        sums = reduce(LedgerSums.plus, days.values(), LedgerSums())
        prices = {model: self._service.policy.ledger_prices.of(model) for model in models}
        return SavingsLedger(sums, days, models, prices, {}, 0, (), ())

    async def _row_with_savings(self, key: SessionKey, state: State) -> Shape:
        """The row with the session's savings, which are None if no request went through the proxy."""
        if not state.requests:
            return {**self.row(state), "savings": None}
        async with self._reading:
            ledger = await self._ledger(key, state.session_id or "")
        return {**self.row(state), "savings": sums_result(ledger.sums)}


def _ended_row(session: EndedSession) -> Shape:
    figures = _figures(session)
    total = reduce(LedgerSums.plus, _ledger_parts(session).values(), LedgerSums())
    return {
        **{name: figures.get(name) for name in ENDED_FIELDS},
        "session_id": session.session_id,
        "last_at": session.last_at,
        "ended_at": session.ended_at,
        "savings": sums_result(total) if total.requests else None,
    }


def _figures(session: EndedSession) -> dict[str, Encodable]:
    """The stored figures that are texts or whole numbers; none if an older version ended the session."""
    figures = _stored(session)
    return {name: value for name, value in figures.items() if isinstance(value, str | int)}


def _ledger_parts(session: EndedSession, group: str = "day") -> dict[str, LedgerSums]:
    """The sums of an ended session's requests by model, or by day."""
    stored = _stored(session)
    parts = stored.get("ledger_models" if group == "model" else "ledger_days")
    # An earlier version did not record the models; such a session counts for its last model.
    if parts is None and group == "model":
        parts = stored.get("ledger_days")
        sums = [sums_from(members) for members in (parts.values() if isinstance(parts, dict) else ())]
        return {str(stored.get("model") or ""): reduce(LedgerSums.plus, sums)} if sums else {}
    return {name: sums_from(members) for name, members in parts.items()} if isinstance(parts, dict) else {}


def _stored(session: EndedSession) -> dict[str, object]:
    try:
        figures = decode(session.figures.encode()) if session.figures else {}
    except Malformed:
        return {}
    return figures if isinstance(figures, dict) else {}


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
