"""What each tool does: scrub, then look or change, then tell. Knows no wire and no database.

Nothing is kept, answered or passed on before it went through the scrubber; if that fails, the call fails. Tokens are
those of the text as the agent has it: that is what fills its context.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from contextfold.canonical import encode
from contextfold.errors import (
    BranchNotFound,
    ContextError,
    FoldError,
    InternalError,
    ScrubFailed,
    StoreInvalid,
    StoreUnavailable,
)
from contextfold.fold import answers, session
from contextfold.fold.accounting import Thresholds, health
from contextfold.fold.answers import Shape
from contextfold.fold.archive import mark_undone
from contextfold.fold.events import BranchFolded, Event, OperationCompleted
from contextfold.fold.paging import Page
from contextfold.fold.project import Project, check_session_name, displayed, hashed
from contextfold.fold.requests import (
    BranchRequest,
    ExpandRequest,
    LookRequest,
    RecordRequest,
    ReturnRequest,
    RollbackRequest,
    check_operation_id,
    cursor_of,
)
from contextfold.fold.session import EMPTY, Beginning, Branch, Limits, State
from contextfold.fold.sessions import Change, Outcome, Sessions, moment_told
from contextfold.fold.store import Operation, SessionKey, Store, Summary
from contextfold.tokens import COUNTERS

SCRUB_INLINE_LENGTH = 16_384  # a longer text is scrubbed in a thread, so that others are answered meanwhile
SCRUB_LONG_LENGTH = 262_144  # and one longer than this in a lane of its own, so that it holds up nobody but its like
PAGE_ENTRIES = 64
SEARCH_LIMIT = 20


class Scrubbed(Protocol):
    @property
    def text(self) -> str: ...
    @property
    def redactions(self) -> int: ...
    @property
    def rules(self) -> tuple[str, ...]: ...


class Scrubs(Protocol):
    def scrub(self, text: str) -> Scrubbed: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """What a user may set about folding."""

    limits: Limits = field(default_factory=Limits)
    thresholds: Thresholds = field(default_factory=Thresholds)
    counter: str = "v0"
    idle_s: int = 24 * 3600
    archive_days: int = 30
    summary_days: int = 365


@dataclass(frozen=True, slots=True)
class Caller:
    owner: str
    session_name: str | None = None
    operation_id: str | None = None  # of a call that may be sent again


@dataclass(frozen=True, slots=True)
class Noted:
    """What happened, for whoever counts: no texts."""

    events: Sequence[Event] = ()
    rules: Sequence[str] = ()
    conflicts: int = 0
    store_failed: bool = False


def _now() -> datetime:
    return datetime.now(UTC)


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(8)}"


class FoldService:
    def __init__(
        self,
        store: Store,
        scrubber: Scrubs,
        policy: Policy | None = None,
        *,
        clock: Callable[[], datetime] = _now,
        new_id: Callable[[str], str] = _new_id,
        note: Callable[[Noted], None] = lambda _noted: None,
    ) -> None:
        self.store = store
        self.policy = policy or Policy()
        self._sessions = Sessions(
            store, self.policy.limits, self.policy.idle_s, clock, lambda: note(Noted(conflicts=1))
        )
        self._scrubber = scrubber
        self._count = COUNTERS[self.policy.counter]
        self._clock = clock
        self._new_id = new_id
        self._note = note
        self._lanes = (ThreadPoolExecutor(4, "contextfold-scrub"), ThreadPoolExecutor(1, "contextfold-scrub-long"))

    async def branch(self, caller: Caller, request: BranchRequest) -> Outcome:
        description, prompt = await self._scrub(request.description, request.prompt)
        branch_id = self._new_id("br")

        def decide(state: State, at: str) -> list[Event]:
            return session.branch(
                state,
                self.policy.limits,
                at,
                branch_id=branch_id,
                description=description.text,
                prompt=prompt.text,
                tokens=self._count(request.prompt),
                redactions=description.redactions + prompt.redactions,
            )

        def tell(_before: State, _events: Sequence[Event], after: State) -> Shape:
            return answers.branched(after.branches[branch_id], after)

        asked = ["branch", description.text, prompt.text]
        return await self._change(caller, request.project, asked, decide, tell, begins=True)

    async def fold(self, caller: Caller, request: ReturnRequest) -> Outcome:
        (summary,) = await self._scrub(request.message)

        def decide(state: State, at: str) -> list[Event]:
            return session.fold(
                state,
                at,
                branch_id=request.branch_id,
                summary=summary.text,
                summary_tokens=self._count(request.message),
                redactions=summary.redactions,
            )

        def tell(_before: State, events: Sequence[Event], after: State) -> Shape:
            event = events[-1]
            assert isinstance(event, BranchFolded)
            return answers.folded(event, after, self._health(after, after.branches[event.branch_id]))

        asked = ["return", summary.text, request.branch_id or ""]
        return await self._change(caller, request.project, asked, decide, tell)

    async def record(self, caller: Caller, request: RecordRequest, source: str) -> Outcome:
        kind, content = await self._scrub(request.type, request.content)
        tokens = self._count(request.content) if request.tokens is None else request.tokens
        redactions = kind.redactions + content.redactions

        def decide(state: State, at: str) -> list[Event]:
            return session.record(
                state,
                at,
                type=kind.text,
                tokens=tokens,
                source=source,
                failed=request.failed,
                redactions=redactions,
            )

        def tell(_before: State, events: Sequence[Event], after: State) -> Shape:
            event = events[-1]
            assert isinstance(event, OperationCompleted)
            counter = self.policy.counter if request.tokens is None else None
            return answers.recorded(event, after, self._health(after, after.active), counter)

        asked = ["record", kind.text, content.text, str(tokens), str(request.failed), source]
        return await self._change(
            caller, request.project, asked, decide, tell, begins=True, operation_text=content.text
        )

    async def rollback(self, caller: Caller, request: RollbackRequest) -> Outcome:
        def decide(state: State, at: str) -> list[Event]:
            return session.rollback(state, at, branch_id=request.branch_id, restore_state=request.restore_state)

        def tell(before: State, events: Sequence[Event], after: State) -> Shape:
            return answers.rolled_back(request.branch_id, before, events, after)

        asked = ["rollback", request.branch_id, str(request.restore_state)]
        return await self._change(caller, request.project, asked, decide, tell)

    async def status(self, caller: Caller, request: LookRequest) -> Outcome:
        state = await self._sessions.look(_key(caller, request.project))
        return self._looked(answers.status(state, self.policy.limits), state)

    async def list_branches(self, caller: Caller, request: LookRequest) -> Outcome:
        state = await self._sessions.look(_key(caller, request.project))
        return self._looked(answers.listed(state), state)

    async def expand(self, caller: Caller, request: ExpandRequest) -> Outcome:
        """A branch's trajectory from the archive, as much of it as the budget holds."""
        state = await self._sessions.look(_key(caller, request.project))
        where = (caller.owner, request.project.hash, request.branch_id)
        page = Page(request.branch_id, request.budget_tokens, self._count)
        after_n, offset = request.after_n, request.offset
        while True:
            found = await self.store.trajectory(
                *where, after_n=after_n, limit=PAGE_ENTRIES, characters=offset + page.characters
            )
            if found is None:
                raise BranchNotFound(request.branch_id, state.session_id)
            for entry in mark_undone(found.entries, found.rollbacks):
                stopped_at = page.take(entry, offset)
                if stopped_at is not None:
                    return self._looked(page.answer(cursor_of(after_n, stopped_at)), state)
                after_n, offset = entry.n, 0
            if not found.entries:
                return self._looked(page.answer(None), state)

    async def search(self, owner: str, query: str, project: Project | None, limit: int = SEARCH_LIMIT) -> list[Summary]:
        return list(await self.store.search(owner, query, project.hash if project else None, limit))

    async def end_idle(self) -> int:
        """End the sessions without activity; their number."""
        return await self.store.expire(self._ago(seconds=self.policy.idle_s), self._ago(seconds=0))

    async def forget(self) -> None:
        """Forget what is past its retention."""
        await self.store.retain(self._ago(days=self.policy.archive_days), self._ago(days=self.policy.summary_days))

    def _ago(self, **span: int) -> str:
        return moment_told(self._clock() - timedelta(**span))

    # ---- what every answer carries

    @property
    def no_state(self) -> str:
        """The state told where there is no session."""
        return self._sessions.told(EMPTY)

    async def state_after_failure(self, caller: Caller, project: Project, problem: Exception) -> str:
        """The session's state, or the empty one if even that cannot be had. A store that failed is not asked again."""
        try:
            key = _key(caller, project)
            is_store = isinstance(problem, StoreUnavailable | StoreInvalid)
            state = self._sessions.last_known(key) if is_store else await self._sessions.look(key)
        except ContextError:
            return self.no_state
        return self._sessions.told(state)

    def told_safely(self, problem: FoldError) -> tuple[str, Shape]:
        """An error's message and data, scrubbed: they repeat what the caller sent."""
        try:
            data = {
                name: self._scrubber.scrub(value).text if isinstance(value, str) else value
                for name, value in problem.data.items()
            }
            return self._scrubber.scrub(problem.message).text, data
        except Exception:  # what cannot be scrubbed is not told
            return InternalError.message, {}

    # ----

    async def _change(
        self,
        caller: Caller,
        project: Project,
        asked: list[str],
        decide: Callable[[State, str], list[Event]],
        tell: Callable[[State, Sequence[Event], State], Shape],
        *,
        begins: bool = False,
        operation_text: str = "",
    ) -> Outcome:
        given, name = await self._scrub(project.given, caller.session_name or "")
        (path,) = await self._scrub(displayed(given.text))
        operation = None
        if caller.operation_id is not None:
            operation = Operation(hashed(check_operation_id(caller.operation_id)), hashed(encode(asked)))
        change = Change(
            _key(caller, project),
            Beginning(self._new_id("sess"), path.text, name.text or None),
            begins,
            operation,
            decide,
            tell,
            operation_text,
        )
        try:
            outcome = await self._sessions.change(change)
        except (StoreUnavailable, StoreInvalid):
            self._note(Noted(store_failed=True))
            raise
        self._note(Noted(events=outcome.events))
        return outcome

    def _looked(self, shape: Shape, state: State) -> Outcome:
        return Outcome(encode(shape), self._sessions.told(state))

    def _health(self, state: State, branch: Branch | None) -> Shape:
        return answers.health_told(health(state, self.policy.limits, self.policy.thresholds, branch))

    async def _scrub(self, *texts: str) -> list[Scrubbed]:
        try:
            length = sum(map(len, texts))
            if length <= SCRUB_INLINE_LENGTH:
                scrubbed = [self._scrubber.scrub(text) for text in texts]
            else:
                lane = self._lanes[length > SCRUB_LONG_LENGTH]
                loop = asyncio.get_running_loop()
                scrubbed = await loop.run_in_executor(lane, lambda: [self._scrubber.scrub(text) for text in texts])
        except Exception as problem:  # fail closed: whatever went wrong, nothing unscrubbed goes on
            raise ScrubFailed(type(problem).__name__) from None
        if rules := [rule for one in scrubbed for rule in one.rules]:
            self._note(Noted(rules=rules))
        return scrubbed


def _key(caller: Caller, project: Project) -> SessionKey:
    name = caller.session_name
    name_hash = "" if name is None else hashed(check_session_name(name))
    return SessionKey(caller.owner, project.hash, name_hash)
